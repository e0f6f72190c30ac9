"""Whether a measurement was disturbed: judgements of counters, and counters of real processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.detection import detect
from cgroup_threads.detection.procfs import Files
from cgroup_threads.governor.hidden import Look, ThreadTimes
from cgroup_threads.reporting.counters import Throttling
from cgroup_threads.reporting.inspecting.children import take_census
from cgroup_threads.reporting.inspecting.tasks import TaskStat
from cgroup_threads.tuning.disturbance import Round, describe, find_start
from cgroup_threads.tuning.noise import (
    Counters,
    CpuTimes,
    Meter,
    Verdict,
    Window,
    between,
    find_family,
    judge,
    name_busiest,
    read_cpu,
    read_threads,
    read_times,
)
from cgroup_threads.tuning.records import Task
from tests.lab.commands import clean_environ
from tests.lab.waiting import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
SPINNER = "print(flush=True)\nwhile True: pass"
QUIET = Window(wall_s=1.0, threads=2, width=2, quota=None, used=2.0, others=0.0, steal=0.0, waited=0.01, busy=2)


def stopped(seconds: float, periods: int = 10, throttled: int = 5) -> Throttling:
    return Throttling("cpu.stat", periods, throttled, seconds)


@pytest.mark.parametrize(
    ("title", "window", "cause", "judged"),
    [
        ("quiet", QUIET, None, True),
        ("a neighbour on our CPUs", QUIET._replace(others=1.0, waited=0.5, used=1.0), "neighbours", True),
        ("one on the CPU that is left over", QUIET._replace(threads=1, others=1.0, waited=0.0, used=1.0), None, True),
        ("a busy host around us, with CPUs left", QUIET._replace(width=64, others=30.0, waited=0.01), None, True),
        ("waits for each other", QUIET._replace(others=0.01, waited=0.6, busy=8), None, True),
        ("waits, and nothing tells of others", QUIET._replace(others=None, steal=None, waited=0.3), "neighbours", True),
        ("too many threads, and the same", QUIET._replace(others=None, steal=None, waited=0.3, busy=8), None, False),
        ("nothing is known", QUIET._replace(others=None, steal=None, waited=None), None, False),
        ("steal", QUIET._replace(steal=0.2), "steal", True),
        ("a little steal", QUIET._replace(steal=0.05), None, True),
        ("threads have ended, others need no room", QUIET._replace(threads=1, others=1.0, waited=None), None, True),
        ("threads have ended, there is no room", QUIET._replace(others=0.5, waited=None), "neighbours", True),
        ("the grain of /proc/stat", QUIET._replace(wall_s=0.1, others=0.25, waited=None), None, True),
        ("throttled within the quota", QUIET._replace(quota=2.0, throttling=stopped(0.4)), "throttled", True),
        ("hardly throttled", QUIET._replace(quota=2.0, throttling=stopped(0.05)), None, True),
        (
            "throttled by its nature",
            QUIET._replace(quota=1.0, used=1.0, waited=0.5, others=0.9, throttling=stopped(1.0)),
            None,
            True,
        ),
        ("kept from its quota", QUIET._replace(quota=1.0, used=0.6, waited=0.5, others=1.4), "neighbours", True),
        ("a quota below one core", QUIET._replace(threads=1, quota=0.5, used=0.5, others=1.5), None, True),
        ("the quota's waits", QUIET._replace(quota=2.0, others=0.5, waited=0.1, throttling=stopped(0.08)), None, True),
    ],
)  # fmt: skip
def test_judgements(title: str, window: Window, cause: str | None, judged: bool) -> None:
    verdict = judge(window._replace(neighbour="spinner (process 7)"))
    assert (verdict.cause, verdict.judged) == (cause, judged), title
    if cause == "neighbours" and window.others is not None:
        assert verdict.cores == window.others
        assert verdict.neighbour == "spinner (process 7)"


def test_throttled_periods_are_passed_on() -> None:
    verdict = judge(QUIET._replace(quota=1.0, used=1.0, throttling=stopped(1.0, 10, 7)))
    assert (verdict.periods, verdict.throttled) == (10, 7)


def look(at: float, cpu: float, idle: float | None, **threads: tuple[float, float]) -> Look:
    times = {int(name[1:]): ThreadTimes(run, delay, 1) for name, (run, delay) in threads.items()}
    return Look(at, cpu, times, idle, frozenset({0, 1}), (), 0.0, 2)


def test_what_others_took_is_what_is_neither_idle_nor_ours() -> None:
    before = Counters(look(10.0, 5.0, 100.0, t1=(1.0, 0.0), t2=(1.0, 0.5)), CpuTimes(50.0, 3.0), None)
    after = Counters(look(12.0, 6.5, 100.4, t1=(2.0, 0.2), t2=(1.5, 1.1)), CpuTimes(54.0, 3.2), None)
    window = between(before, after, 2, 2, None)
    assert window is not None
    assert window.others == pytest.approx(2 - 0.2 - 0.1 - 0.75)
    assert window.steal == pytest.approx(0.1)
    assert window.used == pytest.approx(0.75)
    assert window.waited == pytest.approx(0.3)
    assert between(before, before, 2, 2, None) is None
    sandbox = between(before, after._replace(times=before.times), 2, 2, None)
    assert sandbox is not None
    assert (sandbox.others, sandbox.steal) == (None, None), "no time passes in its /proc/stat"


def test_threads_that_ran_little_say_nothing_for_those_that_ended() -> None:
    before = Counters(look(10.0, 5.0, None, t1=(1.0, 0.0)), None, None)
    after = Counters(look(11.0, 6.5, None, t1=(1.2, 0.0)), None, None)
    window = between(before, after, 2, 2, None)
    assert window is not None
    assert (window.waited, window.others, window.steal) == (None, None, None)
    assert judge(window) == Verdict(judged=False)


@given(
    st.builds(
        Window,
        wall_s=st.floats(1e-6, 1e6),
        threads=st.integers(1, 4096),
        width=st.integers(1, 4096),
        quota=st.none() | st.floats(0.001, 4096),
        used=st.floats(0, 1e9),
        others=st.none() | st.floats(0, 1e9),
        steal=st.none() | st.floats(0, 1e9),
        waited=st.none() | st.floats(0, 1e9),
        busy=st.integers(0, 5000),
        throttling=st.none()
        | st.builds(
            Throttling,  # parsed from whole numbers: never infinite, never negative
            file=st.just(""),
            periods=st.integers(0, 10**9),
            throttled=st.integers(0, 10**9),
            seconds=st.floats(0, 1e9),
        ),
        neighbour=st.just(""),
    )
)
def test_every_window_is_judged(window: Window) -> None:
    verdict = judge(window)
    assert verdict.judged or verdict.cause is None
    assert verdict.cores >= 0


# What is said of them.

DECODE = Task("decode", "tokens")


def history(*rounds: str) -> list[Round]:
    """``.`` is a quiet measurement, ``x`` one under a neighbour, ``q`` a throttled one, ``?`` one nobody can judge."""
    verdicts = {
        ".": Verdict(),
        "x": Verdict("neighbours", 1.5, neighbour="spinner (process 7)"),
        "q": Verdict("throttled", 0.5),
        "s": Verdict("steal", 0.3),
        "?": Verdict(judged=False),
    }
    return [Round(number, verdicts[mark]) for number, marks in enumerate(rounds) for mark in marks]


@pytest.mark.parametrize(
    ("rounds", "start"),
    [
        (("...", "...", "..."), None),
        (("xxx", "xxx", "xxx"), None),
        (("...", "xxx", "xxx"), 3),
        (("...", "..x", "xxx"), 5),
        (("...", "...", "x..", "x..", "..."), None),
        (("...", "xx.", "x.x", "xxx", "xxx"), 3),
        ((".x.", "...", "...", "xxx", "x.x"), 9),
        (("...", "...", "..x"), 8),
        (("...", "qqq", "qqq"), None),
        (("x.x", "..x", "xxx", "xxx"), None),
        ((), None),
    ],
)
def test_where_a_neighbour_began(rounds: tuple[str, ...], start: int | None) -> None:
    assert find_start(history(*rounds)) == start


def test_notices_say_what_disturbed_and_what_the_figures_rest_on() -> None:
    assert describe(history("...", "..."), {}) == ()
    (notice,) = describe(history("x..", "qs.", "..."), {DECODE: []})
    assert (notice.code, notice.level) == ("tune-noisy", "info")
    assert notice.message.startswith("3 of 9 measurements were disturbed: ")
    for part in (
        "1 by other processes that took 1.5 cores (most of it: spinner (process 7))",
        "1 by the quota",
        "1 by",
    ):
        assert part in notice.message
    noisy, neighbour = describe(history("...", "xxx", "xxx"), {DECODE: [1, 2], Task("prefill", "tokens"): []})
    assert (noisy.code, noisy.level) == ("tune-noisy", "info")
    assert (neighbour.code, neighbour.level) == ("tune-neighbour", "warning")
    assert "began to take 1.5 cores in round 2 of 3 (most of it: spinner (process 7))" in neighbour.message
    assert "fewer than 3 undisturbed rounds for decode at 1, 2 threads" in neighbour.message
    (always,) = describe(history("xxx", "xxx"), {DECODE: [1, 2]})
    assert (always.code, always.level) == ("tune-noisy", "warning")
    assert "fewer than 3 undisturbed rounds for decode at 1, 2 threads" in always.message
    (unwatched,) = describe(history("???"), {})
    assert (unwatched.code, unwatched.level) == ("tune-unwatched", "info")
    for found in (notice, noisy, neighbour, always, unwatched):
        assert "\n" not in found.message


# Real counters.


@contextmanager
def spinner() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", SPINNER], stdout=subprocess.PIPE, env=clean_environ())
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def wait_for_cpu(pid: int, seconds: float) -> float:
    """CPU seconds of ``pid`` once they are ``seconds`` more than now."""
    aim, deadline = read_cpu(pid) + seconds, time.monotonic() + 60
    while read_cpu(pid) < aim:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return read_cpu(pid)


@linux
def test_the_cpu_time_of_another_process_is_read_to_the_microsecond() -> None:
    with spinner() as pid:
        wait_for_cpu(pid, 0.2)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        wait_until(lambda: read_cpu(pid) == read_cpu(pid))  # it may be on its CPU for a moment yet
        exact = read_cpu(pid)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        assert exact == pytest.approx(ticks, abs=0.03)
        assert exact == read_cpu(pid)
    assert read_cpu(pid) == 0.0, "it is gone"
    assert read_cpu(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


@linux
def test_threads_of_a_real_process() -> None:
    with spinner() as pid:
        cpu = wait_for_cpu(pid, 0.1)
        times = read_threads(Files(), (pid,))
        assert set(times) == {pid}
        assert times[pid].run_s >= 0.5 * cpu
        both = read_threads(Files(), (pid, os.getpid()))
        assert {pid, os.getpid()} <= set(both)
    assert read_threads(Files(), (pid,)) == {}


@linux
def test_children_are_ours_and_reaped_ones_still_count() -> None:
    """What our own children use is not a neighbour's, alive at the end or not."""
    meter = Meter(detect())
    meter.begin(())
    with spinner() as pid:
        wait_for_cpu(pid, 0.3)
        assert f"process {pid}" not in meter.end((), 1).neighbour
        assert pid in find_family(take_census(), os.getpid())
        meter.begin((pid,))
        before = meter._before
        wait_for_cpu(pid, 0.3)
    after = meter._read((pid,))
    assert before is not None
    assert 0.3 <= after.look.cpu_s - before.look.cpu_s <= 10.0


