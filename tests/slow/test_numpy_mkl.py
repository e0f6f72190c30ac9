"""A numpy whose BLAS is MKL, on Intel's and on GNU's OpenMP: who computes is read from the kernel, thread by thread."""

from __future__ import annotations

import importlib.metadata
import sys
from functools import cache
from typing import Any

import pytest

from tests.lab.builds import BUILD_SECONDS
from tests.lab.matrix import MKL, beside
from tests.lab.mkl import numpy_on_mkl
from tests.lab.models import run_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + 600), pytest.mark.where("numpy on MKL")]
LAYERS = ("INTEL", "GNU")

# ``workers`` is how many threads of the process ran in a product. Those of an earlier one must sleep before.
PRELUDE = """
import ctypes, json, os, signal, sys, threading, time
def ran():
    times = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/schedstat") as file: times[task] = int(file.read().split()[0])
    return times
def quiet():
    mine, deadline, before = str(threading.get_native_id()), time.monotonic() + 60, None
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = ran()
        now.pop(mine)
        if now == before: return
        before = now
    raise AssertionError("threads go on after their work")
def product():
    size = 800
    square = numpy.full((size, size), 0.5)
    assert (square @ square == size / 4).all()
def workers():
    product()  # the team is there, and those who do not belong to it any more are not
    quiet()
    before = ran()
    product()
    after = ran()
    return sum(after[task] > before.get(task, 0) for task in after)
def mkl():
    import threadpoolctl
    (found,) = [c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.user_api == "blas"]
    assert found.internal_api == "mkl", found.internal_api
    return found
def own(): return mkl().dynlib.MKL_Set_Num_Threads_Local(0)
def in_thread(function):
    out = []
    thread = threading.Thread(target=lambda: out.append(function())); thread.start(); thread.join()
    return out[0]
def show(*values): print(json.dumps(values))
"""
FIRST = "import cgroup_threads as ct\nimport numpy\n"


@cache
def _python() -> str:
    """An environment where this numpy goes before the installed one; MKL's own libraries are linked into it."""
    name = f"numpy-{importlib.metadata.version('numpy')}-mkl"
    return beside(name, sys.executable, [numpy_on_mkl()], lend=MKL)


