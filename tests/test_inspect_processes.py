"""Real processes of each kind, judged from outside: the verdict, its fix, and errors in one line."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cgroup_threads.commands import inspect as command
from cgroup_threads.errors import CgroupThreadsError, InvalidArgumentError
from cgroup_threads.reporting.inspecting import InspectError, Inspection, find_processes, inspect_process
from tests.lab import require, require_module
from tests.lab.commands import NOBODY, clean_environ, inside, quota_group
from tests.lab.models import minilm_gguf

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

READY = "print('ready', flush=True)\n"
TORCH_SERVICE = f"""
import threading, torch
started = threading.Barrier(11)
def serve():
    matrix = torch.ones(512, 512)
    torch.mm(matrix, matrix)
    started.wait()
    while True: torch.relu(torch.mm(matrix, matrix))
for _ in range(10): threading.Thread(target=serve, daemon=True).start()
started.wait()
{READY}threading.Event().wait()
"""
# The first thread is bound as libgomp is loaded; all that are started afterwards inherit its mask.
BOUND = f"""
import ctypes, ctypes.util, threading
ctypes.CDLL("libgomp.so.1").omp_get_max_threads()
started = threading.Barrier(5)
def idle():
    started.wait()
    threading.Event().wait()
for _ in range(4): threading.Thread(target=idle, daemon=True).start()
started.wait()
{READY}threading.Event().wait()
"""
IDLE_SERVER = f"""
import threading
started = threading.Barrier(101)
def serve():
    started.wait()
    threading.Event().wait()
