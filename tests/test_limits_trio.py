"""``async with limit_threads()`` and ``run`` under trio, by itself and as anyio's backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from time import monotonic
from typing import Any

import pytest

from cgroup_threads.governor.budget import Budget
from cgroup_threads.pools.ledger import Lease
from tests.lab import require_module
from tests.lab.commands import run_python
from tests.lab.limits import limits_script
from tests.test_budget_limits import PRELUDE, budget_script

MANY = 100
TRIO = """
import trio, trio.testing
entered, release = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads():
        entered.set()
        release.wait()
def held():
    holder = thread(hold)
    entered.wait()
    return holder
"""


@pytest.fixture(autouse=True)
def _libraries() -> None:
    require_module("trio")
    require_module("anyio")


def trio_script(script: str, **environ: str) -> Any:
    return budget_script(TRIO + script, **environ)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_anyio_reserves_and_runs_on_both_backends(backend: str) -> None:
    script = f"""
import anyio, anyio.to_thread
def work():
    with ct.limit_threads() as lease: return lease.threads, look()
def plain(a, *, b): return a + b, threading.current_thread() is threading.main_thread(), look()
def fail(): raise KeyError("x")
async def main():
    async with ct.limit_threads(2) as lease:
        see(); seen.append([lease.threads, lease.active])
        seen.append(await anyio.to_thread.run_sync(work))
    seen.append(lease.active)
    seen.append(await ct.run(plain, 1, b=2))
    async with ct.limit_threads(1):
        seen.append(await ct.run(plain, 1, b=2))
    try: await ct.run(fail)
    except KeyError as error: seen.append(str(error))
    see()
anyio.run(main, backend={backend!r})
"""
    assert limits_script(script) == [
        [4, 4], [2, True], [2, [2, 2]], False, [3, False, [3, 3]], [3, False, [1, 1]], "'x'", [4, 4],
    ]  # fmt: skip


def test_a_cancelled_task_leaves_nothing_behind() -> None:
    """A lease or a place in the queue is given back, also if the cores were granted just before."""
    import trio
    import trio.testing

    budget = Budget(1)

    async def main() -> None:
        first, second, third = Lease(1), Lease(1), Lease(1)
        await budget.claim_async(first, MANY)
        async with trio.open_nursery() as nursery:
            waiting, late = trio.CancelScope(), trio.CancelScope()

            async def ask(lease: Lease, scope: trio.CancelScope) -> None:
                with scope:
                    await budget.claim_async(lease, MANY)
                assert scope.cancelled_caught

            nursery.start_soon(ask, second, waiting)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, third, late)
            await trio.testing.wait_all_tasks_blocked()
            assert [waiter.lease for waiter in budget.queue] == [second, third]
            waiting.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert [waiter.lease for waiter in budget.queue] == [third]
            budget.give(first)
            assert list(budget.leases) == [third]
            late.cancel()  # it has not had its turn since it was granted

    trio.run(main)
    assert (len(budget.leases), len(budget.queue)) == (0, 0)


def test_the_loop_runs_on_while_tasks_wait_for_other_threads() -> None:
    import trio
    import trio.testing

    budget, order = Budget(1), []

    async def main() -> None:
        first = Lease(1)
        await budget.claim_async(first, MANY)

        async def ask(number: int) -> None:
            lease = Lease(1)
            await budget.claim_async(lease, MANY)
            order.append(number)
            await trio.to_thread.run_sync(budget.give, lease)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()
            order.append("all wait")
            nursery.start_soon(trio.to_thread.run_sync, budget.give, first)

    trio.run(main)
    assert order == ["all wait", *range(5)]


def test_patience_bounds_the_wait() -> None:
    script = """
async def main():
    async with ct.limit_threads(patience=0.05) as lease:
        seen.append([lease.threads, lease.waited_s >= 0.05, ct.statistics().overcommitted])
holder = held()
trio.run(main)
release.set(); holder.join()
seen.append(now())
"""
    assert trio_script(script) == [[1, True, 1], [0, 0, 0]]


def test_a_run_that_is_given_up_while_it_waits_never_begins() -> None:
    script = """
