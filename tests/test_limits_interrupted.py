"""Limits that are interrupted: by an exception, and by other limits of the same thread.

The garbage collector and signal handlers run between any two steps of a program. What they do here with limits happens
at each place in turn, so that nothing depends on luck.
"""

from __future__ import annotations

import pytest

from tests.lab.limits import limits_script

# ``operate`` is what is interrupted. Lines of our own code are the places where something may come in between; an
# exception comes at the start of a function or after a call, as the interpreter looks for signals there.
PLACES = """
import sys
from cgroup_threads.pools import describe
from cgroup_threads.pools.ledger import Lease, current
from cgroup_threads.state import process
with ct.limit_threads(1): pass
ledger = current()
def operate():
    lease = Lease(2)
    try:
        ledger.enter(lease)
        ledger.leave(lease)
    except BaseException:
        ledger.abandon(lease)
        raise
    ledger.refresh()

def at_each_place(action, before=lambda: None, after=lambda: None):
    number, reached = 0, True
    while reached:
        number += 1
        reached, count = False, 0
        def trace(frame, event, argument):
            nonlocal reached, count
            if "cgroup_threads/pools" not in frame.f_code.co_filename: return None
            if event == "line":
                count += 1
                if count == number:
                    reached = True
                    action()
            return trace
        before()
        sys.settrace(trace)
        try: operate()
        finally: sys.settrace(None)
        if reached:
            after()
            if look() != [4, 4] or ledger.shares or ledger.local.thread.leases:
                seen.append([number, look(), len(ledger.shares)])
    assert number > 100
"""
LIMIT_S = 60


def interrupted(script: str) -> object:
    return limits_script(PLACES + script, timeout=LIMIT_S)


def test_a_block_inside_any_step() -> None:
    script = """
def block():
    with ct.limit_threads(1): pass
at_each_place(block)
"""
    assert interrupted(script) == []


def test_a_report_inside_any_step() -> None:
    script = """
at_each_place(describe)
"""
    assert interrupted(script) == []


def test_a_limit_that_begins_inside_any_step_and_stays() -> None:
    script = """
open_ = []
def begin():
    open_.append(Lease(1))
    ledger.enter(open_[0])
def end():
    if look() != [1, 1] or open_[0].threads != 1: seen.append(["inside", look()])
    ledger.leave(open_.pop())
at_each_place(begin, after=end)
"""
    assert interrupted(script) == []


def test_a_limit_that_ends_inside_any_step() -> None:
    script = """
open_ = []
def begin():
    open_.append(Lease(1))
    ledger.enter(open_[0])
def end():
    while open_: ledger.leave(open_.pop())
at_each_place(end, before=begin)
end()
"""
    assert interrupted(script) == []


def test_another_threads_limit_that_ends_inside_any_step() -> None:
    script = """
import queue
work, done = queue.Queue(), queue.Queue()
def serve():
    for lease in iter(work.get, None):
        ledger.enter(lease)
        done.put(lease)
threading.Thread(target=serve).start()
open_ = []
def begin():
    work.put(Lease(1))
    open_.append(done.get())
def end():
    while open_: ledger.leave(open_.pop())
at_each_place(end, before=begin)
end(); work.put(None)
"""
    assert interrupted(script) == []


def test_lowering_the_baseline_inside_any_step() -> None:
    script = """
from cgroup_threads.pools import lower_live
def back():
    if look() != [3, 3]: seen.append(look())
    gomp.omp_set_num_threads(4); blas_library.set_num_threads(4)
at_each_place(lambda: lower_live(3), after=back)
"""
    assert interrupted(script) == []


def test_an_exception_at_any_step() -> None:
    script = """
class Stop(BaseException): pass
where = []
def run(operate):
    number, reached = 0, True
    while reached:
        number += 1
        reached, count = False, 0
        def profile(frame, event, argument):
            nonlocal reached, count
            if event in ("call", "c_return") and "cgroup_threads/pools" in frame.f_code.co_filename:
                count += 1
                if count == number:
                    reached = True
                    where.append([frame.f_code.co_name, event, frame.f_lineno])
                    raise Stop
        sys.setprofile(profile)
        try: operate()
        except Stop: pass
        finally: sys.setprofile(None)
        mine = ledger.local.thread
        if mine.busy or mine.lock.locked() or ledger.lock.locked(): seen.append([number, "held"]); break
        with ct.limit_threads(2):
            if look() != [2, 2]: seen.append([number, "inside", look()])
        if look() != [4, 4] or ledger.shares: seen.append([number, "after", look(), where[-1]]); break
    return number
assert run(operate) > 50
"""
    assert interrupted(script) == []


