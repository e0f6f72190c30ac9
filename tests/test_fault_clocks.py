"""Clocks that jump or differ: the wall clock of the machine, and monotonic clocks of time namespaces.

The clock of this machine is never set. A preloaded library shows the processes concerned a wall clock that jumps
at every look; time namespaces are the kernel's own way to move the monotonic clocks of some processes.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.governor.slot_clock import clock_shift, parse_offset
from tests.lab import require
from tests.lab.cgroup1 import group
from tests.lab.commands import clean_environ, run, run_cli
from tests.lab.native import compiled
from tests.lab.shared_budget import Worker
from tests.lab.waiting import wait_until

# An hour ahead, and close to the begin of the machine's own clock: a container restored from a checkpoint has either.
AHEAD_S = 3600
ONE = {"CGROUP_THREADS_CORES": "1"}
# Without the order across namespaces, waits were measured in seconds, and one process had all the cores.
FAIR_WAIT_S = 1.5
CALLS = 150

STEPS = pytest.mark.parametrize("step", [1_000_000, -1_000], ids=["forwards", "backwards"])

LOAD = """
waits, stop = [], threading.Event()
def load():
    while not stop.is_set():
        with ct.limit_threads(patience=60) as lease: waits.append(lease.waited_s); time.sleep(0.001)
load_threads = [threading.Thread(target=load) for _ in range(2)]
for thread in load_threads: thread.start()
"""
WALL_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
static atomic_int looks;
static time_t jump(time_t now) { return now + (time_t)STEP * atomic_fetch_add(&looks, 1); }
int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, found);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec = jump(found->tv_sec);
    return code;
}
int gettimeofday(struct timeval *found, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(found, zone);
    if (!code) found->tv_sec = jump(found->tv_sec);
    return code;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
int looks_at_the_wall_clock(void) { return atomic_load(&looks); }
"""


def shifted(monotonic: int, boottime: int = 0) -> tuple[str, ...]:
    """The start of a command that runs in a time namespace of its own."""
    return ("unshare", "--time", "--monotonic", str(monotonic), "--boottime", str(boottime))


@functools.cache
def has_time_namespaces() -> bool:
    try:
        return run([*shifted(1, 1), "true"]).returncode == 0
    except OSError:
        return False


@contextmanager
def processes(name: str, environ: dict[str, str], *prefixes: tuple[str, ...]) -> Iterator[list[Worker]]:
    """A worker in the group ``name`` for each prefix of its command."""
    started: list[Worker] = []
    try:
        for prefix in prefixes:
            started.append(Worker(name, environ, prefix))
        for worker in started:
            worker("ct.statistics().cores")
        yield started
    finally:
        for worker in started:
            worker.close()


def shift_near_the_start() -> int:
    """The offset that leaves a monotonic clock of ten seconds or more: the kernel takes none below zero."""
    return 10 - int(time.monotonic())


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "behind"])
def test_processes_whose_monotonic_clocks_differ_share_in_order(ahead: bool) -> None:
    require(has_time_namespaces(), "no time namespace can be made")
    shift = AHEAD_S if ahead else shift_near_the_start()
    with group(quota=1.0) as name, processes(name, ONE, (), (), shifted(shift)) as (first, second, other):
        assert abs(other("time.monotonic()") - first("time.monotonic()") - shift) < 5
        assert first("enter()") == 1
        for worker in (other, second):
            worker("thread = wait()")
            wait_until(lambda worker=worker: worker("now()") == [0, 0, 1])  # type: ignore[misc]
        # Both say how they wait, on a clock that the first can read; both go on in the order of their coming.
        wait_until(lambda: first("core().slots.look().waiting") == 2)
        waited = first("time.monotonic() - core().slots.look().oldest_s")
        assert 0 <= waited < 60
        first("leave()")
        wait_until(lambda: other("now()") == [1, 1, 0])
        assert second("now()") == [0, 0, 1]
        other("thread.left.set()")
        wait_until(lambda: second("now()") == [1, 1, 0])
        second("thread.left.set()")
        assert other("inside[0][1]") < 60
        assert [worker("ct.statistics().overcommitted") for worker in (first, second, other)] == [0, 0, 0]


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "behind"])
def test_nobody_starves_for_a_clock_that_differs(ahead: bool) -> None:
    require(has_time_namespaces(), "no time namespace can be made")
    shift = AHEAD_S if ahead else shift_near_the_start()
    with group(quota=1.0) as name, processes(name, ONE, (), (), shifted(shift)) as all_workers:
        for worker in all_workers:
            worker(f"exec({LOAD!r}, globals())")
        wait_until(lambda: sum(worker("len(waits)") for worker in all_workers) >= 3 * CALLS)
        counts = [worker("[stop.set(), len(waits)]")[1] for worker in all_workers]
        for worker in all_workers:
            worker("[thread.join() for thread in load_threads]")
        assert min(counts) * 4 > max(counts), counts
        assert max(worker("max(waits)") for worker in all_workers) < FAIR_WAIT_S
        assert [worker("ct.statistics().overcommitted") for worker in all_workers] == [0, 0, 0]


