"""limit_threads() on each real library: its own count inside a block, and exactly its baseline after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import require
from tests.lab.native import compiled, debian_library, followed, pool_script, wheel_library

# The counts of a script's libraries are all asked of the libraries themselves, never of the code under test.
OPENBLAS = """
def openblas():
    import threadpoolctl
    found = [c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.internal_api == "openblas"]
    return found[0].get_num_threads()
"""


def _openmp(path: str) -> None:
    script = f"""
library = ctypes.CDLL({path!r})
seen["counts"] = watch(library.omp_get_max_threads, lambda: team(library))
"""
    assert followed(pool_script(script)["counts"], baseline=3)


def test_libgomp() -> None:
    _openmp(debian_library("libgomp1", "libgomp.so.1"))


def test_libomp() -> None:
    _openmp(debian_library("libomp5", "libomp.so.5"))


def test_libiomp5() -> None:
    _openmp(wheel_library("intel-openmp", "libiomp5"))


def test_two_openmp_runtimes_at_once() -> None:
    script = f"""
one, two = ctypes.CDLL({debian_library("libgomp1", "libgomp.so.1")!r}), ctypes.CDLL({_libomp()!r})
one.omp_set_num_threads(4)
seen["counts"] = watch(one.omp_get_max_threads, two.omp_get_max_threads)
"""
    assert pool_script(script)["counts"] == [[4, 3], [2, 2], [1, 1], [2, 2], [4, 3]]


def _libomp() -> str:
    return debian_library("libomp5", "libomp.so.5")


def test_torch_and_the_mkl_inside_it() -> None:
    script = """
import torch
path = next(line.split()[-1] for line in open("/proc/self/maps") if "libtorch_cpu" in line)
mkl = ctypes.CDLL(path)
gets = [torch.get_num_threads] + ([mkl.MKL_Get_Max_Threads] if hasattr(mkl, "MKL_Get_Max_Threads") else [])
seen["mkl"] = len(gets) == 2
seen["counts"] = watch(*gets)
# Lowering must not pin the thread: a later torch.set_num_threads reaches MKL as well.
torch.set_num_threads(2)
seen["later"] = [get() for get in gets]
"""
    seen = pool_script(script, modules=("torch",))
    assert followed(seen["counts"], baseline=3)
    assert set(seen["later"]) == {2}
    require(seen["mkl"], "this torch has no static MKL")


def test_torch_in_a_worker_thread() -> None:
    script = """
import torch
def worker():
    # The thread's first use of torch is inside the block: torch's set-up of the thread would end the limit.
    with ct.limit_threads(1): counts = [torch.get_num_threads()]
    return counts + [torch.get_num_threads()]
def in_thread():
    out = []
    thread = threading.Thread(target=lambda: out.append(worker())); thread.start(); thread.join()
    return out[0]
seen["followed"] = in_thread()
torch.set_num_threads(4)  # what every later thread sets itself to
seen["set"] = in_thread()
seen["main"] = torch.get_num_threads()
"""
    assert pool_script(script, modules=("torch",)) == {"followed": [1, 3], "set": [1, 4], "main": 4}


def test_mkl_rt() -> None:
    script = f"""
mkl = ctypes.CDLL({wheel_library("mkl", "libmkl_rt")!r}, mode=ctypes.RTLD_GLOBAL)
seen["counts"] = watch(mkl.MKL_Get_Max_Threads)
seen["own"] = mkl.MKL_Set_Num_Threads_Local(0)
"""
    seen = pool_script(script)
    assert followed(seen["counts"], baseline=3)
    assert seen["own"] == 0, "the thread has kept a count of its own, which hides MKL_Set_Num_Threads"


def test_numpys_openblas() -> None:
    script = "import numpy\n" + OPENBLAS + 'openblas(); seen["counts"] = watch(openblas)'
    assert followed(pool_script(script, modules=("numpy",))["counts"])


def test_openblas_built_on_openmp() -> None:
    path = debian_library("libopenblas0-openmp", "openblas-openmp/libopenblas.so.0")
    # Its count is no promise (it takes OpenMP's at each call): the threads of a real product are counted.
    script = f"""
