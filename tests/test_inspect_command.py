"""``inspect`` on real processes that are odd: their settings, their first threads, their children, and few files."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cgroup_threads.errors import CgroupThreadsError
from cgroup_threads.reporting import inspecting
from cgroup_threads.reporting.inspecting import find_processes, inspect_process
from tests.lab import require
from tests.lab.commands import COMMAND, clean_environ, quota_group, run, run_cli
from tests.test_inspect_processes import HEALTHY, READY, inside, python, run_command, running, watch_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def test_the_settings_of_the_process_count_and_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CGROUP_THREADS_CORES", "7")
    with quota_group(0.5) as group:
        args = inside(group, python(HEALTHY))
        with running(args, CGROUP_THREADS_CORES="1500m", CGROUP_THREADS_ROUNDING="ceil") as process:
            found = inspect_process(process.pid, seconds=0.1)
    assert (found.sample.usable, found.sample.limits.bound_by) == (2, "override")
    assert found.to_dict()["rounding"] == "ceil"


def test_a_mask_that_taskset_may_have_set_is_a_guess() -> None:
    require(len(os.sched_getaffinity(0)) > 1, "one CPU alone cannot be narrowed")
    start = "for _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()"
    script = f"import threading\n{start}\n{READY}threading.Event().wait()"
    cpu = str(min(os.sched_getaffinity(0)))
    with running(["taskset", "-c", cpu, *python(script)], OMP_PROC_BIND="true") as process:
        verdict = inspect_process(process.pid, seconds=0.2).verdict
    assert verdict.code == "one-cpu"
    assert "or taskset: the other CPUs are guessed from its parent" in verdict.message


# The first thread ends, the process does not.
HEADLESS = f"""
import ctypes, threading
libc, started = ctypes.CDLL(None), threading.Barrier(4)
def idle():
    started.wait()
    threading.Event().wait()
for _ in range(3): threading.Thread(target=idle).start()
started.wait()
{READY}libc.pthread_exit(None)
"""


def test_a_process_outlives_its_first_thread() -> None:
    with running(python(HEADLESS), busy=True, OMP_NUM_THREADS="3") as process:
        watch_until(process.pid, lambda found: found.sample.state == "Z", 0.1)
        found = inspect_process(process.pid, seconds=0.2)  # the thread may have ended within the look before
        assert process.pid in find_processes()[0]
    sample = found.sample
    assert (sample.state, sample.total, len(sample.threads)) == ("Z", 3, 3)
    assert ("OMP_NUM_THREADS", "3") in sample.variables
    assert "import ctypes, threading" in sample.command
    assert sample.limits.status != "unknown" or "quota" in " ".join(sample.unread)
    assert not [line for line in sample.unread if "choice" in line]
    if not any("stacks" in line for line in sample.unread):
        assert found.to_dict()["owners"] == {"Python": 3}


PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
{READY}sys.stdin.read()
"""


def test_an_idle_parent_of_a_busy_child() -> None:
    parent = f"import subprocess, sys\nsubprocess.run(['nice', '-n', '19', sys.executable, '-c', {PARENT!r}])"
    command = python(parent)
    process = subprocess.Popen(
        command, env=clean_environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        found = watch_until(process.pid, lambda found: "below it kept" in found.verdict.line, 0.5)
        assert found.verdict.code == "idle"
        assert [child.cpu > 0.05 for child in found.sample.children] == [True]
        assert f"inspect it ({found.sample.children[0].pid})" in found.verdict.line
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def test_many_processes_with_few_descriptors() -> None:
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(12)]
    try:
        pids = [str(sleeper.pid) for sleeper in sleepers]
        limited = ["/bin/sh", "-c", 'ulimit -n 10; exec "$@"', "sh", *COMMAND]
        done = run([*limited, "inspect", *pids, "--seconds", "0.1", "--check"])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count(": idle: ") == 12
        assert "Too many open files" not in done.stdout
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_a_check_that_judged_nothing_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspecting, "find_processes", lambda: ([1 << 22], 0))
    with pytest.raises(CgroupThreadsError, match="every process ended"):
        run_command("--all", "--check", "--seconds", "0.1")

    def fail(pids: list[int], seconds: float) -> list[inspecting.InspectError]:
        return [inspecting.InspectError(pid, "unreadable", "Too many open files") for pid in pids]

    monkeypatch.setattr(inspecting, "inspect_processes", fail)
    assert run_command("--all", "--check", "--seconds", "0.1") == 2
    assert capsys.readouterr().err == "cgroup-threads: error: Too many open files\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_any_name_in_any_encoding(encoding: str) -> None:
    script = f"import threading\n{READY}threading.Event().wait()"
    with running([*python(script), "\N{SNOWMAN}.py"], PYTHONUTF8="1") as process:
        for options in ((), ("--json",)):
            done = run_cli(
                "inspect", str(process.pid), "--seconds", "0.1", *options, PYTHONIOENCODING=encoding, LC_ALL="C.UTF-8"
            )
            assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2603.py" in done.stdout


@pytest.mark.parametrize(("text", "code"), [("2m", 2), ("100m", 2), ("m", 2), ("0.1s", 0), ("100ms", 0), ("0.1", 0)])
def test_seconds_are_no_millicores(text: str, code: int) -> None:
    own = str(os.getpid())
    for arguments in (("inspect", own, "--seconds", text), ("report", "--interval", text)):
        done = run_cli(*arguments)
        assert done.returncode == code, done.stderr
        assert code == 0 or "is not a number of seconds" in done.stderr
