"""Do overlapping limits hold, and is everything as before when the last has ended?

    python benchmarks/limiter_stress.py              both arms
    python benchmarks/limiter_stress.py --arm ours   one arm; exit 1 if it failed

An arm is 16 threads that each enter 60 limits and 64 asyncio tasks that each enter 10, 1 600 limits in all, of 1 to 3
threads, overlapping at random; the arms run one after the other in processes of their own. Inside each limit the counts
of the calling thread's OpenMP and of numpy's OpenBLAS are read from the libraries; after it all, in the main thread and
in a new one.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

THREADS, LIMITS = 16, 60
TASKS, TASK_LIMITS = 64, 10
BASELINE = 4
Limit = Callable[[int], AbstractContextManager[Any]]


class Counts:
    """The libraries' own counts."""

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController

        importlib.import_module("numpy")  # brings OpenBLAS
        self.openmp = ctypes.CDLL("libgomp.so.1")
        self.blas = next(c for c in ThreadpoolController().lib_controllers if c.user_api == "blas")
        self.openmp.omp_set_num_threads(BASELINE)
        self.blas.set_num_threads(BASELINE)

    def read(self) -> tuple[int, int]:
        return self.openmp.omp_get_max_threads(), self.blas.get_num_threads()


def stress(limit: Limit, counts: Counts) -> dict[str, Any]:
    above: list[tuple[int, int, int]] = []
    barrier = threading.Barrier(THREADS)

    def check(threads: int) -> None:
        openmp, blas = counts.read()
        if openmp > threads or blas > threads:
            above.append((threads, openmp, blas))

    def work(seed: int) -> None:
        rng = random.Random(seed)
        barrier.wait()
        counts.openmp.omp_set_num_threads(BASELINE)
        for _ in range(LIMITS):
            threads = rng.randint(1, 3)
            with limit(threads):
                check(threads)

    async def task(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(TASK_LIMITS):
            threads = rng.randint(1, 3)
            with limit(threads):
                for _ in range(rng.randint(0, 3)):
                    await asyncio.sleep(0)
                    check(threads)

    async def tasks() -> None:
        await asyncio.gather(*(task(seed) for seed in range(TASKS)))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for worker in workers:
        worker.start()
    asyncio.run(tasks())
    for worker in workers:
        worker.join()
    after = {"main": counts.read()}
    late = threading.Thread(target=lambda: after.update(new_thread=counts.read()))
    late.start()
    late.join()
    limits = THREADS * LIMITS + TASKS * TASK_LIMITS
    exact = after["main"] == (BASELINE, BASELINE) and after["new_thread"][1] == BASELINE
    return {"limits": limits, "above_the_limit": len(above), "after": after, "baseline_exact": exact}


def run_arm(name: str) -> dict[str, Any]:
    if name == "ours":
        import cgroup_threads as ct

        return stress(ct.limit_threads, Counts())
    from threadpoolctl import threadpool_limits

    counts = Counts()
    if name == "threadpool_limits":
        return stress(threadpool_limits, counts)
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()
    return stress(lambda threads: controller.limit(limits=threads), counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arms = ("ours", "threadpool_limits", "controller")
    parser.add_argument("--arm", choices=arms, help="run this one in this process and print JSON")
    options = parser.parse_args()
    if options.arm:
        result = run_arm(options.arm)
        print(json.dumps(result))
        return 0 if result["baseline_exact"] and not result["above_the_limit"] else 1
    print(f"{'arm':<20}{'limits':>8}{'above the limit':>18}   after (OpenMP, OpenBLAS); before: {BASELINE}, {BASELINE}")
    for arm in arms:
        done = subprocess.run([sys.executable, __file__, "--arm", arm], capture_output=True, text=True, check=False)
        if not done.stdout:
            print(f"{arm:<20}failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        row = json.loads(done.stdout)
        print(f"{arm:<20}{row['limits']:>8}{row['above_the_limit']:>18}   {tuple(row['after']['main'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
