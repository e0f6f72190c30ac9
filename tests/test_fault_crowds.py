"""A thousand at once: threads, tasks and worker threads that enter together, and calls inside calls.

Each script ends by itself or is ended after ``DEADLINE_S``, which no sound machine needs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.cgroup1 import group
from tests.lab.limits import limits_script
from tests.lab.shared_budget import slot_files, workers
from tests.lab.waiting import wait_until

DEADLINE_S = 100
NUMBER = 1000
CORES = 3
SCOPES = pytest.mark.parametrize("scope", ["process", "container"])

# What a call may see, told by the calls themselves: how many cores are leased, and that its own thread's pools hold
# its count. ``end`` is what is left when all have ended.
CROWD = f"""
import time
from cgroup_threads.governor.core_budget import core_budget
from cgroup_threads.pools.ledger import current
NUMBER, CORES = {NUMBER}, {CORES}
lock = threading.Lock()
leased, most, done, wrong = 0, 0, [], []
def begin(threads):
    global leased, most
    with lock:
        leased += threads
        most = max(most, leased)
def end(number, threads):
    global leased
    with lock:
        leased -= threads
        done.append(number)
def judge():
    s = ct.statistics()
    lost = sorted(set(range(NUMBER)) - set(done))
    here = [s.active, s.waiting, s.leased, s.overcommitted, len(current().shares)]
    # Threads that have ended give their share back before the last reference to them goes.
    seen.append([lost, len(done), 1 <= most <= CORES, wrong[:5], here, look()])
"""
RIGHT = [[[], NUMBER, True, [], [0, 0, 0, 0, 0], [4, 4]]]


@SCOPES
def test_a_thousand_threads_enter_at_once(scope: str) -> None:
    script = """
threading.stack_size(256 << 10)
barrier = threading.Barrier(NUMBER)
def work(number):
    gomp.omp_set_num_threads(4)
    barrier.wait()
    with ct.limit_threads(patience=60) as lease:
        begin(lease.threads)
        if omp() != lease.threads or blas() > CORES: wrong.append([number, lease.threads, look()])
        end(number, lease.threads)
    if omp() != 4: wrong.append([number, "after", omp()])
threads = [threading.Thread(target=work, args=(number,)) for number in range(NUMBER)]
for thread in threads: thread.start()
for thread in threads: thread.join()
judge()
"""
    assert limits_script(CROWD + script, timeout=DEADLINE_S, CGROUP_THREADS_SCOPE=scope) == RIGHT


@SCOPES
def test_a_thousand_runs_at_once(scope: str) -> None:
    script = """
running, peak = 0, 0
def work(number):
    lease_threads = omp()
    begin(lease_threads)
    if not 1 <= lease_threads <= CORES or blas() > CORES: wrong.append([number, look()])
    end(number, lease_threads)
    return number
async def main():
    got = await asyncio.gather(*(ct.run(work, number) for number in range(NUMBER)))
    if got != list(range(NUMBER)): wrong.append("results")
asyncio.run(main())
if threading.active_count() > 50: wrong.append(["threads", threading.active_count()])
judge()
"""
    script = CROWD + script
    # Nobody may become impatient on a busy machine: that would be a thread above the budget.
    right = limits_script(script, timeout=DEADLINE_S, CGROUP_THREADS_SCOPE=scope, CGROUP_THREADS_PATIENCE="60")
    assert right == RIGHT


@SCOPES
def test_a_thousand_tasks_reserve_at_once_and_half_of_them_are_cancelled(scope: str) -> None:
    script = """
async def work(number):
    async with ct.limit_threads(patience=60) as lease:
        begin(lease.threads)
        try: await asyncio.sleep(0)
        finally: end(number, lease.threads)
async def main():
    before = {*asyncio.all_tasks()}
    tasks = [asyncio.create_task(work(number)) for number in range(NUMBER)]
    while ct.statistics().waiting < NUMBER // 4: await asyncio.sleep(0)
    victims = tasks[1::2]
    for task in victims: task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for number, result in enumerate(results):
        if isinstance(result, asyncio.CancelledError): done.append(number) if number not in done else None
        elif result is not None: wrong.append(repr(result))
    if any(isinstance(result, asyncio.CancelledError) for result in results[0::2]): wrong.append("not cancelled")
    if {*asyncio.all_tasks()} != before: wrong.append("tasks")
