"""How users' code looks to a type checker; run under mypy --strict and pyright strict, never executed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

from typing_extensions import assert_type

import cgroup_threads as ct

limits = ct.detect()
assert_type(limits, ct.CpuLimits)
assert_type(limits.quota, float | None)
assert_type(limits.affinity, frozenset[int])
assert_type(ct.detect("/", affinity=4).physical_cores, int)
assert_type(ct.detect(affinity={0, 1}).host_cpus, int)
assert_type(ct.usable_cores(), int)
assert_type(ct.usable_cores(rounding="ceil"), int)

plan = ct.plan(limits, workers=2, concurrency=4)
assert_type(plan, ct.ThreadPlan)
assert_type(plan.threads, int)
assert_type(plan.environment, dict[str, str])
assert_type(ct.apply(plan), ct.Applied)
assert_type(ct.child_environment(workers=2), dict[str, str])

with ct.limit_threads() as lease:
    assert_type(lease, ct.Lease)
    assert_type(lease.threads, int)
    assert_type(lease.waited_s, float)

with ct.limit_threads(2, patience=0.5):
    pass


@ct.limit_threads
def bare(a: int, *, b: str = "") -> float:
    return a + len(b)


@ct.limit_threads()
def called(a: int) -> str:
    return str(a)


@ct.limit_threads(2)
async def coroutine(a: int) -> bytes:
    return bytes(a)


@ct.limit_threads(1)
def generator(n: int) -> Iterator[int]:
    yield n


@ct.limit_threads
async def async_generator(n: int) -> AsyncIterator[int]:
    yield n


assert_type(bare(1, b="x"), float)
assert_type(called(1), str)
assert_type(generator(1), Iterator[int])
assert_type(async_generator(1), AsyncIterator[int])


async def use() -> None:
    assert_type(await coroutine(1), bytes)
    async with ct.limit_threads(1) as lease:
        assert_type(lease.threads, int)
    assert_type(await ct.run(called, 1), str)


with ThreadPoolExecutor(initializer=ct.initializer) as pool:
    pool.submit(called, 1)

report = ct.report()
assert_type(report, ct.Report)
assert_type(report.to_json(), str)


class Model:
    """As any model's class."""


assert_type(ct.govern(Model()), Model)
assert_type(ct.release(Model()), Model)
assert_type(ct.inspect_process(1), ct.Inspection)
assert_type(ct.statistics(), ct.Statistics)
