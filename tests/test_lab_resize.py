"""A busy service in a real cgroup is resized on a host of four CPUs: its threads follow down, below one, and up.

The host is believed: a preloaded library shows four CPUs to every library of the process. The quotas are real.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.llama_forgotten_argument import build_shim
from tests.lab import require, require_module
from tests.lab.cgroup1 import group
from tests.lab.shared_budget import Worker, set_quota
from tests.test_lab_budget import until

pytestmark = pytest.mark.where("cgroup v1: real groups")

# ``seen`` is what the latest call had: its lease, torch's count, the members of a real team of torch's own runtime, and
# numba's count, which cannot be raised above what it was started with.
LOAD = r"""
import ctypes, numba, torch
gomp = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line))
stop, seen, square = threading.Event(), [None], torch.ones(256, 256)
def team():
    members = []
    gomp.GOMP_parallel(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: members.append(1)), None, 0, 0)
    return len(members)
def load():
    while not stop.is_set():
        with ct.limit_threads() as lease:
            torch.relu(torch.mm(square, square))
            seen[0] = [lease.threads, torch.get_num_threads(), team(), numba.get_num_threads()]
def codes(): return [notice.code for notice in ct.report().notices]
thread = threading.Thread(target=load)
"""


# In a mount namespace: no cpuset is in sight (its two CPUs would bind), and the kernel's list of CPUs has four.
VIEW = """
umount /sys/fs/cgroup/cpuset && mount --bind "$0" /sys/devices/system/cpu/online && exec "$@"
"""


@contextmanager
def service(directory: Path, name: str, **environ: str) -> Iterator[Worker]:
    """A process under load in the group ``name`` that believes in four CPUs."""
    for module in ("numba", "torch"):
        require_module(module)
    require(shutil.which("cc") or shutil.which("gcc"), "no C compiler is installed")
    online = directory / "online"
    online.write_text("0-3\n")
    view = ("unshare", "--mount", "/bin/sh", "-c", VIEW, str(online))
    believed = {"LD_PRELOAD": str(build_shim(directory)), "BELIEVED_CPUS": "4"}
    # MKL would not go above the CPUs that the processor itself tells of; two real cores would cap the plan, too.
    lifted = {"MKL_DYNAMIC": "FALSE", "CGROUP_THREADS_SMT": "1"}
    worker = Worker(name, {**believed, **lifted, **environ}, view)
    try:
        assert worker("[os.cpu_count(), len(os.sched_getaffinity(0))]") == [4, 4]
        worker(f"exec({LOAD!r})")
        worker("thread.start()")
        yield worker
        worker("[stop.set(), thread.join()]")
        assert worker("now()") == [0, 0, 0]
        assert worker.close() == 0
    finally:
        worker.kill()  # what is left of it after a failure computes without end
        worker.close()


def test_threads_follow_a_resize_in_both_directions(tmp_path: Path) -> None:
    with group(quota=4.0) as name, service(tmp_path, name, CGROUP_THREADS_MAX_CORES="4") as worker:
        until(lambda: worker("seen[0]") == [4, 4, 4, 4])
        for quota, threads in ((2.0, 2), (0.5, 1), (4.0, 4), (0.5, 1), (2.0, 2), (4.0, 4)):
            set_quota(name, quota)
            taken = until(lambda threads=threads: worker("seen[0]") == [threads] * 4)  # type: ignore[misc]
            assert taken < 1
            assert worker("ct.statistics().cores") == threads
        assert "cannot-grow" not in worker("codes()")


def test_what_cannot_grow_is_named(tmp_path: Path) -> None:
    """Started at two cores and without a ceiling: the budget grows, a latched library does not, the report says so."""
    with group(quota=2.0) as name, service(tmp_path, name) as worker:
        until(lambda: worker("seen[0]") == [2, 2, 2, 2])
        assert "cannot-grow" not in worker("codes()")
        set_quota(name, 4.0)
        assert until(lambda: worker("seen[0][0]") == 4) < 1
        (message, fix) = worker("next([n.message, n.fix] for n in ct.report().notices if n.code == 'cannot-grow')")
        assert message.startswith("the budget grew to 4 cores: above 2 threads numba")
        assert "pool-differs" not in worker("codes()")  # a lease raised them
        assert "CGROUP_THREADS_MAX_CORES=4" in fix
        assert message in worker("str(ct.report())")