asyncio.run(main())
judge()
"""
    assert limits_script(CROWD + script, timeout=DEADLINE_S, CGROUP_THREADS_SCOPE=scope) == RIGHT


HALF = """
import fcntl
threading.stack_size(256 << 10)
lock, done, sums = threading.Lock(), [], []
def count(threads):
    # What both processes have leased, kept in a file that is theirs alone.
    with lock, open(oracle, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sums.append(int(file.read() or 0) + threads)
        file.seek(0); file.truncate(); file.write(str(sums[-1])); file.flush()
def work():
    start.wait()
    with ct.limit_threads(patience=60) as lease:
        count(lease.threads)
        count(-lease.threads)
    done.append(lease.threads)
start = threading.Event()
crowd = [threading.Thread(target=work) for _ in range(500)]
for thread in crowd: thread.start()
"""


def test_a_thousand_threads_of_two_processes_share(tmp_path: Path) -> None:
    oracle = tmp_path / "oracle"
    oracle.write_text("")
    with group(quota=1.0) as name:
        before = slot_files(name)
        with workers(name, 2, CGROUP_THREADS_CORES=str(CORES)) as both:
            for worker in both:
                worker(f"oracle = {str(oracle)!r}")
                worker(f"exec({HALF!r}, globals())")
            for worker in both:
                worker("start.set()")
            wait_until(lambda: [worker("len(done)") for worker in both] == [500, 500])
            for worker in both:
                assert worker("[thread.join() for thread in crowd][:0]") == []
                assert worker("now()") == [0, 0, 0]
                assert worker("ct.statistics().overcommitted") == 0
                assert 1 <= worker("max(sums)") <= CORES
                assert worker("core().slots.held") == worker("core().slots.locked(3)") == 0
        assert oracle.read_text() == "0"
        assert slot_files(name) == before


def test_a_thousand_blocks_inside_each_other() -> None:
    script = """
import sys
sys.setrecursionlimit(20_000)
counts = []
def down(number):
    with ct.limit_threads(2 if number < NUMBER // 2 else None) as lease:
        counts.append(lease.threads)
        if number + 1 < NUMBER: down(number + 1)
        else: see()
        if look() != [2, 2]: wrong.append([number, look()])
    done.append(number)
down(0)
s = ct.statistics()
seen.append([len(done), set(counts) == {2}, wrong[:3], [s.active, s.leased, s.overcommitted], look()])
"""
    assert limits_script(CROWD + script, timeout=DEADLINE_S) == [[2, 2], [NUMBER, True, [], [0, 0, 0], [4, 4]]]


def test_a_decorated_function_inside_itself_nine_hundred_times() -> None:
    script = """
import sys
sys.setrecursionlimit(20_000)
@ct.limit_threads(2)
def down(number):
    if look() != [2, 2]: wrong.append([number, look()])
    return 1 + down(number - 1) if number else 1
seen.append(down(899))
s = ct.statistics()
seen.append([wrong[:3], [s.active, s.leased, s.overcommitted], look()])
"""
    assert limits_script(CROWD + script, timeout=DEADLINE_S) == [900, [[], [0, 0, 0], [4, 4]]]


# ``at_each_depth`` calls ``operate`` with ever less room on the stack, until there is none for its own frame; what is
# left after each call must be nothing, whatever was raised. ctypes hides RecursionError in an error of its own.
DEPTHS = """
import sys
from cgroup_threads.governor.core_budget import core_budget
from cgroup_threads.governor.limiting import innermost
from cgroup_threads.pools.guarding import ROOM
from cgroup_threads.pools.ledger import current
from cgroup_threads.state import process
with ct.limit_threads(1): pass
ledger, limit = current(), sys.getrecursionlimit()
def down(depth, operate):
    if depth: down(depth - 1, operate)
    else: operate()
def left():
    s, mine, budget = ct.statistics(), ledger.local.thread, core_budget().budget
    found = [s.active, s.leased, s.waiting, s.overcommitted, len(ledger.shares), len(mine.leases)]
    found += [mine.busy, mine.moving, mine.lock.locked(), ledger.lock.locked(), budget.lock._is_owned()]
    return found + [innermost.get() is not None]
nothing = left()
def at_each_depth(operate, before=lambda: None, after=lambda: None):
    places, right = set(), 0
    for depth in range(limit - 80, limit - 2):
        before()
        try: down(depth, operate); right += 1
        except Exception as error:
            if "RecursionError" not in repr(error) + type(error).__name__: raise
            trace = error.__traceback__
            while trace:
                places.add(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            del trace, error
        after()
        if look() != [4, 4] or left() != nothing: seen.append([depth, look(), left()])
        # Where there is no room to lower it either, the next one does.
        if sys.getrecursionlimit() - limit not in (0, ROOM): seen.append([depth, "limit", sys.getrecursionlimit()])
        with ct.limit_threads(2) as lease:
            if [lease.threads, *look()] != [2, 2, 2]: seen.append([depth, "next", lease.threads, look()])
    assert right > 10, right
    codes = [notice.code for notice in process.notices if notice.code != "variable-harmful"]
    if codes: seen.append(codes)
    return places
"""


@SCOPES
def test_a_full_stack_as_a_limit_begins(scope: str) -> None:
    script = """
def operate():
    with ct.limit_threads(1): pass
places = at_each_depth(operate)
assert {"__enter__", "claim"} <= places, places
"""
    assert limits_script(DEPTHS + script, timeout=DEADLINE_S, CGROUP_THREADS_SCOPE=scope) == []


def test_a_full_stack_as_a_limit_inside_another_begins() -> None:
    """It asks no budget: the deepest calls are those of the pools, also where (from Python 3.12 on) C has its own."""
    script = """
outer = ct.limit_threads(2)
def operate():
    with ct.limit_threads(1): pass
def leave():
    if look() != [2, 2]: seen.append(look())
    outer.__exit__(None, None, None)
places = at_each_depth(operate, before=outer.__enter__, after=leave)
assert {"__enter__", "enter", "_settle", "_share"} <= places, places
"""
    assert limits_script(DEPTHS + script, timeout=DEADLINE_S) == []


@SCOPES
def test_a_full_stack_as_a_limit_ends(scope: str) -> None:
    """Entered where there was room, left where there is none: at the latest the second exit ends it."""
    script = """
block, leases, again = ct.limit_threads(1), [], []
def enter(): leases.append(block.__enter__())
def leave(): block.__exit__(None, None, None)
def leave_again():
    if leases.pop().active:
        again.append(1)
        leave()
places = at_each_depth(leave, before=enter, after=leave_again)
assert {"__exit__", "leave", "_settle"} <= places, places
assert len(again) <= 4, f"{len(again)}: only where there was no room for the exit itself"
"""
    assert limits_script(DEPTHS + script, timeout=DEADLINE_S, CGROUP_THREADS_SCOPE=scope) == []


@SCOPES
def test_a_full_stack_in_a_coroutine(scope: str) -> None:
    script = """
async def block():
    async with ct.limit_threads(1): pass
def step(coroutine):
    try: coroutine.send(None)
    except StopIteration: return
async def deep():
    return at_each_depth(lambda: step(block()))
places = asyncio.run(deep())
assert {"__aenter__", "_ask"} & places, places
"""
    assert limits_script(DEPTHS + script, timeout=DEADLINE_S, CGROUP_THREADS_SCOPE=scope) == []


def test_room_on_the_stack_is_made_once_and_taken_back() -> None:
    script = """
import sys
from cgroup_threads.pools.guarding import ROOM, add_room, drop_room
found = [sys.getrecursionlimit()]
add_room(); add_room(); found.append(sys.getrecursionlimit())
drop_room(); found.append(sys.getrecursionlimit())
drop_room(); found.append(sys.getrecursionlimit())
add_room(); sys.setrecursionlimit(5000); drop_room()  # the user's own
found.append(sys.getrecursionlimit())
sys.setrecursionlimit(2**31 - 1)  # there is no higher one
add_room(); drop_room(); found.append(sys.getrecursionlimit())
limit = found[0]
seen += [] if found == [limit, limit + ROOM, limit + ROOM, limit, 5000, 2**31 - 1] else found
"""
    assert limits_script(script) == []


def test_exceptions_that_are_no_full_stack_leave_its_limit_alone() -> None:
    """Another thread may be deep in calls of its own as the limit falls again."""
    script = """
import asyncio
from cgroup_threads.governor import limiting
limiting.add_room = lambda: seen.append("raised")
def interrupt(*arguments): raise KeyboardInterrupt
async def wait():
    async with ct.limit_threads(patience=60): pass
async def cancel():
    with ct.limit_threads(4):
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
asyncio.run(cancel())
enter = limiting.Ledger.enter
limiting.Ledger.enter = interrupt
try:
    with ct.limit_threads(1): pass
except KeyboardInterrupt: pass
limiting.Ledger.enter = enter
if ct.statistics().active: seen.append(ct.statistics().active)
"""
    assert limits_script(script) == []