@linux
def test_a_thread_that_waits_beside_a_pinned_neighbour() -> None:
    """Both must use the same CPU, so that each waits half of the time, whatever the machine does."""
    cpu = min(os.sched_getaffinity(0))
    limits = detect(affinity=[cpu])._replace(cpuset=None, quota=None, levels=())
    found: list[Verdict] = []

    def measure() -> None:
        os.sched_setaffinity(0, {cpu})  # of this thread only
        data = bytes(1 << 16)
        meter = Meter(limits)
        meter.begin((os.getpid(),))
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            hashlib.sha256(data).digest()
        found.append(meter.end((os.getpid(),), 1))

    with neighbour_of_nobody(cpu) as pid:
        thread = threading.Thread(target=measure)
        thread.start()
        thread.join()
    (verdict,) = found
    assert verdict.cause == "neighbours"
    assert verdict.cores > 0.2
    assert verdict.neighbour, "nobody is named"
    print(verdict, pid)


@linux
def test_what_another_child_did_before_is_not_of_now() -> None:
    """Each count may have a child of its own: the one that computed last is not the one that computes now."""
    with spinner() as last, spinner() as now:
        wait_for_cpu(now, 0.3)
        meter = Meter(detect())
        meter.begin((last,))
        before = meter._before
        assert before is not None
        assert now in before.look.threads
        assert before.look.threads[now].run_s >= 0.15


