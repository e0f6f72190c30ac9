"""One budget of cores for all calls in flight: leases, a first-come queue, and bounded waiting.

The truth is one dictionary of leases: what an interrupt leaves half done (KeyboardInterrupt comes between any two
steps) can never make sums drift. Whoever gives cores back hands them to the first in the queue itself, so that nobody
can come between; waiters only wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

from ..detection.records import CpuLimits
from ..pools.ledger import Lease
from ..state import process
from .arbitration import STEP_DURATIONS, grant, share, smooth, smooth_duration
from .queue import MAX_WAIT_S, Queue
from .statistics import Counters
from .waiting import ThreadWaiter, Waiter, kind_of_task

AnyWaiter = TypeVar("AnyWaiter", bound=Waiter)


class Budget(Queue):
    """``cores`` to share among leases, the last ``extra`` of them for calls of one thread.

    ``parent`` is the lease whose cores these are, if it is a part of a budget.
    """

    shared = False
    """Whether other processes have a say in it."""

    def __init__(self, cores: int, extra: int = 0, *, parent: Lease | None = None) -> None:
        super().__init__(cores, extra)
        lender = parent._budget if parent is not None else None
        if isinstance(lender, Budget):
            self.lock = lender.lock  # one lock for the whole: no order to keep between them
            self._after, self._returned = lender._after, lender._returned
        self.generation = process.generation
        self._pid = os.getpid()
        # As threading.Condition asks; typeshed leaves it out.
        self._is_mine: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.mean = 0.0
        """The smoothed number of calls in flight and waiting."""
        self.recent = 0.0
        """The same over a few calls: for steps of longer ones."""
        self.seen_s = 0.0
        """When ``mean`` was brought up to date (monotonic)."""
        self.counters = Counters()
        self.parent = parent

    def claim(self, lease: Lease, top: int, patience: float | None = None, *, block: bool = True) -> None:
        """Give ``lease`` its cores, at most ``top``, waiting if need be. After an interrupt ``give`` must follow.

        ``patience`` bounds the wait in seconds; None waits while calls end, at most 30 s. ``block=False`` never waits:
        what is free, or else one thread above the budget.
        """
        if self._is_mine():
            self._slip_in(lease)
            return
        try:
            if self._begin_alone(lease, top):
                return
            waiter = self._ask(lease, top, patience, block, ThreadWaiter)
            if self._after or self._returned:
                self._send()
            while waiter is not None and not waiter.done:
                self._wait(waiter)
                if not waiter.done:
                    self._look(waiter)
        except BaseException:
            self.give(lease)
            raise

    async def claim_async(
        self, lease: Lease, top: int, patience: float | None = None, start: Callable[[], None] | None = None
    ) -> None:
        """``claim`` for a task: the event loop (asyncio, trio) runs on while it waits. Cancelling leaves nothing.

        ``start`` is called where the lease is granted to a task that waits, in whatever thread that happens; it has to
        stand being called when nobody waits any more, and then ``give`` is the caller's to call.
        """
        try:
            waiter = self._ask(lease, top, patience, True, partial(kind_of_task(), start=start))
            self._send()
            while waiter is not None and not waiter.done:
                await waiter.wait(partial(self._pause, waiter), self._fd(waiter), partial(self._look, waiter))
        except BaseException:
            if start is None:
                self.give(lease)
            raise

    def give(self, lease: Lease) -> None:
        """Take back the cores of ``lease``, but for those that its parts still use, or its place in the queue. Giving
        twice does nothing."""
        if self.generation != process.generation:
            return  # a lease of the process that forked this one
        if self._is_mine():
            self._returned.append(lease)
            return
        with self.lock:
            now = monotonic()
            if self._end_alone(lease, now):
                return
            if lease in self.leases:
                self._end(lease, now)
            else:  # it still waits, or an interrupt came between taking cores and noting it
                self._leave_queue(lease)
                self._freed(now)
            self._settle_parent()
        if self._after or self._returned:
            self._send()

    def give_later(self, lease: Lease) -> None:
        """``give`` from a finalizer, which may run anywhere, also where the lock is held: it never waits.

        A fork ends the other threads' locals in the child before anything else runs there: those leases are the
        parent's, and giving them back would unlock its cores.
        """
        if os.getpid() != self._pid:
            return
        self._returned.append(lease)
        if not self._is_mine():
            self._send()

    def resize(self, cores: int, extra: int = 0) -> None:
        """Share ``cores``, ``extra`` of them for calls of one thread, from now on. Leases that are open keep theirs; a
        smaller budget drains first."""
        if self._is_mine():  # a finalizer's look at the limits
            self._after.append(partial(self.resize, cores, extra))
            return
        with self.lock:
            self.cores, self.extra = cores, extra
            self._dispatch(monotonic())
        self._send()

    def regroup(self, limits: CpuLimits) -> None:
        """The process may be in another cgroup by now: these cores are its own wherever it is."""

    def abandon(self) -> None:
        """In a forked child: these are the parent's leases. Takes no lock (see ``core_budget``)."""

    def end(self) -> None:
        """The process ends in order."""

    def leased(self) -> int:
        """Cores of all open leases; call it with the lock held."""
        return sum(self.leases.values())

    # The short way, where there is nobody to share with: most services are idle most of the time.

    def _begin_alone(self, lease: Lease, top: int) -> bool:
        """Open ``lease`` if nothing runs and nobody waits. Idle time is left out of the mean, so that stays."""
        if self.shared:
            return False
        with self.lock:
            if self.leases or self.queue or self._returned or self._after:
                return False
            cores = share(self.cores - self.extra, 1, self._expected(lease, 1), top)
            if not cores:  # a part whose parent has ended
                return False
            now = monotonic()
            lease._budget = self
            lease.threads = cores
            lease._since_s = self.seen_s = self.moved_s = now
            self.leases[lease] = cores
            counters = self.counters
            counters.granted += 1
            counters.waits[0] += 1
            return True

    def _end_alone(self, lease: Lease, now: float) -> bool:
        """End ``lease`` if it is the only one, nobody waits, and it is no part and has none; with the lock held."""
        leases = self.leases
        if self.shared or self.queue or self._returned or lease._part is not None or self.parent is not None:
            return False
        if len(leases) != 1 or leases.pop(lease, None) is None:
            return False
        seconds = now - lease._since_s
        self._follow(1, now)
        self.duration_s = smooth_duration(self.duration_s, seconds)
        self.moved_s = now
        self.counters.core_seconds += seconds * lease.threads
        return True

    # What follows is called with the lock held, except for the few that take it.

    def _ask(
        self, lease: Lease, top: int, patience: float | None, block: bool, kind: Callable[..., AnyWaiter]
    ) -> AnyWaiter | None:
        """Open ``lease``, or put it into the queue and return its waiter."""
        lease._budget = self
        with self.lock:
            now = monotonic()
            self._observe(now)
            waits = block and patience != 0.0 and self.cores > 0  # 0: a part whose parent has ended gets no more
            value = 0
            if not self.queue or not waits:
                value = self._take(lease, top, len(self.leases) + len(self.queue) + 1, now, waits)
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

    def _begin(self, lease: Lease, value: int, now: float, waited: float) -> None:
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
            while parent is not None and isinstance(parent._budget, Budget):  # a part of a part counts in the whole
                parent._budget.counters.overcommitted += 1
                parent = parent._budget.parent

    def _end(self, lease: Lease, now: float) -> None:
        value = self.leases.get(lease)
        if value is None:
            return
        self._smooth(now)
        part = lease._part
        kept = 0
        if isinstance(part, Budget):
            with part.lock:
                kept = part.leased()
                part.cores = kept  # what it gives back is no longer its own to lend
        if kept:
            self.leases[lease] = self._keep(value, kept)
        else:
            self.leases.pop(lease, None)
            seconds = now - lease._since_s
            self.duration_s = smooth_duration(self.duration_s, seconds)
            self.counters.core_seconds += seconds * lease.threads
        self.moved_s = now
        self._freed(now)

    def _settle_parent(self) -> None:
        """A part whose parent has ended gives back to the whole what it gets back."""
        parent = self.parent
        if parent is not None and not parent._active and isinstance(parent._budget, Budget):
            self._after.append(partial(parent._budget.give, parent))

    def _observe(self, now: float) -> None:
        while self._returned:
            lease = self._returned.popleft()
            budget = lease._budget  # this one or a part of it
            if isinstance(budget, Budget):
                budget._end(lease, now)
                budget._settle_parent()
        self._smooth(now)

    def _smooth(self, now: float) -> None:
        self._follow(len(self.leases) + len(self.queue), now)

    def _follow(self, calls: int, now: float) -> None:
        """There were ``calls`` since the last time."""
        elapsed = now - self.seen_s
        self.mean = smooth(self.mean, calls, elapsed, self.duration_s)
        self.recent = smooth(self.recent, calls, elapsed, self.duration_s, STEP_DURATIONS)
        self.seen_s = now

    def _expected(self, lease: Lease, calls: int) -> float:
        """The number of calls to share with."""
        if not self.duration_s:
            return calls
        return self.recent if lease._step else self.mean

    # What a budget shared by several processes does in another way.

    def _take(self, lease: Lease, top: int, calls: int, since_s: float, half: bool) -> int:
        want = share(self.cores - self.extra, calls, self._expected(lease, calls), top)
        free = self.cores - sum(self.leases.values())
        return grant(want, free, len(self.leases), wait_for_half=half, extra=self.extra)

    def _count(self, value: int) -> int:
        return value

    def _keep(self, value: int, cores: int) -> int:
        """``cores`` of what ``value`` stands for."""
        return min(value, cores)

    def _freed(self, now: float) -> None:
        """Cores were given back: they are the next one's."""
        if self.queue:
            self._dispatch(now)