from cgroup_threads.governor import workers
async def main():
    with trio.move_on_after(0.05) as scope: await ct.run(seen.append, "begun")
    seen.append([scope.cancelled_caught, *now()])
    release.set(); holder.join()
    submit, workers.Workers.submit = workers.Workers.submit, lambda *_: seen.append("a thread was asked")
    with trio.CancelScope() as scope:
        scope.cancel()
        await ct.run(int)
    workers.Workers.submit = submit
    seen.append(await ct.run(lambda: "after"))
holder = held()
trio.run(main)
seen.append(now())
"""
    assert trio_script(script) == [[True, 1, 4, 0], "after", [0, 0, 0]]


def test_a_cancelled_run_holds_its_cores_until_the_thread_ends() -> None:
    script = """
started, ended = threading.Event(), threading.Event()
def work():
    started.set()
    release.wait()
    ended.set()
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ct.run, work)
        await trio.to_thread.run_sync(started.wait)
        nursery.cancel_scope.cancel()
    seen.append(now())
trio.run(main)  # it ends before the thread does, which has nobody to tell then
release.set()
until(lambda: now() == [0, 0, 0])
seen.append(ended.is_set())
print(seen)
"""
    done = run_python(PRELUDE + TRIO + script, CGROUP_THREADS_CORES="4", CGROUP_THREADS_SCOPE="process")
    assert (done.stdout, done.stderr) == ("[[1, 4, 0], True]\n", "")


def test_a_granted_call_begins_while_the_loop_is_busy() -> None:
    script = """
begun = threading.Event()
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ct.run, begun.set)
        await trio.testing.wait_all_tasks_blocked()
        seen.append(now())
        release.set()
        seen.append(begun.wait(20))  # trio's own thread does nothing else
holder = held()
trio.run(main)
holder.join()
seen.append(now())
"""
    assert trio_script(script) == [[1, 4, 1], True, [0, 0, 0]]


def test_run_tells_when_no_thread_can_be_made() -> None:
    script = """
from cgroup_threads.governor import workers
def refuse(self, future, call): raise RuntimeError("can't start new thread")
workers.Workers.submit = refuse
async def ask():
    try: await ct.run(int)
    except RuntimeError as error: seen.append(str(error))
async def main():
    await ask()
    holder = held()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    holder.join()
trio.run(main)
seen.append(now())
"""
    assert trio_script(script) == ["can't start new thread"] * 2 + [[0, 0, 0]]


def test_a_block_waits_in_trios_worker_threads_but_not_on_its_own() -> None:
    script = """
def work():
    with ct.limit_threads() as lease: return lease.threads
async def main():
    with ct.limit_threads() as lease:
        seen.append([lease.threads, lease.waited_s, ct.statistics().overcommitted])
    trio.lowlevel.current_trio_token().run_sync_soon(lambda: seen.append(work()))
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        async def elsewhere(): seen.append(await trio.to_thread.run_sync(work) > 1)
        nursery.start_soon(elsewhere)
        while now()[2] == 0: await trio.sleep(0.001)
        seen.append("waits")
        release.set()
holder = held()
trio.run(main)
holder.join()
seen.append(now())
"""
    assert trio_script(script) == [[1, 0.0, 1], 1, "waits", True, [0, 0, 0]]


def test_trio_as_a_guest_of_asyncio_and_asyncio_inside_trio() -> None:
    """Each task waits in the way of its own library, while the other one's loop runs in the same thread."""
    script = """
async def wait(library):
    async with ct.limit_threads() as lease: seen.append([library, lease.active])
    seen.append(await ct.run(lambda: library))
async def host():
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    holder = held()
    trio.lowlevel.start_guest_run(
        wait, "guest", run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=lambda _: ended.set()
    )
    while now()[2] == 0: await asyncio.sleep(0.001)
    release.set()
    await ended.wait()
    await wait("host")
asyncio.run(host())
async def outer(): asyncio.run(wait("inside"))
trio.run(outer)
"""
    expected = [[library, True] if first else library for library in ("guest", "host", "inside") for first in (1, 0)]
    assert trio_script(script) == expected


