"""Native libraries that are unloaded, loaded again, replaced on disk, or there twice.

A library whose functions we call stays loaded: a ``dlclose`` of its user's does not unmap it under us. One that was
closed before we saw it is gone, and may come back at another address.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lab import require_module
from tests.lab.native import compiled, debian_library, followed, pool_script, wheel_library

# ``base`` is where a library is mapped, 0 where it is not; ``occupy`` keeps the next load from the same address.
TOOLS = """
import time
libc = ctypes.CDLL(None)
libc.dlclose.argtypes = [ctypes.c_void_p]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
def base(path):
    path = os.path.realpath(path)
    starts = [int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(path)]
    return min(starts, default=0)
def close(library): assert libc.dlclose(library._handle) == 0
def occupy(address): assert libc.mmap(address, 4096, 0, 0x22, -1, 0) == address
def settle():
    for _ in range(2):
        with ct.limit_threads(1): pass  # our own modules and libraries are loaded, and nothing is news any more
def problems(): return [code for code in notices() if code.startswith(("pool", "limit-", "openmp-"))]
"""
# What a runtime of OpenMP exports, without threads of its own: it may be unloaded at any moment.
RUNTIME = """
static _Thread_local int threads = 3;
int omp_get_max_threads(void) { return threads; }
void omp_set_num_threads(int wanted) { threads = wanted; }
"""
# What libtorch_cpu exports of the MKL in it.
MKL = """
static int threads = 3, own;
int MKL_Get_Max_Threads(void) { return own ? own : threads; }
int MKL_Set_Num_Threads_Local(int wanted) { int before = own; own = wanted; return before; }
void MKL_Set_Num_Threads(int wanted) { threads = wanted; }
"""


def gomp() -> str:
    return debian_library("libgomp1", "libgomp.so.1")


def second_gomp(folder: Path) -> str:
    """Another copy of the same file, as wheels bring it."""
    return str(shutil.copy(gomp(), folder / "libgomp-a34b3233.so.1.0.0"))


def closable(name: str) -> tuple[str, str]:
    """The path of a real library that can be unloaded, and the function that tells its count."""
    if name == "libgomp":
        return gomp(), "omp_get_max_threads"
    return debian_library("libopenblas0-pthread", "openblas-pthread/libopenblas.so.0"), "openblas_get_num_threads"


@pytest.mark.parametrize("name", ["libgomp", "openblas"])
def test_one_that_was_unloaded_comes_back_elsewhere(name: str) -> None:
    path, get = closable(name)
    script = f"""{TOOLS}
settle()
with ct.limit_threads(1):
    one = ctypes.CDLL({path!r})
    one.{get}()
    first = base({path!r})
    close(one)
    seen["unmapped"] = base({path!r}) == 0
    occupy(first)
    with ct.limit_threads(1): pass  # the dead one is never called
    two = ctypes.CDLL({path!r})
    seen["moved"] = base({path!r}) not in (0, first)
    with ct.limit_threads(2): seen["inside"] = two.{get}()
seen["after"] = two.{get}()
seen["counts"] = watch(two.{get})
seen["problems"] = problems()
"""
    seen = pool_script(script)
    after = seen.pop("after")
    assert after > 1
    assert followed(seen.pop("counts"), baseline=after)
    assert seen == {"unmapped": True, "moved": True, "inside": 1, "problems": []}


@pytest.mark.parametrize("name", ["libgomp", "openblas"])
def test_one_that_is_limited_stays_when_its_user_closes_it(name: str) -> None:
    """Were it unmapped, the end of the limit would call into nothing."""
    path, get = closable(name)
    script = f"""{TOOLS}
one = ctypes.CDLL({path!r})
before, address = one.{get}(), base({path!r})
with ct.limit_threads(1):
    close(one)
    seen["held"] = base({path!r}) == address
    with ct.limit_threads(1): seen["inside"] = ctypes.CDLL({path!r}).{get}()
again = ctypes.CDLL({path!r})
seen["same"] = base({path!r}) == address and again.{get}() == before
seen["counts"] = watch(again.{get})
"""
    seen = pool_script(script)
    assert followed(seen.pop("counts"))
    assert seen == {"held": True, "inside": 1, "same": True}


def test_one_that_goes_as_it_is_looked_at() -> None:
    """Unloaded between the list of mapped files and the look. threadpoolctl 3.8 then never looks at that path again."""
    script = f"""{TOOLS}
from cgroup_threads.pools import discovery
settle()
real, opened = discovery.library_paths, [ctypes.CDLL({gomp()!r})]
def list_and_unload(*options):
    listed = real(*options)
    while opened: close(opened.pop())
    return listed
