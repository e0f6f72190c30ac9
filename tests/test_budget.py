"""The budget of one process: first come, first served, bounded waiting, and sums that hold."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from cgroup_threads.governor import budget as budget_module
from cgroup_threads.governor import queue as queue_module
from cgroup_threads.governor.budget import Budget
from cgroup_threads.pools.ledger import Lease

MANY = 1 << 20


@contextmanager
def held(budget: Budget, top: int = MANY, patience: float | None = None) -> Iterator[Lease]:
    lease = Lease(1)
    try:
        budget.claim(lease, top, patience)
        yield lease
    finally:
        budget.give(lease)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_lone_call_gets_everything_up_to_its_top() -> None:
    budget = Budget(8)
    with held(budget) as lease:
        assert (lease.threads, lease.waited_s) == (8, 0.0)
    with held(budget, top=3) as lease:
        assert lease.threads == 3
    assert not budget.leases


@pytest.mark.parametrize(("step", "fewest", "most"), [(True, 4, 8), (False, 40, 70)])
def test_a_step_of_a_longer_call_follows_within_some_steps(
    step: bool, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call keeps to its end what it began with, so the mean is slow on purpose; after a step comes another one."""
    now = [1.0]
    for module in (budget_module, queue_module):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    budget = Budget(8)

    def compute(callers: int, top: int) -> int:
        leases = [Lease(1) for _ in range(callers)]
        for lease in leases:
            lease._step = step
            budget.claim(lease, top)
        now[0] += 1.0
        for lease in leases:
            budget.give(lease)
        return leases[-1].threads

    for _ in range(200):
        assert compute(4, top=2) == 2
    assert compute(1, top=MANY) == 4
    calls = 2
    while compute(1, top=MANY) < 8:
        calls += 1
    assert fewest <= calls <= most


def test_a_second_call_gets_what_is_left_only_if_it_is_half_of_its_share() -> None:
    budget = Budget(8)
    with held(budget, top=5), held(budget) as second:
        assert second.threads == 3  # a share of two calls is 4, and 3 are at least half of that
    budget = Budget(8)
    with held(budget, top=7), held(budget, patience=0.0) as second:
        assert second.threads == 1


def test_first_come_first_served() -> None:
    budget, order, threads = Budget(1), [], []
    with held(budget):
        for number in range(8):

            def work(number: int = number) -> None:
                with held(budget):
                    order.append(number)

            threads.append(in_thread(work))
            until(lambda: len(budget.queue) == len(threads))
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    assert budget.counters.overcommitted == 0


def test_a_newcomer_does_not_overtake_the_queue() -> None:
    budget = Budget(4)
    started = threading.Event()
    with held(budget, top=3):

        def waits() -> None:
            with held(budget):
                started.set()

        first = in_thread(waits)  # wants 2 of 4, 1 is free: half of its share, it starts
        assert started.wait(20)
        first.join()
    assert not budget.leases


def test_the_sum_of_leases_holds_with_many_threads() -> None:
    budget = Budget(6)
    above: list[int] = []

    def work(seed: int) -> int:
        for number in range(300):
            with held(budget, top=1 + (seed + number) % 7), budget.lock:
                if budget.leased() > budget.cores:
                    above.append(budget.leased())
        return 300

    with ThreadPoolExecutor(32) as executor:
        assert sum(executor.map(work, range(32))) == 9600
    assert above == []
    assert (budget.counters.granted, budget.counters.overcommitted, budget.leased()) == (9600, 0, 0)


def test_a_call_that_does_not_end_lets_others_by_with_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "MIN_STALL_S", 0.02)
    monkeypatch.setattr(queue_module, "FIRST_STALL_S", 0.02)
    budget, release, inside = Budget(2), threading.Event(), []

    def work() -> None:
        with held(budget) as lease:
            inside.append(lease)
            release.wait()

    with held(budget):
        threads = [in_thread(work) for _ in range(4)]
        until(lambda: len(inside) == 2)
        # At most as many as the budget has cores: the other two wait on.
        until(lambda: len(budget.queue) == 2)
        assert [lease.threads for lease in inside] == [1, 1]
        assert all(lease.waited_s >= 0.02 for lease in inside)
        assert (budget.counters.overcommitted, budget.leased()) == (2, 2)
        release.set()
        for thread in threads:
            thread.join()
    assert not budget.leases


