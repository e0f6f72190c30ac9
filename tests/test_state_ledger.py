"""The ledgers against a model: limits begin and end in any order and thread, pools come, break and are set."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cgroup_threads.errors import LeaseError
from cgroup_threads.pools.ledger import Lease, Ledger
from cgroup_threads.pools.levels import FREE
from cgroup_threads.pools.records import Pool, Scope
from cgroup_threads.pools.registry import Registry

T = TypeVar("T")
OURS = 4
"""The count that "we wrote": a pool that began with it may be raised."""
COUNTS = st.integers(1, 9)
WHO = st.integers(0, 2)


class Actor:
    """A thread that does what it is told, one call after the other."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                answer: tuple[bool, Any] = (True, call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the call was asked for
                answer = (False, error)
            call = None
            self._answers.put(answer)
            del answer

    def do(self, call: Callable[[], T]) -> T:
        self._calls.put(call)
        good, value = self._answers.get(timeout=30)
        if not good:
            raise value
        found: T = value
        return found

    def end(self) -> None:
        self._calls.put(None)
        self.thread.join(30)
        assert not self.thread.is_alive()


class Toy:
    """A pool of one value, or of one a thread. ``follows`` is a thread's pool that undoes as MKL does."""

    def __init__(self, name: str, scope: Scope, start: int, *, grows: bool, follows: bool, foreign: bool) -> None:
        self.name, self.scope, self.start, self.follows, self.broken = name, scope, start, follows, False
        self.own: dict[int, int] = {}
        self.fuse: Fuse | None = None
        self.grows = grows
        self.pool = Pool(name, name, "", scope, "", self.get, self.put, not follows, grows=grows, foreign=foreign)

    @property
    def key(self) -> int:
        return threading.get_ident() if self.scope == "thread" else 0

    def get(self) -> int:
        self._happen("get")
        return self.own.get(self.key, 0) or self.start

    def put(self, threads: int) -> int | None:
        self._happen("before")
        before, self.own[self.key] = self.own.get(self.key, 0), threads
        if self.follows:  # what it returns is recorded by the instruction that calls it: nothing comes between
            return before
        self._happen("after")
        return None

    def set_by_user(self, threads: int) -> None:
        self.own[self.key] = threads

    def _happen(self, when: str) -> None:
        if self.broken:
            raise RuntimeError("this library is broken")
        if self.fuse is not None:
            self.fuse.burn(when)


class Fuse:
    """Raises at a call of a pool's functions, once."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.left, self.when = kind, -1, ""

    def burn(self, when: str) -> None:
        if self.left >= 0 and self.when == when:
            self.left -= 1
            if self.left < 0:
                raise self.kind("interrupted")


class Quiet:
    """No library was loaded since the last look."""

    value: int | None = None


class Toys(Registry):
    """A registry that finds what stands in ``coming``."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: list[Toy] = []
        self.news = Quiet()
        self.arrived: list[Toy] = []

    def _look(self) -> None:
        arriving = self.coming
        self._add({toy.name: toy.pool for toy in arriving})
        self.arrived += arriving
        self.coming = []


class Member:
    """A thread with its leases, as the model knows them."""

    def __init__(self) -> None:
        self.actor = Actor()
        self.key = self.actor.thread.ident or 0
        self.leases: list[Lease] = []
        self.settled = FREE
        """The limit in force on its own pools."""
        self.outside: dict[str, int] = {}
        """The raw values of its own pools before its limit, for those that are held."""
        self.touched: set[str] = set()
        self.owing: Lease | None = None

    @property
    def limit(self) -> int:
        return min((lease.threads for lease in self.leases), default=FREE)


