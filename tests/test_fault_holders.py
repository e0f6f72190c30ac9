"""Holders of cores that are killed or stopped: what the other processes of a real cgroup do then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cgroup_threads.governor.queue import FIRST_STALL_S, MAX_WAIT_S
from tests.lab.cgroup1 import group
from tests.lab.shared_budget import Worker, slot_files, workers
from tests.lab.waiting import wait_until

# More cores than the machine has: slots are counted, not computed on.
SIX = {"CGROUP_THREADS_CORES": "6"}
CROWD = """
core().duration_s = 0.05
go, most = threading.Semaphore(0), [0]
def work():
    with ct.limit_threads() as lease:
        inside.append(lease.threads)
        most[0] = max(most[0], ct.statistics().active)
        go.acquire()
for _ in range(5): threading.Thread(target=work, daemon=True).start()
"""
IMPATIENT = """
def impatient():
    out = []
    def work():
        with ct.limit_threads(patience=0.2) as lease: out.append(lease.threads)
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    return out[0]
"""
# A child is killed just before or after its ``number``th system call that others can see, as it enters or leaves. "R"
# says that it is about to, a byte that it may go on.
REACHED_THE_END = 7
PLACES = 4
"""At least: before and after the lock on the cores, and before and after the page is written."""
KILLED = """
import ctypes
libc = ctypes.CDLL(None)
def killed_at(number, when):
    '''Process id of a child, and the pipe that lets it go on; it waits with its cores, or just before it takes them.'''
    ready, tell = os.pipe(); go, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG: never outlive the test
        signal.alarm(60)
        count = 0
        def profile(frame, event, argument):
            nonlocal count
            if event in ("c_call", "c_return") and argument.__name__ in ("fcntl", "pwrite", "sendto"):
                count += 1
                if count == number: os.kill(os.getpid(), signal.SIGKILL)
        ct.statistics()
        block = ct.limit_threads(patience=60)
        if when == "leaving": block.__enter__()
        os.write(tell, b"R"); os.read(go, 1)
        sys.setprofile(profile)
        if when == "entering": block.__enter__()
        else: block.__exit__(None, None, None)
        sys.setprofile(None)
        os._exit(7)  # there is no such call
    os.close(tell); os.close(go)
    assert os.read(ready, 1) == b"R"
    os.close(ready)
    return pid, start
def finish(pid, start):
    os.write(start, b"g"); os.close(start)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def kill_entering(number):
    pid, start = killed_at(number, "entering")
    return finish(pid, start)
def kill_leaving(number):
    global child
    child = killed_at(number, "leaving")
"""
# The kernel frees a dead holder's cores at once, and who waits looks every few milliseconds.
SOON_S = 5.0


def seconds_until_active(worker: Worker, active: int = 1) -> float:
    """How long it took until ``active`` calls run in ``worker``."""
    began = time.monotonic()
    wait_until(lambda: worker("now()")[0] == active)
    return time.monotonic() - began


@contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    """``worker`` stopped, all its threads; goes on at the end."""
    pid = worker.process.pid

    def states() -> set[str]:
        stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: states() == {"T"})  # one thread takes the signal, and then stops the others
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def queue_up(worker: Worker, waiting: int = 1) -> None:
    """One more call of ``worker`` waits, with all the patience there is."""
    worker("threads.append(wait())" if worker("'threads' in globals()") else "threads = [wait()]")
    wait_until(lambda: worker("now()")[2] == waiting)


def nothing_is_left(worker: Worker) -> bool:
    """Whether all six cores can be leased by a process that has none."""
    assert worker("now()") == [0, 0, 0]
    assert worker("core().slots.locked(6)") == 0
    return bool(worker("[enter(6, patience=60) >= 3, leave()][0]"))  # the dead may be counted for a moment


def test_a_stopped_holder_keeps_its_cores_and_the_others_go_on_with_the_rest() -> None:
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (holder, other):
        assert holder("enter(4)") == 4
        with stopped(holder):
            began = time.monotonic()
            for _ in range(20):
                assert other("enter(patience=60)") == 2
                assert other("now()") == [1, 2, 0]
                other("leave()")
            assert time.monotonic() - began < SOON_S
            assert other("ct.statistics().overcommitted") == 0
        assert holder("now()") == [1, 4, 0]
        holder("leave()")
        assert nothing_is_left(other)


def test_who_waits_for_a_stopped_holder_begins_with_one_thread() -> None:
    """After a second in which nothing moved. The holder's cores stay its own, also when it goes on."""
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (holder, other):
        assert holder("enter()") == 6
        with stopped(holder):
            began = time.monotonic()
            assert other("enter()") == 1
            assert FIRST_STALL_S / 2 < time.monotonic() - began < MAX_WAIT_S / 2
            assert other("[now(), ct.statistics().overcommitted]") == [[1, 0, 0], 1]
            other(f"exec({IMPATIENT!r}, globals())")
            began = time.monotonic()
            assert other("impatient()") == 1
            assert 0.2 <= time.monotonic() - began < SOON_S
        assert holder("now()") == [1, 6, 0]
        assert holder("ct.statistics().overcommitted") == 0
        holder("leave()")
        other("leave()")
        assert holder("enter(6, patience=60)") >= 3
        holder("leave()")


