"""``limit_threads``: a block, a coroutine's block or a function that computes with a limited number of threads."""

from __future__ import annotations

from asyncio import _get_running_loop  # a low-level function of its API: None outside of a loop, never raises
from collections.abc import Callable
from contextvars import ContextVar
from sys import modules
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, overload

from ..environment import warn_once_if_late
from ..errors import LeaseError, check_threads
from ..pools.guarding import add_room, drop_room
from ..pools.ledger import Lease, Ledger, ThreadState, current
from ..state import process
from .budget import Budget
from .core_budget import check_patience, core_budget
from .waiting import ask_trio
from .wrapping import wrap

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Lease", "ThreadLimit", "initializer", "limit_threads"]

# The innermost lease of this context. ``asyncio.to_thread`` and anyio copy the context into the worker thread: a ``with
# limit_threads()`` there finds what the coroutine has reserved.
innermost: Final[ContextVar[Lease | None]] = ContextVar("cgroup_threads_lease", default=None)


class ThreadLimit:
    """A limit to enter by ``with``, ``async with`` or as a decorator, again and again, also by several threads.

    ``with`` holds for the native pools of the calling thread and for those the process shares, until the block ends;
    it only ever lowers. ``async with`` sets no limit on the event loop's thread: it reserves the count, and a ``with
    limit_threads()`` in a worker thread that got the context (``run``, ``asyncio.to_thread``, anyio) adopts it. A
    decorated generator is limited while it runs, not between its yields.
    """

    __slots__ = ("_open", "_patience", "_step", "_threads")

    def __init__(self, threads: int | None = None, *, patience: float | None = None, step: bool = False) -> None:
        self._threads = threads if threads is None else check_threads(threads)
        self._patience = None if patience is None else check_patience(patience)
        self._step = step
        """Each entry is a step of a longer call: it follows the others' coming and going at once."""
        self._open: list[Lease] = []
        """The entries not left yet. ``with`` finds its own by context; this is for an exit in another one."""

    def __enter__(self) -> Lease:
        if not process.warned:
            warn_once_if_late(stacklevel=3)
        ledger = process.ledger or current()
        lease = Lease(1, self, find_outer())
        mine = ledger.local.thread or ledger.mine()
        inside = mine.moving
        try:
            mine.moving = True
            self._admit(lease, mine, inside)
            ledger.enter(lease)
            self._open.append(lease)
            innermost.set(lease)
        except BaseException:
            # Here and in ``__exit__`` line by line: on a full stack one call more would be one too many.
            try:
                self._undo(lease, ledger)
            except Exception:  # noqa: BLE001 - most likely a full stack; ctypes puts an error of its own over that
                add_room()
                try:
                    self._undo(lease, ledger)
                finally:
                    drop_room()
            raise
        finally:
            mine.moving = inside
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease = innermost.get()
        if lease is None or lease._owner is not self or not lease._active:
            lease = self._find()
        ledger = lease._ledger or current()
        mine = ledger.local.thread or ledger.mine()
        inside = mine.moving
        try:
            mine.moving = True
            self._forget(lease)
            ledger.leave(lease)
            if lease._budget is not None:
                give(lease)
        except BaseException:
            try:
                self._undo(lease, ledger)
            except Exception:  # noqa: BLE001 - most likely a full stack; ctypes puts an error of its own over that
                add_room()
                try:
                    self._undo(lease, ledger)
                finally:
                    drop_room()
            raise
        finally:
            mine.moving = inside

    async def __aenter__(self) -> Lease:
        if not process.warned:
            warn_once_if_late(stacklevel=3)
        lease = Lease(1, self, find_outer())
        try:
            budget, top, patience = self._claim(lease)
            await budget.claim_async(lease, top, patience)
            lease._ledger = process.ledger or current()
            self._open.append(lease)
            innermost.set(lease)
        except BaseException:
            self._undo(lease)
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease = self._find()
        try:
            lease._active = False
            self._forget(lease)
            give(lease)
        except BaseException:
            self._undo(lease)
            raise

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Any, /) -> Any: ...
    def __call__(self, function: Any, /) -> Any:
        """``function`` under this limit, with its signature; coroutines, generators and methods stay what they are."""
        return wrap(self._again, function)

    def _again(self, at_once: bool = False) -> ThreadLimit:
        """The same limit as an object of its own; ``at_once`` never waits for cores."""
        return ThreadLimit(self._threads, patience=0.0 if at_once else self._patience, step=self._step)

    def __repr__(self) -> str:
        return f"limit_threads({'' if self._threads is None else self._threads})"

    def _admit(self, lease: Lease, thread: ThreadState, at_once: bool) -> None:
        """Give ``lease`` its count: its caller's cores where that is in the same thread, else cores of a budget.

        ``at_once`` never waits for them."""
        outer = lease._outer
        if outer is not None and outer._thread is thread:
            asked = self._threads
            lease.threads = outer.threads if asked is None or asked > outer.threads else asked
            return
        budget, top, patience = self._claim(lease)
        if not thread.stale:
            top = min(top, thread.levels.limit)  # an ``initializer``'s: cores above it would lie idle
        # On an event loop's thread it never waits. Inline, and trio is asked only if it is there: this is the hot path.
        block = _get_running_loop() is None and not ("trio" in modules and ask_trio("in_trio_run"))
        budget.claim(lease, top, patience, block=block and not at_once)

    def _claim(self, lease: Lease) -> tuple[Budget, int, float | None]:
        """The budget to ask, for how many cores at most, and how long to wait: arguments, then settings."""
        core = core_budget()
        patience = core.settings.patience if self._patience is None else self._patience
        top = core.top if self._threads is None else self._threads
        outer = lease._outer
        lease._step = self._step
        if outer is None:
            core.look()
            return core.budget, top, patience
        part = outer._part
        if part is None:
            with process.lock:
                part = outer._part = outer._part or Budget(outer.threads, parent=outer)
        assert isinstance(part, Budget)
        return part, top, patience

    def _find(self) -> Lease:
        """The entry that is being left: this context's, else (left in another one) this thread's, else the last."""
        lease = innermost.get()
        while lease is not None and not (lease._owner is self and lease._active):
            lease = lease._outer
        if lease is not None:
            return lease
        entries = self._open
        mine = process.ledger.local.thread if process.ledger is not None else None
        for entry in reversed(tuple(entries)):
            if entry._thread is mine:
                return entry
        try:
            return entries[-1]
        except IndexError:
            raise LeaseError(f"{self!r} was left more often than entered") from None

    def _forget(self, lease: Lease) -> None:
        try:
            self._open.remove(lease)
        except ValueError:
            raise LeaseError(f"{self!r} was left more often than entered") from None
        if innermost.get() is lease:
            innermost.set(lease._outer)

    def _undo(self, lease: Lease, ledger: Ledger | None = None) -> None:
        """End ``lease`` after an exception came in between. Twice does nothing more."""
        try:
            lease._active = False
            if lease in self._open:  # else a later exit would find one that has ended
                self._forget(lease)
            if ledger is not None:
                ledger.abandon(lease)
        finally:
            give(lease)


