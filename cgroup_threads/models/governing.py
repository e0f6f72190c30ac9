"""``govern`` and ``release``: a model that exists already takes leases of the core budget, or no longer."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, TypeVar

from ..errors import InvalidArgumentError

Model = TypeVar("Model")

# Root package and class of what can be governed, and the module here that does it. Looked up by name along the class's
# ancestors, so that nothing is imported to find out; the first that fits counts.
_ADAPTERS: Final = (
    ("llama_cpp", "Llama", "llama_leases"),
    ("transformers", "Pipeline", "pipelines"),
    ("sentence_transformers", "SentenceTransformer", "torch_modules"),
    ("sentence_transformers", "CrossEncoder", "torch_modules"),
    ("torch", "Module", "torch_modules"),
    ("onnxruntime", "InferenceSession", "onnxruntime"),
)


def govern(model: Model) -> Model:
    """Let ``model`` take a lease of the core budget around each native computation, and compute with its threads.

    For a ``llama_cpp.Llama``, a ``SentenceTransformer``, ``CrossEncoder`` or ``SparseEncoder``, a transformers
    pipeline, any other ``torch.nn.Module`` and an onnxruntime ``InferenceSession``. Returns the same object, changed
    in place; a second call changes nothing. ``release`` ends it. Raises InvalidArgumentError for anything else.
    """
    _adapter(model).govern(model)
    return model


def release(model: Model) -> Model:
    """Give ``model`` back its own thread counts and methods, as if ``govern`` had not been called; returns it.

    A call that is in flight keeps its lease to its end. A model that other pipelines share stays governed for these.
    Releasing what is not governed does nothing. Raises InvalidArgumentError for what ``govern`` does not take either.
    """
    _adapter(model).release(model)
    return model


def _adapter(model: object) -> Any:
    for cls in type(model).__mro__:
        root = cls.__module__.partition(".")[0]
        for package, name, adapter in _ADAPTERS:
            if root == package and cls.__name__ == name:
                return import_module(f"{__package__}.{adapter}")
    known = "a llama_cpp.Llama, a torch.nn.Module, a transformers pipeline or an onnxruntime.InferenceSession"
    raise InvalidArgumentError("model", type(model).__name__, known)
