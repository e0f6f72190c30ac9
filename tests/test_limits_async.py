"""limit_threads() under asyncio and anyio: the event loop's thread is not limited, the worker threads are."""

from __future__ import annotations

from tests.lab import require_module
from tests.lab.limits import limits_script


def test_async_with_reserves_and_the_worker_thread_adopts() -> None:
    script = """
def work():
    with ct.limit_threads() as lease: return lease.threads, look()
def wide():
    with ct.limit_threads(3) as lease: return lease.threads, look()
async def main():
    async with ct.limit_threads(2) as lease:
        see(); seen.append([lease.threads, lease.active])
        seen.append(await asyncio.to_thread(work))
        seen.append(await asyncio.to_thread(wide))
        # Copies no context: it gets the core of the budget of 3 that is not reserved.
        seen.append(await asyncio.get_running_loop().run_in_executor(None, work))
    seen.append(lease.active)
    see()
asyncio.run(main())
"""
    assert limits_script(script) == [
        [4, 4], [2, True], [2, [2, 2]], [2, [2, 2]], [1, [1, 1]], False, [4, 4],
    ]  # fmt: skip


def test_run_works_in_a_thread_at_its_count() -> None:
    script = """
def work(a, *, b): return a + b, threading.current_thread() is threading.main_thread(), look()
def fail(): raise KeyError("x")
def stop(): next(iter(()))
async def main():
    seen.append(await ct.run(work, 1, b=2))
    async with ct.limit_threads(1):
        seen.append(await ct.run(work, 1, b=2))
    try: await ct.run(fail)
    except KeyError as error: seen.append(str(error))
    try: await ct.run(stop)  # asyncio's futures take no StopIteration
    except RuntimeError as error: seen.append(repr(error.__cause__))
    see()
asyncio.run(main())
"""
    assert limits_script(script) == [[3, False, [3, 3]], [3, False, [1, 1]], "'x'", "StopIteration()", [4, 4]]


def test_anyio_adopts_too() -> None:
    require_module("anyio")
    script = """
import anyio, anyio.to_thread
def work():
    with ct.limit_threads() as lease: return lease.threads, look()
async def main():
    async with ct.limit_threads(2):
        seen.append(await anyio.to_thread.run_sync(work))
anyio.run(main)
"""
    assert limits_script(script) == [[2, [2, 2]]]


def test_a_task_that_outlives_its_parents_lease_does_not_adopt_it() -> None:
    script = """
async def main():
    go = asyncio.Event()
    async def child():
        await go.wait()
        with ct.limit_threads() as lease: return lease.threads
    async with ct.limit_threads(1):
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
    go.set()
    seen.append(await task)
    async with ct.limit_threads(2):
        seen.append(await asyncio.create_task(child()))
asyncio.run(main())
"""
    assert limits_script(script) == [3, 2]


def test_tasks_that_take_turns_inside_sync_blocks() -> None:
    script = """
async def task(n, log):
    with ct.limit_threads(n) as lease:
        for _ in range(5):
            await asyncio.sleep(0)
            log.append(omp() <= n and blas() <= n and lease.active)
    return lease.active
async def main():
    log = []
    seen.append(await asyncio.gather(*[task(n, log) for n in (1, 2, 3, 1, 2)]))
    seen.append(all(log) and len(log))
    see()
asyncio.run(main())
"""
    assert limits_script(script) == [[False] * 5, 25, [4, 4]]


def test_a_cancelled_task_leaves_nothing_behind() -> None:
    script = """
async def hold():
    async with ct.limit_threads(1):
        with ct.limit_threads(1):
            await asyncio.Event().wait()
async def main():
    task = asyncio.create_task(hold())
    await asyncio.sleep(0); await asyncio.sleep(0)
    see()
    task.cancel()
    try: await task
    except asyncio.CancelledError: pass
    see()
asyncio.run(main())
"""
    assert limits_script(script) == [[1, 1], [4, 4]]


def test_the_same_object_in_many_tasks() -> None:
    script = """
limit = ct.limit_threads(1)
async def task(i):
    async with limit as lease:
        await asyncio.sleep(0)
        assert lease.active
        def work():
            with limit as mine: return mine.threads, look()
        result = await asyncio.to_thread(work)
    return result, lease.active
async def main():
    results = await asyncio.gather(*[task(i) for i in range(50)])
    seen.append(all(r == ((1, [1, 1]), False) for r in results))
    seen.append(len(limit._open)); see()
asyncio.run(main())
"""
    assert limits_script(script) == [True, 0, [4, 4]]


def test_leaving_out_of_order_keeps_what_is_open() -> None:
    """Two async generators of one task: the first is closed while the second has its reservation on."""
    script = """
async def reserve():
    async with ct.limit_threads(1) as lease: yield lease
def work():
    with ct.limit_threads() as lease: return lease.threads
async def main():
    first, second = reserve(), reserve()
    await first.__anext__()
    inner = await second.__anext__()
    await first.aclose()
    seen.append([inner.active, await asyncio.to_thread(work)])
    await second.aclose()
    seen.append(inner.active)
asyncio.run(main())
"""
    assert limits_script(script) == [[True, 1], False]
