"""Where the files of a loaded model are, which its tuned thread counts are looked up by."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from ..profiles.lookup import find_counts

# What computes, by the name of its distribution, and its count's name in a profile.
_TORCH: Final = "torch"
_THREADS: Final = "threads"
_ONNXRUNTIME: Final = "onnxruntime"
_INTRA_OP: Final = "intra_op_num_threads"
_HUB: Final = "huggingface_hub"


def find_intra_op(path: object) -> int | None:
    """The tuned thread count of an ONNX Runtime session of the model in ``path``; None without one that holds here."""
    return find_counts(path, _ONNXRUNTIME, (_INTRA_OP,)).counts.get(_INTRA_OP)


def find_top(model: Any) -> int | None:
    """The most threads that a tuning found useful for ``model`` of sentence-transformers on torch; None for others."""
    roots = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    on_torch = getattr(model, "backend", "torch") == "torch" and hasattr(model, "modules")
    if "sentence_transformers" not in roots or not on_torch:
        return None
    return find_counts(directory_of(model), _TORCH, (_THREADS,)).tops.get(_THREADS)


def directory_of(model: Any) -> str | None:
    """The directory that a model of sentence-transformers was loaded from, also by a name on the hub.

    None where that is not known: made of modules, without a transformer, or gone.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        name = getattr(config, "_name_or_path", None)
        if isinstance(name, str) and name:
            found = name if os.path.isdir(name) else _from_hub(name, getattr(config, "_commit_hash", None))
            return None if found is None else _whole(found)
    return None


def _from_hub(name: str, revision: object) -> str | None:
    """Where the hub's cache has the files of a model that was loaded by name."""
    hub = sys.modules.get(_HUB)
    if hub is None or not hasattr(hub, "try_to_load_from_cache"):
        return None
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    try:
        found = hub.try_to_load_from_cache(name, "config.json", cache_dir=folder, revision=revision)
    except (ValueError, OSError):  # no name of a model on the hub: a directory that has gone since
        return None
    return os.path.dirname(found) if isinstance(found, str) else None


def _whole(directory: str) -> str:
    """The model's directory: older ones keep their transformer in one inside, 0_Transformer."""
    parent = os.path.dirname(os.path.abspath(directory))
    return parent if os.path.isfile(os.path.join(parent, "modules.json")) else directory
