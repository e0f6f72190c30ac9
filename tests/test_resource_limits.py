"""Limits on tasks and address space: real libraries that die under them by themselves, and live under the plan.

Each limit is real: an rlimit of a plain user, or a cgroup of the pids controller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.lab import require, require_module
from tests.lab.commands import ROOT, unprivileged_command
from tests.lab.models import minilm_directory, tiny_gguf
from tests.lab.resources import as_user, in_group, limited, pids_group, python, run_outside, some_user

OURS = "import cgroup_threads as ct\n"
TELL = """
import json, os
plan, report = ct.planning.current_plan(), ct.report()
print(json.dumps({
    "threads": plan.threads, "bound_by": plan.bound_by, "tasks": len(os.listdir("/proc/self/task")),
    "seen": [(task.name, task.limit, task.used, task.own) for task in ct.detect().tasks],
    "notices": [notice[:3] for notice in report.notices if notice.code.endswith("-limited")],
}))
"""
NUMPY = "import numpy\nnumpy.ones((900, 900)) @ numpy.ones((900, 900))\n"
TORCH = "import torch\ntorch.ones(1 << 22).add_(1)\ntorch.mm(torch.ones(999, 999), torch.ones(999, 999))\n"
LLAMA = """
from llama_cpp import Llama
Llama({path!r}, embedding=True, verbose=False).embed("hello")
"""
ENCODER = """
import sentence_transformers
model = sentence_transformers.SentenceTransformer({path!r}, device="cpu")
model.encode(["hello world there"] * 64, show_progress_bar=False)
"""
TEAM = """
import ctypes
members = []
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: members.append(1))
ctypes.CDLL("libgomp.so.1").GOMP_parallel(body, None, 0, 0)
assert len(members) > 1, members
"""
GOMP_FAILED = "libgomp: Thread creation failed"
KINDS = ("pids.max", "RLIMIT_NPROC")


def needs_two_cpus() -> None:
    require(len(os.sched_getaffinity(0)) > 1, "libraries start no threads on one CPU")


def run_under(kind: str, limit: int, script: str, **environ: Any) -> CompletedProcess[str]:
    """Run ``script`` where at most ``limit`` tasks fit, its own first one among them."""
    if kind == "pids.max":
        with pids_group(limit) as group:
            return run_outside(in_group(group, python(script)), **environ)
    # The limit after the user: prlimit counts against its own user before.
    return run_outside(as_user(some_user(), limited("nproc", limit, python(script))), **environ)


def told(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_is_interrupted_as_it_is_imported(kind: str) -> None:
    require_module("numpy")
    needs_two_cpus()
    died = run_under(kind, 1, NUMPY)
    assert died.returncode != 0
    assert "KeyboardInterrupt" in died.stderr
    answer = told(run_under(kind, 1, OURS + NUMPY + TELL))
    assert (answer["threads"], answer["bound_by"], answer["tasks"]) == (1, kind, 1)
    assert answer["seen"] == [[kind, 1, 1, 1]]
    code, message, level = answer["notices"][0]
    assert (code, level) == ("threads-limited", "problem")
    assert message.startswith(f"{kind} is 1, of which others use 0 (")


@pytest.mark.parametrize("kind", KINDS)
def test_torch_is_ended_by_libgomp(kind: str) -> None:
    require_module("torch")
    needs_two_cpus()
    died = run_under(kind, 2, TORCH)
    assert (died.returncode, GOMP_FAILED in died.stderr) == (1, True)
    answer = told(run_under(kind, 2, OURS + TORCH + TELL))
    assert (answer["threads"], answer["bound_by"]) == (1, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_llama_is_ended_by_libgomp(kind: str) -> None:
    script = LLAMA.format(path=tiny_gguf())
    needs_two_cpus()
    died = run_under(kind, 2, script)
    assert (died.returncode, GOMP_FAILED in died.stderr) == (1, True)
    answer = told(run_under(kind, 2, OURS + script + TELL))
    assert (answer["threads"], answer["bound_by"]) == (1, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_of_many_threads_shrinks_to_what_fits(kind: str) -> None:
    wanted = {"CGROUP_THREADS_CORES": "8"}
    died = run_under(kind, 7, TEAM, OMP_NUM_THREADS="8")
    assert (died.returncode, GOMP_FAILED in died.stderr) == (1, True)
    answer = told(run_under(kind, 12, OURS + TEAM + TELL, **wanted))
    assert (answer["threads"], answer["bound_by"], answer["tasks"]) == (3, kind, 3)
    # Threads that the pools have started by now do not count against them.
    assert answer["seen"] == [[kind, 12, 3, 3]]
    assert [(code, level) for code, _, level in answer["notices"]] == [("threads-limited", "warning")]
    assert "3 threads a pool instead of 8" in answer["notices"][0][1]
    roomy = told(run_under(kind, 32, OURS + TEAM + TELL, **wanted))
    assert (roomy["threads"], roomy["bound_by"], roomy["tasks"], roomy["notices"]) == (8, "override", 8, [])


def test_what_the_user_asked_for_is_kept_and_said() -> None:
    script = OURS + TELL
    answer = told(run_under("pids.max", 12, script, CGROUP_THREADS_CORES="8", OMP_NUM_THREADS="8"))
    assert "OMP_NUM_THREADS=8 kept, but there is room for 3 threads a pool" in answer["notices"][0][1]
    assert answer["notices"][0][2] == "problem"
    fine = told(run_under("pids.max", 12, script, CGROUP_THREADS_CORES="8", OMP_NUM_THREADS="3"))
    assert [level for _, _, level in fine["notices"]] == ["warning"]


def test_a_lease_has_no_more_threads_than_fit() -> None:
    script = "with ct.limit_threads() as lease: print(lease.threads)"
    for auto in ("1", "0"):
        done = run_under("pids.max", 12, OURS + script, CGROUP_THREADS_CORES="8", CGROUP_THREADS_AUTO=auto)
        assert done.stdout == "3\n", (auto, done.stderr)


@contextmanager
def neighbour(user: int, threads: int) -> Iterator[None]:
    """A process of ``user`` with that many threads."""
    script = f"""
