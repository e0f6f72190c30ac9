"""Children of a parent that imported cgroup_threads have no more native threads in total than without us.

Real children: joblib's loky workers, torchrun's ranks, a multiprocessing pool. benchmarks/inheritance.py has more cases
and the arm "variables only", which shows what inheriting alone would do.

Field cases: E13 (spawned children), S06, S14, E12 (the cores are divided by the number of children).
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from benchmarks.inheritance import run_case, total
from tests.lab import require, require_module
from tests.lab.models import run_script

ROOT = Path(__file__).parents[1]
START_HOOK = "cgroup_threads_ranks.pth"


def check_no_more(case: str) -> None:
    require(sys.platform == "linux", "threads are counted in /proc")
    require(len(os.sched_getaffinity(0)) > 1, "on one CPU no library starts threads")
    require_module("numpy")
    without, governed = (run_case(case, arm) for arm in ("without us", "governed"))
    assert len(without) == len(governed) == 2
    assert total(governed, "os_threads") <= total(without, "os_threads")
    assert total(governed, "pools") <= total(without, "pools")


def test_joblib_workers() -> None:
    require_module("joblib")
    check_no_more("joblib")


@pytest.mark.parametrize(
    ("variables", "joblibs", "number"),
    [
        ({}, 8, "3"),
        ({}, 4, "2"),  # joblib's number is smaller
        ({"OMP_NUM_THREADS": "5"}, 8, "5"),
        ({"CGROUP_THREADS_PATCH": "0"}, 8, "6"),
    ],
)
def test_joblib_divides_what_was_computed_and_keeps_the_users(
    variables: dict[str, str], joblibs: int, number: str
) -> None:
    """What two workers would be started with, where joblib sees ``joblibs`` CPUs."""
    require_module("joblib")
    script = f"""
import json, joblib._parallel_backends as backends
backends.cpu_count = lambda: {joblibs}
import cgroup_threads
environ = backends.LokyBackend()._prepare_worker_env(2)
explicit = backends.LokyBackend(inner_max_num_threads=7)._prepare_worker_env(2)
print(json.dumps([environ["OMP_NUM_THREADS"], explicit["OMP_NUM_THREADS"]]))
"""
    assert run_script(script, CGROUP_THREADS_CORES="6", **variables) == [number, "7"]


def test_spawned_pool() -> None:
    check_no_more("spawn")


def test_spawned_children_have_the_parents_number() -> None:
    """E13: what is set in the parent's environment crosses spawn; run-time limits would not."""
    require_module("numpy")
    answers = run_case("spawn", "governed", CGROUP_THREADS_CORES="1")
    assert [(answer["OMP_NUM_THREADS"], answer["pools"]) for answer in answers] == [("1", 1), ("1", 1)]


def test_torchrun_ranks() -> None:
    require_module("torch")
    require((Path(sysconfig.get_path("purelib")) / START_HOOK).exists(), f"{START_HOOK} is not installed")
    check_no_more("torchrun")


@pytest.mark.parametrize(
    ("variables", "loaded"),
    [
        ({}, False),
        ({"LOCAL_WORLD_SIZE": "2"}, False),
        ({"CGROUP_THREADS_APPLIED": "1;-;-;OMP_NUM_THREADS=2"}, False),
        ({"CGROUP_THREADS_APPLIED": "1;-;-;OMP_NUM_THREADS=2", "LOCAL_WORLD_SIZE": "2"}, True),
    ],
)
def test_the_start_hook_acts_in_ranks_of_governed_parents_alone(variables: dict[str, str], loaded: bool) -> None:
    code = "import site, sys; site.addpackage(sys.argv[1], 'ranks.pth', set()); print('cgroup_threads' in sys.modules)"
    assert run_hook(code, variables, PYTHONPATH=str(ROOT)) == (f"{loaded}\n", "")


def test_the_start_hook_survives_a_missing_package() -> None:
    """Somebody may remove the package by hand and leave the hook: interpreters start in silence all the same."""
    code = "import site, sys; site.addpackage(sys.argv[1], 'ranks.pth', set()); print('on')"
    assert run_hook(code, {"CGROUP_THREADS_APPLIED": "1;-;-;", "LOCAL_WORLD_SIZE": "2"}) == ("on\n", "")


def run_hook(code: str, variables: dict[str, str], **more: str) -> tuple[str, str]:
    """Standard output and error of an interpreter that reads the hook; -S: no installed one is read before."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(ROOT)],
        env=variables | more,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr
