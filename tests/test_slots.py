"""Slots between real processes: no core has two holders, whoever is killed, stopped or forked."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cgroup_threads.governor import slot_file
from cgroup_threads.governor.slot_rows import HINTED_SLOTS, ROWS
from cgroup_threads.governor.slots import MAX_SLOTS, Slots, View, open_slots, slot_key
from tests.lab.slots import DEADLINE_S, SHM, Holders, a_key, become, workers

KILLS = 25


@pytest.fixture
def key() -> Iterator[str]:
    with a_key() as key:
        yield key


@pytest.fixture
def slots(key: str) -> Iterator[Slots]:
    with closing(open_slots(key)) as slots:
        yield slots


def test_cores_come_lowest_first_and_once(slots: Slots, key: str) -> None:
    with closing(open_slots(key)) as other:
        assert slots.take(2, 4, 0) == slots.held == 0b0011
        assert other.take(1, 4, 0b0011) == 0b0100
        assert slots.take(4, 4, 0b0100) == 0b1000
        assert slots.take(1, 4, 0) == other.take(1, 4, 0) == 0
        slots.give(0b0010)
        assert slots.held == 0b1001
        assert other.take(4, 4, 0) == 0b0010
        other.give(0b1111)  # its own ones only
        assert (slots.held, other.held) == (0b1001, 0)
        assert other.take(4, 4, 0) == 0b0110


def test_wrong_hints_cost_no_core(slots: Slots, key: str) -> None:
    with closing(open_slots(key)) as other:
        slots.take(2, 8, 0b00110011)
        assert slots.held == 0b00001100
        assert other.take(3, 8, 0b11111111) == 0b00010011  # all free ones were said to be held
        assert other.take(8, 8, 0) == 0b11100000


def test_more_cores_than_there_are(slots: Slots) -> None:
    assert slots.take(0, 4, 0) == slots.take(1, 0, 0) == slots.take(-1, 4, 0) == 0
    assert slots.take(10**6, 10**6, 0) == (1 << MAX_SLOTS) - 1


def test_cores_above_the_hints(slots: Slots, key: str) -> None:
    with closing(open_slots(key)) as other:
        slots.take(HINTED_SLOTS + 2, MAX_SLOTS, 0)
        slots.publish(1, 0, None, time.monotonic())
        view = other.look()
        assert view.held == (1 << HINTED_SLOTS) - 1
        assert other.take(2, MAX_SLOTS, view.held) == 0b11 << HINTED_SLOTS + 2


def test_budgets_that_differ(slots: Slots, key: str) -> None:
    """Each bounds its own grants; what is above a budget that shrank drains first."""
    with closing(open_slots(key)) as other:
        assert slots.take(4, 4, 0) == 0b1111
        assert other.take(2, 2, 0) == 0
        assert other.take(4, 6, 0) == 0b110000
        slots.give(0b0101)
        assert slots.take(2, 2, 0) == 0b0001


def test_two_keys_stay_apart(slots: Slots) -> None:
    with a_key() as key, closing(open_slots(key)) as other:
        assert slots.take(2, 2, 0) == other.take(2, 2, 0) == 0b11
        slots.publish(1, 0, None, 0.0)
        assert other.look() == View()


def test_what_is_published_is_seen(slots: Slots, key: str) -> None:
    assert slots.look() == View()
    with workers(3, key) as (one, two, three):
        one.ask("s.take(2, 4, 0)")
        since = time.monotonic()

        def seen() -> bool:  # who waits has to say so again and again
            for worker, call in ((one, "3, 0, None"), (two, f"1, 2, {since}"), (three, f"0, 1, {since - 1}")):
                worker.ask(f"s.publish({call}, time.monotonic())")
            views = slots.look(), one.ask("s.look()")
            return views == (View(7, 0b11, since - 1, 3, 3), [4, 0, since - 1, 3, 3, 0])

        become(seen, "it was not seen")
    assert slots.reap()
    assert slots.look() == View()
    assert not slots.reap()


def test_a_wake_is_heard(slots: Slots, key: str) -> None:
    with workers(1, key) as (worker,):
        assert not worker.ask("heard(0)")
        for _ in range(100):  # more than its queue takes
            slots.wake(1)
        assert worker.ask("heard(10)")
        assert worker.ask("(s.drain(), heard(0))") == [None, False]
        worker.ask("s.wake(0)")
        poll = select.poll()
        poll.register(slots.fileno(), select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000)
        slots.drain()
        assert not poll.poll(0)
    slots.wake_self()
    assert poll.poll(DEADLINE_S * 1000)
    for row in (1, 2, ROWS, -1):  # a dead one's, an empty one, none
        slots.wake(row)


@pytest.mark.parametrize("budgets", [(4,), (4, 2, 3)], ids=["one budget", "budgets that differ"])
def test_killed_holders(key: str, tmp_path: Path, budgets: tuple[int, ...]) -> None:
    """Each holder proves for itself that nobody else has its cores."""
    holders = Holders(4, key, budgets, tmp_path / "oracle")
    try:
        for _ in range(KILLS):
            holders.kill_one()
        assert holders.stop() > 0
    finally:
        holders.kill()
    with closing(open_slots(key)) as slots:
        assert slots.take(max(budgets), max(budgets), 0) == (1 << max(budgets)) - 1


def test_the_file_goes_with_the_last_one(key: str, tmp_path: Path) -> None:
    """Two come and go all the time: no newcomer is left with a file that the last one took along."""
    holders = Holders(2, key, (1,), tmp_path / "oracle", reopening=0.5)
    try:
        for _ in range(5):
            holders.kill_one()
        assert holders.stop() > 0
    finally:
        holders.kill()
    assert not os.path.exists(f"{SHM}/cgroup_threads-{key}.slots")


def test_leaving_without_closing(slots: Slots, key: str) -> None:
    """As at a process's end, where other threads may still compute: what they hold stays theirs."""
    with closing(open_slots(key)) as other:
        slots.take(2, 4, 0)
        slots.publish(1, 0, None, 1.0)
        slots.leave()
        assert other.look() == View()
        assert other.take(4, 4, 0) == 0b1100
        slots.publish(1, 0, None, 1.0)
        assert other.look() == View()
        other.close()
        assert not slots.moved()
        slots.leave()
        assert not slots.moved()
        slots.give(0b11)
        slots.leave()
        assert slots.moved()


