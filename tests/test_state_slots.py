"""Slots against a model: processes come, take, give, die in the middle of it, and write noise over the hints."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cgroup_threads.governor import slots as slots_module
from cgroup_threads.governor.slot_rows import PAGE_SIZE, ROW_SIZE
from cgroup_threads.governor.slots import Slots, View, open_slots
from tests.lab.slots import Worker

KEY = "machine"
NOW = 5000.0
MOST = 12
BUDGETS = st.integers(1, MOST)
MASKS = st.integers(0, (1 << MOST) - 1)


class Peer(Protocol):
    """A process with its part in the slots."""

    def take(self, cores: int, budget: int, held: int) -> int: ...
    def give(self, mask: int) -> None: ...
    def publish(self, running: int, waiting: int) -> None: ...
    def look(self) -> View: ...
    def locked(self, budget: int) -> int: ...
    def reap(self) -> None: ...
    def held(self) -> int: ...
    def moved(self) -> bool: ...
    def close(self) -> None: ...
    def die(self) -> None: ...


class Near:
    """One in this process: locks belong to open files, so it is as far from the others as another process."""

    def __init__(self, directory: str) -> None:
        self.slots: Slots = open_slots(KEY, directory=directory)
        self.take, self.give, self.look = self.slots.take, self.slots.give, self.slots.look
        self.locked, self.moved, self.close = self.slots.locked, self.slots.moved, self.slots.close

    def publish(self, running: int, waiting: int) -> None:
        self.slots.publish(running, waiting, NOW - 0.01 if waiting else None, NOW)

    def reap(self) -> None:
        self.slots.reap()

    def held(self) -> int:
        return self.slots.held

    def die(self) -> None:
        """As the kernel does it: the descriptors go, and nobody says a word."""
        self.slots._drop()


class Far:
    """A real process, told what to do through its pipe."""

    def __init__(self, directory: str) -> None:
        self.worker = Worker(KEY, directory)

    def take(self, cores: int, budget: int, held: int) -> int:
        return int(self.worker.ask(f"s.take({cores}, {budget}, {held})"))

    def give(self, mask: int) -> None:
        self.worker.ask(f"s.give({mask})")

    def publish(self, running: int, waiting: int) -> None:
        now = "time.monotonic()"
        self.worker.ask(f"s.publish({running}, {waiting}, {now + ' - 0.01' if waiting else None}, {now})")

    def look(self) -> View:
        return View(*self.worker.ask("s.look()"))

    def locked(self, budget: int) -> int:
        return int(self.worker.ask(f"s.locked({budget})"))

    def reap(self) -> None:
        self.worker.ask("s.reap()")

    def held(self) -> int:
        return int(self.worker.ask("s.held"))

    def moved(self) -> bool:
        return bool(self.worker.ask("s.moved()"))

    def close(self) -> None:
        self.worker.ask("s.close()")
        self.worker.kill()

    def die(self) -> None:
        self.worker.kill()


class Row:
    """What stands in a row of the page; ``sure`` is False after somebody has written over it."""

    def __init__(self, calls: int = 0, held: int = 0, sure: bool = True) -> None:
        self.calls, self.held, self.sure = calls, held, sure


class File:
    """One file that peers meet in."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.named = True


class Known:
    """What the model knows of a peer."""

    def __init__(self, peer: Peer, file: File, row: int) -> None:
        self.peer, self.file, self.row, self.mask = peer, file, row, 0


