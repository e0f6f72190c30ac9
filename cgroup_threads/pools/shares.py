"""The process's half of the ledgers: the limit of each thread, and the pools that all threads share."""

from __future__ import annotations

import threading
from collections import deque
from threading import get_ident

from .leases import ThreadState
from .levels import FREE, Levels
from .registry import Registry


class Shares:
    """The pools of the process are held at the smallest limit of its threads."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.lock = threading.Lock()
        """Guards ``levels``, ``shares`` and the registry. Taken after a thread's lock, never before."""
        self.levels = Levels()
        self.shares: dict[ThreadState, int] = {}
        """The limit of each thread that has one."""
        self.ours = 0
        """The count that we wrote for OpenMP and BLAS libraries; 0 where the user's variables said it. A limit raises
        a pool that began with exactly this count: it is no wish of the user's. All others are only ever lowered."""
        self.closed = False
        self._retired: deque[ThreadState] = deque()
        self._burier = 0
        """The thread inside ``_bury``: it may be one that has ended, and has no state to be marked as busy."""
        self._visited = False
        """An operation came into ``_bury`` and left something for later."""

    def retire(self, thread: ThreadState) -> None:
        """The thread has ended: so has its share. Called from a finalizer, hence anywhere: it never waits."""
        thread.dead = True
        for lease in tuple(thread.leases):
            if lease._budget is not None:
                lease._budget.give_later(lease)
        if thread in self.shares and not self.closed:
            self._retired.append(thread)
            self._bury()

    def _share(self, thread: ThreadState, limit: int) -> None:
        """``limit`` is the thread's from now on."""
        shares, levels = self.shares, self.levels
        with self.lock:
            settled = levels.settled
            levels.settled = False  # before the shares change: an interruption in between must leave a trace
            if limit != FREE:
                shares[thread] = limit
            elif thread in shares:
                del shares[thread]
            least = min(shares.values()) if shares else FREE
            if least != levels.limit or not settled:
                try:
                    levels.hold(self.registry.process_ops, least, self.ours)
                except Exception as error:  # noqa: BLE001 - foreign code
                    self.registry.hold_guarded(levels, "process", least, self.ours, error)
            else:
                levels.settled = True
        if self._retired:
            self._bury()

    def _settle_process(self) -> None:
        """With the lock held."""
        least = min(self.shares.values()) if self.shares else FREE
        levels = self.levels
        if least != levels.limit or not levels.settled:
            try:
                levels.hold(self.registry.process_ops, least, self.ours)
            except Exception as error:  # noqa: BLE001 - foreign code
                self.registry.hold_guarded(levels, "process", least, self.ours, error)

    def _bury(self) -> None:
        """Whoever holds the lock looks here again after releasing it, so that nothing is left behind."""
        while self._retired:
            got = [False]
            try:
                # Filled by one instruction: no exception can come between taking the lock and knowing it.
                got[:] = map(self.lock.acquire, (False,))
                if got[0]:
                    self._burier = get_ident()
                    while self._retired:
                        self.levels.settled = False
                        self.shares.pop(self._retired[0], None)
                        self._retired.popleft()
                    self._settle_process()
            finally:
                if got[0]:
                    self._burier = 0
                    self.lock.release()
            if not got[0]:
                break
        if self._visited:
            self._visited = False
            self._receive()

    def _is_inside(self, mine: ThreadState) -> bool:
        """Whether the calling thread is in an operation, so that no lock may be waited for and no pool be set."""
        if mine.busy:
            return True
        if self._burier == get_ident():
            self._visited = True
            return True
        return False

    def _receive(self) -> None:
        """Do what operations left for later that came into ``_bury``."""
        raise NotImplementedError