def test_the_last_one_leaves_as_a_newcomer_opens(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    last = open_slots(key)

    def open_and_wait(*arguments: str) -> slot_file.SlotFile:
        file = slot_file.open_file(*arguments)
        last.close()
        return file

    monkeypatch.setattr("cgroup_threads.governor.slots.open_file", open_and_wait)
    with closing(open_slots(key)) as slots:
        assert not slots.moved()
        assert slots.take(2, 4, 0) == 0b0011


def test_the_file_stays_for_others(slots: Slots, key: str) -> None:
    other = open_slots(key)
    other.close()
    assert not slots.moved()
    with workers(1, key) as (worker,):
        worker.ask("s.take(1, 4, 0)")
        slots.close()
        assert worker.ask("s.moved()") is False
        assert worker.ask("[s.close(), os.path.exists(s.path)]") == [None, False]


def test_the_oracle_sees_two_holders(key: str, tmp_path: Path) -> None:
    """Two keys are two budgets: were that not found, the test above would prove nothing."""
    with a_key() as other:
        first = Holders(1, key, (1,), tmp_path / "oracle")
        second = Holders(1, other, (1,), tmp_path / "oracle")
        try:
            become(lambda: first.errors() or second.errors(), "two holders were not noticed")
        finally:
            first.kill()
            second.kill()


def test_a_killed_holders_cores_are_free_at_once(slots: Slots, key: str) -> None:
    with workers(1, key) as (worker,):
        assert worker.ask("s.take(4, 4, 0)") == 0b1111
        worker.ask("s.publish(1, 0, None, time.monotonic())")
        view = slots.look()
        assert (view.held, slots.take(4, 4, view.held)) == (0b1111, 0)
        worker.kill()
    assert slots.look() == view  # the hint is still there, and wrong
    assert slots.take(4, 4, view.held) == 0b1111
    assert slots.reap()
    assert slots.look() == View()


def test_a_stopped_process_blocks_nobody(slots: Slots, key: str) -> None:
    with workers(1, key) as (worker,):
        worker.ask("s.publish(0, 2, time.monotonic(), time.monotonic())")
        worker.send(signal.SIGSTOP)
        become(lambda: not slots.look().waiting, "a stopped process still waits")
        assert slots.look() == View()


def test_a_hint_that_nobody_takes_back(slots: Slots, key: str) -> None:
    """A process that was stopped between giving cores and saying so must not keep them."""
    with workers(1, key) as (worker,):
        worker.ask("[s.take(3, 4, 0), s.publish(1, 0, None, 0.0), s.give(0b101)]")
        assert slots.look().held == 0b111
        assert slots.reap()
        assert slots.look().held == 0b010
        assert slots.take(2, 4, slots.look().held) == 0b101


def test_a_child_has_a_part_of_its_own(slots: Slots, key: str) -> None:
    """Neither does it free its parent's cores nor hold them when the parent has died."""
    with workers(1, key) as (parent,):
        parent.ask("s.take(2, 4, 0)")
        child = parent.ask("fork(abandon=True)")
        try:
            assert slots.take(4, 4, 0) == 0b1100
            slots.give(0b1100)
            parent.kill()
            os.kill(child, 0)  # it lives
            assert slots.take(4, 4, 0) == 0b1111
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_keeps_its_parents_part(slots: Slots, key: str) -> None:
    """The fault itself: were it gone, the test above would prove nothing."""
    with workers(1, key) as (parent,):
        parent.ask("s.take(2, 4, 0)")
        child = parent.ask("fork(abandon=False)")
        try:
            parent.kill()
            assert slots.take(4, 4, 0) == 0b1100
        finally:
            os.kill(child, signal.SIGKILL)


CHECK = """
def check():
    child = s.abandon_in_child()
    if s.held or s.take(1, 4, 0) or s.abandon_in_child() is not None or s.reap() or s.moved(): return 2
    for call in (lambda: s.give(15), lambda: s.publish(1, 1, 1.0, 1.0), lambda: s.wake(0), s.drain, s.close): call()
    if s.look() != View() or s.notices or s.fileno() != -1: return 3
    if child.take(4, 4, 0) != 12 or child.path != s.path or child.fileno() < 0: return 4
    child.publish(1, 0, None, time.monotonic())
    return 0

pid = os.fork()
if not pid:
    os._exit(check())
"""


def test_a_child_and_what_it_inherits(slots: Slots, key: str) -> None:
    """The parent's slots do nothing there, also not to whatever has got their descriptor since."""
    with workers(1, key) as (parent,):
        parent.ask("s.take(2, 4, 0)")
        parent.ask(f"exec({CHECK!r}, globals())")
        assert parent.ask("os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])") == 0
        assert parent.ask("[s.held, s.take(4, 4, 0)]") == [0b11, 0b1100]
        assert slots.take(4, 4, 0) == 0


@pytest.mark.parametrize("how", ["exec", "subprocess"])
def test_another_program_inherits_nothing(slots: Slots, key: str, how: str) -> None:
    with workers(1, key) as (worker,):
        worker.ask("s.take(4, 4, 0)")
        assert slots.take(1, 4, 0) == 0
        program = [sys.executable, "-c", "import sys; print(0, flush=True); sys.stdin.read()"]
        if how == "exec":
            assert worker.ask(f"os.execv({program[0]!r}, {program!r})") == 0
            assert slots.take(4, 4, 0) == 0b1111
            return
        child = worker.ask(f"subprocess.Popen({program!r}, stdout=-1).pid")
        try:
            worker.kill()
            os.kill(child, 0)
            assert slots.take(4, 4, 0) == 0b1111
        finally:
            os.kill(child, signal.SIGKILL)


def test_rows_run_out_and_come_back(key: str) -> None:
    with ExitStack() as stack:
        all_slots = [stack.enter_context(closing(open_slots(key))) for _ in range(ROWS)]
        assert not [notice for slots in all_slots for notice in slots.notices]
        late = stack.enter_context(closing(open_slots(key)))
        assert [notice.code for notice in late.notices] == ["slots-full"]
        late.take(1, 4, 0)
        late.publish(1, 0, None, 0.0)
        all_slots[-1].publish(2, 0, None, 0.0)
        assert late.look().calls == 2
        assert all_slots[0].look().calls == 2
        assert all_slots[0].take(4, 4, 0) == 0b1110
        all_slots[5].close()
        late.reap()
        assert not late.notices
        late.publish(1, 0, None, 0.0)
        assert all_slots[0].look().calls == 3


def test_a_newcomer_is_seen_without_reaping(slots: Slots, key: str) -> None:
    with ExitStack() as stack:
        for number in range(1, 6):
            stack.enter_context(closing(open_slots(key))).publish(1, 0, None, 0.0)
            assert slots.look().calls == number


def test_a_lock_the_kernel_keeps_is_given_later(slots: Slots, key: str) -> None:
    """Splitting a lock needs memory; a descriptor that takes no locks stands in for there being none."""
    slots.take(3, 4, 0)
    descriptor = slots._descriptor
    slots._descriptor = useless = os.open(slots.path, os.O_PATH)
    slots.give(0b010)
    os.close(useless)
    slots._descriptor = descriptor
    with closing(open_slots(key)) as other:
        assert (slots.held, other.take(4, 4, 0)) == (0b111, 0b1000)
        slots.give(0b001)
        assert (slots.held, other.take(4, 4, 0)) == (0b100, 0b0011)


def test_nothing_is_left_open(key: str) -> None:
    def descriptors() -> list[str]:
        return os.listdir("/proc/self/fd")

    before = len(descriptors())
    for _ in range(50):
        slots = open_slots(key)
        slots.take(1, 4, 0)
        slots.close()
        slots.close()
        assert (slots.take(1, 4, 0), slots.held, slots.look(), slots.notices) == (0, 0, View(), ())
    assert len(descriptors()) == before


def test_the_key_is_the_directory(tmp_path: Path) -> None:
    status = tmp_path.stat()
    assert slot_key(str(tmp_path)) == f"{os.geteuid()}-{status.st_dev:x}-{status.st_ino:x}"
    (tmp_path / "a").mkdir()
    assert slot_key(str(tmp_path)) == slot_key(f"{tmp_path}/a/..") != slot_key(f"{tmp_path}/a")
    assert slot_key(str(tmp_path / "missing")) is slot_key("\0") is None