blas = ctypes.CDLL({path!r})
n = 300
a = (ctypes.c_double * (n * n))(*[1.0] * (n * n))
c = (ctypes.c_double * (n * n))()
double = ctypes.c_double
def product():
    blas.cblas_dgemm(101, 111, 111, n, n, n, double(1), a, n, a, n, double(0), c, n)
    return tasks()
seen["openmp"] = watch(blas.omp_get_max_threads)
alone = tasks()
with ct.limit_threads(1): seen["inside"] = product() - alone
seen["after"] = product() - alone
seen["right"] = c[0] == n
"""
    seen = pool_script(script)
    assert followed(seen.pop("openmp"), baseline=3)
    assert seen == {"inside": 0, "after": 2, "right": True}


@pytest.mark.parametrize("threading", ["pthread", "openmp"])
def test_blis(threading: str) -> None:
    path = debian_library(f"libblis4-{threading}", f"blis-{threading}/libblis.so.4")
    script = f'seen["counts"] = watch(ctypes.CDLL({path!r}).bli_thread_get_num_threads)'
    assert followed(pool_script(script)["counts"], baseline=3)


def test_flexiblas_by_a_stand_in(tmp_path: Path) -> None:
    """Debian 12 has no FlexiBLAS: a small library with its functions shows the calls, not the real one's answer."""
    source = """
static int threads = 3;
int flexiblas_get_num_threads(void) { return threads; }
void flexiblas_set_num_threads(int wanted) { threads = wanted; }
void flexiblas_get_version(int *major, int *minor, int *patch) { *major = 3; *minor = 4; *patch = 5; }
static unsigned long copy(char *out, unsigned long size) {
    const char *name = "NETLIB";
    unsigned long at = 0;
    for (; out && at + 1 < size && name[at]; at++) out[at] = name[at];
    if (out && size) out[at] = 0;
    return 6;
}
int flexiblas_list(char *out, unsigned long size, int at) { if (at < 0) return 1; return (int)copy(out, size); }
int flexiblas_list_loaded(char *out, unsigned long size, int at) { if (at < 0) return 1; return (int)copy(out, size); }
int flexiblas_current_backend(char *out, unsigned long size) { return (int)copy(out, size); }
"""
    script = f"""
library = ctypes.CDLL({compiled(source, tmp_path / "libflexiblas.so.3")!r})
seen["counts"] = watch(library.flexiblas_get_num_threads)
library.flexiblas_set_num_threads(-1)
with ct.limit_threads(2): seen["unset"] = library.flexiblas_get_num_threads()
from cgroup_threads.pools import describe
seen["described"] = [pool.threads for pool in describe() if pool.name == "flexiblas"]
"""
    seen = pool_script(script)
    assert followed(seen["counts"], baseline=3)
    assert seen["unset"] == -1, "nobody had set a count: the library runs one thread, and must go on so"
    assert seen["described"] == [1]


def test_module_pools() -> None:
    """OpenCV, numexpr and pyarrow are asked through their modules."""
    script = """
import cv2, numexpr, pyarrow
seen["counts"] = watch(cv2.getNumThreads, numexpr.get_num_threads, pyarrow.cpu_count)
stop = threading.Event()
thread = threading.Thread(target=stop.wait); thread.start()
with ct.limit_threads(1): seen["two threads"] = numexpr.get_num_threads(), notices()
stop.set(); thread.join()
seen["after"] = numexpr.get_num_threads()
"""
    seen = pool_script(script, modules=("cv2", "numexpr", "pyarrow"))
    assert followed(seen["counts"], baseline=3)
    # Changing numexpr's pool while another thread evaluates hangs the process: it is left, and a notice says so.
    count, notices = seen["two threads"]
    assert count == 3
    assert "numexpr-not-changed" in notices
    assert seen["after"] == 3


