"""``limit_threads``: a block, a coroutine's block or a function that computes with a limited number of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, overload

from ..environment import warn_once_if_late
from ..errors import InvalidArgumentError, LeaseError, check_threads
from ..planning import current_plan
from ..pools.ledger import Lease, current
from ..state import process
from .wrapping import wrap

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Lease", "ThreadLimit", "initializer", "limit_threads", "run"]

# The innermost lease of this context. ``asyncio.to_thread`` and anyio copy the context into the worker thread: a ``with
# limit_threads()`` there finds what the coroutine has reserved.
_innermost: Final[ContextVar[Lease | None]] = ContextVar("cgroup_threads_lease", default=None)


class ThreadLimit:
    """A limit to enter by ``with``, ``async with`` or as a decorator, again and again, also by several threads.

    ``with`` holds for the native pools of the calling thread and for those the process shares, until the block ends;
    it only ever lowers. ``async with`` sets no limit on the event loop's thread: it reserves the count, and a ``with
    limit_threads()`` in a worker thread that got the context (``run``, ``asyncio.to_thread``, anyio) adopts it. A
    decorated generator is limited while it runs, not between its yields.
    """

    __slots__ = ("_open", "_patience", "_threads")

    def __init__(self, threads: int | None = None, *, patience: float | None = None) -> None:
        self._threads = threads if threads is None else check_threads(threads)
        self._patience = _check_patience(patience)
        self._open: list[Lease] = []
        """The entries not left yet. ``with`` finds its own by context; this is for an exit in another one."""

    def __enter__(self) -> Lease:
        if not process.warned:
            warn_once_if_late(stacklevel=3)
        ledger = process.ledger or current()
        lease = self._lease()
        try:
            ledger.enter(lease)
            self._open.append(lease)
            _innermost.set(lease)
        except BaseException:
            ledger.abandon(lease)
            raise
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease = self._leave()
        ledger = lease._ledger
        if ledger is not None:
            ledger.leave(lease)

    async def __aenter__(self) -> Lease:
        if not process.warned:
            warn_once_if_late(stacklevel=3)
        lease = self._lease()
        lease._ledger = process.ledger or current()
        self._open.append(lease)
        _innermost.set(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()._active = False

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Any, /) -> Any: ...
    def __call__(self, function: Any, /) -> Any:
        """``function`` under this limit, with its signature; coroutines, generators and methods stay what they are."""
        return wrap(self, function)

    def __repr__(self) -> str:
        return f"limit_threads({'' if self._threads is None else self._threads})"

    def _lease(self) -> Lease:
        """A new lease inside the innermost one of this context that is still open."""
        threads = self._threads
        if threads is None:
            threads = current_plan().threads
        outer = _innermost.get()
        if outer is None:
            return Lease(threads, self)
        while outer is not None and not outer.active:
            outer = outer._outer
        if outer is not None and outer.threads < threads:
            threads = outer.threads
        return Lease(threads, self, outer)

    def _leave(self) -> Lease:
        """Take the entry that is being left: this context's, else (left in another one) the last one open."""
        lease = _innermost.get()
        while lease is not None and not (lease._owner is self and lease._active):
            lease = lease._outer
        try:
            if lease is None:
                return self._open.pop()
            self._open.remove(lease)
        except (IndexError, ValueError):
            raise LeaseError(f"{self!r} was left more often than entered") from None
        _innermost.set(lease._outer)
        return lease


@overload
def limit_threads(threads: int | None = None, *, patience: float | None = None) -> ThreadLimit: ...
@overload
def limit_threads(threads: Callable[P, R], /) -> Callable[P, R]: ...
def limit_threads(threads: Any = None, *, patience: float | None = None) -> Any:
    """Limit native thread pools to ``threads`` (default: the plan's count) inside a block or a function.

    ::

        with limit_threads():            # or limit_threads(2)
            model.encode(texts)

        @limit_threads                   # or @limit_threads(2)
        def embed(texts): ...

    The block gets a ``Lease`` whose ``threads`` is the count that holds. Nested blocks never widen. ``patience`` is how
    many seconds a block may wait for cores before it begins without them. Raises InvalidThreadsError for a count that
    is no ``int`` of at least 1, InvalidArgumentError for a negative ``patience``.
    """
    if callable(threads):
        return ThreadLimit(patience=patience)(threads)
    return ThreadLimit(threads, patience=patience)


async def run(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``function(*args, **kwargs)`` in a worker thread of the event loop, under ``limit_threads()``.

    The context is copied into the thread. If the waiting task is cancelled, the function runs on to its end, as with
    ``asyncio.to_thread``.
    """

    def limited() -> R:
        with limit_threads():
            return function(*args, **kwargs)

    async with limit_threads():
        return await asyncio.to_thread(limited)


def initializer(threads: int | None = None) -> None:
    """Limit a worker of an executor for its life: ``ThreadPoolExecutor(8, initializer=initializer, initargs=(2,))``.

    Works for ThreadPoolExecutor, ProcessPoolExecutor and multiprocessing's pools. ``threads`` is what one worker may
    use; the default is the plan's count. Raises InvalidThreadsError for a count below 1.
    """
    limit = ThreadLimit(threads)
    ledger = process.ledger or current()
    ledger.enter(limit._lease())


def _check_patience(patience: object) -> float | None:
    if patience is None:
        return None
    if isinstance(patience, (int, float)) and not isinstance(patience, bool) and patience >= 0:
        return float(patience)
    raise InvalidArgumentError("patience", patience, "a number of seconds of at least 0")
