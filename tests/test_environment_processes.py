"""``apply``, ``undo`` and ``child_environment`` on the environment of real processes, and on that of their children."""

from __future__ import annotations

import ctypes.util
import json
import subprocess
import sys
from typing import Any

import pytest

from cgroup_threads.marker import MARKER
from tests.lab import require, require_module
from tests.lab.commands import clean_environ

# What a process found, then its child's answers, and so on; each generation believes in fewer cores.
GENERATIONS = """
import json, os, subprocess, sys
import cgroup_threads
from cgroup_threads.state import process
names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
found = [[os.environ[name] for name in names]]
user = sorted(set(process.user_environ()) & {*names})
cores = int(os.environ["CGROUP_THREADS_CORES"])
if cores == 6:
    CHANGE
if cores > 2:
    environ = {**os.environ, "CGROUP_THREADS_CORES": str(cores - 2)}
    command = [sys.executable, "-c", sys.argv[1], sys.argv[1]]
    child = subprocess.run(command, env=environ, capture_output=True, check=True)
    found += json.loads(child.stdout)[0]
print(json.dumps([found, user]))
"""


def ask(script: str, *arguments: str, **environ: str) -> Any:
    """The JSON value that ``script`` prints in a fresh interpreter; warnings are errors, and nothing else is said."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("change", "child", "grandchild"),
    [
        ("pass", "4444", "2222"),
        ("os.environ['OMP_NUM_THREADS'] = '3'", "3334", "3222"),  # the user's now, for followers too where it is less
        ("os.environ['NUMBA_NUM_THREADS'] = '1'", "4441", "2221"),
        ("del os.environ['OPENBLAS_NUM_THREADS']", "4444", "2222"),
        ("os.environ['CGROUP_THREADS_APPLIED'] = 'junk'", "6666", "6666"),
        ("del os.environ['CGROUP_THREADS_APPLIED']", "6666", "6666"),
        ("cgroup_threads.undo()", "4444", "2222"),
    ],
    ids=["as is", "changed", "follower", "removed", "junk marker", "no marker", "undone"],
)
def test_three_generations(change: str, child: str, grandchild: str) -> None:
    """Computed values are computed anew, the user's are handed on."""
    script = GENERATIONS.replace("CHANGE", change)
    found, user = ask(script, script, CGROUP_THREADS_CORES="6")
    assert ["".join(numbers) for numbers in found] == ["6666", child, grandchild]
    assert user == []


@pytest.mark.parametrize(
    "marker",
    ["junk", "\udcff\x01" * 50_000, "1;-;-;OMP_NUM_THREADS=5;", "1;-;-;OMP_NUM_THREADS=5" + "," * 9000],
    ids=["junk", "binary", "parts", "long"],
)
def test_a_junk_marker_makes_inherited_values_the_users(marker: str) -> None:
    script = """
import json, os, cgroup_threads
from cgroup_threads.state import process
kept = [[kept.name, kept.value] for kept in cgroup_threads.apply().kept]
print(json.dumps([kept, [n.code for n in process.notices], os.environ["CGROUP_THREADS_APPLIED"][:2]]))
"""
    environ = {MARKER: marker, "OMP_NUM_THREADS": "5", "CGROUP_THREADS_CORES": "6"}
    assert ask(script, **environ) == [[["OMP_NUM_THREADS", "5"]], ["marker-invalid"], "1;"]


def test_undo_restores_only_what_still_holds_our_value() -> None:
    script = """
import json, os
before = dict(os.environ)
import cgroup_threads
again = cgroup_threads.plan(workers=3)
first = os.environ["NUMBA_NUM_THREADS"], cgroup_threads.apply(again).set["NUMBA_NUM_THREADS"]
os.environ["MKL_NUM_THREADS"] = "9"
del os.environ["NUMBA_NUM_THREADS"]
undone = cgroup_threads.undo()
left = {name: value for name, value in os.environ.items() if before.get(name) != value}
gone = sorted(set(before) - set(os.environ))
print(json.dumps([first, left, gone, undone.changed, "OMP_NUM_THREADS" in undone.restored, undone.latched]))
"""
    found = ask(script, CGROUP_THREADS_CORES="6", OMP_NUM_THREADS=" ", BLIS_NUM_THREADS="5")
    assert found == [["6", "2"], {"MKL_NUM_THREADS": "9"}, [], ["MKL_NUM_THREADS", "NUMBA_NUM_THREADS"], True, []]


