"""Two ledgers: one for each thread's own pools, one for the pools the process shares.

Nothing is saved and restored per block: overlapping blocks would then put back each other's limits. A thread's limit is
the smallest of its active leases; the process's limit is the smallest limit of its threads. The baseline is taken when
the first limit begins and put back when the last one ends. Per-thread pools are only ever set in their own thread.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import ModuleType
from typing import Final

from ..errors import LeaseError
from ..importing import when_imported
from ..state import process
from . import forking, numba_launch
from .levels import FREE, Levels
from .registry import Registry

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


class Lease:
    """One entry into a limit. ``threads`` is the count that holds, ``waited_s`` the seconds it waited for cores."""

    __slots__ = ("_active", "_ledger", "_outer", "_owner", "_thread", "threads", "waited_s")

    def __init__(self, threads: int, owner: object = None, outer: Lease | None = None) -> None:
        self.threads = threads
        self.waited_s = 0.0
        self._active = True
        self._owner = owner
        """What was entered."""
        self._outer = outer
        """The lease that was current around this one."""
        self._ledger: Ledger | None = None
        self._thread: ThreadState | None = None

    @property
    def active(self) -> bool:
        """Whether the block is still open. A lease that a fork carried into a child is not."""
        return self._active and (self._ledger is None or not self._ledger.closed)

    def __repr__(self) -> str:
        return f"Lease(threads={self.threads}, waited_s={self.waited_s:g}, active={self.active})"


class ThreadState:
    """A thread's leases and its own pools. ``lock`` guards the leases; only the thread itself sets its pools."""

    __slots__ = ("dead", "leases", "levels", "lock", "stale", "touched")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leases: list[Lease] = []
        self.levels = Levels()
        self.stale = False
        """Another thread ended a lease of this one, or there are new pools: settle at the next operation."""
        self.touched: object = None
        """The function that set torch up in this thread, once called."""
        self.dead = False


class _End:
    """Lives in the thread's local storage alone, so that its end is the thread's end."""

    __slots__ = ("_ledger", "_thread")

    def __init__(self, ledger: Ledger, thread: ThreadState) -> None:
        self._ledger = ledger
        self._thread = thread

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._ledger.retire(self._thread)


class _Local(threading.local):
    def __init__(self, ledger: Ledger) -> None:
        self.thread = ThreadState()
        self._end = _End(ledger, self.thread)