@contextmanager
def neighbour_of_nobody(cpu: int) -> Iterator[int]:
    """A process that spins on ``cpu`` and is nobody's child of ours: its parent has left it."""
    script = (
        "import os, sys\n"
        "if os.fork(): os._exit(0)\n"
        f"os.sched_setaffinity(0, {{{cpu}}})\n"
        "print(os.getpid(), flush=True)\n"
        "os.close(1), os.close(2)\n"
        "while True: pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=clean_environ(), check=True
    )
    pid = int(done.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def stat(parent: int, ticks: int, start: int = 1, name: str = "x") -> TaskStat:
    return TaskStat(name, "R", parent, False, ticks, start)


def test_the_family_is_a_tree_even_if_the_census_is_not() -> None:
    census = {1: stat(0, 0), 2: stat(1, 0), 3: stat(2, 0), 4: stat(1, 0), 5: stat(6, 0), 6: stat(5, 0)}
    assert find_family(census, 2) == {2, 3}
    assert find_family(census, 5) == {5, 6}
    assert find_family({}, 9) == {9}


def test_the_busiest_neighbour_is_named() -> None:
    before = {2: stat(1, 100), 3: stat(1, 500), 4: stat(1, 0, start=1)}
    after = {2: stat(1, 150), 3: stat(1, 510), 4: stat(1, 40, start=2, name="new"), 5: stat(1, 45, name="five")}
    assert name_busiest(before, after, frozenset({2}), 1.0) == "five (process 5)"
    assert name_busiest(before, after, frozenset({2, 5}), 1.0) == "new (process 4)"
    assert name_busiest(before, after, frozenset({2, 5, 4, 3}), 1.0) == ""
    assert name_busiest(before, after, frozenset({2, 5, 4}), 10.0) == "", "one per cent of a core"
    assert name_busiest({}, {}, frozenset(), 1.0) == ""


def test_steal_of_our_cpus(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(
        "cpu  9 9 9 9 9 9 9 900 0 0\ncpu0 1 1 1 1 1 1 1 100 0 0\ncpu1 1 1 1 1 1 1 1 50 0 0\ncpu2 1 1 1 1 1 1 1 7 0 0\n"
    )
    files = Files(str(tmp_path))
    ticks = os.sysconf("SC_CLK_TCK")
    assert read_times(files, frozenset({0, 1})) == pytest.approx((164 / ticks, 150 / ticks))
    (tmp_path / "proc/stat").write_text("cpu  1 2 3\ncpu0 1 2 3\n")
    assert read_times(files, frozenset({0})) is None


def test_without_proc_nothing_is_judged(tmp_path: Path) -> None:
    """As on macOS: no counters, no judgement, no error."""
    meter = Meter(detect()._replace(levels=(), quota=None), Files(str(tmp_path)))
    assert meter.end((), 1) == Verdict(judged=False), "there was no beginning"
    meter.begin((os.getpid(),))
    time.sleep(0.001)
    verdict = meter.end((os.getpid(), 1 << 22), 2)
    assert (verdict.cause, verdict.judged) == (None, False)
