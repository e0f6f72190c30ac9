"""limit_threads() in several threads at once: each thread's own pools, and those that all share."""

from __future__ import annotations

from tests.lab.limits import limits_script


def test_own_pools_follow_their_thread_and_shared_ones_the_smallest() -> None:
    script = """
entered, leave = threading.Barrier(2), threading.Event()
out = {}
def other():
    with ct.limit_threads(1):
        entered.wait()
        leave.wait()
        out["inside"] = look()
    out["after"] = look()
thread = threading.Thread(target=other)
with ct.limit_threads(2):
    see()
    thread.start(); entered.wait()
    see()
    leave.set(); thread.join()
    see()
see()
seen += [out["inside"], out["after"]]
"""
    assert limits_script(script) == [[2, 2], [2, 1], [2, 2], [4, 4], [1, 1], [4, 2]]


def test_a_block_left_on_another_thread() -> None:
    script = """
limit = ct.limit_threads(1)
def enter():
    limit.__enter__()
    entered.set(); left.wait()
    out.append(look())
    with ct.limit_threads(2): out.append(look())
    out.append(look())
entered, left, out = threading.Event(), threading.Event(), []
thread = threading.Thread(target=enter); thread.start(); entered.wait()
see()
limit.__exit__(None, None, None)
see()
left.set(); thread.join()
seen += out
"""
    # The shared pool is free at once; the thread's own at its next operation.
    assert limits_script(script) == [[4, 1], [4, 4], [1, 4], [2, 2], [4, 4]]


def test_a_thread_that_dies_inside_a_block_frees_the_shared_pools() -> None:
    script = """
def die():
    ct.limit_threads(1).__enter__()
    return look()
seen.append(in_thread(die))
import gc; gc.collect()
see()
with ct.limit_threads(2): see()
see()
"""
    assert limits_script(script) == [[1, 1], [4, 4], [2, 2], [4, 4]]


def test_the_initializer_limits_a_worker_for_its_life() -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1, initializer=ct.initializer, initargs=(1,)) as pool:
    seen.append(pool.submit(look).result())
    def inner():
        with ct.limit_threads(2) as lease: return lease.threads, look()
    seen.append(pool.submit(inner).result())
    seen.append(pool.submit(look).result())
with ThreadPoolExecutor(1, initializer=ct.initializer) as pool:
    seen.append(pool.submit(look).result())
import gc; gc.collect()
see()
"""
    assert limits_script(script) == [[1, 1], [1, [1, 1]], [1, 1], [3, 3], [4, 4]]


def test_the_initializer_in_spawned_processes() -> None:
    script = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, os, threadpoolctl, sys
context = multiprocessing.get_context("spawn")
with ProcessPoolExecutor(1, mp_context=context, initializer=ct.initializer, initargs=(1,)) as pool:
    pool.submit(ct.usable_cores).result()
    seen.append([i["num_threads"] for i in pool.submit(threadpoolctl.threadpool_info).result()])
"""
    # numpy is not imported there: nothing to see but that the worker started and answered.
    assert limits_script("if __name__ == '__main__':\n" + "".join(f"    {x}\n" for x in script.splitlines())) == [[]]


def test_many_overlapping_threads_never_exceed_and_leave_the_baseline() -> None:
    script = """
import random
barrier = threading.Barrier(16)
bad = []
def work(seed):
    rng = random.Random(seed)
    barrier.wait()
    for _ in range(100):
        n = rng.randint(1, 3)
        with ct.limit_threads(n) as lease:
            own, shared = look()
            if own > n or shared > n or lease.threads > n: bad.append((n, own, shared))
    if omp() != 4: bad.append(("after", omp()))
threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
seen.append(bad); see()
"""
    assert limits_script(script) == [[], [4, 4]]