class LedgerMachine(RuleBasedStateMachine):
    """Three threads, two kinds of pools, and whatever comes between."""

    @initialize(
        kind=st.sampled_from([KeyboardInterrupt, RuntimeError]), counts=st.lists(COUNTS, min_size=4, max_size=4)
    )
    def begin(self, kind: type[BaseException], counts: list[int]) -> None:
        self.registry = Toys()
        self.ledger = Ledger(self.registry)
        self.ledger.ours = OURS
        self.fuse = Fuse(kind)
        self.made = 0
        self.members = [Member() for _ in range(3)]
        self.shared: dict[str, int] = {}
        """The values of the process's pools outside of all limits, for those that are held."""
        self.touched: set[str] = set()
        self.unsure: set[str] = set()
        """Pools that came with an interrupted operation: held once it is abandoned."""
        for scope, follows, start in zip(("thread", "thread", "process", "process"), (0, 1, 0, 0), counts, strict=True):
            self._make(scope, start, grows=start == OURS, follows=bool(follows), foreign=False)  # type: ignore[arg-type]

    def _make(self, scope: Scope, start: int, *, grows: bool, follows: bool, foreign: bool) -> None:
        self.made += 1
        foreign = foreign and not follows  # MKL alone undoes like that
        toy = Toy(f"{scope}-{self.made}", scope, start, grows=grows, follows=follows, foreign=foreign)
        toy.fuse = self.fuse
        self.registry.coming.append(toy)
        self.registry.dirty = True

    # What the model makes of an operation.

    def _of(self, scope: Scope) -> list[Toy]:
        return [toy for toy in self.registry.arrived if toy.scope == scope and not toy.broken]

    def _share(self) -> int:
        """The process's limit: what an interrupted operation has left is not known before it was abandoned."""
        return min((member.limit for member in self.members), default=FREE)

    def _expect_shared(self, before: dict[str, int]) -> None:
        """The process's pools are held from now on, if anybody has a limit; ``before`` were their values."""
        self.shared = {**before, **self.shared}
        if self._share() == FREE and not self._owing():
            for toy in self._of("process"):
                if toy.name in self.shared:
                    now, base = toy.own.get(0, 0) or toy.start, self.shared[toy.name] or toy.start
                    assert now == base, f"{toy.name} is at {now}, not back at {base}"
            self.shared, self.touched = {}, set()

    def _owing(self) -> bool:
        return any(member.owing for member in self.members)

    def _act(self, member: Member, call: Callable[[], T]) -> T:
        """``call`` in the member's thread, as an operation of its own that settles everything."""
        before = {toy.name: toy.own.get(member.key, 0) for toy in (*self._of("thread"), *self._coming("thread"))}
        shared = {toy.name: toy.own.get(0, 0) for toy in (*self._of("process"), *self._coming("process"))}
        known = {toy.name for toy in self.registry.arrived}
        try:
            return member.actor.do(call)
        finally:
            names = {toy.name for toy in self.registry.arrived}
            self.unsure = self.unsure | (names - known) if self._owing() else set()
            self._expect_shared({name: value for name, value in shared.items() if name in names})
            held = {name: value for name, value in before.items() if name in names}
            member.outside = {**held, **member.outside}
            if not member.owing:
                member.settled = member.limit
                if member.limit == FREE:
                    self._check_back(member)
                    member.outside, member.touched = {}, set()

    def _check_back(self, member: Member) -> None:
        """All are where they were; where the user has set one meanwhile, if that can be told."""
        for toy in self._of("thread"):
            if toy.name in member.outside and not (toy.follows and toy.name in member.touched):
                now, before = toy.own.get(member.key, 0), member.outside[toy.name]
                assert (now or toy.start) == (before or toy.start), f"{toy.name} is at {now}, not back at {before}"
                assert not toy.follows or now == before, f"{toy.name} does not follow any more"

    def _coming(self, scope: Scope) -> list[Toy]:
        return [toy for toy in self.registry.coming if toy.scope == scope]

    # Rules.

    @rule(who=WHO, threads=COUNTS)
    def enter(self, who: int, threads: int) -> None:
        member = self.members[who]
        if member.owing:
            return
        lease = Lease(threads)
        expected = min(threads, member.limit)

        def call() -> None:
            self.ledger.enter(lease)
            member.leases.append(lease)

        self._act(member, call)
        assert lease.threads == expected
        assert lease.active

    @rule(who=WHO, data=st.data())
    def leave(self, who: int, data: st.DataObject) -> None:
        member = self.members[who]
        if member.owing or not member.leases:
            return
        lease = data.draw(st.sampled_from(member.leases))

        def call() -> None:
            self.ledger.leave(lease)
            member.leases.remove(lease)

        self._act(member, call)
        assert not lease.active
        with pytest.raises(LeaseError):
            self.ledger.leave(lease)

    @rule(who=WHO, by=WHO, data=st.data())
    def leave_in_another_thread(self, who: int, by: int, data: st.DataObject) -> None:
        """The process's share ends at once, the owner's own pools at its next operation."""
        owner, member = self.members[who], self.members[by]
        if who == by or owner.owing or member.owing or not owner.leases:
            return
        lease = data.draw(st.sampled_from(owner.leases))

        def call() -> None:
            self.ledger.leave(lease)
            owner.leases.remove(lease)

        self._act(member, call)

    @rule(who=WHO, doubt=st.booleans())
    def settle(self, who: int, doubt: bool) -> None:
        member = self.members[who]
        if not member.owing:
            self._act(member, lambda: self.ledger.settle(doubt))

    @rule(who=WHO)
    def look_for_pools(self, who: int) -> None:
        member = self.members[who]
        if not member.owing:
            self._act(member, self.ledger.refresh)

    @rule(
        scope=st.sampled_from(["thread", "process"]),
        start=COUNTS,
        grows=st.booleans(),
        follows=st.booleans(),
        foreign=st.booleans(),
    )
    def a_library_is_loaded(self, scope: Scope, start: int, grows: bool, follows: bool, foreign: bool) -> None:
        if self.made < 10:
            self._make(scope, start, grows=grows, follows=follows and scope == "thread", foreign=foreign)

    @rule(data=st.data(), who=WHO, threads=COUNTS)
    def the_user_sets_a_pool(self, data: st.DataObject, who: int, threads: int) -> None:
        if not self.registry.arrived:
            return
        toy = data.draw(st.sampled_from([toy.name for toy in self.registry.arrived]))
        found = next(one for one in self.registry.arrived if one.name == toy)
        member = self.members[who]
        if self._owing():  # whether the limit has begun cannot be told
            return
        member.actor.do(lambda: found.set_by_user(threads))
        if found.scope == "process":
            self.touched.add(toy) if toy in self.shared else None
        elif toy in member.outside:
            member.touched.add(toy)

    @rule(data=st.data())
    def a_foreign_library_breaks(self, data: st.DataObject) -> None:
        """From now on both of its functions raise."""
        foreign = [toy.name for toy in self.registry.arrived if toy.pool.foreign and not toy.broken]
        if foreign and not self._owing():
            name = data.draw(st.sampled_from(foreign))
            next(toy for toy in self.registry.arrived if toy.name == name).broken = True

    @rule(who=WHO, threads=COUNTS, left=st.integers(0, 6), when=st.sampled_from(["get", "before", "after"]))
    def enter_is_interrupted(self, who: int, threads: int, left: int, when: str) -> None:
        """Whoever enters must call ``abandon`` then; others may come in between."""
        member = self.members[who]
        if member.owing:
            return
        lease = Lease(threads)

        def call() -> None:
            self.fuse.left, self.fuse.when = left, when
            try:
                self.ledger.enter(lease)
            except self.fuse.kind:
                member.owing = lease
            else:
                member.leases.append(lease)
            finally:
                self.fuse.left = -1

        self._act(member, call)

    @precondition(lambda self: self._owing())
    @rule()
    def abandon(self) -> None:
        for member in self.members:
            lease, member.owing = member.owing, None
            if lease is not None:
                self._act(member, partial(self.ledger.abandon, lease))
                assert not lease.active

    @rule(who=WHO, left=st.integers(0, 6), when=st.sampled_from(["get", "before", "after"]), data=st.data())
    def leave_is_interrupted(self, who: int, left: int, when: str, data: st.DataObject) -> None:
        """It is left all the same."""
        member = self.members[who]
        if member.owing or not member.leases:
            return
        lease = data.draw(st.sampled_from(member.leases))

        def call() -> None:
            self.fuse.left, self.fuse.when = left, when
            try:
                self.ledger.leave(lease)
            except self.fuse.kind:
                pass
            finally:
                self.fuse.left = -1
            member.leases.remove(lease)

        self._act(member, call)
        assert not lease.active

    @rule(who=WHO)
    def a_thread_ends(self, who: int) -> None:
        """So does its share. Its own pools are nobody's then."""
        member = self.members[who]
        if member.owing:
            return
        state = member.actor.do(self.ledger.mine)
        shared = {toy.name: toy.own.get(0, 0) for toy in self._of("process")}
        member.leases = []
        member.actor.end()
        deadline = time.monotonic() + 20
        while not state.dead:
            assert time.monotonic() < deadline
        self._expect_shared(shared)
        for toy in self.registry.arrived:  # the number of a thread may come again
            if toy.scope == "thread":
                toy.own.pop(member.key, None)
        self.members[who] = Member()

    # What must hold between any two operations.

    @invariant()
    def the_process_has_the_smallest_limit(self) -> None:
        limit = self._share()
        for toy in self._of("process"):
            value = toy.own.get(0, 0) or toy.start
            if toy.name in self.shared and toy.name not in self.touched | self.unsure:
                base = self.shared[toy.name] or toy.start
                expected = target(toy, base, limit)
                if self._owing():
                    assert limit == FREE or value <= expected, (toy.name, value, expected)
                else:
                    assert value == expected, (toy.name, value, expected, base, limit)

    @invariant()
    def each_thread_has_its_own(self) -> None:
        for member in self.members:
            if member.owing:
                continue
            for toy in self._of("thread"):
                if toy.name in member.outside and toy.name not in member.touched:
                    base = member.outside[toy.name] or toy.start
                    value = toy.own.get(member.key, 0) or toy.start
                    expected = target(toy, base, member.settled)
                    assert value == expected, (toy.name, value, expected, base, member.settled)

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        self.fuse.left = -1
        try:
            self.abandon()
            for member in self.members:
                for lease in tuple(member.leases):

                    def call(member: Member = member, lease: Lease = lease) -> None:
                        self.ledger.leave(lease)
                        member.leases.remove(lease)

                    self._act(member, call)
                self._act(member, self.ledger.settle)
                assert not member.outside
            assert not self.ledger.shares
        finally:
            for member in self.members:
                member.actor.end()