discovery.library_paths = list_and_unload
with ct.limit_threads(1):
    seen["unmapped"] = base({gomp()!r}) == 0
    library = ctypes.CDLL({gomp()!r})
    with ct.limit_threads(1): seen["inside"] = library.omp_get_max_threads()
seen["after"] = library.omp_get_max_threads()
seen["problems"] = problems()
"""
    assert pool_script(script) == {"unmapped": True, "inside": 1, "after": 3, "problems": []}


def test_a_plug_in_without_threads_is_let_go_at_the_next_look(tmp_path: Path) -> None:
    """The last library that was loaded is held until then, because its place in the loader's list is watched."""
    plug_in = compiled("int answer(void) { return 42; }", tmp_path / "plug_in.so")
    other = compiled("int answer(void) { return 43; }", tmp_path / "other.so")
    script = f"""{TOOLS}
settle()
library = ctypes.CDLL({plug_in!r})
with ct.limit_threads(1): pass
close(library)
seen["held"] = base({plug_in!r}) != 0
ctypes.CDLL({other!r})
with ct.limit_threads(1): pass
seen["gone"] = base({plug_in!r}) == 0
again = ctypes.CDLL({plug_in!r})
seen["answer"] = again.answer()
close(again)
seen["at once"] = base({plug_in!r}) == 0
"""
    assert pool_script(script) == {"held": True, "gone": True, "answer": 42, "at once": True}


def test_libraries_that_come_and_go_while_limits_begin_and_end(tmp_path: Path) -> None:
    """One thread opens and closes them as fast as it can: a call into an unmapped one would end the process."""
    first = compiled(RUNTIME, tmp_path / "first.so")
    runtimes = [str(tmp_path / f"libgomp-{number}.so") for number in range(40)]
    for path in runtimes:
        shutil.copy(first, path)
    plug_in = compiled("int answer(void) { return 42; }", tmp_path / "plug_in.so")
    script = f"""{TOOLS}
settle()
def come_and_go():
    for path in {runtimes!r}:
        for _ in range(20):
            plug_in, runtime = ctypes.CDLL({plug_in!r}), ctypes.CDLL(path)
            assert plug_in.answer() == 42 and runtime.omp_get_max_threads() == 3  # this thread has no limit
            close(runtime); close(plug_in)
    ended.append(True)
ended = []
thread = threading.Thread(target=come_and_go)
thread.start()
blocks = 0
while thread.is_alive():
    with ct.limit_threads(1):
        with ct.limit_threads(2): blocks += 1
thread.join()
seen["ended"], seen["busy"] = ended, blocks > 100
libraries = [ctypes.CDLL(path) for path in {runtimes!r}]
def counts(): return sorted({{library.omp_get_max_threads() for library in libraries}})
deadline = time.monotonic() + 20  # where a load was under way as it looked last, it looks again a moment later
while seen.get("inside") != [1] and time.monotonic() < deadline:
    with ct.limit_threads(1): seen["inside"] = counts()
seen["after"], seen["problems"] = counts(), problems()
"""
    copies = "openmp-runtimes-duplicate"
    assert pool_script(script) == {"ended": [True], "busy": True, "inside": [1], "after": [3], "problems": [copies]}


@pytest.mark.parametrize("replaced", [False, True])
def test_a_runtime_whose_file_is_another_one_now(tmp_path: Path, replaced: bool) -> None:
    """As after `pip install -U` under a running process whose environment is reached through a symbolic link."""
    script = _upgrade(tmp_path, compiled(RUNTIME, tmp_path / "libgomp-0.so"), replaced)
    script += """
with ct.limit_threads(1): seen["inside"] = library.omp_get_max_threads()
seen["copies"] = copies()
seen["said"] = [notice.message for notice in ct.report().notices if notice.code == "pools-unseen"]
"""
    path = tmp_path / "libgomp-0.so"
    message = f"{path} is loaded, but its file was replaced or removed since: its threads are not limited"
    assert pool_script(script) == {"inside": 3, "copies": 1, "said": [message]}


@pytest.mark.parametrize("replaced", [False, True])
def test_no_second_torch_is_loaded_from_a_new_file(tmp_path: Path, replaced: bool) -> None:
    script = _upgrade(tmp_path, compiled(MKL, tmp_path / "libtorch_cpu.so"), replaced)
    script += """
with ct.limit_threads(1): pass
seen["copies"] = copies()
seen["said"] = problems()
"""
    assert pool_script(script) == {"copies": 1, "said": ["pools-unseen"]}