def test_processes_in_one_namespace_share_as_outside() -> None:
    """A whole container that was restored from a checkpoint."""
    require(has_time_namespaces(), "no time namespace can be made")
    inside = shifted(AHEAD_S, AHEAD_S)
    with group(quota=1.0) as name, processes(name, ONE, inside, inside) as (first, second):
        assert first("enter()") == 1
        second("thread = wait()")
        wait_until(lambda: second("now()") == [0, 0, 1])
        wait_until(lambda: first("core().slots.look().waiting") == 1)
        first("leave()")
        wait_until(lambda: second("now()") == [1, 1, 0])
        second("thread.left.set()")


def test_the_namespaces_offset_is_read() -> None:
    require(has_time_namespaces(), "no time namespace can be made")
    assert clock_shift() == 0.0
    script = "from cgroup_threads.governor.slot_clock import clock_shift; print(clock_shift())"
    for shift in (AHEAD_S, shift_near_the_start()):
        done = run([*shifted(shift), sys.executable, "-c", script], clean_environ())
        assert done.stdout == f"{float(shift)}\n", done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0.0),
        ("monotonic         -20  500000000\nboottime            7         0\n", -19.5),
        ("boottime  7 0\nmonotonic 3 250000000\n", 3.25),
        ("monotonic 3\n", 0.0),
        ("monotonic x 0\n", 0.0),
        ("monotonic --1 0\n", 0.0),
        ("monotonic 1 -1\n", 0.0),
        ("monotonic 99999999999 0\n", 0.0),
        ("", 0.0),
    ],
)
def test_offsets(text: str, seconds: float) -> None:
    assert parse_offset(text) == seconds


@given(st.text())
def test_any_text_is_taken_for_offsets(text: str) -> None:
    assert abs(parse_offset(f"monotonic {text}")) <= 10**10


def test_a_report_from_before_a_suspend_counts_the_suspended_time(tmp_path: Path) -> None:
    """After a suspend the clock of boot is ahead of the monotonic one, and an interval between reports is on it."""
    require(has_time_namespaces(), "no time namespace can be made")
    before = run_cli("report", "--json")
    assert before.returncode == 0, before.stderr
    command = [*shifted(0, AHEAD_S), sys.executable, "-m", "cgroup_threads"]
    path = tmp_path / "clock.json"
    path.write_text(before.stdout)
    after = run([*command, "report", "--json", "--since", str(path)], clean_environ())
    assert after.returncode == 0, after.stderr
    assert AHEAD_S <= json.loads(after.stdout)["seconds"] < AHEAD_S + 60
    path.write_text(run([*command, "report", "--json"], clean_environ()).stdout)
    back = run_cli("report", "--since", str(path))
    assert (back.returncode, back.stderr.count("\n")) == (2, 1)
    assert "the clock went back" in back.stderr