def find_outer() -> Lease | None:
    """The innermost lease of this context that is still open."""
    outer = innermost.get()
    while outer is not None and not outer.active:
        outer = outer._outer
    return outer


def give(lease: Lease) -> None:
    budget = lease._budget
    if isinstance(budget, Budget):
        budget.give(lease)


@overload
def limit_threads(threads: int | None = None, *, patience: float | None = None) -> ThreadLimit: ...
@overload
def limit_threads(threads: Callable[P, R], /) -> Callable[P, R]: ...
def limit_threads(threads: Any = None, *, patience: float | None = None) -> Any:
    """Lease cores for a block or a function, and limit native thread pools to their number inside.

    ::

        with limit_threads():            # or limit_threads(2)
            model.encode(texts)

        @limit_threads                   # or @limit_threads(2)
        def embed(texts): ...

    All calls in flight share one budget of cores: a call alone gets all of them, ten get a few or wait for their
    turn, first come, first served. ``threads`` is the most that this one may have. The block gets a ``Lease`` whose
    ``threads`` is the count that holds. Nested blocks use their caller's cores and never widen.

    ``patience`` is how many seconds a block may wait for cores before it begins on one thread without them; the default
    waits as long as other calls end, at most 30 s. On an event loop's thread a ``with`` never waits; ``async with`` and
    ``run`` do.

    Raises InvalidThreadsError for a count that is no ``int`` of at least 1, InvalidArgumentError for a negative
    ``patience``.
    """
    if callable(threads) or isinstance(threads, classmethod):
        return ThreadLimit(patience=patience)(threads)
    return ThreadLimit(threads, patience=patience)


def initializer(threads: int | None = None) -> None:
    """Limit a worker of an executor for its life: ``ThreadPoolExecutor(8, initializer=initializer, initargs=(2,))``.

    Works for ThreadPoolExecutor, ProcessPoolExecutor and multiprocessing's pools. ``threads`` is what one worker may
    use; the default is the whole budget. It takes no cores: calls inside lease theirs. Raises InvalidThreadsError for
    a count below 1.
    """
    count = core_budget().size.cores if threads is None else check_threads(threads)
    ledger = process.ledger or current()
    ledger.enter(Lease(count))
