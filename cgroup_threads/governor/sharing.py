"""A budget that all worker processes of a container share: each core is a lock that the kernel frees at death.

What others publish (how many calls, who has waited longest) is a hint. A wrong hint costs time, never cores.
"""

from __future__ import annotations

import select
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from ..detection.records import CpuLimits
from ..errors import first_line
from ..notices import Notice
from ..pools.ledger import Lease
from ..state import process
from .arbitration import grant, share
from .budget import Budget
from .regrouping import new_key
from .slot_file import NO_SLOTS
from .slots import MAX_SLOTS, Slots, View, open_slots
from .waiting import TaskWaiter, ThreadWaiter, Waiter

LOOK_S: Final = 0.005
"""Who waits longest of all looks this often by itself: a datagram may be lost, and a killed holder sends none."""
IDLE_LOOK_S: Final = 0.04
"""How often the first of another process's queue does: it has to wait anyway, and only shows that it lives."""
TIDY_S: Final = 0.1
MAX_LEFT: Final = 4  # files that are removed again and again must not take all descriptors
"""How often rows of dead processes, and the file itself, are looked after."""


class _Left(NamedTuple):
    """A file that was left for another. Processes that have not moved yet must not take for free what ``leases`` hold
    there until they end; ``listeners`` may still wait at its socket."""

    slots: Slots
    leases: frozenset[Lease]
    listeners: frozenset[Waiter]