def target(toy: Toy, base: int, limit: int) -> int:
    """Only ever lower, but for what we wrote ourselves."""
    if limit == FREE:
        return base
    return limit if toy.grows and base == OURS else min(base, limit)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40)


def make_ledger(toy: Toy, kind: type[BaseException] = KeyboardInterrupt) -> tuple[Ledger, Fuse]:
    registry = Toys()
    toy.fuse = Fuse(kind)
    registry.coming.append(toy)
    return Ledger(registry), toy.fuse


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_limit_that_follows_an_interrupted_one_holds(when: str) -> None:
    """Another thread comes before the interrupted one has abandoned its limit. It was taken for set already."""
    toy = Toy("blas", "process", 8, grows=False, follows=False, foreign=False)
    ledger, fuse = make_ledger(toy)
    actor = Actor()
    broken, whole = Lease(2), Lease(2)
    fuse.left, fuse.when = 0, when
    with pytest.raises(KeyboardInterrupt):
        ledger.enter(broken)
    actor.do(lambda: ledger.enter(whole))
    assert toy.get() == 2
    ledger.abandon(broken)
    assert toy.get() == 2
    actor.do(lambda: ledger.leave(whole))
    assert toy.get() == 8
    actor.end()


def test_a_library_that_came_with_an_interrupted_entry_is_held() -> None:
    """The entry was interrupted as it looked for libraries; the limit around it went without the new one."""
    old, new = (Toy(name, "thread", 8, grows=False, follows=False, foreign=False) for name in ("old", "new"))
    ledger, fuse = make_ledger(old)
    outer, broken = Lease(2), Lease(1)
    ledger.enter(outer)
    new.fuse = fuse
    registry = ledger.registry
    assert isinstance(registry, Toys)
    registry.coming.append(new)
    registry.dirty = True
    fuse.left, fuse.when = 0, "get"
    with pytest.raises(KeyboardInterrupt):
        ledger.enter(broken)
    ledger.abandon(broken)
    assert (old.get(), new.get()) == (2, 2)
    ledger.leave(outer)
    assert (old.get(), new.get()) == (8, 8)
