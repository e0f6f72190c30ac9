"""``limit_threads()`` and ``run`` on the process's budget: nesting, asyncio, generators, forks, interrupts, threads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.commands import run_python

PRELUDE = """
import asyncio, json, os, signal, sys, threading, time
import cgroup_threads as ct

seen = []
def now():
    s = ct.statistics()
    return [s.active, s.leased, s.waiting]
def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)
def thread(function, *args):
    started = threading.Thread(target=function, args=args)
    started.start()
    return started
"""


def budget_script(script: str, cores: int = 4, **environ: str) -> Any:
    environ = {"CGROUP_THREADS_CORES": str(cores), "CGROUP_THREADS_SCOPE": "process", **environ}
    done = run_python(PRELUDE + script + "\nprint(json.dumps(seen))", **environ)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_nested_call_reuses_its_callers_lease_and_never_waits() -> None:
    script = """
with ct.limit_threads() as outer:
    with ct.limit_threads(2) as inner:
        seen.append([outer.threads, inner.threads, *now()])
        with ct.limit_threads() as innermost: seen.append(innermost.threads)
seen.append(now())
"""
    assert budget_script(script) == [[4, 2, 1, 4, 0], 2, [0, 0, 0]]


def test_calls_in_threads_share_the_budget() -> None:
    script = """
inside, release = [], threading.Event()
def work():
    with ct.limit_threads(1) as lease:
        inside.append(lease.threads)
        release.wait()
threads = [thread(work) for _ in range(4)]
until(lambda: len(inside) == 4)
seen.append(now())
release.set()
for t in threads: t.join()
seen.append(now())
"""
    assert budget_script(script) == [[4, 4, 0], [0, 0, 0]]


def test_no_more_calls_than_cores_run_at_once() -> None:
    script = """
running, most, lock = 0, 0, threading.Lock()
@ct.limit_threads
def work():
    global running, most
    with lock:
        running += 1
        most = max(most, running)
    time.sleep(0.001)
    with lock: running -= 1
def many():
    for _ in range(20): work()
threads = [thread(many) for _ in range(16)]
for t in threads: t.join()
s = ct.statistics()
seen += [most <= 3, s.granted, s.overcommitted, now()]
"""
    assert budget_script(script, cores=3) == [True, 320, 0, [0, 0, 0]]


def test_run_admits_no_more_calls_than_cores() -> None:
    script = """
running, most, lock = 0, 0, threading.Lock()
def work(number):
    global running, most
    with lock:
        running += 1
        most = max(most, running)
    time.sleep(0.001)
    with lock: running -= 1
    return number
async def main():
    return await asyncio.gather(*[ct.run(work, number) for number in range(100)])
seen += [asyncio.run(main()) == list(range(100)), most <= 3, now()]
"""
    assert budget_script(script, cores=3) == [True, True, [0, 0, 0]]


def test_tasks_inside_a_reservation_share_it() -> None:
    script = """
inside, release = [], threading.Event()
def work():
    with ct.limit_threads() as lease:
        inside.append(lease.threads)
        release.wait()
async def main():
    async with ct.limit_threads(3) as lease:
        work_now = [asyncio.create_task(asyncio.to_thread(work)) for _ in range(3)]
        while not inside: await asyncio.sleep(0.001)
        seen.append([lease.threads, inside[0] <= 3, *now()])
        release.set()
        await asyncio.gather(*work_now)
    seen.append(now())
asyncio.run(main())
"""
    assert budget_script(script) == [[3, True, 1, 3, 0], [0, 0, 0]]


def test_a_cancelled_run_holds_its_cores_until_the_thread_ends() -> None:
    script = """
started, release, ended = threading.Event(), threading.Event(), threading.Event()
def work():
    started.set()
    release.wait()
    ended.set()
async def main():
    task = asyncio.create_task(ct.run(work))
    while not started.is_set(): await asyncio.sleep(0.001)
    task.cancel()
    try: await task
    except asyncio.CancelledError: seen.append("cancelled")
    seen.append(now())
    release.set()
    while now() != [0, 0, 0]: await asyncio.sleep(0.001)
    seen.append(ended.is_set())
asyncio.run(main())
"""
    assert budget_script(script) == ["cancelled", [1, 4, 0], True]


def test_a_block_on_the_event_loops_thread_never_waits() -> None:
    script = """
