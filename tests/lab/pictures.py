"""A language model that sees, in two GGUF files of random weights: a decoder, and an encoder with a llava projector."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from benchmarks.gguf_models import _settled, cache_directory

from . import require_module

# What both files have in common: an embedded patch of a picture takes the place of an embedded token.
WIDTH = 64
# The decoder.
LAYERS, HEADS, MLP, POSITIONS = 2, 4, 128, 1024
# The encoder: large enough that its threads can be watched while it computes. The last layer is left out (llava).
SIDE, PATCH, EYE_WIDTH, EYE_HEADS, EYE_MLP, EYE_LAYERS = 128, 8, 256, 4, 1024, 4
PATCHES = (SIDE // PATCH) ** 2
EPSILON = 1e-5
TEMPLATE = "{% for message in messages %}{% for part in message.content %}{{ part.text }} {% endfor %}{% endfor %}"


def decoder_gguf() -> str:
    """A decoder of Llama's architecture with a vocabulary of bytes."""
    return _written("tiny-llama.f32.gguf", _write_decoder)


def projector_gguf() -> str:
    """The encoder of pictures for it, which makes PATCHES tokens of each; what llama.cpp calls an mmproj file."""
    return _written("tiny-clip.f32.gguf", _write_projector)


def png(seed: int, side: int = 48) -> bytes:
    """A picture of coloured noise, another one for each ``seed``."""
    import random

    source = random.Random(seed)
    rows = b"".join(b"\0" + source.randbytes(3 * side) for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)  # 8 bits for each of three colours
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _written(name: str, write: Any) -> str:
    for module in ("gguf", "numpy"):
        require_module(module)
    target: Path = cache_directory() / name
    return str(target if target.exists() else _settled(target, write))


def _finish(out: Any, tensors: dict[str, tuple[int, ...]]) -> None:
    """Random weights; those of norms are around 1. The same on every machine."""
    import numpy

    source = numpy.random.default_rng(0)
    for name, size in tensors.items():
        norm = name.endswith(".weight") and len(size) == 1
        # As wide as a matrix of so many columns keeps the size of what it is multiplied with.
        spread = 0.1 if len(size) == 1 else float(numpy.prod(size[1:])) ** -0.5
        out.add_tensor(name, (source.standard_normal(size) * spread + norm).astype("float32"))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _write_decoder(path: Path) -> None:
    import gguf

    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny-llama")
    out.add_context_length(POSITIONS)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(MLP)
    out.add_block_count(LAYERS)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(EPSILON)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types(kinds)
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_chat_template(TEMPLATE)
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), WIDTH),
        "output_norm.weight": (WIDTH,),
        "output.weight": (len(tokens), WIDTH),
    }
    for layer in range(LAYERS):
        for name, size in {
            "attn_norm": (WIDTH,),
            **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH)),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (MLP, WIDTH),
            "ffn_up": (MLP, WIDTH),
            "ffn_down": (WIDTH, MLP),
        }.items():
            tensors[f"blk.{layer}.{name}.weight"] = size
    _finish(out, tensors)


def _write_projector(path: Path) -> None:
    import gguf

    out = gguf.GGUFWriter(path, "clip")
    out.add_name("tiny-clip")
    out.add_type("mmproj")
    out.add_clip_has_vision_encoder(True)
    out.add_bool("clip.has_llava_projector", True)
    out.add_clip_projector_type("mlp")
    out.add_vision_projection_dim(WIDTH)
    out.add_vision_image_size(SIDE)
    out.add_vision_patch_size(PATCH)
    out.add_vision_embedding_length(EYE_WIDTH)
    out.add_vision_feed_forward_length(EYE_MLP)
    out.add_vision_block_count(EYE_LAYERS)
    out.add_vision_head_count(EYE_HEADS)
    out.add_vision_attention_layernorm_eps(EPSILON)
    out.add_vision_image_mean([0.5] * 3)
    out.add_vision_image_std([0.5] * 3)
    out.add_vision_use_gelu(True)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    tensors: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (EYE_WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": (PATCHES, EYE_WIDTH),
        "mm.0.weight": (WIDTH, EYE_WIDTH),
        "mm.0.bias": (WIDTH,),
        "mm.2.weight": (WIDTH, WIDTH),
        "mm.2.bias": (WIDTH,),
    }
    for layer in range(EYE_LAYERS):
        for name, size in {
            **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (EYE_WIDTH, EYE_WIDTH)),
            **dict.fromkeys(("ln1", "ln2"), (EYE_WIDTH,)),
            "ffn_up": (EYE_MLP, EYE_WIDTH),
            "ffn_down": (EYE_WIDTH, EYE_MLP),
        }.items():
            tensors[f"v.blk.{layer}.{name}.weight"] = size
            tensors[f"v.blk.{layer}.{name}.bias"] = size[:1]
    _finish(out, tensors)