def test_undo_names_the_libraries_that_keep_our_values() -> None:
    require_module("numpy")
    script = "import cgroup_threads, json, numpy\nprint(json.dumps(cgroup_threads.undo().latched))"
    assert "numpy" in ask(script)


def test_a_childs_environment_is_the_users_and_its_share() -> None:
    script = """
import json, os, subprocess, sys
import cgroup_threads
try:
    cgroup_threads.child_environment(workers=0)
except ValueError as error:
    message = str(error)
child = cgroup_threads.child_environment(workers=3)
code = "import os, cgroup_threads; print(os.environ['MKL_NUM_THREADS'], cgroup_threads.plan().threads)"
told = subprocess.run([sys.executable, "-c", code], env=child, capture_output=True, text=True, check=True).stdout
names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "N_THREADS", "LOKY_MAX_CPU_COUNT", "NPROC", "RAYON_NUM_THREADS")
print(json.dumps([message, [child[name] for name in names], told.split()]))
"""
    environ = {"CGROUP_THREADS_CORES": "6", "OMP_NUM_THREADS": "8", "NPROC": "5"}
    message = "workers must be a positive integer, not 0"
    assert ask(script, **environ) == [message, ["8", "2", "2", "2", "5", "2"], ["2", "2"]]


def test_import_in_two_threads_at_once() -> None:
    script = """
import json, os, threading
gate, found = threading.Barrier(2), []
def load():
    gate.wait()
    import cgroup_threads
    found.append([cgroup_threads.plan().threads, os.environ["OMP_NUM_THREADS"]])
threads = [threading.Thread(target=load) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
from cgroup_threads.state import process
print(json.dumps([found, [n.code for n in process.notices]]))
"""
    assert ask(script, CGROUP_THREADS_CORES="3") == [[[3, "3"], [3, "3"]], []]


