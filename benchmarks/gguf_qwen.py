"""An embedding model of Qwen3-0.6B's shape in Q4_1, with random weights: what it computes is noise, at the real cost.

596 million parameters in 375 MB at 28 layers, as the embedding models of that size have. Written once into the cache
directory of gguf_models.py; needs gguf and numpy. The vocabulary has its full length but only bytes and single letters
in use: "a b c" is three tokens, and one more ends the text.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gguf_models import _settled, cache_directory

LAYERS = 28
WIDTH, MLP, HEADS, KV_HEADS, HEAD, WORDS = 1024, 3072, 16, 8, 128, 151_936
BLOCK, BLOCK_BYTES = 32, 20  # Q4_1: scale and minimum in 16 bits each, then 32 x 4 bits


def qwen(layers: int = LAYERS) -> Path:
    """The file; with fewer layers each embedding takes less time."""
    target = cache_directory() / f"random-qwen3-0.6b-{layers}.q4_1.gguf"
    return target if target.exists() else _settled(target, lambda path: _write(path, layers))


def parameters(layers: int = LAYERS) -> int:
    """How many weights ``qwen(layers)`` has."""
    total = WIDTH
    for _, *size in _matrices(layers):
        total += size[0] * size[1]
    return total + layers * (2 * WIDTH + 2 * HEAD)


def _matrices(layers: int) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns."""
    yield "token_embd", WORDS, WIDTH
    for layer in range(layers):
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD, WIDTH),
            ("attn_k", KV_HEADS * HEAD, WIDTH),
            ("attn_v", KV_HEADS * HEAD, WIDTH),
            ("attn_output", WIDTH, HEADS * HEAD),
            ("ffn_gate", MLP, WIDTH),
            ("ffn_up", MLP, WIDTH),
            ("ffn_down", WIDTH, MLP),
        ):
            yield f"blk.{layer}.{name}", rows, columns


def _q4_1(source: Any, rows: int, columns: int) -> Any:
    """Random weights around 0 with a deviation of 1 / sqrt(columns), in the bytes of Q4_1."""
    import numpy

    blocks = source.integers(0, 256, (rows, columns // BLOCK, BLOCK_BYTES), dtype=numpy.uint8)
    scale = columns**-0.5 / 4.61  # the numbers 0 to 15 deviate by 4.61 from their mean, 7.5
    blocks[:, :, :4] = numpy.array([scale, -7.5 * scale], dtype="<f2").view(numpy.uint8)
    return blocks.reshape(rows, -1)


def _write(path: Path, layers: int) -> None:
    import gguf
    import numpy

    out = gguf.GGUFWriter(path, "qwen3")
    out.add_name("random Qwen3-0.6B")
    out.add_context_length(32_768)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(MLP)
    out.add_block_count(layers)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_rope_freq_base(1e6)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_pooling_type(gguf.PoolingType.LAST)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    _write_vocabulary(out)
    source = numpy.random.default_rng(0)
    for name, rows, columns in _matrices(layers):
        out.add_tensor(f"{name}.weight", _q4_1(source, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    for layer in range(layers):
        for name, width in (("attn_norm", WIDTH), ("ffn_norm", WIDTH), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            out.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(width, "float32"))
    out.add_tensor("output_norm.weight", numpy.ones(WIDTH, "float32"))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _write_vocabulary(out: Any) -> None:
    import gguf

    # GPT-2's spelling of bytes: printable ones stand for themselves, the others for characters from U+0100 on.
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    spelt = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    space = spelt[ord(" ")]
    tokens = [*spelt, *(space + letter for letter in string.ascii_lowercase), "<|endoftext|>"]
    end = len(tokens) - 1
    types = [gguf.TokenType.NORMAL] * end + [gguf.TokenType.CONTROL] + [gguf.TokenType.UNUSED] * (WORDS - end - 1)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([*tokens, *(f"<|unused_{number}|>" for number in range(end + 1, WORDS))])
    out.add_token_types(types)
    out.add_token_merges([f"{space} {letter}" for letter in string.ascii_lowercase])
    out.add_eos_token_id(end)
    out.add_pad_token_id(end)
    out.add_add_bos_token(False)
    out.add_add_eos_token(True)
