"""Torch modules, and the models of sentence-transformers among them: a lease for each forward pass.

``encode`` and ``predict`` run the model once a batch, so a long call shrinks and grows between batches as others come
and go; tokenisation is outside. A back end with a pool of its own (onnx, openvino) is admitted by the lease, and asks
for at most the threads it has.
"""

from __future__ import annotations

from typing import Any, Final

from ..importing import when_imported
from ..state import process
from .back_ends import session_threads
from .instance_methods import UNCOMPILED, LeasedMethod, enter, leave, put, take_back
from .worker_pools import POOL_START, PoolStart

_FORWARD: Final = "forward"


def govern(model: Any) -> None:
    """Let the ``forward`` of ``model``, of this object alone, take a lease; its pools of processes get their shares."""
    target = _module_of(model)
    when_imported("torch._dynamo", skip_our_code)
    put(target, _FORWARD, LeasedMethod, session_threads(target))
    if hasattr(type(model), POOL_START):
        put(model, POOL_START, PoolStart)


def release(model: Any) -> None:
    """Give ``model`` back what ``govern`` had replaced."""
    take_back(_module_of(model), _FORWARD)
    take_back(model, POOL_START)


def _module_of(model: Any) -> Any:
    """A CrossEncoder of sentence-transformers before 4 is no module itself, and has one."""
    return model if hasattr(model, _FORWARD) else model.model


def skip_our_code(dynamo: Any) -> None:
    """Let torch's compiler step over our frames: a lease is taken when a model runs, not when it is traced.

    Stepped over, they may still call what it would look into, other libraries' code: entering and leaving is disabled
    for it as a whole.
    """
    dynamo.trace_rules.add("cgroup_threads")
    process.hooks[UNCOMPILED] = (dynamo.disable(enter), dynamo.disable(leave))