def test_an_odd_and_huge_environment_does_no_harm() -> None:
    """A megabyte of variables, bytes that are no text, every variable of ours and of schedulers filled with junk."""
    odd = {f"ODD_{number}": "\udcff" * 1000 for number in range(1000)}
    odd |= {"OMP NUM THREADS": "1", "\udcfe": "x", "OMP_NUM_THREADS ": "1"}
    names = ("SLURM_CPUS_PER_TASK", "NSLOTS", "CPU_LIMIT", "LOCAL_WORLD_SIZE", "WEB_CONCURRENCY", "OMP_PLACES")
    odd |= dict.fromkeys((*names, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_CPU_AFFINITY"), "\udcff;=\x7f" * 1000)
    script = """
import json, os, cgroup_threads
from cgroup_threads.state import process
width = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
codes = {notice.code for notice in process.notices} & {"startup-failed", "variable-malformed"}
print(json.dumps([1 <= cgroup_threads.plan().threads <= width, list(codes)]))
"""
    assert ask(script, **odd) == [True, ["variable-malformed"]]


def test_a_late_import_lowers_to_the_users_number_where_that_is_more() -> None:
    """A value of the user is kept, also where it comes by live pools."""
    require(ctypes.util.find_library("gomp"), "libgomp is not installed")
    script = """
import ctypes, json
gomp = ctypes.CDLL("libgomp.so.1")
gomp.omp_set_num_threads(7)
import cgroup_threads
print(json.dumps([gomp.omp_get_max_threads(), "libgomp" in cgroup_threads.apply().late]))
"""
    assert ask(script, CGROUP_THREADS_CORES="1", OMP_NUM_THREADS="5") == [5, True]
    assert ask(script, CGROUP_THREADS_CORES="2") == [2, True]


@pytest.mark.parametrize("set_by", ["plan", "variable", "both"])
def test_the_workers_of_a_plan_reach_the_children(set_by: str) -> None:
    script = """
import json, os, subprocess, sys
import cgroup_threads as ct
if sys.argv[1] != "variable": ct.apply(ct.plan(workers=4))
code = "import os, cgroup_threads; print(os.environ['OMP_NUM_THREADS'])"
def ask(environ):
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return environ["OMP_NUM_THREADS"], done.stdout.strip()
print(json.dumps([ask(ct.child_environment()), ask(ct.child_environment(workers=2))]))
"""
    environ = {} if set_by == "plan" else {"CGROUP_THREADS_WORKERS": "4" if set_by == "variable" else "2"}
    assert ask(script, set_by, CGROUP_THREADS_CORES="8", **environ) == [["2", "2"], ["1", "1"]]


def test_a_childs_environment_says_no_workers_that_the_child_finds_itself() -> None:
    script = """
import json, cgroup_threads
print(json.dumps("CGROUP_THREADS_WORKERS" in cgroup_threads.child_environment()))
"""
    assert ask(script, WEB_CONCURRENCY="2", CGROUP_THREADS_CORES="4") is False


def test_auto_0_in_a_governed_child_takes_nothing_for_the_users() -> None:
    script = (
        """
import json, os, subprocess, sys
import cgroup_threads
code = """
        + repr(
            """
import json, cgroup_threads as ct
report = ct.report()
counts = {v.name: [v.asked, v.origin] for v in report.evidence.variables}
print(json.dumps([[n.code for n in report.problems], counts["MKL_NUM_THREADS"], counts["OMP_NUM_THREADS"]]))
"""
        )
        + """
environ = {**os.environ, "CGROUP_THREADS_AUTO": "0", "CGROUP_THREADS_CORES": "1", "OMP_NUM_THREADS": "6"}
print(subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout)
"""
    )
    problems, computed, users = ask(script, CGROUP_THREADS_CORES="8")
    assert problems == ["variable-harmful"]  # the one the user set, not the twelve that the parent computed
    assert (computed, users) == ([None, "computed"], ["6", "user"])


def test_a_smaller_plan_inside_a_block_holds_for_the_blocks_after_it() -> None:
    require_module("numpy")
    script = """
import json
import numpy, threadpoolctl
blas = next(c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.user_api == "blas")
blas.set_num_threads(4)
import warnings
warnings.simplefilter("ignore")
import cgroup_threads as ct
counts = []
with ct.limit_threads(1):
    ct.apply(ct.plan()._replace(threads=2))
    counts.append(blas.get_num_threads())
for _ in range(2):
    counts.append(blas.get_num_threads())
    with ct.limit_threads(1): pass
counts.append(blas.get_num_threads())
print(json.dumps(counts))
"""
    assert ask(script, CGROUP_THREADS_AUTO="0", CGROUP_THREADS_CORES="4") == [1, 2, 2, 2]


def test_applying_does_not_hold_a_lock_that_limits_wait_for() -> None:
    """A limit that meets a new library leaves notices, which take the lock that ``apply`` works under."""
    require_module("numpy")
    script = """
import json, threading
import cgroup_threads as ct
import numpy
from cgroup_threads.state import process
with ct.limit_threads(1): pass
plan, gate = ct.plan(), threading.Barrier(2)
def note():
    with process.ledger.lock:
        gate.wait()
        gate.wait()
        with process.lock: pass
thread = threading.Thread(target=note); thread.start()
gate.wait()
lower = process.ledger.refresh
def refresh():
    gate.wait()
    lower()
process.ledger.refresh = refresh
ct.apply(plan._replace(threads=1))
thread.join()
print(json.dumps("done"))
"""
    assert ask(script, CGROUP_THREADS_CORES="4") == "done"


def test_undo_leaves_the_fork_guard_and_the_report_knows() -> None:
    script = """
import json, cgroup_threads as ct
guarded = [ct.report().evidence.fork_guarded]
ct.undo()
print(json.dumps([*guarded, ct.report().evidence.fork_guarded]))
"""
    assert ask(script) == [True, True]
    assert ask(script, CGROUP_THREADS_AUTO="0") == [False, False]
