"""Real forks: a child computes with all its threads and without its parent's limits, and never hangs.

A hang ends in SIGALRM for children that the script forks itself; others are killed with the script, which fails.
"""

from __future__ import annotations

import pytest

from tests.lab.native import TORCH, debian_library, pool_script

LIMIT_S = 90
# numpy's OpenBLAS starts its threads at once: at one thread it has none that ``tasks`` would count.
TWO = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}


def _torch(script: str, **environ: str) -> dict[str, object]:
    seen: dict[str, object] = pool_script(TORCH + script, modules=("torch",), timeout=LIMIT_S, **{**TWO, **environ})
    return seen


def _gomp() -> str:
    path = debian_library("libgomp1", "libgomp.so.1")
    return f"""
gomp = ctypes.CDLL({path!r})
def work(): return [team(gomp), tasks()]
"""


def test_without_the_hook_a_child_hangs() -> None:
    """The fault itself: were it gone, the tests below would prove nothing."""
    script = _gomp() + 'seen["parent"] = work(); seen["child"] = child(work, seconds=3)'
    seen = pool_script(script, timeout=LIMIT_S, CGROUP_THREADS_AUTO="0", **TWO)
    assert seen == {"parent": [2, 2], "child": "SIGALRM"}


def test_libgomp() -> None:
    script = _gomp() + 'seen["parent"] = work(); seen["child"] = child(work); seen["on"] = work()'
    assert pool_script(script, timeout=LIMIT_S, **TWO) == {"parent": [2, 2], "child": [2, 2], "on": [2, 2]}


def test_torch_in_a_child_and_a_grandchild() -> None:
    script = """
seen["parent"] = work()
seen["child"] = child(lambda: [work(), child(work)])
seen["on"] = work()
"""
    seen = _torch(script)
    assert seen == {"parent": [2, 2], "child": [[2, 2], [2, 2]], "on": [2, 2]}


def test_torch_without_the_hook_hangs() -> None:
    script = 'work(); seen["child"] = child(work, seconds=5)'
    assert _torch(script, CGROUP_THREADS_AUTO="0") == {"child": "SIGALRM"}


@pytest.mark.parametrize("statement", ["cgroup_threads.apply()", "with cgroup_threads.limit_threads(): pass"])
def test_auto_0_with_an_explicit_call(statement: str) -> None:
    script = _gomp() + f'import cgroup_threads\n{statement}\nwork(); seen["child"] = child(work, seconds=9)'
    assert pool_script(script, timeout=LIMIT_S, CGROUP_THREADS_AUTO="0", **TWO) == {"child": [2, 2]}


def test_torch_in_forked_process_pools() -> None:
    script = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
work()
context = multiprocessing.get_context("fork")
with ProcessPoolExecutor(2, mp_context=context) as pool:
    seen["executor"] = [pool.submit(work).result() for _ in range(4)]
work()
with context.Pool(2, initializer=ct.initializer, initargs=(1,)) as pool:
    seen["pool"] = [pool.apply(torch.get_num_threads) for _ in range(4)]
    pool.apply(work)
seen["parent"] = torch.get_num_threads()
"""
    seen = _torch(script)
    assert seen["executor"] == [[2, 2]] * 4
    assert seen["pool"] == [1] * 4
    assert seen["parent"] == 2


def test_forks_while_another_thread_computes() -> None:
    script = """
work()
stop, started = threading.Event(), threading.Event()
def compute():
    while not stop.is_set(): work(); started.set()
thread = threading.Thread(target=compute); thread.start(); started.wait()
seen["children"] = [child(work, seconds=20) for _ in range(20)]
stop.set(); thread.join()
seen["parent"] = torch.get_num_threads()
"""
    assert _torch(script) == {"children": [[2, 2]] * 20, "parent": 2}


def test_scikit_learn() -> None:
    script = """
import numpy, sklearn.cluster
points = numpy.random.default_rng(0).random((2000, 8))
def work():
    fitted = sklearn.cluster.KMeans(4, n_init=1, max_iter=5, random_state=0).fit(points)
    return round(float(fitted.inertia_), 3)
one = work()
seen["team"] = tasks() > 1
seen["same"] = child(work) == one == work()
"""
    assert pool_script(script, modules=("sklearn",), timeout=LIMIT_S, **TWO) == {"team": True, "same": True}


def test_a_fork_inside_a_block_begins_without_the_limit() -> None:
    script = """
import numpy, threadpoolctl
blas = next(c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.internal_api == "openblas")
mkl = ctypes.CDLL(mapped("libtorch_cpu"))
def look():
    own = mkl.MKL_Get_Max_Threads() if hasattr(mkl, "MKL_Get_Max_Threads") else torch.get_num_threads()
    return [torch.get_num_threads(), own, blas.get_num_threads()]
blas.set_num_threads(2)
seen["before"] = look(); work()
def in_child():
    out = {"start": look(), "active": lease.active, "work": work()}
    limit.__exit__(None, None, None)
    out["left"] = look()
    with ct.limit_threads(1) as own: out["limited"] = look(), own.threads
    out["end"] = look()
    return out
