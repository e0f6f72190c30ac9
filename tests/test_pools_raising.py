"""A pool that began with a count of ours may be raised to a limit; one that the user has set is only lowered."""

from __future__ import annotations

import pytest

from tests.lab.native import debian_library, pool_script

# Counts before, under limits of 4 and 1 inside it, and after; ``ours`` is the count that we say to have computed.
SCRIPT = """
from cgroup_threads.pools.ledger import Lease, current
def rise(ours, get):
    ledger = current()
    ledger.ours = ours
    counts = [get()]
    outer, inner = Lease(4), Lease(1)
    ledger.enter(outer); counts.append(get())
    ledger.enter(inner); counts.append(get())
    ledger.leave(inner); counts.append(get())
    ledger.leave(outer); counts.append(get())
    seen["unproved"] = [code for code in notices() if code == "limit-not-followed"]
    return counts
"""
OPENBLAS = """
import numpy, threadpoolctl
found = [c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.internal_api == "openblas"]
found[0].set_num_threads(3)
get = found[0].get_num_threads
"""
GOMP = """
gomp = ctypes.CDLL("libgomp.so.1")
get = gomp.omp_get_max_threads
"""
TORCH = """
import torch
get = torch.get_num_threads
path = next(line.split()[-1] for line in open("/proc/self/maps") if "libtorch_cpu" in line)
mkl = getattr(ctypes.CDLL(path), "MKL_Get_Max_Threads", get)
def both():
    assert mkl() == torch.get_num_threads(), (mkl(), torch.get_num_threads())
    return mkl()
get = both
"""
LIBRARIES = {"numpy": OPENBLAS, "libgomp": GOMP, "torch": TORCH}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_count_of_ours_is_raised_and_comes_back_and_another_is_only_lowered(library: str) -> None:
    if library == "libgomp":
        debian_library("libgomp1", "libgomp.so.1")
    script = f"""{SCRIPT}{LIBRARIES[library]}
seen["counts"] = [rise(ours, get) for ours in (3, 0, 2, 4, 3)]
thread = threading.Thread(target=lambda: seen.update(thread=rise(3, get))); thread.start(); thread.join()
"""
    seen = pool_script(script, modules=() if library == "libgomp" else (library,))
    raised, lowered = [3, 4, 1, 4, 3], [3, 3, 1, 3, 3]
    assert seen["counts"] == [raised, lowered, lowered, lowered, raised]
    assert seen["thread"] == raised, "a thread that had done nothing before"
    assert seen["unproved"] == []


def test_the_shared_pool_follows_the_smallest_limit_up_and_down() -> None:
    script = f"""{SCRIPT}{OPENBLAS}
ledger = current()
ledger.ours = 3
counts = []
entered, leave = threading.Event(), threading.Event()
def hold():
    lease = Lease(4)
    ledger.enter(lease); entered.set(); leave.wait(); ledger.leave(lease)
thread = threading.Thread(target=hold); thread.start(); entered.wait()
counts.append(get())
lease = Lease(2); ledger.enter(lease); counts.append(get())
leave.set(); thread.join(); counts.append(get())
ledger.leave(lease); counts.append(get())
seen["counts"] = counts
"""
    assert pool_script(script, modules=("numpy",))["counts"] == [4, 2, 2, 3]
