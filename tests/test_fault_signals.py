"""Limits that begin in signal handlers, finalizers, callbacks and trace functions, anywhere in the governor.

``test_limits_interrupted`` goes through each step of the pools; here it is the steps of the budget, its first use and
its queue, where a handler must not wait: what it would wait for is the thread that it has interrupted.
"""

from __future__ import annotations

import pytest

from tests.lab.limits import limits_script

# ``action`` is done at each line of the package that ``operate`` passes, in turn (``step``: at each so manieth).
PLACES = """
import os, signal, sys
from cgroup_threads.governor.core_budget import core_budget
from cgroup_threads.state import process
PACKAGE = os.path.dirname(ct.__file__)
def block():
    with ct.limit_threads(1) as lease: pass
    if lease.waited_s: seen.append(["waited", lease.waited_s])
def operate():
    with ct.limit_threads() as lease:
        with ct.limit_threads(2): pass
class Trace:
    def __init__(self, number, action, rooms=("",)):
        self.left, self.action, self.rooms = number, action, tuple(os.path.join(PACKAGE, room) for room in rooms)
    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(self.rooms): return None
        if event == "line":
            self.left -= 1
            if self.left == 0: self.action()
        return self
def at_each_place(action, operate=operate, step=1):
    operate(); number = step
    while True:
        trace = Trace(number, action)
        sys.settrace(trace)
        try: operate()
        finally: sys.settrace(None)
        if trace.left > 0: break
        check(number)
        number += step
    assert number > 100
def check(number):
    statistics = ct.statistics()
    if look() != [4, 4] or statistics.active or statistics.waiting or process.ledger.shares:
        seen.append([number, look(), statistics.active, statistics.waiting])
"""
# Another thread holds all cores until ``leave`` is set.
FULL = """
import gc, signal, sys, weakref
entered, leave = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads(): entered.set(); leave.wait()
thread = threading.Thread(target=hold); thread.start(); entered.wait()
runs, found = 0, set()
def block():
    global runs
    with ct.limit_threads() as lease: found.add((lease.threads, lease.waited_s, *look()))
    runs += 1
def wait_at_a_full_budget():
    with ct.limit_threads(patience=60) as lease: seen.append(lease.waited_s > 0); see()
    thread.join()
    see(); seen.append([runs, sorted(found), ct.statistics().active])
"""
ONE_THREAD_AT_ONCE = [1, 0.0, 1, 1]
LIMIT_S = 60
SCOPES = pytest.mark.parametrize("scope", ["process", "container"])


def interrupted(script: str, **environ: str) -> object:
    return limits_script(PLACES + script, timeout=LIMIT_S, **environ)


@SCOPES
def test_a_block_at_any_step_of_the_governor(scope: str) -> None:
    assert interrupted("at_each_place(block)", CGROUP_THREADS_SCOPE=scope) == []


@SCOPES
def test_a_signal_that_is_raised_at_any_step(scope: str) -> None:
    script = """
import faulthandler
signal.signal(signal.SIGUSR1, lambda *_: operate())
faulthandler.register(signal.SIGUSR1, file=open(os.devnull, "w"), chain=True)
at_each_place(lambda: signal.raise_signal(signal.SIGUSR1))
"""
    assert interrupted(script, CGROUP_THREADS_SCOPE=scope) == []


@pytest.mark.parametrize("call", ["ct.report()", "ct.refresh()", "ct.configure(cores=3)", "ct.statistics()"])
def test_what_else_a_handler_may_call_at_any_step(call: str) -> None:
    script = f"""
def operate():
    core_budget().due_s = 0.0  # the limits are looked at again
    with ct.limit_threads(): pass
at_each_place(lambda: {call}, operate, step={23 if call == "ct.report()" else 3})
"""
    assert interrupted(script) == []


def test_finalizers_and_weak_references_at_any_step() -> None:
    script = """
import gc, weakref
calls = []
class Ends:
    def __del__(self): block(); calls.append("finalizer")
def leave_garbage():
    ends = Ends()
    ends.itself = ends
    references.append(weakref.ref(ends, lambda _: (block(), calls.append("reference"))))
references = []
def collect():
    leave_garbage()
    del ends[:]  # the last reference: at once
    gc.collect(0)
ends = [Ends()]
at_each_place(collect, step=2)
gc.collect()
assert calls.count("reference") == len(references) == calls.count("finalizer") - 1
"""
    assert interrupted(script) == []


