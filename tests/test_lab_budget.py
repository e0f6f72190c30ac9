"""One core budget for all processes of a real cgroup: shared, freed at a death, followed as the quota changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import require
from tests.lab.cgroup1 import CPUSET, group
from tests.lab.shared_budget import Worker, set_quota, slot_files, workers

pytestmark = pytest.mark.where("cgroup v1: real groups")

# More cores than the machine has: slots are counted, not computed on.
SIX = {"CGROUP_THREADS_CORES": "6"}


def until(condition: Callable[[], bool], seconds: float = 20) -> float:
    """Wait until ``condition`` holds; returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it did not come"
        time.sleep(0.002)
    return time.monotonic() - began


def all_stopped(pid: int) -> bool:
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_scope_auto_shares_the_budget_where_a_quota_is_set() -> None:
    with group(quota=1.0) as name, workers(name, 2) as (first, second):
        assert first("[ct.statistics().scope, ct.statistics().cores]") == ["container", 1]
        assert first("enter()") == 1
        second("thread = wait()")
        until(lambda: second("now()") == [0, 0, 1])
        assert first("leave()") is None
        until(lambda: second("now()") == [1, 1, 0])
        second("thread.left.set()")
        until(lambda: second("now()") == [0, 0, 0])


def test_scope_auto_stays_in_the_process_without_a_limit() -> None:
    with group() as name, workers(name, 1) as (only,):
        assert only("ct.statistics().scope") == "process"


def test_scope_process_shares_nothing() -> None:
    with group(quota=1.0) as name, workers(name, 2, CGROUP_THREADS_SCOPE="process") as (first, second):
        assert [first("enter()"), second("enter()"), second("ct.statistics().scope")] == [1, 1, "process"]
        assert second("ct.statistics().overcommitted") == 0


def test_a_quotas_fraction_runs_one_more_call_of_one_thread() -> None:
    with group(quota=1.5) as name, workers(name, 3) as (first, second, third):
        assert first("[ct.plan().threads, ct.statistics().cores]") == [1, 2]
        assert [first("enter()"), second("enter()")] == [1, 1]
        third("thread = wait()")
        until(lambda: third("now()") == [0, 0, 1])
        set_quota(name, 1.1)
        assert third("ct.refresh().cores") == 1
        assert [first("leave()"), first("ct.refresh().cores")] == [None, 1]
        assert third("now()") == [0, 0, 1]  # the one that is left is all of the budget
        second("leave()")
        until(lambda: third("now()") == [1, 1, 0])
        third("thread.left.set()")


def test_jobs_with_a_cpuset_each_share_nothing() -> None:
    """cgroup v1: both are in the same group of the cpu controller."""
    with group(cpus="0") as name, workers(name, 1) as (first,):
        other = CPUSET / os.path.dirname(name) / "other"
        other.mkdir()
        try:
            (other / "cpuset.mems").write_text((CPUSET / name / "cpuset.mems").read_text())
            (other / "cpuset.cpus").write_text("1")
            move = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
            second = Worker(name, {}, ("sh", "-c", move, str(other)))
            try:
                assert first("[ct.statistics().scope, ct.statistics().bound_by]") == ["container", "cpuset"]
                assert [first("enter()"), second("enter()")] == [1, 1]
                assert second("ct.statistics().overcommitted") == 0
            finally:
                second.close()
        finally:
            until(lambda: not (other / "cgroup.procs").read_text())
            other.rmdir()


def test_calls_of_all_processes_divide_the_budget() -> None:
    with group(quota=1.0) as name, workers(name, 3, **SIX) as (first, second, third):
        assert first("enter(2)") == 2
        assert second("enter(2)") == 2
        assert third("enter()") == 2
        assert third("now()") == [1, 2, 0]
        assert [worker("leave()") for worker in (first, second, third)] == [None] * 3


