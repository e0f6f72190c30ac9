"""Factories for the models of sentence-transformers, which have no thread argument of their own.

What their back ends compute with is reached in three ways: torch through its process-wide setters, ONNX Runtime and
OpenVINO through ``model_kwargs``, which sentence-transformers hands to the loader of the model. Its other routes
(``provider_options``, a top-level ``INFERENCE_NUM_THREADS``) are accepted and ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

from ..environment import warn_once_if_late
from ..errors import InvalidArgumentError, MissingExtraError
from ..planning import current_plan
from . import torch_modules
from .back_ends import limit_torch, onnx_arguments, openvino_arguments
from .keywords import reject_unknown
from .plans import warn_above_usable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
    from torch import nn

Backend = Literal["torch", "onnx", "openvino"]
# Renamed in sentence-transformers 6, still understood by a decorator around the constructor.
_RENAMED: Final = ("tokenizer_kwargs",)


def create_sentence_transformer(
    model: str | os.PathLike[str] | Sequence[nn.Module], *, backend: Backend = "torch", **kwargs: Any
) -> SentenceTransformer:
    """Return ``SentenceTransformer(model, backend=backend, **kwargs)`` that computes with the plan's thread count.

    ``model`` is a name, a directory or a list of modules. For every back end torch's intra-op count is lowered to the
    plan's if it is above (torch pools the outputs of the others too; threads started later adopt it), or to the user's
    own OMP_NUM_THREADS or MKL_NUM_THREADS if that is more; its inter-op count is set if torch still accepts that.
    ``onnx`` gets ``SessionOptions`` and ``openvino`` a configuration with the count in ``model_kwargs``; values of the
    caller are kept, and bring a CgroupThreadsWarning above the usable cores. A ``SessionOptions`` object of the caller
    is completed in place. The model is governed: each batch takes a lease of the core budget, on torch of at most the
    tuned count of a profile that holds here.

    Raises MissingExtraError without sentence-transformers (or onnxruntime), UnknownArgumentError for a keyword the
    constructor does not declare, InvalidArgumentError for another ``backend``; and what the constructor raises.
    """
    cls = _find_class("SentenceTransformer", backend)
    warn_once_if_late(stacklevel=3)
    messages = _complete(cls, backend, kwargs)
    warn_above_usable(messages)
    made: SentenceTransformer = _construct(cls, model, backend, kwargs)
    return made


def create_cross_encoder(
    model: str | os.PathLike[str] | Sequence[nn.Module], *, backend: Backend = "torch", **kwargs: Any
) -> CrossEncoder:
    """Return ``CrossEncoder(model, backend=backend, **kwargs)``; see ``create_sentence_transformer``."""
    cls = _find_class("CrossEncoder", backend)
    warn_once_if_late(stacklevel=3)
    messages = _complete(cls, backend, kwargs)
    warn_above_usable(messages)
    made: CrossEncoder = _construct(cls, model, backend, kwargs)
    return made


def create_sparse_encoder(
    model: str | os.PathLike[str] | Sequence[nn.Module], *, backend: Backend = "torch", **kwargs: Any
) -> SparseEncoder:
    """Return ``SparseEncoder(model, backend=backend, **kwargs)``; see ``create_sentence_transformer``.

    It came with sentence-transformers 5: ImportError before that.
    """
    cls = _find_class("SparseEncoder", backend)
    warn_once_if_late(stacklevel=3)
    messages = _complete(cls, backend, kwargs)
    warn_above_usable(messages)
    made: SparseEncoder = _construct(cls, model, backend, kwargs)
    return made


def _find_class(name: str, backend: str) -> Any:
    if backend not in ("torch", "onnx", "openvino"):
        raise InvalidArgumentError("backend", backend, "'torch', 'onnx' or 'openvino'")
    try:
        import sentence_transformers
    except ModuleNotFoundError as error:
        if error.name != "sentence_transformers":
            raise
        raise MissingExtraError("sentence-transformers", "sentence-transformers") from error
    try:
        return getattr(sentence_transformers, name)
    except AttributeError:
        raise ImportError(f"sentence-transformers {sentence_transformers.__version__} has no {name}") from None


def _complete(cls: Any, backend: str, kwargs: dict[str, Any]) -> list[str]:
    """Check ``kwargs``, give torch and the back end their counts, and return what is to be warned of."""
    reject_unknown(kwargs, cls.__init__, cls.__name__, _RENAMED)
    plan = current_plan()
    messages = [limit_torch(plan)]
    if backend != "torch":
        complete = onnx_arguments if backend == "onnx" else openvino_arguments
        kwargs["model_kwargs"], above = complete(kwargs.get("model_kwargs"), plan)
        messages.append(above)
    return messages


def _construct(cls: Any, model: Any, backend: str, kwargs: dict[str, Any]) -> Any:
    if isinstance(model, (str, os.PathLike)):
        made = cls(os.fspath(model), backend=backend, **kwargs)
    else:
        made = cls(modules=list(model), backend=backend, **kwargs)
    torch_modules.govern(made)
    return made
