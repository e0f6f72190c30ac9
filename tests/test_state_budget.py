"""The core budget against a model, under a clock of our own: calls come, wait, give up, end; the budget changes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cgroup_threads.governor import budget as budget_module
from cgroup_threads.governor import queue as queue_module
from cgroup_threads.governor.budget import Budget
from cgroup_threads.governor.queue import MAX_WAIT_S, Queue
from cgroup_threads.governor.waiting import TaskWaiter, Waiter
from cgroup_threads.pools.ledger import Lease

CORES = st.sampled_from([1, 2, 4, 7, 12])
TOPS = st.sampled_from([1, 2, 3, 5, 16, 16])
SECONDS = st.sampled_from([0.0, 0.02, 0.15, 1.5, 7.0, 31.0])


class Turn:
    """Suspends a coroutine once: there is no event loop here."""

    def __await__(self) -> Any:
        yield


class Manual(TaskWaiter):
    """A task that is woken, or looks, when the machine says so."""

    __slots__ = ("ended", "look", "pause", "woken")

    def _prepare(self) -> None:
        super()._prepare()
        self.ended = self.woken = False
        self.look: Callable[[], None] | None = None
        self.pause: Callable[[], float] = lambda: 0.0

    def _soon(self, call: Callable[[], object]) -> None:
        if self.ended:
            raise RuntimeError("the loop has ended")
        call()

    def _end(self) -> None:
        super()._end()
        self.woken = True

    async def wait(self, pause: Callable[[], float], fd: int | None, look: Callable[[], None]) -> None:
        assert fd is None
        self.pause, self.look = pause, look
        if not self.woken:
            await Turn()
        self.woken = False


class Call:
    """One call: its lease, the most it wants, and its coroutine while it waits."""

    def __init__(self, budget: Budget, top: int, patience: float | None, now: float, number: int) -> None:
        self.budget = budget
        self.lease = Lease(1)
        self.top = top
        self.patience = patience
        self.since = now
        self.number = number
        self.coroutine: Coroutine[Any, Any, None] | None = None
        self.waiter: Manual | None = None
        self.value = 0
        """The cores it was granted; 0 for a thread above the budget."""

    def go(self) -> bool:
        """Run its coroutine on; True once it has its lease."""
        assert self.coroutine is not None
        try:
            self.coroutine.send(None)
        except StopIteration:
            self.coroutine = None
            return True
        return False


class BudgetMachine(RuleBasedStateMachine):
    """Tasks of no event loop, non-blocking calls, parts of leases, and a budget that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.now = 1000.0
        self.made: list[Manual] = []
        for module in (budget_module, queue_module):
            self.patch.setattr(module, "monotonic", lambda: self.now)
        self.patch.setattr(budget_module, "kind_of_task", lambda: self._make_waiter)

    def _make_waiter(self, *args: Any, **kwargs: Any) -> Waiter:
        self.made.append(Manual(*args, **kwargs))
        return self.made[-1]

    @initialize(cores=CORES, extra=st.booleans())
    def begin(self, cores: int, extra: bool) -> None:
        extra = extra and cores > 1
        self.budget = Budget(cores, int(extra))
        self.cores, self.extra = cores, int(extra)
        self.running: list[Call] = []
        self.waiting: list[Call] = []
        self.granted = self.overdrawn = self.number = 0
        self.parts: dict[Lease, Budget] = {}
        self.closing = False

    # What happened, as the model sees it.

    def _queue(self, budget: Budget) -> list[Call]:
        return [call for call in self.waiting if call.budget is budget]

    def _room(self, budget: Budget) -> tuple[int, int]:
        """The cores and the extra ones of the budget or a part of it."""
        if budget is self.budget:
            return self.cores, self.extra
        return budget.cores, 0

    def _begun(self, call: Call, above: bool) -> None:
        """``call`` has its lease; ``above``: it may be a thread above the budget."""
        lease = call.lease
        call.value = call.budget.leases[lease]
        cores, extra = self._room(call.budget)
        if call.value:
            assert lease.threads == call.value
            assert 1 <= lease.threads <= min(call.top, cores)
            assert lease.threads == 1 or lease.threads <= cores - extra, "a team never has the fraction of a quota"
        else:
            assert above, "a thread above the budget, though its patience has not ended"
            assert lease.threads == 1
        assert lease.waited_s == pytest.approx(self.now - call.since)
        if call.budget is self.budget:
            self.granted += 1
            self.overdrawn += not call.value
        elif not call.value:
            self.overdrawn += 1
        self.running.append(call)

    def _catch_up(self, looked: Call | None = None) -> None:
        """Let those run on who were granted theirs, which must be in the order they came."""
        for budget in (self.budget, *self.parts.values()):
            begun = [call for call in self._queue(budget) if call.waiter is not None and call.waiter.done]
            left = [call for call in self._queue(budget) if call not in begun]
            for call in begun:
                self.waiting.remove(call)
                above = call is looked and not budget.leases.get(call.lease, 0)
                assert call.waiter is not None
                if call.waiter.ended:  # nobody is there to take it
                    assert call.lease not in budget.leases, "cores for a loop that has ended"
                    assert call.coroutine is not None
                    call.coroutine.close()
                    self.granted += call.budget is self.budget
                    continue
                assert call.go(), "granted, but it waits on"
                if above:
                    self._check_patience(call)
                else:
                    late = [other.number for other in left if other.number < call.number]
                    assert not late, f"{call.number} came before {late}"
                self._begun(call, above)
            if any(call.value for call in begun if call in self.running):
                self._check_sum(budget)

    def _check_patience(self, call: Call) -> None:
        """A thread above the budget is for those who have waited long enough."""
        waited = self.now - call.since
        if call.patience is not None:
            assert waited >= call.patience - 1e-9
        else:
            assert waited >= 0.1 - 1e-9

    def _check_sum(self, budget: Budget) -> None:
        """Whenever cores were granted, all fit into the budget."""
        assert sum(budget.leases.values()) <= self._room(budget)[0]

    def _new(self, budget: Budget, top: int, patience: float | None) -> Call:
        self.number += 1
        return Call(budget, top, patience, self.now, self.number)

    # Rules.

    @rule(top=TOPS, patience=st.none() | SECONDS, step=st.booleans(), data=st.data())
    def ask(self, top: int, patience: float | None, step: bool, data: st.DataObject) -> None:
        """A task asks for cores of the whole, or of another one's lease."""
        budget = data.draw(st.sampled_from([self.budget, self.budget, *self.parts.values()]))
        self._ask(budget, top, patience, step)

    def _ask(self, budget: Budget, top: int, patience: float | None, step: bool) -> None:
        call = self._new(budget, top, patience)
        call.lease._step = step
        call.coroutine = budget.claim_async(call.lease, top, patience)
        before = len(self._queue(budget))
        if call.go():
            empty = not self._room(budget)[0]  # a part whose parent has ended: nothing will come
            assert not before or patience == 0.0 or empty, "it has overtaken the queue"
            self._begun(call, patience == 0.0 or empty)
            if call.value:
                self._check_sum(budget)
        else:
            call.waiter = self.made[-1]
            assert call.waiter.lease is call.lease
            self.waiting.append(call)
        self._catch_up()

    # Of 12 cores, the third waits for half of its share, and the fourth would be content with what is left.
    @rule(tops=st.just([5, 16, 16, 1]) | st.lists(TOPS, min_size=2, max_size=4))
    def a_burst_comes(self, tops: list[int]) -> None:
        """Several tasks ask at once, and would wait as long as it takes."""
        for top in tops:
            self._ask(self.budget, top, None, False)

    @rule(top=TOPS, data=st.data())
    def ask_without_waiting(self, top: int, data: st.DataObject) -> None:
        budget = data.draw(st.sampled_from([self.budget, self.budget, *self.parts.values()]))
        call = self._new(budget, top, None)
        budget.claim(call.lease, top, block=False)
        self._begun(call, True)
        if call.value:
            self._check_sum(budget)
        self._catch_up()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), finalizer=st.booleans(), twice=st.booleans())
    def give(self, data: st.DataObject, finalizer: bool, twice: bool) -> None:
        call = data.draw(st.sampled_from(self.running))
        self._give(call, finalizer, twice)

    def _give(self, call: Call, finalizer: bool = False, twice: bool = False) -> None:
        self.running.remove(call)
        call.lease._active = False
        for _ in range(1 + twice):
            (call.budget.give_later if finalizer else call.budget.give)(call.lease)
            self._catch_up()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), finalizer=st.booleans())
    def cancel(self, data: st.DataObject, finalizer: bool) -> None:
        """A task that waits is cancelled. With ``finalizer`` it is thrown away instead."""
        self._cancel(data.draw(st.sampled_from(self.waiting)), finalizer)

    def _cancel(self, call: Call, finalizer: bool) -> None:
        self.waiting.remove(call)
        assert call.coroutine is not None
        if finalizer:
            call.coroutine.close()
        else:
            with pytest.raises(KeyboardInterrupt):
                call.coroutine.throw(KeyboardInterrupt())
        self._catch_up()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def an_event_loop_ends(self, data: st.DataObject) -> None:
        """Its task stays in the queue for good, and nobody can be told that it was granted."""
        call = data.draw(st.sampled_from(self.waiting))
        assert call.waiter is not None
        call.waiter.ended = True

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), seconds=SECONDS, first=st.booleans())
    def look(self, data: st.DataObject, seconds: float, first: bool) -> None:
        """A waiter looks for itself, in time or too early."""
        self.now += seconds
        self._look(self.waiting[0] if first else data.draw(st.sampled_from(self.waiting)))

    def _look(self, call: Call) -> None:
        assert call.waiter is not None
        if call.waiter.ended:
            return
        assert call.waiter.look is not None
        pause = call.waiter.pause()
        assert pause <= call.since + (MAX_WAIT_S if call.patience is None else call.patience) - self.now + 1e-6
        call.waiter.look()
        self._catch_up(call)
        if pause <= 0.0:
            assert call not in self.waiting, "its time is over, and it waits on"

    @rule(cores=CORES, extra=st.booleans())
    def resize(self, cores: int, extra: bool) -> None:
        self.cores, self.extra = cores, int(extra and cores > 1)
        self.budget.resize(self.cores, self.extra)
        self._catch_up()

    @precondition(lambda self: len(self.parts) < 3 and any(c.lease._part is None for c in self.running))
    @rule(data=st.data())
    def share_a_lease(self, data: st.DataObject) -> None:
        """Other tasks begin to use the cores of one that runs, as ``limit_threads`` in its children does."""
        call = data.draw(st.sampled_from([call for call in self.running if call.lease._part is None]))
        part = Budget(call.lease.threads, parent=call.lease)
        call.lease._part = part
        self.parts[call.lease] = part

    # What must hold between any two operations.

    @invariant()
    def sums_hold(self) -> None:
        budget = self.budget
        mine = [call for call in self.running if call.budget is budget]
        for call in mine:
            assert budget.leases[call.lease] == call.value
        # What is in the budget and has ended is kept for its parts alone.
        for lease, kept in budget.leases.items():
            if lease not in [call.lease for call in mine]:
                assert self.parts[lease].leases, "it keeps cores that nobody uses"
                assert kept <= sum(self.parts[lease].leases.values())
        for lease, part in self.parts.items():
            lender = lease._budget
            assert isinstance(lender, Budget)
            if lender.leases.get(lease):  # a thread above the budget has none to lend
                assert sum(part.leases.values()) <= lender.leases[lease], "a part has lent more than it has"
        for part in self.parts.values():
            for call in self.running:
                if call.budget is part:
                    assert part.leases[call.lease] == call.value

    @invariant()
    def everything_is_counted(self) -> None:
        counters = self.budget.counters
        assert (counters.granted, counters.overcommitted) == (self.granted, self.overdrawn)
        assert sum(counters.waits) == counters.granted

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """The queue is who waits, in order; and its head has a reason to wait."""
        for budget in (self.budget, *self.parts.values()):
            calls = self._queue(budget)
            assert [waiter.lease for waiter in budget.queue] == [call.lease for call in calls]
            if not calls:
                continue
            cores, extra = self._room(budget)
            free = cores - sum(budget.leases.values())
            if not budget.leases:
                assert free < 1, "nothing runs, and somebody waits"
            elif free - extra >= 1:
                assert 2 * (free - extra) < min(cores - extra, calls[0].top), "half of all is free, and somebody waits"
            assert not budget._after
            assert not budget._returned

    def teardown(self) -> None:
        """No more calls come: the others end, and those that wait get their turn."""
        try:
            if hasattr(self, "running"):
                self._end()
        finally:
            for call in getattr(self, "waiting", ()):
                if call.coroutine is not None:
                    call.coroutine.close()
            self.patch.undo()

    def _end(self) -> None:
        for _ in range(4 * self.number + 4):
            if self.running:
                self._give(self.running[0])
            elif self.waiting:
                self.now += 8.0
                self._look(self.waiting[0])
                if self.waiting and all(call.waiter is not None and call.waiter.ended for call in self.waiting):
                    break
            else:
                break
            self.nobody_is_forgotten()
        assert not self.running
        stuck = [call for call in self.waiting if call.waiter is not None and not call.waiter.ended]
        assert not stuck, "they wait for ever"
        for budget in (self.budget, *self.parts.values()):
            assert not budget.leases
            assert budget.leased() == 0


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=80, stateful_step_count=40)


