"""Pipelines of transformers: a lease for each forward pass of the model, so one a batch, or one a generated token."""

from __future__ import annotations

from typing import Any, Final

from . import torch_modules
from .instance_methods import LeasedMethod, put, take_back

_FORWARD: Final = "forward"


def govern(pipeline: Any) -> None:
    """Govern the pipeline's model; where that is no torch module (ONNX Runtime's), the pipeline's own ``forward``."""
    if _is_module(pipeline.model):
        torch_modules.govern(pipeline.model, pipeline)
    else:
        from .back_ends import session_threads

        put(pipeline, _FORWARD, LeasedMethod, session_threads(pipeline))


def release(pipeline: Any) -> None:
    """Give the pipeline and its model back what ``govern`` had replaced; a model that others share stays theirs."""
    if _is_module(pipeline.model):
        torch_modules.release(pipeline.model, pipeline)
    take_back(pipeline, _FORWARD)


def _is_module(model: object) -> bool:
    from torch import nn

    return isinstance(model, nn.Module)