def test_no_more_calls_than_cores_overtake_a_stopped_holder() -> None:
    with group(quota=1.0) as name, workers(name, 2, CGROUP_THREADS_CORES="2") as (holder, other):
        assert holder("enter()") == 2
        with stopped(holder):
            other(f"exec({CROWD!r}, globals())")
            wait_until(lambda: other("now()") == [2, 0, 3])
            # Long enough for a third one to follow, were there no end to them.
            wait_until(lambda: other("time.monotonic() > core().moved_s + 5 * core()._stall()"))
            assert other("now()") == [2, 0, 3]
            for done in range(5):
                assert other("most[0]") <= 2
                wait_until(lambda done=done: other("len(inside)") > done)  # type: ignore[misc]
                other("go.release()")
            wait_until(lambda: other("now()") == [0, 0, 0])
            assert other("most[0]") == 2
        assert holder("now()") == [1, 2, 0]
        holder("leave()")
        assert other("enter(patience=60)") >= 1


def test_a_stopped_head_of_the_queue_holds_nobody_up() -> None:
    """Neither those behind it in other processes, one after the other, nor its own when it goes on."""
    with group(quota=1.0) as name, workers(name, 4, CGROUP_THREADS_CORES="1") as (holder, head, second, third):
        assert holder("enter()") == 1
        queue_up(head)
        queue_up(head, waiting=2)
        queue_up(second)
        queue_up(third)
        with stopped(head):
            holder("leave()")
            assert seconds_until_active(second) < SOON_S
            assert third("now()") == [0, 0, 1]
            second("threads[0].left.set()")
            assert seconds_until_active(third) < SOON_S
            assert third("ct.statistics().overcommitted") == 0
        third("threads[0].left.set()")
        head("[thread.left.set() for thread in threads]")
        wait_until(lambda: head("[len(inside), now()]") == [2, [0, 0, 0]])
        assert head("ct.statistics().overcommitted") == 0


def test_a_killed_head_of_the_queue_holds_nobody_up() -> None:
    with group(quota=1.0) as name, workers(name, 3, **SIX) as (holder, head, other):
        assert holder("enter()") == 6
        queue_up(head)
        queue_up(other)
        head.kill()
        assert other("now()") == [0, 0, 1]
        holder("leave()")
        assert seconds_until_active(other) < SOON_S
        other("threads[0].left.set()")
        wait_until(lambda: other("now()") == [0, 0, 0])
        assert nothing_is_left(holder)


def test_a_process_that_is_killed_anywhere_as_it_takes_cores_leaves_none_behind() -> None:
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (parent, other):
        parent(f"exec({KILLED!r}, globals())")
        other("ct.statistics().cores")
        number, code = 0, -signal.SIGKILL
        while code == -signal.SIGKILL:
            number += 1
            code = parent(f"kill_entering({number})")
            assert other("core().slots.locked(6)") == 0, number
            assert nothing_is_left(other), number
        assert code == REACHED_THE_END
        assert number > PLACES, number
        assert other("ct.statistics().overcommitted") == 0


def test_a_process_that_is_killed_anywhere_as_it_gives_cores_back_leaves_nobody_waiting() -> None:
    """Also between giving them back and waking the next one: who waits looks by itself."""
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (parent, other):
        parent(f"exec({KILLED!r}, globals())")
        number, code = 0, -signal.SIGKILL
        while code == -signal.SIGKILL:
            number += 1
            parent(f"kill_leaving({number})")
            queue_up(other)
            code = parent("finish(*child)")
            assert seconds_until_active(other) < SOON_S, number
            other("threads.pop().left.set()")
            wait_until(lambda: other("now()") == [0, 0, 0])
        assert code == REACHED_THE_END
        assert number > PLACES, number
        assert other("ct.statistics().overcommitted") == 0
        assert nothing_is_left(other)


def test_the_last_one_removes_the_file_though_others_were_killed() -> None:
    with group(quota=1.0) as name:
        before = slot_files(name)
        with workers(name, 3, **SIX) as (first, second, last):
            assert [first("enter(2)"), second("enter(1)")] == [2, 1]
            assert len(slot_files(name) - before) == 1
            first.kill()
            second.kill()
            assert nothing_is_left(last)
            assert last.close() == 0
            assert slot_files(name) == before