def mkl_script(script: str, **environ: str) -> Any:
    """On 4 usable cores. MKL_DYNAMIC: left alone, MKL would not go above the machine's physical cores."""
    sleeping = {"KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}
    environ = {"CGROUP_THREADS_CORES": "4", "MKL_DYNAMIC": "FALSE", **sleeping, **environ}
    return run_script(PRELUDE + script, python=_python(), **environ)


@pytest.mark.parametrize("layer", LAYERS)
def test_variables_come_before_numpy(layer: str) -> None:
    script = FIRST + "show(workers(), mkl().threading_layer, os.environ['MKL_NUM_THREADS'])"
    seen = mkl_script(script, MKL_THREADING_LAYER=layer, CGROUP_THREADS_CORES="3")
    assert seen == [3, layer.lower(), "3"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_limit_holds_in_products_and_ends(layer: str) -> None:
    script = f"""{FIRST}
seen = [workers()]
with ct.limit_threads(2):
    seen.append(workers())
    with ct.limit_threads(1): seen.append(workers())
    seen.append(workers())
seen.append(workers())
show(seen, mkl().num_threads, own())
"""
    seen, threads, left = mkl_script(script, MKL_THREADING_LAYER=layer)
    assert seen == [4, 2, 1, 2, 4]
    assert (threads, left) == (4, 0), "the thread has kept a count of its own"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_limit_is_the_threads_own(layer: str) -> None:
    script = f"""{FIRST}
def limited():
    with ct.limit_threads(1): return [workers(), mkl().num_threads]
def free(): return [workers(), mkl().num_threads]
with ct.limit_threads(2):
    show(in_thread(limited), in_thread(free), workers())
"""
    # A thread without a limit of its own computes with what the variables say.
    assert mkl_script(script, MKL_THREADING_LAYER=layer) == [[1, 1], [4, 4], 2]


@pytest.mark.parametrize("layer", LAYERS)
def test_leases_share_the_cores(layer: str) -> None:
    script = f"""{FIRST}
taken, over = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads(3):
        taken.set()
        over.wait(60)
thread = threading.Thread(target=hold); thread.start()
assert taken.wait(60)
with ct.limit_threads() as lease: beside = [lease.threads, workers(), ct.statistics().leased]
over.set(); thread.join()
with ct.limit_threads() as lease: alone = [lease.threads > 1, lease.threads == workers() == ct.statistics().leased]
show(beside, alone, ct.statistics().leased)
"""
    values = {"MKL_THREADING_LAYER": layer, "CGROUP_THREADS_SCOPE": "process"}
    assert mkl_script(script, **values) == [[1, 1, 4], [True, True], 0]


@pytest.mark.parametrize("layer", LAYERS)
def test_an_import_after_numpy_lowers_what_is_there(layer: str) -> None:
    script = """
import numpy
seen = [workers()]
del os.environ["MKL_NUM_THREADS"]  # it did its part, and is not the user's word any more
import warnings
warnings.simplefilter("ignore")  # of the late import
import cgroup_threads as ct
seen += [workers(), in_thread(workers)]
with ct.limit_threads(1): seen.append(workers())
show(*seen, workers())
"""
    values = {"MKL_THREADING_LAYER": layer, "MKL_NUM_THREADS": "4", "CGROUP_THREADS_CORES": "2"}
    assert mkl_script(script, **values) == [4, 2, 2, 1, 2]


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ({"MKL_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"MKL_NUM_THREADS": "3", "OMP_NUM_THREADS": "1"}, 3),
        ({"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "3"}, 1),
        ({"MKL_NUM_THREADS": "3", "CGROUP_THREADS_OVERRIDE": "1"}, 4),
        # The domain's own variable goes before both, and no setting of ours knows it.
        ({"MKL_NUM_THREADS": "3", "MKL_DOMAIN_NUM_THREADS": "MKL_DOMAIN_BLAS=2"}, 2),
    ],
)
def test_the_users_variables(users: dict[str, str], expected: int) -> None:
    assert mkl_script(FIRST + "show(workers())", **users) == [expected]


def test_mkl_dynamic_is_the_users() -> None:
    """Left alone, MKL takes no more threads than the machine has cores, whatever it is told; a limit lowers that."""
    script = f"""{FIRST}
seen = [workers() <= os.cpu_count(), mkl().num_threads <= os.cpu_count(), os.environ["MKL_NUM_THREADS"]]
with ct.limit_threads(1): seen.append(workers())
show(*seen)
"""
    assert mkl_script(script, MKL_DYNAMIC="TRUE", CGROUP_THREADS_CORES="64") == [True, True, "64", 1]


def test_without_threads_of_its_own() -> None:
    script = f"""{FIRST}
seen = [workers()]
with ct.limit_threads(2): seen.append(workers())
show(*seen, [pool["name"] for pool in ct.report().to_dict()["pools"] if pool["name"].startswith("mkl")])
"""
    *counts, named = mkl_script(script, MKL_THREADING_LAYER="SEQUENTIAL")
    assert (counts, named) == ([1, 1], ["mkl"])


@pytest.mark.parametrize("layer", LAYERS)
def test_a_report_shows_it(layer: str) -> None:
    script = f"""{FIRST}
product()
found = ct.report()
pools = {{pool["name"]: [pool["threads"], pool["scope"], pool["detail"]] for pool in found.to_dict()["pools"]}}
show(pools, [notice.code for notice in found.notices])
"""
    pools, codes = mkl_script(script, MKL_THREADING_LAYER=layer, CGROUP_THREADS_CORES="2")
    assert pools["mkl"] == [2, "thread", f"{layer.lower()} threads; each thread has its own count"]
    assert set(pools) == {"mkl", "libiomp5" if layer == "INTEL" else "libgomp"}
    assert "no-controllable-blas" not in codes
    assert "pool-oversubscribed" not in codes


@pytest.mark.parametrize("layer", LAYERS)
def test_forked_children_compute_under_limits(layer: str) -> None:
    script = f"""{FIRST}
def child(function):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a hang
        try:
            os.write(writer, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file: answer = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(answer) if status == 0 else status
def limited():
    with ct.limit_threads(1): return [workers(), mkl().num_threads]
with ct.limit_threads(2):
    product()
    inside = child(limited)
before = child(limited)
workers()
show(inside, before, child(limited), workers())
"""
    assert mkl_script(script, MKL_THREADING_LAYER=layer) == [[1, 1], [1, 1], [1, 1], 4]