def _upgrade(folder: Path, path: str, replaced: bool) -> str:
    """A script's beginning: the library is opened through a link, then its file is removed or replaced."""
    name = Path(path).name
    shutil.copy(path, folder / "new")
    (folder / "link").symlink_to(folder, target_is_directory=True)
    return f"""{TOOLS}
library = ctypes.CDLL({str(folder / "link" / name)!r})
os.unlink({path!r})
if {replaced}: os.rename({str(folder / "new")!r}, {path!r})
def copies(): return len({{line.split()[4] for line in open("/proc/self/maps") if {path!r} in line}})
"""


def _both(one: str, two: str) -> dict[str, object]:
    """What a script saw that had two runtimes at 3 and 4 threads, and a team of each inside."""
    script = f"""{TOOLS}
import subprocess
one, two = ctypes.CDLL({one!r}), ctypes.CDLL({two!r})
two.omp_set_num_threads(4)
seen["counts"] = watch(one.omp_get_max_threads, two.omp_get_max_threads)
with ct.limit_threads(2): seen["teams"] = team(one), team(two)
seen["pools"] = sorted(pool.name for pool in ct.report().evidence.pools)
seen["problems"] = [code for code in problems() if code.startswith("openmp-")]
inspect = [sys.executable, "-m", "cgroup_threads", "inspect", str(os.getpid()), "--seconds", "0.2"]
seen["text"] = subprocess.run(inspect, capture_output=True, text=True, timeout=60).stdout
"""
    seen: dict[str, object] = pool_script(script)
    assert seen.pop("counts") == [[3, 4], [2, 2], [1, 1], [2, 2], [3, 4]]
    assert seen.pop("teams") == [2, 2]
    return seen


def test_two_copies_of_libgomp(tmp_path: Path) -> None:
    seen = _both(gomp(), second_gomp(tmp_path))
    assert "2 copies" in str(seen.pop("text"))
    assert seen == {"pools": ["libgomp", "libgomp"], "problems": ["openmp-runtimes-duplicate"]}


def test_the_libgomp_that_scikit_learn_brings() -> None:
    seen = _both(gomp(), wheel_library("scikit-learn", "libgomp"))
    assert "2 copies" in str(seen.pop("text"))
    assert seen == {"pools": ["libgomp", "libgomp"], "problems": ["openmp-runtimes-duplicate"]}


@pytest.mark.parametrize("other", ["libomp", "libiomp5"])
def test_libgomp_and_another_runtime(other: str) -> None:
    debian = other == "libomp"
    path = debian_library("libomp5", "libomp.so.5") if debian else wheel_library("intel-openmp", "libiomp5")
    seen = _both(gomp(), path)
    assert "2 different OpenMP runtimes" in str(seen.pop("text"))
    assert seen == {"pools": ["libgomp", other], "problems": ["openmp-runtimes-mixed"]}


def test_both_copies_work_in_a_forked_child(tmp_path: Path) -> None:
    script = f"""
one, two = ctypes.CDLL({gomp()!r}), ctypes.CDLL({second_gomp(tmp_path)!r})
def work(): return [team(one), team(two)]
seen["parent"] = work()
with ct.limit_threads(2): seen["child"] = child(lambda: [work(), notices()], seconds=20)
"""
    seen = pool_script(script)
    assert seen["parent"] == [3, 3]
    work, codes = seen["child"]
    assert work == [3, 3]  # a child begins without its parent's limit
    assert not {"fork-unprepared", "fork-one-thread"} & set(codes)


def test_scikit_learn_beside_another_libgomp() -> None:
    """Its own code runs in its own copy; a product is numpy's. Both keep to the limit."""
    require_module("sklearn")
    script = f"""
gomp = ctypes.CDLL({gomp()!r})
import numpy, sklearn.cluster
points = numpy.random.default_rng(0).random((2000, 8))
own = ctypes.CDLL({wheel_library("scikit-learn", "libgomp")!r})
def fit(): return sklearn.cluster.KMeans(4, n_init=1, max_iter=5, random_state=0).fit(points).inertia_
seen["counts"] = watch(gomp.omp_get_max_threads, own.omp_get_max_threads)
before = tasks()
with ct.limit_threads(1): inside = fit(); seen["more inside"] = tasks() - before
seen["same"] = abs(fit() - inside) < 1e-5 * inside
seen["more after"] = tasks() - before > 0
"""
    seen = pool_script(script, OPENBLAS_NUM_THREADS="1")
    assert followed(seen.pop("counts"), baseline=3)
    assert seen == {"more inside": 0, "same": True, "more after": True}