def test_a_queue_that_moves_is_not_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits far longer than the stall guard, but something is given back all the time."""
    monkeypatch.setattr(queue_module, "MIN_STALL_S", 0.5)
    budget, gate = Budget(1), threading.Semaphore(0)

    def work() -> float:
        with held(budget) as lease:
            gate.acquire()
            return lease.waited_s

    with ThreadPoolExecutor(20) as executor:
        results = [executor.submit(work) for _ in range(20)]
        for number in range(20):
            until(lambda number=number: budget.counters.granted > number)  # type: ignore[misc]
            time.sleep(0.04)  # a call's duration
            gate.release()
        waited = [result.result() for result in results]
    assert budget.counters.overcommitted == 0
    assert max(waited) > 0.5


def test_patience_bounds_the_wait() -> None:
    budget = Budget(1)
    with held(budget):
        with held(budget, patience=0.0) as lease:
            assert (lease.threads, lease.waited_s) == (1, 0.0)
        with held(budget, patience=0.03) as lease:
            assert lease.threads == 1
            assert 0.03 <= lease.waited_s < 10
    assert budget.counters.overcommitted == 2


def test_waiting_is_bounded_whatever_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "MAX_WAIT_S", 0.05)
    monkeypatch.setattr(Budget, "_may_overdraw", lambda self: False)
    budget = Budget(1)
    with held(budget), held(budget) as lease:
        assert lease.threads == 1
        assert lease.waited_s >= 0.05


def test_a_larger_budget_is_given_to_those_who_wait_and_a_smaller_one_drains() -> None:
    budget, release, inside = Budget(1), threading.Event(), []

    def work() -> None:
        with held(budget, top=1, patience=60) as lease:
            inside.append(lease)
            release.wait()

    with held(budget, top=1):
        threads = [in_thread(work) for _ in range(3)]
        until(lambda: len(budget.queue) == 3)
        budget.resize(3)
        until(lambda: len(inside) == 2)
        assert (budget.leased(), len(budget.queue)) == (3, 1)
        budget.resize(1)
        assert budget.leased() == 3
    assert len(inside) == 2, "cores above the smaller budget are not given again"
    release.set()
    for thread in threads:
        thread.join()
    assert not budget.leases


def test_a_cancelled_task_leaves_nothing_behind() -> None:
    budget = Budget(1)

    async def ask(lease: Lease) -> None:
        await budget.claim_async(lease, MANY)

    async def main() -> None:
        first, second, third = Lease(1), Lease(1), Lease(1)
        await ask(first)
        waiting = asyncio.create_task(ask(second))
        behind = asyncio.create_task(ask(third))
        while len(budget.queue) < 2:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(budget.queue) == 1
        budget.give(first)
        await behind
        assert list(budget.leases) == [third]
        budget.give(third)

    asyncio.run(main())
    assert not budget.leases
    assert not budget.queue


def test_a_task_that_is_cancelled_right_after_its_grant_gives_it_back() -> None:
    budget = Budget(1)

    async def main() -> None:
        first, second = Lease(1), Lease(1)
        await budget.claim_async(first, MANY)
        waiting = asyncio.create_task(budget.claim_async(second, MANY))
        while not budget.queue:
            await asyncio.sleep(0)
        budget.give(first)  # grants it to the second
        assert list(budget.leases) == [second]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert not budget.leases


def test_the_event_loop_runs_on_while_a_task_waits() -> None:
    budget, ticks = Budget(1), []

    async def main() -> None:
        first, second = Lease(1), Lease(1)
        await budget.claim_async(first, MANY)
        waiting = asyncio.create_task(budget.claim_async(second, MANY))
        for number in range(5):
            await asyncio.sleep(0)
            ticks.append(number)
        threading.Thread(target=budget.give, args=(first,)).start()  # from another thread
        await waiting
        budget.give(second)

    asyncio.run(main())
    assert ticks == list(range(5))


def test_a_waiting_task_whose_loop_has_ended_is_passed_over() -> None:
    budget, first = Budget(1), Lease(1)
    budget.claim(first, MANY)
    loop = asyncio.new_event_loop()
    task = loop.create_task(budget.claim_async(Lease(1), MANY))
    loop.run_until_complete(asyncio.sleep(0))
    assert len(budget.queue) == 1
    loop.close()
    budget.give(first)
    with held(budget) as lease:
        assert lease.threads == 1
    assert not budget.leases
    task._log_destroy_pending = False  # type: ignore[attr-defined] # its loop is closed: nobody can end it


def test_giving_twice_does_nothing() -> None:
    budget, lease = Budget(2), Lease(1)
    budget.claim(lease, MANY)
    budget.give(lease)
    budget.give(lease)
    assert (budget.leased(), budget.counters.granted) == (0, 1)


def test_a_finalizer_inside_the_lock_does_not_wait_for_it() -> None:
    """Garbage collection and signal handlers run anywhere, also in the thread that holds the lock."""
    budget, first, second = Budget(2), Lease(1), Lease(1)
    budget.claim(first, MANY)
    with budget.lock:
        budget.claim(second, MANY)
        assert second.threads == 1
        budget.give(second)
        budget.give(first)
        assert budget.leases == {first: 2}
    with held(budget, patience=0.0) as lease:
        assert lease.threads == 2, "the first lease was given back as soon as the lock was free"


def test_parts_share_their_parents_cores() -> None:
    whole, parent = Budget(4), Lease(1)
    whole.claim(parent, MANY)
    part = Budget(parent.threads, parent=parent)
    parent._part = part
    with held(part, top=3) as first, held(part, top=1) as second:
        assert (first.threads, second.threads) == (3, 1)
        assert whole.leased() == 4


def test_a_parent_that_ends_keeps_what_its_parts_still_use() -> None:
    whole, parent, child = Budget(4), Lease(1), Lease(1)
    whole.claim(parent, MANY)
    part = parent._part = Budget(parent.threads, parent=parent)
    part.claim(child, 3)
    parent._active = False
    whole.give(parent)
    assert whole.leased() == 3
    part.give(child)
    assert whole.leased() == 0


def test_the_waits_are_counted() -> None:
    budget = Budget(1)
    with held(budget), held(budget, patience=0.02):
        pass
    histogram = dict(budget.counters.histogram())
    assert sum(histogram.values()) == 2
    assert histogram[0.0] == 1


def test_a_part_lends_no_more_than_its_ended_parent_has_left() -> None:
    whole, parent, first = Budget(4), Lease(1), Lease(1)
    whole.claim(parent, MANY)
    part = parent._part = Budget(parent.threads, parent=parent)
    part.claim(first, 3)
    parent._active = False
    whole.give(parent)
    with held(whole, patience=0.0) as other:
        assert other.threads == 1
        part.give(first)
        with held(part, patience=0.0) as late:
            assert (late.threads, part.counters.overcommitted) == (1, 1)
            assert whole.leased() == 1


def test_a_dead_threads_lease_of_a_part_comes_back_to_the_whole() -> None:
    whole, parent, child = Budget(4), Lease(1), Lease(1)
    whole.claim(parent, MANY)
    part = parent._part = Budget(parent.threads, parent=parent)
    part.claim(child, 2)
    parent._active = False
    whole.give(parent)
    assert whole.leased() == 2
    part.give_later(child)
    assert whole.leased() == 0


def test_a_resize_from_inside_the_lock_comes_after_it() -> None:
    budget = Budget(2)
    with budget.lock:
        budget.resize(4)
        assert budget.cores == 2
    with held(budget):
        pass
    with held(budget) as lease:
        assert lease.threads == 4


def give_in_another_thread(budget: Budget, lease: Lease) -> None:
    """As the finalizer of a dead thread does."""
    in_thread(lambda: budget.give_later(lease)).join()


def test_what_finalizers_end_while_the_lock_is_busy_is_ended_after_it() -> None:
    budget = Budget(1)
    budget.duration_s = 100.0  # nobody is impatient
    lease, other = Lease(1), Lease(1)
    budget.claim(lease, 1)
    waiting = in_thread(lambda: budget.claim(other, 1))
    until(lambda: len(budget.queue) == 1)
    with budget.lock:
        give_in_another_thread(budget, lease)
        assert lease in budget.leases
    budget._send()  # what each user of the lock does
    waiting.join(20)
    assert list(budget.leases) == [other]


def test_a_part_whose_parent_ended_gives_its_cores_back_though_the_lock_was_busy() -> None:
    whole = Budget(1)
    parent = Lease(1)
    whole.claim(parent, 1)
    part = Budget(1, parent=parent)
    parent._part = part
    child = Lease(1, None, parent)
    part.claim(child, 1)
    parent._active = False
    whole.give(parent)
    with whole.lock:
        give_in_another_thread(part, child)
    with held(whole, patience=5.0) as lease:
        assert lease.waited_s < 5
        assert whole.counters.overcommitted == 0


def test_very_many_leases_may_end_at_once() -> None:
    budget = Budget(5000)
    leases = [Lease(1) for _ in range(5000)]
    for lease in leases:
        budget.claim(lease, 1)

    def give_all() -> None:
        for lease in leases:
            budget.give_later(lease)

    with budget.lock:
        in_thread(give_all).join()
    budget._send()
    assert not budget.leases


def test_an_interrupt_between_a_grant_and_its_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(1)
    budget.duration_s = 100.0
    lease, other = Lease(1), Lease(1)
    budget.claim(lease, 1)
    waiting = in_thread(lambda: budget.claim(other, 1))
    until(lambda: len(budget.queue) == 1)

    def interrupt(first: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(budget, "_admit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            budget.give(lease)
    budget.give(lease)  # as ``limit_threads`` does after an interrupt
    waiting.join(20)
    assert not waiting.is_alive()
    assert budget.counters.overcommitted == 0
    assert list(budget.leases) == [other]