release = threading.Event()
entered = threading.Event()
def hold():
    with ct.limit_threads():
        entered.set()
        release.wait()
holder = thread(hold)
entered.wait()
async def main():
    with ct.limit_threads() as lease:
        seen.append([lease.threads, lease.waited_s, ct.statistics().overcommitted])
asyncio.run(main())
release.set()
holder.join()
seen.append(now())
"""
    assert budget_script(script) == [[1, 0.0, 1], [0, 0, 0]]


def test_a_generator_holds_cores_only_while_it_runs() -> None:
    script = """
@ct.limit_threads
def steps():
    yield now()
    yield now()
for inside in steps(): seen.append([inside, now()])
@ct.limit_threads
async def astep():
    yield now()
async def main():
    async for inside in astep(): seen.append([inside, now()])
asyncio.run(main())
"""
    assert budget_script(script) == [[[1, 4, 0], [0, 0, 0]]] * 3


def test_a_worker_limited_for_life_holds_no_cores_while_idle() -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
def work():
    with ct.limit_threads() as lease: return [lease.threads, *now()]
with ThreadPoolExecutor(1, initializer=ct.initializer, initargs=(2,)) as executor:
    executor.submit(int).result()
    seen.append(now())
    seen.append(executor.submit(work).result())
"""
    assert budget_script(script) == [[0, 0, 0], [2, 1, 2, 0]]


def test_a_thread_that_dies_inside_a_block_gives_its_cores_back() -> None:
    script = """
thread(lambda: ct.limit_threads().__enter__()).join()
import gc; gc.collect()
with ct.limit_threads() as lease: seen.append([lease.threads, lease.waited_s])
seen.append(now())
"""
    assert budget_script(script) == [[4, 0.0], [0, 0, 0]]


def test_an_interrupt_while_waiting_leaves_nothing_behind() -> None:
    script = """
entered, release = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads():
        entered.set()
        release.wait()
holder = thread(hold)
entered.wait()
def interrupt():
    until(lambda: now()[2] == 1)
    os.kill(os.getpid(), signal.SIGINT)
interrupter = thread(interrupt)
try:
    with ct.limit_threads(patience=60): seen.append("entered")
except KeyboardInterrupt: seen.append("interrupted")
seen.append(now())
interrupter.join(); release.set(); holder.join()
seen.append(now())
"""
    assert budget_script(script) == ["interrupted", [1, 4, 0], [0, 0, 0]]


def test_interrupts_anywhere_leave_no_lease_behind() -> None:
    """A signal handler that raises, at random places of thousands of blocks."""
    script = """
class Stop(Exception): pass
def stop(*_): raise Stop
with ct.limit_threads(): pass  # the first one takes longer than any delay: no other would ever run to its end
signal.signal(signal.SIGALRM, stop)
stopped = blocks = 0
end = time.monotonic() + 2
delay = 0.0
while time.monotonic() < end:
    delay = (delay + 0.0000037) % 0.0002
    limit = ct.limit_threads()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00001 + delay)
        with limit:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Stop:
        stopped += 1
    finally:
        try: signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop: pass
    blocks += 1
    # One that came before __exit__ began is beyond any library: its block is still open.
    for lease in tuple(limit._open): limit.__exit__(None, None, None)
seen += [50 < stopped < blocks, now()]
"""
    assert budget_script(script) == [True, [0, 0, 0]]


def test_a_child_forked_inside_a_block_begins_with_the_whole_budget() -> None:
    script = """
with ct.limit_threads(3):
    reader, writer = os.pipe()
    if os.fork() == 0:
        with ct.limit_threads() as lease: os.write(writer, json.dumps([lease.threads, *now()]).encode())
        os._exit(0)
    os.wait()
    seen.append(json.loads(os.read(reader, 100)))
    seen.append(now())
seen.append(now())
"""
    assert budget_script(script) == [[4, 1, 4, 0], [1, 3, 0], [0, 0, 0]]


def test_a_fork_while_another_thread_waits() -> None:
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
entered, release = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads():
        entered.set(); release.wait()
def wait():
    with ct.limit_threads(patience=60): pass