class SlotsMachine(RuleBasedStateMachine):
    """Peers of this process."""

    kind: Any = Near
    most = 4
    waits = True
    """Whether the clock stands still, so that waiting calls are believed for ever."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(slots_module, "monotonic", lambda: NOW)
        self.patch.setattr(slots_module, "clock_shift", lambda: 0.0)
        self.directory = tempfile.mkdtemp(prefix="slots-")
        self.path = f"{self.directory}/cgroup_threads-{KEY}.slots"
        self.known: list[Known] = []
        self.file: File | None = None
        """The file that has the name; None while there is none."""

    def _open(self) -> Known:
        if self.file is None:
            self.file = File()
        taken = {one.row for one in self.known if one.file is self.file}
        row = next(row for row in range(MOST) if row not in taken)
        one = Known(self.kind(self.directory), self.file, row)
        self.file.rows[row] = Row()
        self.known.append(one)
        return one

    def _others(self, one: Known) -> int:
        mask = 0
        for other in self.known:
            if other is not one and other.file is one.file:
                mask |= other.mask
        return mask

    def _leave(self, one: Known) -> None:
        self.known.remove(one)

    @precondition(lambda self: len(self.known) < self.most)
    @rule()
    def a_process_comes(self) -> None:
        self._open()

    @precondition(lambda self: self.known)
    @rule(data=st.data(), cores=st.integers(-1, MOST + 1), budget=BUDGETS, hint=MASKS, honest=st.booleans())
    def take(self, data: st.DataObject, cores: int, budget: int, hint: int, honest: bool) -> None:
        """As many as are free, whatever the hints say; those that they name last."""
        one = data.draw(st.sampled_from(self.known))
        others = self._others(one)
        free = ((1 << budget) - 1) & ~(others | one.mask)
        got = one.peer.take(cores, budget, others if honest else hint)
        assert got & ~free == 0, f"{got:b} of {free:b}"
        assert got.bit_count() == max(0, min(cores, free.bit_count()))
        if honest:
            assert got == lowest(free, cores)
        one.mask |= got

    @precondition(lambda self: self.known)
    @rule(data=st.data(), mask=MASKS)
    def give(self, data: st.DataObject, mask: int) -> None:
        one = data.draw(st.sampled_from(self.known))
        one.peer.give(mask)
        one.mask &= ~mask

    @precondition(lambda self: self.known)
    @rule(data=st.data(), running=st.integers(0, 9), waiting=st.integers(0, 9))
    def publish(self, data: st.DataObject, running: int, waiting: int) -> None:
        one = data.draw(st.sampled_from(self.known))
        waiting = waiting if self.waits else 0
        one.peer.publish(running, waiting)
        one.file.rows[one.row] = Row(running + waiting, one.mask)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """Never more than what stands there; rows that were written over may say anything within bounds."""
        one = data.draw(st.sampled_from(self.known))
        view = one.peer.look()
        rows = [row for at, row in one.file.rows.items() if at != one.row]
        if all(row.sure for row in rows):
            assert view.calls <= sum(row.calls for row in rows)
            mask = 0
            for row in rows:
                mask |= row.held
            assert view.held & ~mask == 0
        assert 0 <= view.waiting <= view.calls

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        """Then what is seen is the truth: rows of the dead are gone, and what hints name is held."""
        one = data.draw(st.sampled_from(self.known))
        one.peer.reap()
        alive = {other.row for other in self.known if other.file is one.file}
        for gone in set(one.file.rows) - alive:
            del one.file.rows[gone]
        view = one.peer.look()
        rows = [row for at, row in one.file.rows.items() if at != one.row]
        mask = 0
        for row in rows:
            mask |= row.held
        truth = self._others(one) | one.mask
        if all(row.sure for row in rows):
            assert view.calls == sum(row.calls for row in rows)
            assert view.held == mask & truth
        assert view.held & ~truth == 0, "held by nobody"

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def a_process_is_killed(self, data: st.DataObject) -> None:
        """Its cores are free at once. Its row stays."""
        one = data.draw(st.sampled_from(self.known))
        one.peer.die()
        self._leave(one)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def a_process_ends(self, data: st.DataObject) -> None:
        """The last one takes the file along."""
        one = data.draw(st.sampled_from(self.known))
        one.peer.close()
        self._leave(one)
        one.file.rows.pop(one.row, None)
        if one.file is self.file and not any(other.file is one.file for other in self.known):
            self.file = None
            assert not os.path.exists(self.path)

    @precondition(lambda self: self.file is not None)
    @rule(at=st.integers(0, 6 * ROW_SIZE), noise=st.binary(min_size=1, max_size=100))
    def noise_is_written(self, at: int, noise: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(at)
            file.write(noise)
        self._doubt(at, at + len(noise))

    @precondition(lambda self: self.file is not None)
    @rule(size=st.integers(0, PAGE_SIZE))
    def the_file_is_cut(self, size: int) -> None:
        os.truncate(self.path, size)
        self._doubt(size, PAGE_SIZE)

    def _doubt(self, start: int, end: int) -> None:
        assert self.file is not None
        for row in range(start // ROW_SIZE, min(-(-end // ROW_SIZE), MOST)):
            self.file.rows[row] = Row(sure=False)

    @precondition(lambda self: self.file is not None)
    @rule()
    def the_file_is_removed(self) -> None:
        """By a cleaner of temporary files."""
        os.unlink(self.path)
        self.file = None

    @precondition(lambda self: any(one.file is not self.file for one in self.known))
    @rule()
    def all_move_on(self) -> None:
        """To the new file, with as many cores as are free there."""
        for one in [one for one in self.known if one.file is not self.file]:
            assert one.peer.moved()
            after = self._open()
            free = ((1 << MOST) - 1) & ~self._others(after)
            after.mask = after.peer.take(one.mask.bit_count(), MOST, 0)
            assert after.mask.bit_count() == min(one.mask.bit_count(), free.bit_count())
            one.peer.close()
            self._leave(one)

    @invariant()
    def no_core_has_two_holders(self) -> None:
        for one in getattr(self, "known", ()):
            assert one.peer.held() == one.mask
            others = self._others(one)
            assert others & one.mask == 0
            assert one.peer.locked(MOST) == others
            assert one.peer.moved() == (one.file is not self.file)

    def teardown(self) -> None:
        if not hasattr(self, "known"):
            return
        try:
            while self.known:
                self._leave_in_order(self.known[-1])
        finally:
            for one in self.known:
                one.peer.die()
            self.patch.undo()
            shutil.rmtree(self.directory)

    def _leave_in_order(self, one: Known) -> None:
        one.peer.close()
        self._leave(one)
        if one.file is self.file and not any(other.file is one.file for other in self.known):
            assert not os.path.exists(self.path)


class RealSlotsMachine(SlotsMachine):
    """Peers that are processes."""

    kind = Far
    most = 3
    waits = False


def lowest(mask: int, most: int) -> int:
    """The lowest bits of ``mask``, at most so many."""
    found = 0
    while mask and found.bit_count() < most:
        found |= mask & -mask
        mask &= mask - 1
    return found


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40)
TestRealSlots = RealSlotsMachine.TestCase
TestRealSlots.settings = settings(
    max_examples=3, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
