"""Who waits for cores, and for how long: first come, first served, with a guard against calls that do not end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

from ..pools.ledger import Lease
from .waiting import TaskWaiter, ThreadWaiter, Waiter

# Patience guards against calls that hold cores and do not end; it is no means to lower latency. So it counts from the
# last time anything was given back, not from a call's arrival: a long queue that moves is in order.
STALL_DURATIONS: Final = 3.0
MIN_STALL_S: Final = 0.1
FIRST_STALL_S: Final = 1.0
"""While no call has ended: the first ones load and warm up, and say nothing of those to come."""
MAX_WAIT_S: Final = 30.0
"""A call that has waited this long begins with one thread, whatever the others do."""


class Queue:
    """The waiting half of a budget of ``cores``, the last ``extra`` of them for calls of one thread; ``Budget`` has the
    leases. All but ``_look`` and ``_send`` are called
    with the lock held."""

    def __init__(self, cores: int, extra: int = 0) -> None:
        self.cores = cores
        self.extra = extra
        self.lock = threading.RLock()
        """Re-entrant only so that it can tell: signal handlers and finalizers run between any two steps, and one that
        finds this thread inside changes nothing."""
        self.leases: dict[Lease, int] = {}
        """The cores of each open lease; 0 where its one thread came out of expired patience."""
        self.queue: deque[Waiter] = deque()
        self.duration_s = 0.0
        """The mean duration of a call; 0 until one has ended."""
        self.moved_s = 0.0
        """When cores were last given or given back (monotonic)."""
        self.looker: Waiter | None = None
        """The waiter that holds the lock to look for itself: it needs no waking."""
        self._after: deque[Callable[[], object]] = deque()
        """What to call once the lock is free."""
        self._returned: deque[Lease] = deque()
        """Leases whose end was asked for where the lock was not to be had: by finalizers."""

    def _look(self, waiter: Waiter) -> None:
        """After a wait: was it this one's turn, or has its patience ended?"""
        with self.lock:
            now = monotonic()
            self._observe(now)
            if not waiter.done:
                self.looker = waiter
                try:
                    self._dispatch(now)
                finally:
                    self.looker = None
            if not waiter.done and now >= self._expires(waiter):
                self.queue.remove(waiter)
                waiter.done = True
                self._begin(waiter.lease, 0, now, now - waiter.since_s)
                self._explain(waiter)
                self._dispatch(now)
        self._send()

    def _leave_queue(self, lease: Lease) -> None:
        for waiter in tuple(self.queue):
            if waiter.lease is lease:
                self.queue.remove(waiter)

    def _dispatch(self, now: float) -> None:
        """Start those at the head of the queue for whom there are cores."""
        queue = self.queue
        while queue:
            first = queue[0]
            if first.done:  # an interrupt left it here
                queue.popleft()
                continue
            if first.lease in self.leases:  # or came before it could be told
                self._admit(first)
                continue
            value = self._take(first.lease, first.top, len(self.leases) + len(queue), first.since_s, True)
            if not value:
                self._lead(first)
                break
            self._begin(first.lease, value, now, now - first.since_s)
            self._admit(first)
        self._publish(now)

    def _admit(self, first: Waiter) -> None:
        """The first of the queue has its lease."""
        first.done = True
        self.queue.popleft()
        self._rouse(first)

    def _explain(self, waiter: Waiter) -> None:
        """Say why ``waiter`` had to begin above the budget, where statistics do not tell."""

    def _expires(self, waiter: Waiter) -> float:
        """When ``waiter`` may begin with one thread above the budget."""
        if waiter.patient or waiter is not self.queue[0] or not self._may_overdraw():
            return waiter.deadline_s
        stall = self._stall()
        return min(waiter.deadline_s, max(self.moved_s + stall, waiter.since_s + MIN_STALL_S))

    def _stall(self) -> float:
        """Seconds without anything given back that are no longer normal."""
        if not self.duration_s:
            return FIRST_STALL_S
        return max(MIN_STALL_S, STALL_DURATIONS * self.duration_s)

    def _may_overdraw(self) -> bool:
        return sum(1 for value in self.leases.values() if not value) < self.cores

    def _pause(self, waiter: Waiter) -> float:
        """Seconds that ``waiter`` may wait before it looks again by itself."""
        return min(waiter.deadline_s - monotonic(), self._stall())

    def _wait(self, waiter: ThreadWaiter) -> None:
        waiter.wait(self._pause(waiter))

    def _rouse(self, waiter: Waiter) -> None:
        """Tell ``waiter`` that it was granted its lease."""
        if isinstance(waiter, TaskWaiter):
            if waiter.start is not None:
                self._after.append(waiter.start)
            # Without the lock: event loops have one of their own, under which a finalizer may end a lease.
            self._after.append(partial(self._rouse_task, waiter))
        else:
            waiter.wake()

    def _rouse_task(self, waiter: TaskWaiter) -> None:
        if not waiter.wake():  # its event loop has ended
            self.give(waiter.lease)

    def _lead(self, first: Waiter) -> None:
        """``first`` is the first of the queue and has to wait."""

    def _fd(self, waiter: Waiter) -> int | None:
        """What ``waiter`` has to watch besides being woken."""
        return None

    def _send(self) -> None:
        """Start and wake others; without the lock, since whoever wakes another is often made to wait for it.

        Also end what finalizers could not while the lock was held: to be called after each use of it.
        """
        while self._returned and not self._is_mine() and self.lock.acquire(blocking=False):
            try:
                self._observe(monotonic())
            finally:
                self.lock.release()
        after = self._after
        while after:
            try:
                call = after.popleft()
            except IndexError:  # another thread was faster
                return
            call()

    # What ``Budget`` knows.

    def give(self, lease: Lease) -> None:
        """End ``lease``."""
        raise NotImplementedError

    def _is_mine(self) -> bool:
        """Whether this thread holds the lock."""
        raise NotImplementedError

    def _take(self, lease: Lease, top: int, calls: int, since_s: float, half: bool) -> int:
        """Cores for a call that has waited since ``since_s``, of ``calls`` in all; 0 if it has to wait."""
        raise NotImplementedError

    def _begin(self, lease: Lease, value: int, now: float, waited: float) -> None:
        """Open ``lease`` with what ``_take`` returned; 0 is a thread above the budget."""
        raise NotImplementedError

    def _freed(self, now: float) -> None:
        """Cores were given back."""
        raise NotImplementedError

    def _observe(self, now: float) -> None:
        """Bring the mean number of calls up to date."""
        raise NotImplementedError

    def _publish(self, now: float) -> None:
        """The numbers of leases and waiters changed."""