def test_cores_that_another_process_gives_back_are_heard_of() -> None:
    """Whoever waits looks by itself too: that is switched off here, so that only the socket can tell."""
    script = """
import subprocess
ALONE = f'''
from cgroup_threads.governor import slots
slots.slot_key = lambda directory: "trio-{os.getpid()}"  # else others of this machine's cgroup would be asked too
'''
HOLDER = ALONE + '''
import cgroup_threads as ct
with ct.limit_threads():
    print("held", flush=True)
    input()
print("given", flush=True)
input()
'''
other = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def tell(): other.stdin.write("\\n"); other.stdin.flush()
assert other.stdout.readline() == "held\\n"
exec(ALONE)
from cgroup_threads.governor import sharing
sharing.LOOK_S = sharing.IDLE_LOOK_S = 60.0
async def main():
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            async def ask():
                async with ct.limit_threads() as lease: seen.append(lease.active)
            nursery.start_soon(ask)
            while now()[2] == 0: await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
            tell()
trio.run(main)
seen.append([*now(), ct.statistics().overcommitted])
tell(); other.communicate()
"""
    assert trio_script(script, CGROUP_THREADS_SCOPE="container") == [True, [0, 0, 0, 0]]


def waiter_for(lease: Lease) -> Any:
    from cgroup_threads.governor.trio_waiting import TrioWaiter

    return TrioWaiter(lease, MANY, 0.0, 0.0)


def in_trio(function: Callable[[], Any]) -> Any:
    import trio

    async def main() -> Any:
        with trio.fail_after(20):
            return await function()

    return trio.run(main)


def test_a_socket_that_has_a_listener_or_is_closed_only_costs_time() -> None:
    import trio
    import trio.testing

    read, write = os.pipe()
    looks: list[str] = []

    async def main() -> None:
        first, second, third = (waiter_for(Lease(1)) for _ in range(3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.wait, lambda: 60.0, read, partial(looks.append, "first"))
            await trio.testing.wait_all_tasks_blocked()
            await second.wait(lambda: 0.01, read, partial(looks.append, "second"))
            assert looks == ["second"]
            os.write(write, b"x")
        assert looks == ["second", "first"]
        os.read(read, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(third.wait, lambda: 0.05, read, partial(looks.append, "third"))
            await trio.testing.wait_all_tasks_blocked()
            os.close(read)

    with closing(os.fdopen(write, "wb")):
        in_trio(main)
    assert looks == ["second", "first", "third"]


def test_waking_before_inside_and_after_a_wait() -> None:
    import trio
    import trio.testing

    async def main() -> Any:
        waiter = waiter_for(Lease(1))
        begun = monotonic()
        assert waiter.wake()
        await trio.testing.wait_all_tasks_blocked()  # woken before it waits
        await waiter.wait(lambda: 60.0, None, pytest.fail)
        thread = threading.Thread(target=waiter.wake)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.wait, lambda: 60.0, None, pytest.fail)
            await trio.testing.wait_all_tasks_blocked()
            thread.start()
        thread.join()
        assert monotonic() - begun < 20
        return waiter

    assert not in_trio(main).wake()  # trio has ended


def test_trio_is_imported_only_by_those_who_use_it() -> None:
    script = """
import sys
import cgroup_threads as ct
assert "asyncio" not in sys.modules
with ct.limit_threads(): pass
import asyncio
async def main():
    async with ct.limit_threads(): pass
    await ct.run(int)
asyncio.run(main())
assert "trio" not in sys.modules and "cgroup_threads.governor.trio_waiting" not in sys.modules
"""
    run_python(script)


def test_a_trio_that_is_still_being_imported_is_no_trio() -> None:
    script = """
import sys, types
for name in ("trio", "trio.lowlevel"): sys.modules[name] = types.ModuleType(name)
with ct.limit_threads() as lease: seen.append(lease.threads)
async def main():
    async with ct.limit_threads() as lease: return lease.threads
seen.append(asyncio.run(main()))
"""
    assert budget_script(script) == [4, 4]