class SharedBudget(Budget):
    """``cores`` that are shared through ``slots``; a lease's value is the bit mask of its cores."""

    shared = True

    def __init__(self, cores: int, slots: Slots, extra: int = 0) -> None:
        super().__init__(cores, extra)
        self.slots = slots
        self._left: list[_Left] = []
        self._ended = False
        self._view = View(0, 0, None, None, 0)
        self._tidied_s = 0.0

    def leased(self) -> int:
        return sum(mask.bit_count() for mask in self.leases.values())

    def abandon(self) -> None:
        super().abandon()
        # Kept for the child's own budget: it meets the others in the same file, even one that was removed meanwhile.
        process.slots = self.slots.abandon_in_child()
        for left in self._left:
            unused = left.slots.abandon_in_child()
            if unused is not None:
                unused.close()

    def end(self) -> None:
        """Leave; the last one to leave removes the file. Daemon threads may still hold leases and cores: those go at
        the process's very end. Who asks for more afterwards gets one thread."""
        if self.lock.acquire(timeout=1.0):
            try:
                for slots in (self.slots, *(left.slots for left in self._left)):
                    slots.leave()
                self._ended = True
                self._close_ended()
            finally:
                self.lock.release()

    def regroup(self, limits: CpuLimits) -> None:
        """Share with the processes of the group we are in by now, if we were moved out of the one we shared with. What
        is leased is taken along, as far as it is free there."""
        observed = process.observation
        key = new_key(self.slots.key, limits, None if observed is None else observed.placement)
        if key is None or self._is_mine():
            return
        with self.lock:
            self._move(key)
        self._send()

    def _observe(self, now: float) -> None:
        super()._observe(now)
        if now - self._tidied_s >= TIDY_S:
            self._tidied_s = now
            self._tidy()

    def _smooth(self, now: float) -> None:
        self._follow(len(self.leases) + len(self.queue) + self._view.calls, now)

    def _take(self, lease: Lease, top: int, calls: int, since_s: float, half: bool) -> int:
        slots = self.slots
        view = slots.look()
        if (view.held, view.oldest_s) != (self._view.held, self._view.oldest_s):
            self.moved_s = monotonic()  # another process's queue moves
        self._view = view
        if half and view.ahead(len(self.leases), since_s, monotonic()):
            return 0
        # A killed holder sends nothing, and its hints stay for a while: who waits asks the kernel.
        held = slots.locked(MAX_SLOTS) if self.looker is not None else view.held
        taken = held | slots.held  # those above a budget that has shrunk count too, until they are given back
        others = view.calls - view.waiting
        calls += view.calls
        want = share(self.cores - self.extra, calls, self._expected(lease, calls), top)
        cores = grant(
            want,
            self.cores - taken.bit_count(),
            len(self.leases) + others,
            wait_for_half=half and slots.hints,
            extra=self.extra,
        )
        return slots.take(cores, self.cores, held) if cores else 0

    def _dispatch(self, now: float) -> None:
        granted = self.counters.granted
        super()._dispatch(now)
        if self.counters.granted != granted:
            # Cores that were given back at the same moment woke this process twice: the rest is the next one's.
            self._pass_on()

    def _pass_on(self) -> None:
        """Wake the other processes' next waiter if there are cores for it."""
        view = self._view
        if view.oldest_row is not None:
            taken = (view.held | self.slots.held) & ((1 << self.cores) - 1)
            if taken.bit_count() < self.cores:
                self._after.append(partial(self.slots.wake, view.oldest_row))

    def _keep(self, value: int, cores: int) -> int:
        kept = 0
        while value and cores:
            lowest = value & -value
            kept |= lowest
            value ^= lowest
            cores -= 1
        return kept

    def _unlock(self) -> None:
        """Unlock what no lease holds; an interrupt may have left more than the last one's."""
        kept = 0
        for mask in self.leases.values():
            kept |= mask
        rest = self.slots.held & ~kept
        if rest:
            self.slots.give(rest)
        if self._left:
            self._close_left()
        if self._ended:
            self._close_ended()

    def _explain(self, waiter: Waiter) -> None:
        if not waiter.patient and not any(self.leases.values()):
            message = "other processes held all cores and gave none back: calls began with one thread above the budget"
            fix = "look for the process that holds them: cgroup-threads inspect --all"
            self._after.append(partial(process.note, Notice("cores-held", message, "info", fix)))

    def _count(self, value: int) -> int:
        return value.bit_count()

    def _freed(self, now: float) -> None:
        self._unlock()
        if self.queue:  # the first may take them: what is said and who is woken depends on that
            granted = self.counters.granted
            self._dispatch(now)
            if self.counters.granted == granted:
                self._pass_on()
            return
        self._publish(now)
        self._view = self.slots.look()
        self._pass_on()

    def _publish(self, now: float) -> None:
        queue = self.queue
        self.slots.publish(len(self.leases), len(queue), queue[0].since_s if queue else None, now)

    def _rouse(self, waiter: Waiter) -> None:
        if waiter.first and waiter is not self.looker and isinstance(waiter, ThreadWaiter):
            self._after.append(self.slots.wake_self)  # it listens there, not at its gate
        super()._rouse(waiter)

    def _lead(self, first: Waiter) -> None:
        if not first.first:
            first.first = True
            if isinstance(first, TaskWaiter):
                self._after.append(first.wake)
            else:
                first.wake()

    def _pause(self, waiter: Waiter) -> float:
        if waiter.first:
            return IDLE_LOOK_S if self._view.ahead(len(self.leases), waiter.since_s, monotonic()) else LOOK_S
        with self.lock:  # a task in front looks only when its event loop lets it
            behind_task = self._first_thread() is waiter and isinstance(self.queue[0], TaskWaiter)
        if self._returned:
            self._send()
        return LOOK_S if behind_task else super()._pause(waiter)

    def _first_thread(self) -> Waiter | None:
        return next((waiter for waiter in self.queue if isinstance(waiter, ThreadWaiter)), None)

    def _fd(self, waiter: Waiter) -> int | None:
        return self.slots.fileno() if waiter.first else None

    def _wait(self, waiter: ThreadWaiter) -> None:
        """The first of the queue listens to other processes, the others to it."""
        if not waiter.first:
            waiter.wait(self._pause(waiter))
            if waiter.done or not waiter.first:
                return
        poll = select.poll()
        poll.register(self.slots.fileno(), select.POLLIN)
        poll.poll(self._pause(waiter) * 1000)
        if waiter.done:
            self.slots.drain(1)  # what woke this one; another may be for the next

    def _look(self, waiter: Waiter) -> None:
        if waiter.first:
            self.slots.drain()
            with self.lock:
                if self._is_idle_look(waiter):
                    return
        super()._look(waiter)

    def _is_idle_look(self, waiter: Waiter) -> bool:
        """Whether there is nothing to do but to show that this process lives: all cores are taken.

        Most looks of a waiting process are such, and in a small container their cost counts.
        """
        slots, now = self.slots, monotonic()
        if waiter.done or self._returned or not slots.hints or now >= self._expires(waiter):
            return False
        all_cores = (1 << self.cores) - 1
        if (slots.locked(self.cores) | slots.held) & all_cores != all_cores or now - self._tidied_s >= TIDY_S:
            return False
        self._publish(now)
        return True

    def _tidy(self) -> None:
        """Forget processes that died, and move on if the file was removed (temporary files are cleaned up)."""
        if self.slots.moved():
            self._move(self.slots.key)
        self.slots.reap()
        self._close_left()

    def _move(self, key: str) -> None:
        before = self.slots
        try:
            after = open_slots(key)
        except OSError as error:  # the old file still works for those who have it open
            message = f"worker processes that start now do not share this one's core budget: {first_line(error)}"
            self._after.append(partial(process.note, Notice("slots-unavailable", message, "warning", NO_SLOTS)))
            return
        self.slots = after
        self._left.append(_Left(before, frozenset(self.leases), frozenset(self.queue)))
        before.publish(0, 0, None, 0.0)
        for lease, mask in self.leases.items():
            self.leases[lease] = after.take(mask.bit_count(), self.cores, 0) if mask else 0
        self._close_left()
        if len(self._left) > MAX_LEFT:
            self._left.pop(0).slots.close()
        self._after.append(partial(process.note, *after.notices))

    def _close_left(self) -> None:
        for left in tuple(self._left):
            if left.leases & self.leases.keys():
                continue
            left.slots.give(left.slots.held)
            if left.listeners.isdisjoint(self.queue):  # a socket's number must not be another's while they listen
                self._left.remove(left)
                left.slots.close()

    def _close_ended(self) -> None:
        """Once it is not used any more; who asks for more gets one thread."""
        if not self.leases and not self.queue:
            for slots in (self.slots, *(left.slots for left in self._left)):
                slots.close()
            self.cores = 0