def test_an_exception_at_any_step_of_a_block_leaves_nothing_to_leave_again() -> None:
    """Only where it came before the exit began is the block still open: that exit may be made again."""
    script = """
class Stop(BaseException): pass
def block(limit):
    with limit: pass
number, reached, again = 0, True, 0
while reached:
    number += 1
    reached, count = False, 0
    limit = ct.limit_threads(1)
    def profile(frame, event, argument):
        global reached, count
        if event in ("call", "c_return") and "cgroup_threads/" in frame.f_code.co_filename:
            count += 1
            if count == number:
                reached = True
                raise Stop
    sys.setprofile(profile)
    try: block(limit)
    except Stop: pass
    finally: sys.setprofile(None)
    for lease in tuple(limit._open):
        again += 1
        try: limit.__exit__(None, None, None)
        except ct.CgroupThreadsError as error: seen.append([number, repr(error)])
    if look() != [4, 4] or ledger.shares or ct.statistics().active: seen.append([number, look()])
assert number > 50 and again, (number, again)
"""
    assert interrupted(script) == []


def test_an_exception_at_any_step_of_a_threads_first_block() -> None:
    script = """
class Stop(BaseException): pass
said = []
sys.unraisablehook = lambda found: said.append(repr(found.exc_value))
number, reached = 0, True
def first():
    sys.setprofile(profile)
    try:
        with ct.limit_threads(1): pass
    except Stop: pass
    finally: sys.setprofile(None)
    with ct.limit_threads(2):
        if look() != [2, 2]: seen.append([number, "inside", look()])
    if look() != [4, 4]: seen.append([number, "after", look()])
while reached:
    number += 1
    reached, count = False, 0
    def profile(frame, event, argument):
        global reached, count
        if event in ("call", "c_return") and "cgroup_threads/pools" in frame.f_code.co_filename:
            count += 1
            if count == number:
                reached = True
                raise Stop
    in_thread(first)
    if look() != [4, 4] or ledger.shares: seen.append([number, look(), len(ledger.shares)])
seen += [line for line in said if line != "Stop()"]  # that one came into a finalizer
assert number > 50, number
"""
    assert interrupted(script) == []


def test_an_exception_as_the_limit_ends_gives_the_shared_pools_back() -> None:
    script = """
def trace(frame, event, argument):
    if frame.f_code.co_name == "hold":
        sys.settrace(None)
        raise KeyboardInterrupt
for _ in range(2):
    try:
        with ct.limit_threads(1): sys.settrace(trace)
    except KeyboardInterrupt: seen.append("interrupted")
    see()
"""
    assert interrupted(script) == ["interrupted", [4, 4]] * 2


@pytest.mark.parametrize("handler", ["ct.report()", "with ct.limit_threads(1): pass"])
def test_signal_handlers(handler: str) -> None:
    script = f"""
import signal
runs = 0
def handle(*_):
    global runs
    {handler}
    runs += 1
    if runs < 200: signal.setitimer(signal.ITIMER_REAL, 0.001)
signal.signal(signal.SIGALRM, handle)
handle()
while runs < 200:
    with ct.limit_threads(1): pass
see()
"""
    assert limits_script(script, timeout=LIMIT_S) == [[4, 4]]


def test_unfinished_generators_that_the_collector_ends() -> None:
    script = """
import gc
@ct.limit_threads(1)
def generate():
    while True: yield 1
def leave_one():
    cycle = [generate()]
    next(cycle[0])
    cycle.append(cycle)
gc.set_threshold(7)  # often, and not in step with the loop
for _ in range(2000):
    leave_one()
    with ct.limit_threads(2): pass
gc.collect()
see()
"""
    assert limits_script(script, timeout=LIMIT_S) == [[4, 4]]
