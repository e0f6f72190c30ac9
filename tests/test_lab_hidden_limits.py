"""Real cgroup v1 groups whose parent's quota is outside of the namespace, real neighbours, and no limit at all.

A machine that others keep busy has no idle CPU that would give a limit away: the tests that need one measure how idle
it was meanwhile, and try again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.lab import require
from tests.lab.cgroup1 import CPU, group, run_inside
from tests.lab.commands import clean_environ

# Minutes, and other programs of the machine change what is measured.
pytestmark = [pytest.mark.slow, pytest.mark.where("cgroup v1: hidden limits")]

# Threads that compute in C (hashlib gives up the GIL) under leases, until ``enough`` samples are there or, if it is
# given, the budget has the cores ``awaited``.
APP = """
import hashlib, json, sys, threading, time
import cgroup_threads as ct
from cgroup_threads.governor.core_budget import core_budget

threads, enough, awaited = (int(word) for word in sys.argv[1:])
core = core_budget()
deadline = time.monotonic() + 30
def going_on():
    done = core.budget.cores == awaited if awaited else len(core.sampler.samples) >= enough
    return not done and time.monotonic() < deadline
def serve():
    data = bytes(1 << 20)
    while going_on():
        with ct.limit_threads(1):
            for _ in range(30): hashlib.sha256(data).digest()
before = ct.statistics().cores
workers = [threading.Thread(target=serve) for _ in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
report = ct.report()
found = report.to_dict()
print(json.dumps({
    "hidden": found["hidden_limit"],
    "codes": [notice["code"] for level in ("problems", "warnings", "notes") for notice in found[level]],
    "text": str(report),
    "quota": found["limits"]["quota"],
    "samples": len(core.sampler.samples),
    "last": [str(sample) for sample in core.sampler.samples][-4:],
    "cores": [before, ct.statistics().cores],
}))
"""
OURS = {"hidden-limit", "busy-neighbour", "cpu-shortfall"}
SPINNER = "import os; os.nice(5); print(flush=True)\nwhile True: pass"


class Answer(NamedTuple):
    """What the app printed, and how many CPUs were idle on average while it ran."""

    said: dict[str, Any]
    idle: float

    @property
    def codes(self) -> set[str]:
        return OURS.intersection(self.said["codes"])

    @property
    def numbers(self) -> str:
        found = self.said["hidden"]
        why = f"{found['kind']}, {found['why']}" if found else self.said["last"]
        return f"host idle {self.idle:.2f}: {why}"


def idle_seconds() -> float:
    with open("/proc/stat") as file:
        return int(file.readline().split()[4]) / os.sysconf("SC_CLK_TCK")


def run_app(name: str, threads: int, *, enough: int = 8, awaited: int = 0, follow: str = "0") -> Answer:
    command = (sys.executable, "-c", APP, str(threads), str(enough), str(awaited))
    began, idle = time.monotonic(), idle_seconds()
    text = run_inside(name, "private namespace", ("/usr/bin/env", f"CGROUP_THREADS_FOLLOW_HIDDEN={follow}", *command))
    wall = time.monotonic() - began
    answer = Answer(json.loads(text), (idle_seconds() - idle) / wall)
    print(answer.numbers)
    return answer


def on_a_quiet_machine(run: Callable[[], Answer], idle: float) -> Answer:
    """The answer of a run in which at least ``idle`` CPUs were idle."""
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        began, before = time.monotonic(), idle_seconds()
        time.sleep(1.0)
        if (idle_seconds() - before) / (time.monotonic() - began) < idle + 0.5:
            continue
        answer = run()
        if answer.idle >= idle:
            return answer
    require(False, "other programs keep this machine busy")
    raise AssertionError


@contextmanager
def hidden_quota(cores: float) -> Iterator[str]:
    """A group without a quota below one that has it. Its weight makes other programs of this machine matter little."""
    with group(parent_quota=cores) as name:
        (CPU / name).with_name("cpu.shares").write_text("65536")
        yield name


@contextmanager
def neighbours() -> Iterator[None]:
    """A spinner for each CPU, in a group with four times our weight."""
    place = CPU / f"ct-test-neighbours-{os.getpid()}"
    spinners: list[subprocess.Popen[bytes]] = []
    place.mkdir()
    try:
        (place / "cpu.shares").write_text("4096")
        for _ in range(os.cpu_count() or 1):
            spinner = subprocess.Popen([sys.executable, "-c", SPINNER], stdout=subprocess.PIPE, env=clean_environ())
            spinners.append(spinner)
            assert spinner.stdout is not None
            spinner.stdout.readline()
            (place / "cgroup.procs").write_text(str(spinner.pid))
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.communicate()
        place.rmdir()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_parents_quota_that_no_file_shows(threads: int) -> None:
    with hidden_quota(0.3) as name:
        answer = on_a_quiet_machine(lambda: run_app(name, threads), 0.6)
    assert answer.said["quota"] is None, "the parent's quota is visible: this tests nothing"
    found = answer.said["hidden"]
    assert (answer.codes, found["kind"]) == ({"hidden-limit"}, "hidden limit"), answer.numbers
    assert 0.2 <= found["cores"] <= 0.45, answer.numbers
    assert 0.7 * threads <= found["wanted"] <= 1.1 * threads, answer.numbers
    assert "a CPU limit that no file here shows: about 0.3 cores" in " ".join(answer.said["text"].split())


def test_a_parents_quota_beside_neighbours_cannot_be_told() -> None:
    with hidden_quota(0.3) as name, neighbours():
        answer = run_app(name, 1)
    assert answer.said["quota"] is None, "the parent's quota is visible: this tests nothing"
    assert answer.said["hidden"] is not None, answer.numbers
    assert 0.2 <= answer.said["hidden"]["cores"] <= 0.45, answer.numbers
    assert len(answer.codes) == 1
    assert answer.codes <= {"busy-neighbour", "cpu-shortfall"}, answer.numbers


def test_without_any_limit_nothing_is_said() -> None:
    with group() as name:
        answer = on_a_quiet_machine(lambda: run_app(name, 1), 0.7)
    assert answer.said["samples"] >= 8
    assert (answer.codes, answer.said["hidden"]) == (set(), None), answer.numbers


def test_busy_neighbours_are_no_hidden_limit() -> None:
    with group() as name, neighbours():
        answer = run_app(name, 2)
    assert answer.said["samples"] >= 8
    assert answer.codes <= {"busy-neighbour", "cpu-shortfall"}, answer.numbers
    assert len(answer.codes) == 1, answer.numbers
    assert "cannot be told" in " ".join(answer.said["text"].split())


def test_a_visible_quota_is_not_called_hidden() -> None:
    with group(quota=0.3) as name:
        answer = run_app(name, 1)
    assert answer.said["quota"] == 0.3
    assert "hidden-limit" not in answer.codes, answer.numbers


def test_the_budget_follows_where_it_is_asked_to() -> None:
    with hidden_quota(1.0) as name:
        answer = on_a_quiet_machine(lambda: run_app(name, 2, awaited=1, follow="1"), 0.75)
    assert answer.said["cores"] == [2, 1], answer.numbers
    assert answer.said["hidden"]["cap"] == 1
    assert "the budget follows: 1" in " ".join(answer.said["text"].split())