@pytest.mark.parametrize("launched", ["before", "inside"])
def test_numba(launched: str) -> None:
    script = f"""
import numba
from numba.np.ufunc import parallel
gomp = ctypes.CDLL("libgomp.so.1")
if {launched == "before"}: numba.get_num_threads()
with ct.limit_threads(1):
    seen["running"] = parallel._is_initialized
    seen["inside"] = numba.get_num_threads(), gomp.omp_get_max_threads()
seen["after"] = numba.get_num_threads()
seen["counts"] = watch(numba.get_num_threads)
"""
    seen = pool_script(script, modules=("numba",), NUMBA_THREADING_LAYER="omp")
    assert seen["running"] is (launched == "before")
    assert seen["inside"] == [1, 1]  # the launch has raised the OpenMP count of its thread: set again at once
    assert seen["after"] == 3
    assert followed(seen["counts"], baseline=3)


def test_numba_is_not_started_by_a_limit() -> None:
    script = """
import numba
from numba.np.ufunc import parallel
with ct.limit_threads(1): seen["running"] = parallel._is_initialized
"""
    assert pool_script(script, modules=("numba",)) == {"running": False}


def test_libraries_imported_inside_a_block() -> None:
    script = f"""
with ct.limit_threads(1):
    import numpy
    {OPENBLAS.replace(chr(10), chr(10) + "    ")}
    seen["numpy"] = openblas()
    import torch
    mkl = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libtorch_cpu" in line))
    def mkl_threads(): return mkl.MKL_Get_Max_Threads() if hasattr(mkl, "MKL_Get_Max_Threads") else None
    seen["torch"] = torch.get_num_threads(), mkl_threads()
    import numba
    seen["numba"] = numba.get_num_threads()
    seen["again"] = openblas(), torch.get_num_threads(), mkl_threads()
seen["after"] = torch.get_num_threads(), mkl_threads(), numba.get_num_threads()
seen["blas after"] = openblas()
"""
    seen = pool_script(script, modules=("numpy", "torch", "numba"), NUMBA_THREADING_LAYER="omp")
    assert seen["numpy"] == 1
    assert seen["torch"][0] == 1
    assert seen["numba"] == 1
    assert seen["again"] == [1, *seen["torch"]]
    assert seen["after"][::2] == [3, 3]
    assert seen["blas after"] > 1
    assert (seen["torch"][1], seen["after"][1]) in ((1, 3), (None, None))


def test_a_library_opened_inside_a_block() -> None:
    script = f"""
for _ in range(2):
    with ct.limit_threads(1): pass  # all modules of our own are imported, and no library is news any more
with ct.limit_threads(1):
    library = ctypes.CDLL({debian_library("libgomp1", "libgomp.so.1")!r})
    with ct.limit_threads(1): seen["next"] = library.omp_get_max_threads()
    seen["outer"] = library.omp_get_max_threads()
seen["after"] = library.omp_get_max_threads()
"""
    assert pool_script(script) == {"next": 1, "outer": 1, "after": 3}


def test_another_threads_limit_reaches_a_new_shared_pool() -> None:
    script = f"""
entered, leave = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads(1): entered.set(); leave.wait()
thread = threading.Thread(target=hold); thread.start(); entered.wait()
import numpy
{OPENBLAS}
seen["held"] = openblas()
leave.set(); thread.join()
seen["freed"] = openblas() > 1
"""
    assert pool_script(script, modules=("numpy",)) == {"held": 1, "freed": True}


def test_a_pool_that_cannot_be_read_does_not_hide_the_others() -> None:
    script = """
import numpy, pyarrow
from cgroup_threads.pools import describe
def broken(): raise OSError("torn down")
with ct.limit_threads(): pass
before = {pool.name for pool in describe()}
registry = ct.state.process.ledger.registry
registry.pools = tuple(p._replace(get=broken) if p.name == "pyarrow" else p for p in registry.pools)
after = describe()
seen.update(same={pool.name for pool in after} == before, arrow=[p.threads for p in after if p.name == "pyarrow"])
seen["said"] = "pool-unreadable" in notices()
"""
    assert pool_script(script, modules=("numpy", "pyarrow")) == {"same": True, "arrow": [None], "said": True}
