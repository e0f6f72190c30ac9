"""Tuning in real quota groups of this machine, beside real neighbours that begin in mid-run.

The groups have the highest weight there is, so that other programs of the machine matter little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.detection.procfs import Files
from cgroup_threads.governor.sampling import read_idle
from cgroup_threads.measuring.quota import QuotaGroup
from tests.lab import require
from tests.lab.commands import clean_environ, inside, quota_group

# A call hashes ``mib`` of memory, shared among threads that stay. hashlib gives up the GIL for as long as a hash takes:
# threads that never wait for each other are hardly held up by the little that other programs do.
WORK = """
import hashlib, json, os, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from cgroup_threads.tuning.tuner import tune
from cgroup_threads.tuning.function import FunctionSubject

options = json.loads(sys.argv[1])
data = memoryview(bytes(options["mib"] << 20))
pool = ThreadPoolExecutor(2)
def hash(share):
    hashlib.sha256(data[:share]).digest()
def work(threads):
    parts = [pool.submit(hash, len(data) // threads) for _ in range(threads)]
    for part in parts: part.result()

measures = 0
neighbours = []
class Counting(FunctionSubject):
    '''Neighbours come with one measurement, and go with another.'''
    def measure(self, task, threads, seconds):
        global measures
        measures += 1
        if measures == options["begin"]:
            for cpu in options["cpus"]:
                place = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', options["procs"]]
                spin = f"import os; os.sched_setaffinity(0, {{{cpu}}}); print(flush=True)\\nwhile True: pass"
                child = subprocess.Popen([*place, sys.executable, "-c", OUTSIDE, spin], stdout=subprocess.PIPE)
                neighbours.append(int(child.stdout.readline()))
                child.communicate()
        if measures == options["end"]: end()
        return super().measure(task, threads, seconds)
def end():
    while neighbours: os.kill(neighbours.pop(), 9)

# A neighbour is nobody's child: it would count as part of what is measured.
OUTSIDE = '''
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
'''

import cgroup_threads.tuning.function
cgroup_threads.tuning.function.FunctionSubject = Counting
try:
    result = tune(work, **options["terms"], progress=False)
finally:
    end()
print(json.dumps({
    "threads": result.threads,
    "confidence": result.confidence,
    "points": [point._asdict() for point in result.points],
    "rates": [point.median for point in result.points],
    "calls": [sorted(point.calls)[len(point.calls) // 2] for point in result.points],
    "notices": {notice.code: [notice.level, notice.message] for notice in result.notices},
    "usable": result.identity.usable,
    "elapsed": result.elapsed,
    "measures": measures,
    "text": str(result),
}))
"""
TERMS = {"rounds": 4, "seconds": 0.5, "confidence": 1.0, "time_limit": 30}


@pytest.fixture(autouse=True)
def _two_cpus() -> None:
    require(len(os.sched_getaffinity(0)) >= 2, "one CPU only")


def wait_for_quiet() -> None:
    """Go on once nobody else uses this machine, or after 20 s: what else comes and goes may spoil the first round,
    in which all must be as it is without the neighbour."""
    cpus = frozenset(os.sched_getaffinity(0))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        began, before = time.monotonic(), read_idle(Files(), cpus)
        time.sleep(0.5)
        after, wall = read_idle(Files(), cpus), time.monotonic() - began
        require(before is not None and after is not None, "/proc/stat does not tell of idle CPUs")
        assert before is not None
        assert after is not None
        if after - before > (len(cpus) - 0.1) * wall:
            return


def tune_inside(group: QuotaGroup, **options: Any) -> dict[str, Any]:
    asked = {"mib": 60, "begin": 0, "end": 0, "cpus": [], "procs": "", "terms": TERMS, **options}
    command = inside(group, [sys.executable, "-c", WORK, json.dumps(asked)])
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    print(said.pop("text"), f"{said['measures']} measurements, {said['elapsed']:.1f} s", sep="\n")
    return said


@contextmanager
def place_of_neighbours(group: QuotaGroup) -> Iterator[str]:
    """A group with the weight of ``group`` and no quota, beside it; yields the file to join it."""
    place = Path(group.directory).with_name(f"ct-test-neighbours-{os.getpid()}")
    try:
        place.mkdir()
    except OSError as error:
        require(False, f"no cgroup can be made: {error}")
    try:
        if group.version == 2:
            (place / "cpu.weight").write_text("10000")
        else:
            (place / "cpu.shares").write_text("262144")
        yield str(place / "cgroup.procs")
    finally:
        deadline = time.monotonic() + 10
        while True:
            try:
                place.rmdir()
                break
            except OSError:  # EBUSY until the kernel is done with those that were killed
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_under_quota_1_one_thread_is_recommended_and_bursts_explained() -> None:
    with quota_group(1.0) as group:
        wait_for_quiet()
        said = tune_inside(group, mib=30, terms={**TERMS, "seconds": 0.6})
    assert said["usable"] == 1
    one, two = said["points"]
    assert (one["threads"], one["burst"], two["threads"], two["burst"]) == (1, False, 2, True)
    assert said["threads"] == 1
    # On a busy machine two threads may not even look faster: then there is nothing to explain.
    looked_faster = two["throttled"] > 0.5 and said["calls"][1] < 0.8 * said["calls"][0]
    assert not looked_faster or "tune-burst" in said["notices"], said["notices"]


@pytest.mark.slow  # it waits until the machine is quiet
@pytest.mark.parametrize("cpus", [[0, 1], [0]], ids=["both CPUs", "one CPU"])
def test_a_neighbour_that_comes_is_told_and_changes_nothing(cpus: list[int]) -> None:
    """It comes after a warm-up and one round of both counts, and stays."""
    with quota_group(2.0) as group, place_of_neighbours(group) as procs:
        wait_for_quiet()
        without = tune_inside(group)
        beside = tune_inside(group, begin=5, cpus=cpus, procs=procs)
    assert without["threads"] == 2
    assert beside["threads"] == without["threads"]
    level, message = beside["notices"]["tune-neighbour"]
    assert level == "warning"
    assert "python" in message, "the neighbour is not named"
    assert "in round 2 of " in message
    assert "fewer than 3 undisturbed rounds" in message
    assert beside["confidence"] <= 0.5
    assert beside["rates"][1] == pytest.approx(without["rates"][1], rel=0.25), "disturbed rounds are in the figures"
    print(beside["notices"])


@pytest.mark.slow
def test_a_neighbour_that_comes_and_goes_is_waited_for() -> None:
    with quota_group(2.0) as group, place_of_neighbours(group) as procs:
        wait_for_quiet()
        said = tune_inside(group, begin=5, end=9, cpus=[0, 1], procs=procs)
    assert said["threads"] == 2
    assert sum(point["spoilt"] for point in said["points"]) >= 3, "disturbed rounds passed for quiet ones"
    assert min(len(point["rates"]) for point in said["points"]) >= 3, "they were not repeated"
    level, message = said["notices"]["tune-noisy"]
    assert (level, " measurements were disturbed" in message) == ("info", True)