import sys, threading
for _ in range({threads - 1}): threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        as_user(user, python(script)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield
    finally:
        process.communicate(timeout=60)


def test_the_users_other_processes_count() -> None:
    user = some_user()
    command = as_user(user, limited("nproc", 24, python(OURS + TELL)))
    with neighbour(user, 11):
        answer = told(run_outside(command, CGROUP_THREADS_CORES="8"))
    assert answer["seen"] == [["RLIMIT_NPROC", 24, 12, 1]]
    assert (answer["threads"], answer["bound_by"]) == (3, "RLIMIT_NPROC")
    alone = told(run_outside(command, CGROUP_THREADS_CORES="8"))
    assert (alone["seen"], alone["threads"]) == ([["RLIMIT_NPROC", 24, 1, 1]], 6)


def test_root_has_no_limit_on_its_tasks() -> None:
    require(os.geteuid() == 0, "root is needed")
    answer = told(run_outside(limited("nproc", 1, python(OURS + TEAM + TELL)), CGROUP_THREADS_CORES="8"))
    assert (answer["threads"], answer["seen"], answer["notices"]) == (8, [], [])


def test_root_of_a_user_namespace_is_a_plain_user(tmp_path: Path) -> None:
    """Rootless containers: the process seems to be root and to have all capabilities."""
    # In there, the right to read root's files is gone.
    command, environ = unprivileged_command(tmp_path)
    inner = ["unshare", "--user", "--map-root-user", command[-3], "-c", OURS + TELL]
    probe = run_outside(as_user(some_user(), ["unshare", "--user", "--map-root-user", "true"]))
    require(probe.returncode == 0, f"no user namespace can be made: {probe.stderr.strip()}")
    command = as_user(some_user(), limited("nproc", 12, inner))
    answer = told(run_outside(command, CGROUP_THREADS_CORES="8", PYTHONPATH=environ["PYTHONPATH"]))
    assert (answer["threads"], answer["bound_by"]) == (3, "RLIMIT_NPROC")


def test_the_outer_groups_limit_binds() -> None:
    with pids_group(12) as outer:
        inner = outer / "inner"
        inner.mkdir()
        try:
            answer = told(run_outside(in_group(inner, python(OURS + TEAM + TELL)), CGROUP_THREADS_CORES="8"))
        finally:
            inner.rmdir()
    assert (answer["threads"], answer["bound_by"], answer["tasks"]) == (3, "pids.max", 3)


def test_the_report_says_it_and_the_check_fails() -> None:
    with pids_group(3) as group:
        command = in_group(group, [sys.executable, "-m", "cgroup_threads", "report", "--check"])
        done = run_outside(command, CGROUP_THREADS_CORES="8")
    assert done.returncode == 1, done.stderr
    assert "1 thread a pool, bound by pids.max" in done.stdout
    assert f"1 used ({group}/pids.max)" in done.stdout
    assert "fix: raise the group's pids.max" in done.stdout


def test_address_space() -> None:
    """OpenBLAS takes memory for each thread as it is loaded."""
    require_module("numpy")
    needs_two_cpus()
    # How much numpy alone takes differs between releases: 150 MiB were enough with one thread, 200 with two.
    for mib in range(100, 300, 10):
        done = run_outside(limited("as", mib << 20, python(OURS + NUMPY + TELL)), timeout=60)
        if done.returncode == 0:
            break
    answer = told(done)
    assert (answer["threads"], answer["bound_by"]) == (1, "RLIMIT_AS")
    code, message, level = answer["notices"][0]
    assert (code, level) == ("address-space-limited", "warning")
    assert "1 thread a pool instead of 2" in message
    assert len(answer["notices"]) == 1
    alone = limited("as", mib << 20, python(NUMPY))
    try:
        assert run_outside(alone, timeout=20).returncode != 0
    except subprocess.TimeoutExpired:  # OpenBLAS may also hang there
        pass
    roomy = told(run_outside(limited("as", 16 << 30, python(OURS + NUMPY + TELL))))
    assert (roomy["threads"] > 1, roomy["bound_by"] != "RLIMIT_AS") == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "threads"), [(4, 1), (8, 2)])
def test_an_encoder_with_four_pools_fits(limit: int, threads: int) -> None:
    script = ENCODER.format(path=minilm_directory())
    require(len(os.sched_getaffinity(0)) == 2, "the number of threads is that of two CPUs")
    if threads == 1:
        assert run_under("pids.max", limit, script).returncode != 0
    answer = told(run_under("pids.max", limit, OURS + script + TELL))
    assert (answer["threads"], answer["tasks"] <= limit) == (threads, True)


def test_the_package_is_the_one_under_test() -> None:
    done = run_outside(as_user(some_user(), python(OURS + "print(ct.__file__)")))
    assert done.stdout.strip().startswith(str(ROOT)), done.stderr
