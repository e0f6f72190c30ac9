"""Imports that bring pools: active limits are applied to them right after."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from ..importing import when_imported
from ..state import process
from . import numba_launch

# Modules whose import brings pools, or makes ready what drives one. A limit that is active is applied right after.
WATCHED: Final = (
    "numpy",
    "scipy.linalg",
    "sklearn",
    "sklearn.utils",
    "torch",
    "cv2",
    "numexpr",
    "numba",
    "pyarrow",
    "mkl",
    "faiss",
    "onnxruntime",
    "tensorflow",
    "llama_cpp",
    "ctranslate2",
    "xgboost",
    "lightgbm",
    "jaxlib",
    "blis",
)


def watch_imports() -> None:
    """Have active limits applied to libraries right after they are imported, unless CGROUP_THREADS_PATCH=0."""
    if process.settings.patch:
        for name in WATCHED:
            when_imported(name, _imported)


def _imported(module: ModuleType) -> None:
    numba_launch.watch()
    if process.ledger is not None:
        process.ledger.imported()