class Ledger:
    """Both ledgers of a process. A forked child starts a new one; the old is ``closed`` and its leases do nothing."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.lock = threading.Lock()
        """Guards ``levels``, ``shares`` and the registry. Taken after a thread's lock, never before."""
        self.levels = Levels()
        self.shares: dict[ThreadState, int] = {}
        """The limit of each thread that has one."""
        self.closed = False
        self.local = _Local(self)
        self._retired: deque[ThreadState] = deque()

    def enter(self, lease: Lease) -> None:
        """Begin ``lease`` in the calling thread. If this is interrupted, ``abandon`` must follow."""
        registry = self.registry
        if registry.news.value is not None or registry.dirty:
            self.refresh()
        mine = self.local.thread
        lease._ledger, lease._thread = self, mine
        with mine.lock:
            mine.leases.append(lease)
            limit = mine.levels.limit
            if lease.threads < limit or mine.stale:
                self._settle(mine)
            elif lease.threads > limit:
                lease.threads = limit

    def leave(self, lease: Lease) -> None:
        """End ``lease``. From another thread the process's share ends now, the owner's pools at its next operation.

        Raises LeaseError if it has ended before.
        """
        if self.closed:
            lease._active = False
            return
        owner = lease._thread
        if owner is None or not lease._active:
            raise LeaseError("this limit was left already")
        try:
            with owner.lock:
                lease._active = False
                if owner is self.local.thread:
                    owner.leases.remove(lease)
                    if lease.threads <= owner.levels.limit or owner.stale:
                        self._settle(owner)
                elif not owner.dead:
                    owner.stale = True
                    self._share(owner, _smallest(owner.leases))
        except BaseException:
            self.abandon(lease)
            raise

    def abandon(self, lease: Lease) -> None:
        """Undo an ``enter`` or finish a ``leave`` that an exception interrupted, wherever it was."""
        lease._active = False
        owner = lease._thread
        if owner is None or self.closed:
            return
        with owner.lock:
            owner.stale = True
            if owner is self.local.thread:
                owner.levels.doubt()
                self._settle(owner)
            elif not owner.dead:
                self._share(owner, _smallest(owner.leases))

    def settle(self, doubt: bool = False) -> None:
        """Bring the calling thread's pools in line, if it has anything open. ``doubt``: set them all again."""
        mine = self.local.thread
        with mine.lock:
            if doubt:
                mine.levels.doubt()
            if mine.stale or not mine.levels.settled:
                self._settle(mine)

    def refresh(self) -> None:
        """Look for new pools, and put limits that are active on them."""

        with self.lock:
            self.registry.refresh()
            for thread in tuple(self.shares):
                thread.stale = True
            if self.shares:
                self.levels.settled = False
                self._settle_process()

    def imported(self, module: ModuleType) -> None:
        """A watched module was imported to its end, by this thread."""
        self.registry.dirty = True
        numba_launch.watch(self)
        if self.shares:
            self.refresh()
            self.settle()

    def retire(self, thread: ThreadState) -> None:
        """The thread has ended: so has its share. Called from a finalizer, hence anywhere: it never waits."""
        thread.dead = True
        if thread in self.shares and not self.closed:
            self._retired.append(thread)
            self._bury()

    def close(self) -> None:
        """In a forked child: end what the parent had begun, and put the pools back to their counts.

        The only thread here is the one that forked. Locks may be held for ever by threads that do not exist here.
        """
        self.closed = True
        registry = self.registry
        self.local.thread.levels.hold(registry.thread_ops, FREE)
        self.levels.hold(registry.process_ops, FREE)

    def _settle(self, mine: ThreadState) -> None:
        """In the thread concerned, with its lock held."""
        leases = mine.leases
        if mine.stale:
            mine.stale = False
            leases[:] = [lease for lease in leases if lease._active]
        limit = _smallest(leases) if leases else FREE
        if limit != self.shares.get(mine, FREE) or not self.levels.settled:
            self._share(mine, limit)
        registry = self.registry
        if limit != FREE and registry.touch_torch is not mine.touched:
            self._touch_torch(mine)
        mine.levels.hold(registry.thread_ops, limit)
        if registry.unproved and limit != FREE:
            registry.prove(limit)

    def _touch_torch(self, mine: ThreadState) -> None:
        """torch sets a thread up at its first operation there, from its own default, which would end a limit."""
        touch = self.registry.touch_torch
        if touch is not None:
            touch()
        mine.touched = touch
        mine.levels.doubt()

    def _share(self, thread: ThreadState, limit: int) -> None:
        shares, levels = self.shares, self.levels
        with self.lock:
            if limit != FREE:
                shares[thread] = limit
            elif thread in shares:
                del shares[thread]
            smallest = min(shares.values()) if shares else FREE
            if smallest != levels.limit or not levels.settled:
                levels.hold(self.registry.process_ops, smallest)
        if self._retired:
            self._bury()

    def _settle_process(self) -> None:
        """With the ledger's lock held."""
        limit = min(self.shares.values()) if self.shares else FREE
        levels = self.levels
        if limit != levels.limit or not levels.settled:
            levels.hold(self.registry.process_ops, limit)

    def _bury(self) -> None:
        """Whoever holds the lock looks here again after releasing it, so that nothing is left behind."""
        while self._retired and self.lock.acquire(blocking=False):
            try:
                self.shares.pop(self._retired.popleft(), None)
                self._settle_process()
            finally:
                self.lock.release()


def _smallest(leases: list[Lease]) -> int:
    limit = FREE
    for lease in leases:
        if lease.threads < limit and lease._active:
            limit = lease.threads
    return limit


def current() -> Ledger:
    """The ledger of this process; made at first use, with its import hooks."""
    ledger = process.ledger
    if ledger is not None:
        return ledger
    with process.lock:
        if process.ledger is None:
            process.ledger = Ledger(Registry())
            watch_imports()
            forking.register()
        return process.ledger


def watch_imports() -> None:
    """Have active limits applied to libraries right after they are imported, unless CGROUP_THREADS_PATCH=0."""
    if process.settings.patch:
        for name in WATCHED:
            when_imported(name, _imported)


def _imported(module: ModuleType) -> None:
    if process.ledger is not None:
        process.ledger.imported(module)