def test_a_killed_holders_cores_are_free_at_once() -> None:
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (holder, other):
        assert holder("enter()") == 6
        other("thread = wait()")
        until(lambda: other("now()") == [0, 0, 1])
        holder.kill()
        assert until(lambda: other("now()")[0] == 1) < 5
        until(lambda: other("len(inside)") == 1)
        assert other("inside[0]")[0] >= 3  # the dead one may still have been counted as a call
        assert other("ct.statistics().overcommitted") == 0
        other("thread.left.set()")
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (holder, newcomer):
        assert holder("enter()") == 6
        holder.kill()
        assert newcomer("enter()") == 6
        assert newcomer("ct.statistics().overcommitted") == 0


def test_a_forked_child_has_a_part_of_its_own() -> None:
    with group(quota=1.0) as name, workers(name, 1, **SIX) as (parent,):
        assert parent("enter(2)") == 2
        parent(
            "exec('''"
            r"r, w = os.pipe()\npid = os.fork()\nif pid == 0:\n"
            r"    with ct.limit_threads() as lease: os.write(w, json.dumps([lease.threads, now()]).encode())\n"
            r"    os._exit(0)\nos.waitpid(pid, 0)\ntold = json.loads(os.read(r, 100))''')"
        )
        # Six cores for two calls are three each; the parent holds two of them on.
        assert parent("told") == [3, [1, 3, 0]]
        assert parent("now()") == [1, 2, 0]
        parent("leave()")
        assert parent("enter(6)") >= 3


def test_a_queue_across_processes_is_first_come_first_served() -> None:
    with group(quota=1.0) as name, workers(name, 4) as (holder, *others):
        assert holder("enter()") == 1
        for worker in others:
            worker("thread = wait()")
            until(lambda worker=worker: worker("now()") == [0, 0, 1])  # type: ignore[misc]
        holder("leave()")
        for number, worker in enumerate(others):
            until(lambda worker=worker: worker("now()") == [1, 1, 0])  # type: ignore[misc]
            assert all(later("now()") == [0, 0, 1] for later in others[number + 1 :])
            worker("thread.left.set()")


def test_a_stopped_waiter_does_not_hold_the_others_up() -> None:
    import signal

    with group(quota=1.0) as name, workers(name, 3) as (holder, stopped, other):
        assert holder("enter()") == 1
        stopped("thread = wait()")
        until(lambda: stopped("now()") == [0, 0, 1])
        other("thread = wait()")
        until(lambda: other("now()") == [0, 0, 1])
        os.kill(stopped.process.pid, signal.SIGSTOP)
        until(lambda: all_stopped(stopped.process.pid))  # one thread takes the signal, and then stops the others
        try:
            holder("leave()")
            until(lambda: other("now()") == [1, 1, 0], seconds=5)
            other("thread.left.set()")
            until(lambda: other("now()") == [0, 0, 0])
        finally:
            os.kill(stopped.process.pid, signal.SIGCONT)
        until(lambda: stopped("now()")[0] == 1)
        assert stopped("now()") == [1, 1, 0]


def test_a_removed_file_is_left_by_all() -> None:
    with group(quota=1.0) as name:
        before = slot_files(name)
        with workers(name, 2, **SIX) as (first, second):
            assert first("enter(4)") == 4
            assert second("enter(1)") == 1
            (made,) = slot_files(name) - before
            os.unlink(f"/dev/shm/{made}")
            # Each moves on within a tenth of a second of its next operation, and takes its cores along.
            until(lambda: first("touch()") is None and made in slot_files(name))
            until(lambda: second("touch()") is None and second("core().slots.moved()") is False)
            assert second("now()") == [1, 1, 0]
            assert first("now()") == [1, 4, 0]


def test_the_last_process_removes_the_file() -> None:
    with group(quota=1.0) as name:
        before = slot_files(name)
        with workers(name, 2) as (first, second):
            assert [first("enter()"), first("leave()")] == [1, None]
            assert [second("enter()"), second("leave()")] == [1, None]
            assert len(slot_files(name) - before) == 1
            assert first.close() == 0
            assert len(slot_files(name) - before) == 1
        assert slot_files(name) == before


