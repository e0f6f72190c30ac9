"""A ``llama_cpp.Llama`` that takes a lease of the core budget around each native computation.

Completion, chat, streaming, embedding, speculative decoding and ``eval`` all end in ``Llama._ctx.decode`` (or
``encode``): two instance attributes on that one context stand before the methods of its class, so that no other model
is touched. Pictures are decoded by functions of ``llama_cpp.mtmd_cpp`` that get the context's pointer; those are
wrapped in their module, and pass on at once what belongs to no governed model.
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, TypeVar

from ..environment import warn_once_if_late
from ..governor.core_budget import core_budget
from ..governor.limiting import ThreadLimit, find_outer
from ..importing import when_imported
from ..pools.ledger import current
from ..profiles.lookup import Tuned, find_counts
from ..state import process
from .llama_builds import note_endless_spin
from .llama_hook import COUNTS, MARK

R = TypeVar("R")

DISTRIBUTION: Final = "llama-cpp-python"
_METHODS: Final = ("decode", "encode")
_GOVERNED: Final = "llama-governed"
_LEASED: Final = "_cgroup_threads_leased"
# Modules that compute for a context outside of its methods: their functions, and where each takes the context.
_PICTURES: Final[Mapping[str, Mapping[str, int]]] = {
    "llama_cpp.mtmd_cpp": {
        "mtmd_helper_eval_chunk_single": 1,
        "mtmd_helper_eval_chunks": 1,
        "mtmd_helper_decode_image_chunk": 1,
    },
    "llama_cpp.llava_cpp": {"llava_eval_image_embed": 0},  # of older releases
}


def govern(llm: Any, tuned: Tuned | None = None) -> None:
    """Lease cores around each native call of ``llm``, and compute with their number; at most the counts it was given.

    Counts that were filled in for it are no limit: the budget may have grown since. In their place are the tuned ones
    past which threads were waste; those of ``tuned``, else of a profile of the model's file. ``llm.n_threads`` and
    ``llm.n_threads_batch`` are read at each call and never written. A model that is governed, or closed, stays as it
    is.
    """
    warn_once_if_late(stacklevel=4)
    context = getattr(llm, "_ctx", None)
    if getattr(context, "ctx", None) is None or _find(context) is not None:
        return
    if tuned is None:  # it reads files: not under the lock
        left = [name for name in COUNTS if _is_filled(llm, name)]
        tuned = find_counts(getattr(llm, "model_path", None), DISTRIBUTION, left)
    with process.lock:
        if _find(context) is not None:
            return
        governor = LlamaGovernor(llm, tuned.tops)
        governor.bind()
        _governed().add(governor)
    note_endless_spin({name: _count(getattr(llm, name, None)) for name in COUNTS})
    for name in _PICTURES:
        when_imported(name, _lease_pictures)


def release(llm: Any) -> None:
    """End what ``govern`` began: the context has the model's own counts and methods again. Twice does nothing."""
    with process.lock:
        governor = _find(getattr(llm, "_ctx", None))
        if governor is not None:  # closed models have none
            _governed().discard(governor)
            governor.unbind()


def resize(present: int, leased: int, top: int) -> int:
    """The count to compute with: it shrinks at once, and grows only to twice its size or to the top.

    Each change makes OpenMP build its team anew.
    """
    return leased if leased < present or leased >= min(top, 2 * present) else present


