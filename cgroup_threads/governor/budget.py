"""One budget of cores for all calls in flight: leases, a first-come queue, and bounded waiting.

The truth is one dictionary of leases: what an interrupt leaves half done (KeyboardInterrupt comes between any two
steps) can never make sums drift. Whoever gives cores back hands them to the first in the queue itself, so that nobody
can come between; waiters only wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, TypeVar

from ..pools.ledger import Lease
from .arbitration import grant, share, smooth, smooth_duration
from .statistics import Counters
from .waiting import TaskWaiter, ThreadWaiter, Waiter

# Patience guards against calls that hold cores and do not end; it is no means to lower latency. So it counts from the
# last time anything was given back, not from a call's arrival: a long queue that moves is in order.
STALL_DURATIONS: Final = 3.0
MIN_STALL_S: Final = 0.1
FIRST_STALL_S: Final = 1.0
"""While no call has ended: the first ones load and warm up, and say nothing of those to come."""
MAX_WAIT_S: Final = 30.0
"""A call that has waited this long begins with one thread, whatever the others do."""
AnyWaiter = TypeVar("AnyWaiter", bound=Waiter)


class Budget:
    """``cores`` to share among leases. ``parent`` is the lease whose cores these are, if it is a part of a budget."""

    def __init__(self, cores: int, *, parent: Lease | None = None) -> None:
        self.cores = cores
        self.lock = threading.RLock()
        """Re-entrant only so that it can tell: signal handlers and finalizers run between any two steps, and one that
        finds this thread inside changes nothing."""
        # As threading.Condition asks; typeshed leaves it out.
        self._is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.leases: dict[Lease, int] = {}
        """The cores of each open lease; 0 where its one thread came out of expired patience."""
        self.queue: deque[Waiter] = deque()
        self.mean = 0.0
        """The smoothed number of calls in flight and waiting."""
        self.duration_s = 0.0
        """The mean duration of a call; 0 until one has ended."""
        self.seen_s = 0.0
        """When ``mean`` was brought up to date (monotonic)."""
        self.counters = Counters()
        self.moved_s = 0.0
        """When cores were last given or given back (monotonic)."""
        self.looker: Waiter | None = None
        """The waiter that holds the lock to look for itself: it needs no waking."""
        self.parent = parent
        self.closed = False
        """True in a child that a fork left with its parent's budget."""
        self._after: deque[Callable[[], object]] = deque()
        """What to call once the lock is free."""
        self._returned: deque[Lease] = deque()
        """Leases of threads that have died, put here by finalizers."""

    def claim(self, lease: Lease, top: int, patience: float | None = None, *, block: bool = True) -> None:
        """Give ``lease`` its cores, at most ``top``, waiting if need be. After an interrupt ``give`` must follow.

        ``patience`` bounds the wait in seconds; None waits while calls end, at most 30 s. ``block=False`` never waits:
        what is free, or else one thread above the budget.
        """
        if self._is_mine():
            self._slip_in(lease)
            return
        try:
            waiter = self._ask(lease, top, patience, block, ThreadWaiter)
            while waiter is not None and not waiter.done:
                self._wait(waiter)
                self._look(waiter)
        except BaseException:
            self.give(lease)
            raise

    async def claim_async(
        self, lease: Lease, top: int, patience: float | None = None, start: Callable[[], None] | None = None
    ) -> None:
        """``claim`` for an asyncio task: the event loop runs on while it waits. Cancelling leaves nothing behind.

        ``start`` is called where the lease is granted to a task that waits, in whatever thread that happens; it has to
        stand being called when nobody waits any more, and then ``give`` is the caller's to call.
        """
        try:
            waiter = self._ask(lease, top, patience, True, partial(TaskWaiter, start=start))
            while waiter is not None and not waiter.done:
                await waiter.wait(self._pause(waiter), self._fd(waiter))
                self._look(waiter)
        except BaseException:
            if start is None:
                self.give(lease)
            raise

    def give(self, lease: Lease) -> None:
        """Take back the cores of ``lease``, but for those that its parts still use, or its place in the queue. Giving
        twice does nothing."""
        if self.closed:
            return
        if self._is_mine():
            self._returned.append(lease)
            return
        with self.lock:
            now = monotonic()
            if lease in self.leases:
                self._end(lease, now)
            else:
                self._leave_queue(lease, now)
        self._send()
        parent = self.parent
        if parent is not None and not parent._active:
            budget = parent._budget
            if isinstance(budget, Budget):
                budget.give(parent)

    def give_later(self, lease: Lease) -> None:
        """``give`` from a finalizer, which may run anywhere, also where the lock is held: it never waits."""
        self._returned.append(lease)
        if not self.closed and not self._is_mine() and self.lock.acquire(blocking=False):
            try:
                self._observe(monotonic())
            finally:
                self.lock.release()

    def resize(self, cores: int) -> None:
        """Share ``cores`` from now on. Leases that are open keep theirs; a smaller budget drains first."""
        with self.lock:
            self.cores = cores
            self._dispatch(monotonic())
        self._send()

    def abandon(self) -> None:
        """In a forked child: these are the parent's leases. Takes no lock (see ``core_budget``)."""
        self.closed = True

    def end(self) -> None:
        """The process ends in order."""

    def leased(self) -> int:
        """Cores of all open leases; call it with the lock held."""
        return sum(self.leases.values())

    # What follows is called with the lock held, except for the few that take it.

    def _ask(
        self, lease: Lease, top: int, patience: float | None, block: bool, kind: Callable[..., AnyWaiter]
    ) -> AnyWaiter | None:
        """Open ``lease``, or put it into the queue and return its waiter."""
        lease._budget = self
        with self.lock:
            now = monotonic()
            self._observe(now)
            waits = block and patience != 0.0
            value = 0
            if not self.queue or not waits:
                value = self._take(top, len(self.leases) + len(self.queue) + 1, now, waits)
            if value or not waits:
                self._begin(lease, value, now, 0.0)
                self._publish(now)
                return None
            deadline = now + (MAX_WAIT_S if patience is None else patience)
            waiter = kind(lease, top, now, deadline, patience is not None)
            self.queue.append(waiter)
            waiter.first = self.queue[0] is waiter
            self._publish(now)
            return waiter

    def _slip_in(self, lease: Lease) -> None:
        """A finalizer or signal handler that interrupted this very budget: one thread, outside of all counts."""
        lease.threads = 1
        self.counters.overcommitted += 1

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
                self._dispatch(now)
        self._send()

    def _leave_queue(self, lease: Lease, now: float) -> None:
        for waiter in tuple(self.queue):
            if waiter.lease is lease:
                self.queue.remove(waiter)
                self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        """Start those at the head of the queue for whom there are cores."""
        queue = self.queue
        while queue:
            first = queue[0]
            value = self._take(first.top, len(self.leases) + len(queue), first.since_s, True)
            if not value:
                self._lead(first)
                break
            queue.popleft()
            first.done = True
            self._begin(first.lease, value, now, now - first.since_s)
            if not self._rouse(first):
                self._drop(first.lease)
        self._publish(now)

    def _begin(self, lease: Lease, value: int, now: float, waited: float) -> None:
        """Open ``lease`` with what ``_take`` returned; 0 is a thread above the budget."""
        lease.threads = self._count(value) or 1
        lease.waited_s = waited
        lease._since_s = now
        self.leases[lease] = value
        self.moved_s = now
        counters = self.counters
        counters.granted += 1
        counters.waited(waited)
        if not value:
            counters.overcommitted += 1
            parent = self.parent
            if parent is not None and isinstance(parent._budget, Budget):
                parent._budget.counters.overcommitted += 1

    def _end(self, lease: Lease, now: float) -> None:
        value = self.leases.get(lease)
        if value is None:
            return
        self._observe(now)
        part = lease._part
        kept = 0
        if isinstance(part, Budget):
            with part.lock:
                kept = part.leased()
        if kept:
            self.leases[lease] = self._keep(value, kept)
        else:
            self._drop(lease)
            seconds = now - lease._since_s
            self.duration_s = smooth_duration(self.duration_s, seconds)
            self.counters.core_seconds += seconds * lease.threads
        self.moved_s = now
        self._freed(now)
        if self.queue:
            self._dispatch(now)

    def _observe(self, now: float) -> None:
        while self._returned:
            self._end(self._returned.popleft(), now)
        self.mean = smooth(self.mean, len(self.leases) + len(self.queue), now - self.seen_s, self.duration_s)
        self.seen_s = now

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

    # What a budget shared by several processes does in another way.

    def _take(self, top: int, calls: int, since_s: float, half: bool) -> int:
        """Cores for a call that has waited since ``since_s``, of ``calls`` in all; 0 if it has to wait."""
        want = share(self.cores, calls, self.mean if self.duration_s else calls, top)
        return grant(want, self.cores - sum(self.leases.values()), len(self.leases), wait_for_half=half)

    def _drop(self, lease: Lease) -> None:
        self.leases.pop(lease, None)

    def _count(self, value: int) -> int:
        return value

    def _keep(self, value: int, cores: int) -> int:
        """``cores`` of what ``value`` stands for."""
        return min(value, cores)

    def _rouse(self, waiter: Waiter) -> bool:
        """Tell ``waiter`` that it was granted its lease. False if it is no more."""
        if not waiter.wake():
            return False
        if isinstance(waiter, TaskWaiter) and waiter.start is not None:
            self._after.append(waiter.start)
        return True

    def _lead(self, first: Waiter) -> None:
        """``first`` is the first of the queue and has to wait."""

    def _fd(self, waiter: Waiter) -> int | None:
        """What ``waiter`` has to watch besides being woken."""
        return None

    def _freed(self, now: float) -> None:
        """Cores were given back."""

    def _publish(self, now: float) -> None:
        """The numbers of leases and waiters changed."""

    def _send(self) -> None:
        """Start and wake others; without the lock, since whoever wakes another is often made to wait for it."""
        after = self._after
        while after:
            try:
                call = after.popleft()
            except IndexError:  # another thread was faster
                return
            call()