def test_the_budget_follows_the_quota_in_both_directions() -> None:
    """Idle: with a lease after the interval of looks. Under load: within a second."""
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    with group(quota=2.0) as name, workers(name, 1) as (worker,):
        assert worker("enter()") == 2
        worker("leave()")
        for cores, threads in ((1.0, 1), (0.5, 1), (2.0, 2)):
            set_quota(name, cores)
            assert until(lambda threads=threads: worker("[enter(), leave()]") == [threads, None]) < 2  # type: ignore[misc]
        worker(
            "exec('''stop = threading.Event(); last = [0]\\ndef load():\\n    while not stop.is_set():\\n"
            "        with ct.limit_threads() as lease:\\n            last[0] = lease.threads\\n"
            "            time.sleep(0.002)\\nthread = threading.Thread(target=load); thread.start()''')"
        )
        for cores, threads in ((1.0, 1), (2.0, 2), (0.5, 1), (1.5, 1), (2.0, 2)):
            set_quota(name, cores)
            assert until(lambda threads=threads: worker("last[0]") == threads) < 1  # type: ignore[misc]
        worker("[stop.set(), thread.join()]")


def test_a_watcher_follows_for_pools_without_leases() -> None:
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    with group(quota=2.0) as name, workers(name, 1) as (worker,):
        worker("import numpy; from cgroup_threads.pools import describe")
        blas = "[p.threads for p in describe() if 'openblas' in p.name][0]"
        assert worker(blas) == 2
        worker("watcher = ct.watch(0.05)")
        for cores, threads in ((1.0, 1), (2.0, 2), (0.5, 1)):
            set_quota(name, cores)
            until(lambda threads=threads: worker(blas) == threads)  # type: ignore[misc]
        worker("watcher.stop()")
        assert worker("watcher.alive") is False
        assert worker(blas) == 2, "what it held is given back"


FORK = r"""
def forked(function):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try: os.write(w, json.dumps(function()).encode())
        finally: os._exit(0)
    os.waitpid(pid, 0)
    os.close(w)
    return json.loads(os.read(r, 1000))
def lease():
    with ct.limit_threads() as found: return [found.threads, ct.statistics().overcommitted]
def look_and_lease():
    return lease()
"""


def test_a_fork_beside_a_thread_that_holds_cores_leaves_them_locked() -> None:
    """In the child the other threads' locals end first of all: their leases are the parent's."""
    with group(quota=1.0) as name, workers(name, 2, **SIX) as (parent, other):
        parent(f"exec({FORK!r})")
        parent("thread = wait()")
        until(lambda: parent("now()") == [1, 6, 0])
        parent("forked(lambda: 1)")
        assert other("enter(patience=0)") == 1, "nothing is free"
        assert other("ct.statistics().overcommitted") == 1
        other("leave()")
        parent("thread.left.set()")
        until(lambda: parent("now()") == [0, 0, 0])


def test_children_of_a_child_that_leased_nothing_share_the_budget() -> None:
    with group(quota=1.0) as name, workers(name, 1, **SIX) as (parent,):
        parent(f"exec({FORK!r})")
        assert parent("lease()") == [6, 0]
        # The child holds nothing; its first child holds four cores while the second one asks.
        parent(
            "exec("
            + repr(
                """
def family():
    r, w = os.pipe(); stop_r, stop_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(stop_w)
        with ct.limit_threads(4) as found:
            os.write(w, bytes([found.threads])); os.read(stop_r, 1)
        os._exit(0)
    held = os.read(r, 1)[0]
    told = forked(lambda: [ct.limit_threads(6, patience=0).__enter__().threads])
    os.close(stop_w); os.waitpid(pid, 0)
    return [held, *told]
told = forked(family)
"""
            )
            + ")"
        )
        held, second = parent("told")
        assert held >= 3
        assert held + second <= 6