class LlamaGovernor:
    """What stands before the methods of one context. It holds no reference that keeps the model alive."""

    __slots__ = (
        "__weakref__",
        "_active",
        "_attributes",
        "_before",
        "_context",
        "_counts",
        "_llama",
        "_lock",
        "_native",
        "_tops",
    )

    def __init__(self, llm: Any, tops: Mapping[str, int]) -> None:
        from llama_cpp import llama_cpp as native

        self._native = native
        self._llama = weakref.ref(llm)
        self._context = weakref.ref(llm._ctx)
        self._lock = threading.RLock()
        """Held while counts are set, so that no call sets its own after ``unbind`` has set the model's."""
        self._active = True
        self._tops = tops
        """The most threads for counts that were filled in, where a tuning has found it."""
        self._attributes = tuple(getattr(llm, name, None) for name in COUNTS)
        self._counts = self._live(llm._ctx.ctx)
        """What the context computed with before, and what the model said then."""
        self._before = {name: vars(llm._ctx)[name] for name in _METHODS if name in vars(llm._ctx)}
        """Instance attributes that others had put there."""

    @property
    def context(self) -> Any:
        """The ``LlamaContext``; None once it is gone."""
        return self._context()

    def bind(self) -> None:
        vars(self.context).update(decode=self.decode, encode=self.encode)

    def unbind(self) -> None:
        """Take the methods back, unless others were put before them: then these pass calls on."""
        context, llm = self.context, self._llama()
        for name in _METHODS:
            if getattr(vars(context).get(name), "__self__", None) is self:
                del vars(context)[name]
                vars(context).update({name: self._before[name]} if name in self._before else {})
        now = tuple(getattr(llm, name, None) for name in COUNTS)
        counts = (
            before if value == then else _count(value) or before
            for before, then, value in zip(self._counts, self._attributes, now, strict=True)
        )
        with self._lock:
            self._active = False
            if context.ctx is not None:
                self._native.llama_set_n_threads(context.ctx, *counts)

    def decode(self, batch: Any) -> Any:
        return self._compute("decode", batch, many=batch.batch.n_tokens > 1)

    def encode(self, batch: Any) -> Any:
        return self._compute("encode", batch, many=True)

    def _compute(self, name: str, batch: Any, *, many: bool) -> Any:
        context = self.context
        before = self._before.get(name)
        method = before if before is not None else getattr(type(context), name).__get__(context)
        return self.lease(method, batch, many=many)

    def lease(self, call: Callable[..., R], *arguments: Any, many: bool) -> R:
        """``call(*arguments)`` with the threads of a lease; ``many`` says that it computes more than one token.

        The model may be released or closed while the call waits for cores: a released one computes with its own counts,
        a closed one raises RuntimeError, since its memory is gone.
        """
        llm, context = self._llama(), self.context
        if not self._active or llm is None or context is None or context.ctx is None:
            return call(*arguments)
        name = COUNTS[many]
        top = self._tops.get(name) if _is_filled(llm, name) else _count(getattr(llm, name, None))
        most = _attainable(top)
        with ThreadLimit(top, step=True) as lease:
            pointer = context.ctx
            if pointer is None:
                raise RuntimeError("the model was closed while this call waited for cores")
            with self._lock:
                if self._active:
                    live = self._live(pointer)
                    threads = resize(live[many], lease.threads, most)
                    # Both counts the same: a batch may end in one token alone, which takes the other count.
                    if live != (threads, threads):
                        self._native.llama_set_n_threads(pointer, threads, threads)
            return call(*arguments)

    def _live(self, pointer: Any) -> tuple[int, int]:
        return self._native.llama_n_threads(pointer), self._native.llama_n_threads_batch(pointer)


def governors() -> list[LlamaGovernor]:
    """Those of the models governed now; of those closed since nothing is left."""
    with process.lock:
        found = _governed()
        for governor in tuple(found):
            if getattr(governor.context, "ctx", None) is None:
                found.discard(governor)
        return list(found)


def _governed() -> weakref.WeakSet[LlamaGovernor]:
    """The governors by weak reference: each lives as long as the context that it is bound to."""
    found = process.hooks.get(_GOVERNED)
    if not isinstance(found, weakref.WeakSet):
        found = process.hooks[_GOVERNED] = weakref.WeakSet()
    return found


def _find(context: Any) -> LlamaGovernor | None:
    if context is None:
        return None
    return next((governor for governor in governors() if governor.context is context), None)


def _find_pointer(pointer: Any) -> LlamaGovernor | None:
    address = getattr(pointer, "value", pointer)
    if address is None:
        return None
    # Another thread may drop or close a model meanwhile.
    return next((governor for governor in governors() if getattr(governor.context, "ctx", None) == address), None)


def _is_filled(llm: Any, name: str) -> bool:
    """Whether the count of ``llm`` under ``name`` is the one we filled in, and not its user's."""
    filled = vars(llm).get(MARK) or {}
    return name in filled and filled[name] == getattr(llm, name, None)


def _attainable(top: int | None) -> int:
    """The most threads that a lease here and now could have: what ``resize`` calls the top.

    A model with more threads than the budget has cores would never come to its own count.
    """
    outer = find_outer()
    if outer is not None:
        most = outer.threads
    else:
        core = core_budget()
        ledger = process.ledger or current()
        thread = ledger.local.thread or ledger.mine()
        most = min(core.size.cores, core.top)
        if not thread.stale:
            most = min(most, thread.levels.limit)  # an ``initializer``'s
    return most if top is None else min(most, top)


def _count(value: Any) -> int | None:
    """A thread count as the model has it in an attribute; None where that is none."""
    try:
        count = operator.index(value)
    except TypeError:
        return None
    return count if count >= 1 else None


def _lease_pictures(module: ModuleType) -> None:
    """Wrap the functions of ``module`` that compute for a context; once an import."""
    for name, position in _PICTURES[module.__name__].items():
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, _LEASED):
            setattr(module, name, _leased(function, position))


def _leased(function: Callable[..., R], position: int) -> Callable[..., R]:
    @functools.wraps(function)
    def call(*arguments: Any) -> R:
        governor = _find_pointer(arguments[position]) if len(arguments) > position else None
        return function(*arguments) if governor is None else governor.lease(function, *arguments, many=True)

    setattr(call, _LEASED, True)
    return call