def test_calls_share_after_a_suspend_as_before() -> None:
    """The clock of boot is an hour ahead of the monotonic one, on which all waiting is."""
    require(has_time_namespaces(), "no time namespace can be made")
    with group(quota=1.0) as name, processes(name, ONE, (), shifted(0, AHEAD_S)) as (first, second):
        assert second("time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()") > AHEAD_S - 60
        for holder, waiter in ((first, second), (second, first)):
            assert holder("enter()") == 1
            waiter("thread = wait()")
            wait_until(lambda waiter=waiter: waiter("now()") == [0, 0, 1])  # type: ignore[misc]
            wait_until(lambda holder=holder: holder("core().slots.look().waiting") == 1)  # type: ignore[misc]
            holder("leave()")
            wait_until(lambda waiter=waiter: waiter("now()") == [1, 1, 0])  # type: ignore[misc]
            waiter("thread.left.set()")
            wait_until(lambda waiter=waiter: waiter("now()") == [0, 0, 0])  # type: ignore[misc]


JUMPING = """
import asyncio, ctypes, os
looks = ctypes.CDLL(os.environ["LD_PRELOAD"]).looks_at_the_wall_clock
def jumps(): return abs(time.time() - time.time()) > 900
def patience():
    out = []
    def work():
        with ct.limit_threads(patience=0.3) as lease: out.append(lease.waited_s)
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    return out[0]
def task_patience():
    async def main():
        async with ct.limit_threads(patience=0.3) as lease: return lease.waited_s
    return asyncio.run(main())
"""


def wall_clock(step: int, directory: Path) -> str:
    """The library whose wall clock goes on by ``step`` seconds at every look."""
    return compiled(WALL_CLOCK.replace("STEP", str(step)), directory / "wall.so")


@STEPS
def test_a_wall_clock_that_jumps_changes_nothing(step: int, tmp_path: Path) -> None:
    """Leases, waits, patience, resizes and the watcher are on monotonic clocks."""
    environ = {**ONE, "LD_PRELOAD": wall_clock(step, tmp_path)}
    with group(quota=1.0) as name, processes(name, environ, (), ()) as (first, second):
        for worker in (first, second):
            worker(f"exec({JUMPING!r}, globals())")
            assert worker("jumps()")
        assert first("enter()") == 1
        second("thread = wait()")
        wait_until(lambda: second("now()") == [0, 0, 1])
        first("leave()")
        wait_until(lambda: second("now()") == [1, 1, 0])
        for patience in ("patience()", "task_patience()"):
            assert 0.3 <= first(patience) < 5
        assert first("ct.statistics().overcommitted") == 2
        second("thread.left.set()")
        wait_until(lambda: second("now()") == [0, 0, 0])
        assert 0 < second("inside[0][1]") < 60
        assert 0 <= second("ct.statistics().core_seconds") < 120
        second("watcher = ct.watch(0.01)")
        looks = second("looks()")
        due = second("core_budget().due_s")
        wait_until(lambda: second("core_budget().due_s") > due)
        second("watcher.stop()")
        assert second("looks()") == looks, "something here looks at the wall clock"


@STEPS
def test_a_report_and_its_commands_under_a_wall_clock_that_jumps(step: int, tmp_path: Path) -> None:
    library = wall_clock(step, tmp_path)
    own = str(os.getpid())
    for arguments in (
        ("report", "--json", "--interval", "0.2"),
        ("cores",),
        ("inspect", "--json", "--seconds", "1", own),
    ):
        command = [sys.executable, "-m", "cgroup_threads", *arguments]
        done = run(command, clean_environ(LD_PRELOAD=library))
        assert (done.returncode, done.stderr) == (0, "")
        if arguments[0] == "inspect":  # a look at the start, one at the end, and some between
            (found,) = json.loads(done.stdout) if done.stdout.startswith("[") else [json.loads(done.stdout)]
            assert found["looks"] >= 3
