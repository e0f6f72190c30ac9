"""What is open: a lease for each entry into a limit, and the leases and own pools of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .levels import FREE, Levels

if TYPE_CHECKING:
    from .ledger import Ledger


class Lender(Protocol):
    """A core budget, as far as the ledgers know one."""

    def give_later(self, lease: Lease, /) -> None:
        """Take back the cores of ``lease``; from a finalizer, hence without waiting."""


class Lease:
    """One entry into a limit. ``threads`` is the count that holds, ``waited_s`` the seconds it waited for cores."""

    __slots__ = (
        "_active",
        "_budget",
        "_ledger",
        "_outer",
        "_owner",
        "_part",
        "_since_s",
        "_step",
        "_thread",
        "threads",
        "waited_s",
    )

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
        self._budget: Lender | None = None
        """The core budget it is a lease of; None for one inside another lease of its thread."""
        self._part: object = None
        """The budget made of its cores, once other threads or tasks use them."""
        self._since_s = 0.0
        self._step = False
        """It is a step of a longer call, which can have another count at the next one."""

    @property
    def active(self) -> bool:
        """Whether the block is still open. A lease that a fork carried into a child is not."""
        return self._active and (self._ledger is None or not self._ledger.closed)

    def __repr__(self) -> str:
        return f"Lease(threads={self.threads}, waited_s={self.waited_s:g}, active={self.active})"


class ThreadState:
    """A thread's leases and its own pools. ``lock`` guards the leases; only the thread itself sets its pools."""

    __slots__ = ("busy", "dead", "doubted", "later", "leases", "levels", "lock", "moving", "stale", "touched")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leases: list[Lease] = []
        self.levels = Levels()
        self.busy = False
        """The thread is inside an operation. What comes now in the same thread, from a finalizer or a signal handler,
        takes no lock and sets no pool: it leaves a record and ``stale``, and the operation sees to it at its end."""
        self.stale = False
        """There is something to do that came while the thread was busy or from another thread, or new pools."""
        self.doubted = False
        """The thread's pools may be at anything: set them all again."""
        self.later: list[Callable[[], None]] = []
        """What is to be called at the end of the operation. May be called twice."""
        self.touched: object = None
        """The function that set torch up in this thread, once called."""
        self.dead = False
        self.moving = False
        """The thread takes cores or gives them back. A limit that begins now in the same thread, in a finalizer or a
        signal handler, must not wait for cores: this thread may have them, or be in front of it in the queue."""


def smallest(leases: list[Lease]) -> int:
    """The smallest count of the active ones, FREE if there is none."""
    limit = FREE
    for lease in leases:
        if lease.threads < limit and lease._active:
            limit = lease.threads
    return limit