def test_who_waits_behind_a_cancelled_one_comes_at_once() -> None:
    """The machine by hand: the third waits for half of its share, the fourth behind it would take what is left."""
    machine = BudgetMachine()
    machine.begin(cores=12, extra=False)
    machine.a_burst_comes(tops=[5, 16, 16, 1])
    assert [call.top for call in machine.waiting] == [16, 1]
    machine._cancel(machine.waiting[0], finalizer=False)
    assert not machine.waiting
    machine.nobody_is_forgotten()
    machine.teardown()


def test_a_part_whose_parent_has_ended_lets_nobody_wait() -> None:
    """The parent ended between a thread's look for it and its claim: it waited for 30 s for nothing."""
    budget = Budget(1)
    parent, late = Lease(1), Lease(1)
    budget.claim(parent, 1)
    part = parent._part = Budget(1, parent=parent)
    parent._active = False
    budget.give(parent)
    part.claim(late, 1)
    assert (late.threads, late.waited_s, budget.counters.overcommitted) == (1, 0.0, 1)
    part.give(late)
    assert not budget.leases
    assert not part.leases


def test_a_thread_above_a_part_of_a_part_is_counted_in_the_whole() -> None:
    budget = Budget(1)
    leases = [Lease(1) for _ in range(4)]
    budget.claim(leases[0], 1)
    part = leases[0]._part = Budget(1, parent=leases[0])
    part.claim(leases[1], 1)
    inner = leases[1]._part = Budget(1, parent=leases[1])
    inner.claim(leases[2], 1)
    inner.claim(leases[3], 1, block=False)
    assert budget.counters.overcommitted == 1


def test_the_machine_drives_what_it_believes() -> None:
    """Its waiter is one of the budget's own kind."""
    assert issubclass(Manual, TaskWaiter)
    assert issubclass(Budget, Queue)