with ct.limit_threads(1) as outer:
    limit = ct.limit_threads(1)
    lease = limit.__enter__()
    seen["child"] = child(in_child)
    seen["parent"] = look(), lease.active
    limit.__exit__(None, None, None)
    seen["outer"] = look()
seen["after"] = look()
"""
    free, held = [2, 2, 2], [1, 1, 1]
    inside = {"start": free, "active": False, "work": [2, 2], "left": free, "limited": [held, 1], "end": free}
    expected = {"before": free, "child": inside, "parent": [held, True], "outer": held, "after": free}
    assert _torch(script) == expected


def test_a_fork_in_another_thread_frees_the_shared_pools() -> None:
    script = """
import numpy, threadpoolctl
blas = next(c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.internal_api == "openblas")
blas.set_num_threads(2)
out = []
def fork():
    seen["held"] = blas.get_num_threads()
    seen["child"] = child(lambda: [blas.get_num_threads(), ct.limit_threads(1).__enter__().threads])
with ct.limit_threads(1):
    thread = threading.Thread(target=fork); thread.start(); thread.join()
    seen["still"] = blas.get_num_threads()
"""
    seen = pool_script(script, modules=("numpy",), timeout=LIMIT_S, **TWO)
    assert seen == {"held": 1, "child": [2, 1], "still": 1}


@pytest.mark.parametrize("held", ["ledger.lock", "lock", "ledger.local.thread.lock"])
def test_a_fork_while_another_thread_holds_a_lock(held: str) -> None:
    """The lock stays taken for ever in the child, whose owner does not exist there."""
    script = f"""
from cgroup_threads.state import process
{_gomp()}
work()
with ct.limit_threads(1): pass
lock = process.{held}
taken, release = threading.Event(), threading.Event()
def hold():
    with lock: taken.set(); release.wait()
thread = threading.Thread(target=hold); thread.start(); taken.wait()
def in_child():
    counts = [gomp.omp_get_max_threads()]
    with ct.limit_threads(1): counts.append(work()[0])
    return counts + [work()[0], notices()]
seen["child"] = child(in_child, seconds=20)
release.set(); thread.join()
with ct.limit_threads(1): seen["parent"] = work()[0]
"""
    seen = pool_script(script, timeout=LIMIT_S, **TWO)
    assert seen["child"][:3] == [2, 1, 2]
    assert not {"fork-unprepared", "fork-one-thread"} & set(seen["child"][3])
    assert seen["parent"] == 1


def test_a_runtime_that_cannot_be_paused_starts_at_one_thread() -> None:
    script = """
from cgroup_threads.pools import setters
setters.pause_functions = lambda paths: dict.fromkeys(paths)  # as in a libgomp older than GCC 9
seen["parent"] = work()
seen["child"] = child(lambda: [work(), notices()], seconds=20)
seen["on"] = work()
"""
    seen = _torch(script)
    assert seen["parent"] == seen["on"] == [2, 2]
    assert isinstance(seen["child"], list), f"the child ended by {seen['child']}"
    work, notices = seen["child"]
    assert work == [1, 1]
    assert "fork-one-thread" in notices
    assert "fork-unprepared" not in notices


def test_blis_on_a_runtime_that_cannot_be_paused() -> None:
    """BLIS gives its region a count of its own: the runtime's alone would not keep the child from hanging."""
    path = debian_library("libblis4-openmp", "blis-openmp/libblis.so.4")
    script = f"""
from cgroup_threads.pools import setters
blas = ctypes.CDLL({path!r})
n = 300
a, b, c = ((ctypes.c_double * (n * n))(*[1.0] * (n * n)) for _ in range(3))
double = ctypes.c_double
def work():
    blas.cblas_dgemm(101, 111, 111, n, n, n, double(1), a, n, b, n, double(0), c, n)
    return [c[0] == n, tasks()]
seen["parent"] = work()
seen["paused"] = child(work, seconds=20)
work()
setters.pause_functions = lambda paths: dict.fromkeys(paths)
seen["unpaused"] = child(work, seconds=20)
"""
    seen = pool_script(script, timeout=LIMIT_S, **TWO, BLIS_NUM_THREADS="2")
    assert seen == {"parent": [True, 2], "paused": [True, 2], "unpaused": [True, 1]}


def test_a_fork_inside_a_parallel_region_starts_at_one_thread() -> None:
    """A runtime refuses to pause there."""
    script = """
out = []
def member(_):
    if gomp.omp_get_thread_num() == 0: out.append(child(lambda: [gomp.omp_get_max_threads(), notices()], seconds=20))
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(member)
gomp.GOMP_parallel(body, None, 0, 0)
seen["child"], seen["parent"] = out[0], work()
"""
    seen = pool_script(_gomp() + script, timeout=LIMIT_S, **TWO)
    count, notices = seen["child"]
    assert count == 1
    assert "fork-one-thread" in notices
    assert seen["parent"] == [2, 2]