def test_a_thread_behind_a_task_of_a_blocked_event_loop_does_not_wait_for_the_loop() -> None:
    """Calls as long as a minute: nobody is impatient, and nothing but the thread's own look can help."""
    script = """
import asyncio
from cgroup_threads.pools.ledger import Lease
core().duration_s = 60.0
blocked, free = threading.Event(), threading.Event()
def loop():
    async def main():
        task = asyncio.ensure_future(core().claim_async(Lease(1), 1))
        while not core().queue: await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # until it listens
        blocked.set()
        free.wait()  # a handler that blocks the loop
        await task
    asyncio.run(main())
threading.Thread(target=loop, daemon=True).start()
blocked.wait()
thread = wait()
"""
    with group(quota=1.0) as name, workers(name, 2, CGROUP_THREADS_CORES="2") as (holder, other):
        assert holder("enter()") == 2
        assert other("ct.statistics().active") == 0
        other(f"exec({script!r})")
        until(lambda: other("now()") == [0, 0, 2])
        holder("leave()")
        until(lambda: other("now()") == [2, 2, 0])
        other("[free.set(), thread.left.set()]")


def test_a_change_of_scope_leaves_no_descriptors_behind() -> None:
    """Nor does it make a call wait that holds on to the budget of before."""
    change = "[(ct.configure(scope=s), enter(), leave()) and len(os.listdir('/proc/self/fd')) for s in {0!r}]"
    with group(quota=1.0) as name, workers(name, 1) as (only,):
        before = only(change.format(["process", "container"]))
        only("old = core()")
        assert only(change.format(["process", "container"] * 10))[-1] == before[-1]
        only("from cgroup_threads.pools.ledger import Lease")
        only("late = Lease(1)")
        only("old.claim(late, 4)")
        assert only("[late.threads, late.waited_s, old.counters.overcommitted]") == [1, 0.0, 1]
        only("old.give(late)")


def test_a_change_of_scope_under_an_open_lease_leaves_none_behind_either() -> None:
    change = "[enter(), ct.configure(scope='process'), leave(), ct.configure(scope='container'), enter(), leave()]"
    with group(quota=1.0) as name, workers(name, 1) as (only,):
        only(change)
        before = only("len(os.listdir('/proc/self/fd'))")
        for _ in range(5):
            only(change)
        assert only("len(os.listdir('/proc/self/fd'))") == before


def test_a_file_that_is_removed_again_and_again_takes_no_more_descriptors() -> None:
    with group(quota=1.0) as name, workers(name, 1, **SIX) as (only,):
        assert only("enter(4)") == 4
        before = only("len(os.listdir('/proc/self/fd'))")
        for _ in range(12):
            (made,) = slot_files(name)
            os.unlink(f"/dev/shm/{made}")
            until(lambda made=made: only("touch()") is None and made in slot_files(name))  # type: ignore[misc]
        assert only("len(os.listdir('/proc/self/fd'))") <= before + 2 * 4
        only("leave()")
        until(lambda: only("touch()") is None and only("len(os.listdir('/proc/self/fd'))") <= before)


def test_what_is_noted_is_noted_without_the_budgets_lock() -> None:
    """Who holds the lock on notices may be a signal handler's thread that wants the budget's."""
    listen = "note = type(process).note; owned = []"
    wrap = "type(process).note = lambda self, *notices: (owned.append(core()._is_mine()), note(self, *notices))[1]"
    with group(quota=1.0) as name, workers(name, 2) as (holder, other):
        assert holder("enter()") == 1
        assert other("now()") == [0, 0, 0]
        other("from cgroup_threads.state import process")
        other(listen)
        other(wrap)
        assert other("enter()") == 1
        assert other("owned") == [False]
        assert "cores-held" in other("[notice.code for notice in process.notices]")