threads = [thread(hold)]
entered.wait()
threads += [thread(wait) for _ in range(3)]
until(lambda: now()[2] == 3)
codes = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with ct.limit_threads() as lease: os._exit(lease.threads)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
release.set()
for t in threads: t.join()
seen += [codes, now()]
"""
    assert budget_script(script) == [[4] * 20, [0, 0, 0]]


def test_the_interpreter_ends_while_threads_wait() -> None:
    script = """
entered = threading.Event()
def hold():
    with ct.limit_threads():
        entered.set()
        threading.Event().wait()
def wait():
    with ct.limit_threads(patience=600): pass
for function in (hold, wait, wait):
    threading.Thread(target=function, daemon=True).start()
entered.wait()
until(lambda: now()[2] == 2)
"""
    assert budget_script(script) == []


def test_patience_from_the_settings_and_from_configure() -> None:
    script = """
entered, release = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads():
        entered.set(); release.wait()
holder = thread(hold)
entered.wait()
with ct.limit_threads() as lease: seen.append(lease.waited_s)
ct.configure(patience=0.01)
with ct.limit_threads() as lease: seen.append(0.01 <= lease.waited_s < 10)
release.set(); holder.join()
"""
    assert budget_script(script, CGROUP_THREADS_PATIENCE="0") == [0.0, True]


def test_configure_changes_the_budget_of_a_running_process() -> None:
    script = """
seen.append(ct.statistics().cores)
ct.configure(cores=2)
seen.append(ct.statistics().cores)
with ct.limit_threads() as lease: seen.append(lease.threads)
ct.configure()
seen.append(ct.refresh().cores)
for bad in ({"cores": 0}, {"cores": "4"}, {"workers": 0}, {"scope": "pod"}, {"patience": -1}):
    try: ct.configure(**bad)
    except ct.CgroupThreadsError as error: seen.append(str(error))
"""
    assert budget_script(script) == [
        4,
        2,
        2,
        4,
        "cores must be a number of cores above 0, not 0",
        "cores must be a number of cores above 0, not '4'",
        "workers must be a positive integer, not 0",
        "scope must be one of auto, process, container, not 'pod'",
        "patience must be a number of seconds of at least 0, not -1",
    ]


@pytest.mark.parametrize(("variable", "expected"), [("OMP_NUM_THREADS", 2), ("MKL_NUM_THREADS", 4)])
def test_a_users_own_count_is_all_that_a_call_can_use(variable: str, expected: int) -> None:
    script = "with ct.limit_threads() as lease: seen.append(lease.threads)"
    assert budget_script(script, **{variable: "2"}) == [expected]


def test_workers_that_share_no_slots_get_a_part_each() -> None:
    assert budget_script("seen.append(ct.statistics().cores)", CGROUP_THREADS_WORKERS="2") == [2]


def test_run_tells_when_no_thread_can_be_made() -> None:
    """Also where another thread grants the cores: the failure is the caller's who waits, not the granting one's."""
    script = """
from cgroup_threads.governor import workers
def refuse(self, future, call): raise RuntimeError("can't start new thread")
workers.Workers.submit = refuse
entered, release = threading.Event(), threading.Event()
def hold():
    with ct.limit_threads():
        entered.set()
        release.wait()
async def main():
    try: await ct.run(int)
    except RuntimeError as error: seen.append(str(error))
    holder = thread(hold)
    entered.wait()
    waiting = asyncio.create_task(ct.run(int))
    while now()[2] == 0: await asyncio.sleep(0.001)
    release.set()
    try: await waiting
    except RuntimeError as error: seen.append(str(error))
    holder.join()
asyncio.run(main())
seen.append(now())
"""
    assert budget_script(script) == ["can't start new thread"] * 2 + [[0, 0, 0]]


def test_a_stop_by_the_quota_is_no_reason_to_look_more_rarely() -> None:
    """A look that the scheduler held up cost no CPU; one that computed is not repeated at once."""
    script = """
from cgroup_threads.governor import core_budget
core = core_budget.core_budget()
def after(follow):
    core.follow, core.due_s = follow, 0.0
    before = core_budget.monotonic()
    core.look()
    seen.append(round(core.due_s - before, 1) > 2 * core_budget.CHECK_S)
def compute():
    end = time.thread_time() + 0.02
    while time.thread_time() < end: pass
after(lambda: threading.Event().wait(0.02))
after(compute)
"""
    assert budget_script(script) == [False, True]
