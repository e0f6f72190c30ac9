"""Torch modules, and the models of sentence-transformers among them: a lease for each forward pass.

``encode`` and ``predict`` run the model once a batch, so a long call shrinks and grows between batches as others come
and go; tokenisation is outside. A back end with a pool of its own (onnx, openvino) is admitted by the lease, and asks
for at most the threads it has. A tuned count is the most that a batch asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..importing import when_imported
from ..state import process
from .back_ends import session_threads
from .instance_methods import UNCOMPILED, InstanceMethod, LeasedMethod, enter, leave, put, take_back
from .origins import find_top
from .worker_pools import POOL_START, PoolStart

_FORWARD: Final = "forward"
_REPLICATE: Final = "_replicate_for_data_parallel"


class Replicate(InstanceMethod):
    """What ``DataParallel`` makes replicas with, for other devices: they get the class's ``forward``, not ours.

    torch copies the ``__dict__``, and ours would compute with the parameters of the module it was made for.
    """

    __slots__ = ()

    def __call__(self) -> Any:
        replica = self.__wrapped__()
        for name in (_FORWARD, _REPLICATE):
            take_back(replica, name)
        return replica


def govern(model: Any, claimant: Any = None) -> None:
    """Let the ``forward`` of ``model``, of this object alone, take a lease; its pools of processes get their shares.

    ``claimant`` is the object in whose name that is, if not the model itself: a pipeline.
    """
    when_imported("torch._dynamo", skip_our_code)
    claimant = model if claimant is None else claimant
    counts = [(module, session_threads(module)) for module in _modules_of(model)]
    top = find_top(model) if any(own is None for _, own in counts) else None
    for module, own in counts:
        put(module, _FORWARD, LeasedMethod, top if own is None else own, claimant)
        if hasattr(type(module), _REPLICATE):
            put(module, _REPLICATE, Replicate, claimant=claimant)
    if hasattr(type(model), POOL_START):
        put(model, POOL_START, PoolStart, claimant=claimant)


def release(model: Any, claimant: Any = None) -> None:
    """Give ``model`` back what ``govern`` had replaced in the same name."""
    claimant = model if claimant is None else claimant
    for module in _modules_of(model):
        take_back(module, _FORWARD, claimant)
        take_back(module, _REPLICATE, claimant)
    take_back(model, POOL_START, claimant)


def _modules_of(model: Any) -> Iterator[Any]:
    """The modules that are run: ``model``, and where that is an encoder and a decoder its encoder.

    transformers' ``generate`` runs the encoder by itself, and the whole model for each token.
    """
    module = _module_of(model)
    yield module
    if getattr(getattr(module, "config", None), "is_encoder_decoder", False) is True and hasattr(module, "get_encoder"):
        encoder = module.get_encoder()
        if encoder is not module and hasattr(encoder, _FORWARD):
            yield encoder


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