for _ in range(100): threading.Thread(target=serve, daemon=True).start()
started.wait()
{READY}threading.Event().wait()
"""
HEALTHY = f"import threading\n{READY}threading.Event().wait()\n"
BATCH = f"""
import threading, torch
torch.set_num_threads(len(__import__("os").sched_getaffinity(0)))
matrix = torch.ones(700, 700)
torch.mm(matrix, matrix)
{READY}while True: torch.mm(matrix, matrix)
"""
LLAMA = """
import sys
from llama_cpp import Llama
llm = Llama(sys.argv[1], n_threads=1, embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, verbose=False)
print('ready', llm.n_threads_batch, flush=True)
while True: llm.embed("threads must never change any result")
"""


@contextmanager
def running(args: Sequence[str], *, busy: bool = False, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready, and sleeps unless it is ``busy``; killed at the end."""
    # CGROUP_THREADS_AUTO=0: nothing in it is governed.
    process = subprocess.Popen(
        [*args], env=clean_environ(CGROUP_THREADS_AUTO="0", **environ), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready"), f"exit {process.wait()}: {line!r}"
        if not busy:
            settle(process.pid)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def settle(pid: int) -> None:
    """Wait until no thread of the process has used a CPU for a moment."""
    deadline = time.monotonic() + 30
    before: list[str] = []
    while time.monotonic() < deadline:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        if tasks == before:
            return
        before = tasks
        time.sleep(0.05)


def python(script: str, *args: str) -> list[str]:
    return [sys.executable, "-c", script, *args]


def watch_until(pid: int, wanted: Callable[[Inspection], bool], seconds: float = 1.0) -> Inspection:
    """Inspections until one is as ``wanted``, or half a minute has gone: a busy machine may hide load for a while."""
    deadline = time.monotonic() + 30
    while True:
        found = inspect_process(pid, seconds=seconds)
        if wanted(found) or time.monotonic() > deadline:
            return found


def has_code(code: str) -> Callable[[Inspection], bool]:
    return lambda found: found.verdict.code == code


def test_ten_callers_with_teams_of_24_are_oversubscribed() -> None:
    require_module("torch")
    with running(python(TORCH_SERVICE), busy=True, OMP_NUM_THREADS="24", MKL_DYNAMIC="FALSE") as process:
        found = watch_until(process.pid, has_code("oversubscribed"), 2.0)
    sample, verdict = found.sample, found.verdict
    assert (verdict.code, verdict.level) == ("oversubscribed", "problem"), found
    assert sample.total >= 240
    assert sample.factor > 4
    assert f"set OMP_NUM_THREADS={sample.usable} (now 24)" in verdict.fix
    assert {"libgomp", "torch"} <= {library.kind for library in sample.libraries}
    owners = found.to_dict()["owners"]
    if not any("stacks" in line for line in sample.unread):
        # Only a thread that was seen asleep shows its stack; few are while 240 wait for 2 cores.
        assert 80 <= owners["OpenMP team"] <= 231, owners
        assert 2 <= owners["Python"] <= 10, owners
        assert f"at least {owners['Python']} Python threads have a team each" in verdict.fix
    assert len(str(found).splitlines()[0]) < 300


def test_threads_bound_to_one_cpu_by_omp_proc_bind() -> None:
    require(len(os.sched_getaffinity(0)) > 1, "one CPU alone cannot be narrowed")
    require(_has_library("libgomp.so.1"), "libgomp is not installed")
    with running(python(BOUND), OMP_PROC_BIND="true") as process:
        found = inspect_process(process.pid, seconds=0.5)
    assert (found.verdict.code, found.verdict.level) == ("one-cpu", "problem"), found
    assert "5 of 5 threads may run on CPU" in found.verdict.message
    assert "OMP_PROC_BIND=true" in found.verdict.message
    assert found.sample.usable == len(os.sched_getaffinity(0))


def test_the_same_threads_are_fine_without_the_variable() -> None:
    require(_has_library("libgomp.so.1"), "libgomp is not installed")
    with running(python(BOUND)) as process:
        found = inspect_process(process.pid, seconds=0.5)
    assert found.verdict.code == "idle", found


def test_the_collapse_of_torch_threads_under_load() -> None:
    require(len(os.sched_getaffinity(0)) > 1, "one CPU alone cannot be narrowed")
    require_module("torch")
    with running(python(TORCH_SERVICE), busy=True, OMP_PROC_BIND="true", OMP_NUM_THREADS="1") as process:
        found = watch_until(process.pid, has_code("one-cpu"))
    assert (found.verdict.code, found.verdict.level) == ("one-cpu", "problem"), found
    assert "busy threads may run on CPU" in found.verdict.message
    assert "start it without OMP_PROC_BIND" in found.verdict.fix


def test_the_forgotten_argument_of_llama(tmp_path: Path) -> None:
    from benchmarks.llama_forgotten_argument import build_shim

    model = minilm_gguf()
    shim = str(build_shim(tmp_path))
    with quota_group(1.0) as group:
        args = inside(group, ["/usr/bin/env", f"LD_PRELOAD={shim}", "BELIEVED_CPUS=64", *python(LLAMA, model)])
        with running(args, busy=True) as process:
            found = watch_until(process.pid, has_code("oversubscribed"), 2.0)
    sample, verdict = found.sample, found.verdict
    assert (verdict.code, verdict.level) == ("oversubscribed", "problem"), found
    assert (sample.usable, sample.limits.quota, sample.limits.bound_by) == (1, 1.0, "quota")
    assert sample.runnable > 30
    assert "n_threads_batch=1" in verdict.fix
    assert "OMP_NUM_THREADS" not in verdict.fix
    assert sample.throttling is not None
    assert sample.throttling.share > 0.5
    assert "throttled in" in verdict.message


def test_a_healthy_idle_process() -> None:
    with running(python(HEALTHY)) as process:
        found = inspect_process(process.pid, seconds=0.5)
    assert (found.verdict.code, found.verdict.level, found.verdict.fix) == ("idle", "ok", "")
    assert found.sample.total == 1
    assert found.to_dict()["owners"] == {"main": 1}
    assert found.verdict.notes == ()


def test_a_batch_job_with_a_thread_a_core_is_healthy() -> None:
    require_module("torch")
    with running(python(BATCH), busy=True) as process:
        found = watch_until(process.pid, has_code("healthy"), 2.0)
    assert (found.verdict.code, found.verdict.level) == ("healthy", "ok"), found
    assert found.sample.runnable > 0.7
    assert found.sample.factor < 1.5


def test_an_idle_server_with_a_hundred_threads() -> None:
    with running(python(IDLE_SERVER)) as process:
        found = watch_until(process.pid, lambda found: found.to_dict()["owners"].get("Python", 0) == 100, 0.5)
    assert (found.verdict.code, found.verdict.level) == ("idle", "ok"), found
    assert found.sample.total == 101
    if not any("stacks" in line for line in found.sample.unread):
        assert found.to_dict()["owners"] == {"Python": 100, "main": 1}


def test_a_process_of_the_test_itself_is_watched_while_its_threads_come_and_go() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            thread = threading.Thread(target=time.monotonic)
            thread.start()
            thread.join()

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        found = inspect_process(os.getpid(), seconds=0.5)
    finally:
        stop.set()
        worker.join()
    assert found.sample.pid == os.getpid()
    assert found.sample.looks > 1


# One line for what cannot be judged.


def run_command(*args: str) -> int:
    """The command as the program calls it; errors are raised."""
    parser = argparse.ArgumentParser(prog="cgroup-threads")
    command.add(parser.add_subparsers())
    options = parser.parse_args(["inspect", *args])
    code: int = options.run(options)
    return code


def test_an_exited_process(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert run_command(str(process.pid)) == 2
    assert capsys.readouterr() == (
        "",
        f"cgroup-threads: error: there is no process {process.pid} "
        "(it has exited, or lives in another PID namespace)\n",
    )


def test_an_exited_process_that_was_not_collected(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert run_command(str(process.pid)) == 2
    finally:
        process.communicate()
    assert "has exited; its parent has not collected it yet\n" in capsys.readouterr().err


def test_a_process_that_ends_while_it_is_watched(capsys: pytest.CaptureFixture[str]) -> None:
    with running(python(HEALTHY)) as process:
        timer = threading.Timer(0.2, process.kill)
        timer.start()
        waiter = threading.Thread(target=process.wait)
        waiter.start()
        assert run_command(str(process.pid), "--seconds", "1") == 2
        waiter.join()
    assert capsys.readouterr().err == f"cgroup-threads: error: process {process.pid} ended while it was watched\n"


def test_a_kernel_thread(capsys: pytest.CaptureFixture[str]) -> None:
    name = Path("/proc/2/comm")
    require(name.exists() and name.read_text() == "kthreadd\n", "process 2 is no kernel thread here (a container)")
    assert run_command("2") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("cgroup-threads: error: process 2 (kthreadd) is a kernel thread: it has no libraries to tune\n")


def test_a_foreign_process() -> None:
    require(os.geteuid() == 0, "another user's process needs root to be started")
    with running(python(HEALTHY)) as process:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # this interpreter, without rights
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                try:
                    inspect_process(process.pid, seconds=0.1)
                    text = "no error"
                except InspectError as error:
                    text = f"{error.reason}: {error}"
                os.write(writer, text.encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, encoding="utf-8") as file:
            text = file.read()
        os.waitpid(child, 0)
        assert text.startswith(f"foreign: process {process.pid} (")
        assert text.endswith("belongs to root (uid 0): run this as that user or as root")


def test_a_thread_is_no_process() -> None:
    with running(python(IDLE_SERVER)) as process:
        tid = max(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))
        with pytest.raises(InspectError, match=f"{tid} is a thread of process {process.pid}"):
            inspect_process(tid, seconds=0.1)


def test_a_stopped_process() -> None:
    with running(python(HEALTHY)) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert inspect_process(process.pid, seconds=0.1).verdict.code == "stopped"


@pytest.mark.parametrize("pid", [0, -1, True, "1", 1.0, None])
def test_numbers_that_are_no_process(pid: object) -> None:
    with pytest.raises(InvalidArgumentError):
        inspect_process(pid)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", True])
def test_seconds_that_are_none(seconds: object) -> None:
    with pytest.raises(InvalidArgumentError):
        inspect_process(os.getpid(), seconds=seconds)  # type: ignore[arg-type]


def test_a_number_beyond_any_process() -> None:
    with pytest.raises(InspectError, match="there is no process"):
        inspect_process(1 << 40, seconds=0.1)


# The command.


def test_check_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "one CPU alone cannot be narrowed")
    require(_has_library("libgomp.so.1"), "libgomp is not installed")
    with running(python(BOUND), OMP_PROC_BIND="true") as bad, running(python(HEALTHY)) as good:
        assert run_command(str(bad.pid), "--seconds", "0.2") == 0
        assert run_command(str(good.pid), "--seconds", "0.2", "--check") == 0
        capsys.readouterr()
        assert run_command(str(bad.pid), str(good.pid), "--seconds", "0.2", "--check", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert [item["verdict"]["code"] for item in answer["processes"]] == ["one-cpu", "idle"]
    assert answer["processes"][0]["variables"]["OMP_PROC_BIND"] == "true"


def test_one_bad_number_among_good_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with running(python(HEALTHY)) as process:
        assert run_command(str(process.pid), "4194304", "--seconds", "0.2") == 2
    out, err = capsys.readouterr()
    assert out.startswith(f"process {process.pid}: idle: 1 thread,")
    assert err.count("\n") == 1


def test_all_finds_what_runs_python_and_not_ourselves(capsys: pytest.CaptureFixture[str]) -> None:
    with running(python(HEALTHY)) as process:
        pids, _ = find_processes()
        assert process.pid in pids
        assert os.getpid() not in pids
        assert 2 not in pids
        assert run_command("--all", "--seconds", "0.2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert process.pid in [item["pid"] for item in answer["processes"]]


def test_all_gives_a_line_each_problems_first(capsys: pytest.CaptureFixture[str]) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "one CPU alone cannot be narrowed")
    require(_has_library("libgomp.so.1"), "libgomp is not installed")
    with running(python(HEALTHY)) as good, running(python(BOUND), OMP_PROC_BIND="true") as bad:
        assert run_command("--all", "--seconds", "0.2", "--check") == 1
    out = capsys.readouterr().out
    assert out.index(f"process {bad.pid}: bound to one CPU") < out.index(f"process {good.pid}: idle")


@pytest.mark.parametrize("args", [(), ("--all", "1")])
def test_processes_or_all(args: tuple[str, ...]) -> None:
    with pytest.raises(CgroupThreadsError):
        run_command(*args)


@pytest.mark.parametrize("args", [("x",), ("0",), ("-1",), ("1", "--seconds", "0"), ("99999999999",)])
def test_arguments_that_make_no_sense(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_command(*args)
    assert end.value.code == 2
    capsys.readouterr()


def _has_library(name: str) -> bool:
    # Not in this process: libgomp would bind its threads where a variable says so.
    script = f"import ctypes; ctypes.CDLL({name!r})"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