def interrupt_the_first_block(step: int) -> object:
    """The budget is made, hooks and slots are: each time in a process that has done nothing yet but load the code.

    It is interrupted at each so manieth line of ours."""
    script = """
ct.limit_threads, ct.statistics  # a module that is half imported has no names yet: these must be there
number, reached = 1, True
while reached:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            trace = Trace(number, block, ("governor", "pools"))
            sys.settrace(trace)
            operate()
            sys.settrace(None)
            with ct.limit_threads(2): inside = look()
            ok = [inside, look(), ct.statistics().active] == [[2, 2], [4, 4], 0]
            os.write(writer, b"end" if trace.left > 0 else b"ok" if ok else repr([inside, look()]).encode())
        except BaseException as error: os.write(writer, repr(error).encode())
        finally: os._exit(0)
    os.close(writer)
    with open(reader) as file: answer = file.read()
    os.waitpid(child, 0)
    reached = answer != "end"
    if answer not in ("ok", "end"): seen.append([number, answer])
    number += STEP
assert number > 500
"""
    return limits_script(PLACES + script.replace("STEP", str(step)), timeout=10 * LIMIT_S)


def test_the_first_block_of_all_interrupted_at_some_places() -> None:
    assert interrupt_the_first_block(step=101) == []


def test_trace_functions_that_begin_limits() -> None:
    script = """
hooked = 0
def hook(frame, event, argument):
    global hooked
    hooked += 1
    with ct.limit_threads(1): pass
for install in (sys.setprofile, sys.settrace):
    install(hook)
    try:
        for _ in range(20): operate()
    finally: install(None)
    check(install.__name__)
assert hooked > 1000
"""
    assert interrupted(script) == []


def test_thousands_of_signals() -> None:
    """One right after the other, in blocks that are nested, held and left by exceptions."""
    script = """
runs = 0
def handle(*_):
    global runs
    runs += 1
    if runs % 50 == 0: ct.statistics()
    with ct.limit_threads(1 + runs % 4) as lease:
        with ct.limit_threads(): pass
        if lease.waited_s: seen.append(lease.waited_s)
    if runs < 3000: signal.setitimer(signal.ITIMER_REAL, 0.0001)
@ct.limit_threads(2)
def limited(): raise ValueError
signal.signal(signal.SIGALRM, handle)
handle()
while runs < 3000:
    with ct.limit_threads(3): operate()
    try: limited()
    except ValueError: pass
check("end")
"""
    assert interrupted(script) == []


def test_signals_while_a_block_waits_at_a_full_budget() -> None:
    script = f"""{FULL}
def handle(*_):
    block()
    if runs < 1000: signal.setitimer(signal.ITIMER_REAL, 0.0001)
    else: leave.set()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01)
wait_at_a_full_budget()
"""
    # Whoever holds the cores has 3; the one that waits asks for half of them, and gets what is fair.
    waited, inside, after, (runs, found, active) = limits_script(script, timeout=LIMIT_S)
    assert (waited, after, runs, active) == (True, [4, 4], 1000, 0)
    assert ONE_THREAD_AT_ONCE in found
    assert [counts for counts in found if counts[1] > 0] == [], "a handler has waited"
    assert inside[0] in (2, 3)


def test_finalizers_and_callbacks_of_the_collector_at_a_full_budget() -> None:
    script = f"""{FULL}
class Ends:
    def __del__(self): block()
def collected(phase, info): block()
def handle(*_):
    Ends()
    reference = weakref.ref(ends.pop(), lambda _: block())
    gc.collect()
    if ends: signal.setitimer(signal.ITIMER_REAL, 0.0001)
    else: gc.callbacks.remove(collected); leave.set()
class Plain: pass
ends = [Plain() for _ in range(10)]
gc.callbacks.append(collected)
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01)
wait_at_a_full_budget()
"""
    waited, _, after, (runs, found, active) = limits_script(script, timeout=LIMIT_S)
    assert (waited, after, active) == (True, [4, 4], 0)
    assert runs >= 40
    assert [counts for counts in found if counts[1] > 0] == [], "a finalizer has waited"


def test_an_exception_of_a_handler_ends_the_wait() -> None:
    """And the thread waits again at its next block, as before."""
    script = f"""{FULL}
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
for _ in range(20):
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    try:
        with ct.limit_threads(patience=60): seen.append("entered")
    except Stop: pass
seen.append(ct.statistics().waiting)
def handle(*_): leave.set()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01)
wait_at_a_full_budget()
"""
    waiting, waited, _, after, (_, _, active) = limits_script(script, timeout=LIMIT_S)
    assert (waiting, waited, after, active) == (0, True, [4, 4], 0)


def test_signals_while_an_event_loop_leases_cores() -> None:
    script = """
runs = 0
def handle(*_):
    global runs
    runs += 1
    with ct.limit_threads() as lease:
        if lease.waited_s: seen.append(lease.waited_s)
    if runs < 500: signal.setitimer(signal.ITIMER_REAL, 0.0002)
async def reserve():
    async with ct.limit_threads(): await asyncio.to_thread(operate)
async def main():
    handle()
    while runs < 500: await asyncio.gather(reserve(), ct.run(operate), ct.run(look), reserve())
signal.signal(signal.SIGALRM, handle)
asyncio.run(main())
check("end")
"""
    assert interrupted(script) == []
