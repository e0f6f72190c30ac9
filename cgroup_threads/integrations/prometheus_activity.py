"""What the calls of one process do now and have done so far, as the Prometheus metrics count it."""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

from ..governor.core_budget import CoreBudget
from ..reporting.counters import parse_task_stat, read_text
from ..state import process

MAX_SCANNED: Final = 512
"""Looking at a thread costs some 10 us: the threads of a process that has more are not counted."""
SCAN_SHARE: Final = 0.01  # of one core, at most
MIN_SCAN_S: Final = 0.25
_TASKS: Final = "/proc/self/task"


class Activity(NamedTuple):
    """One process.

    ``active`` calls hold a lease of ``leased`` cores in sum, ``waiting`` calls queue for one; ``cores`` and ``scope``
    are those of the core budget, 0 and "" where nothing has leased yet. ``runnable`` threads run or wait for a CPU,
    None where that is not known. Since the process began ``granted`` leases were given, ``waits`` of them after a
    wait, which took ``wait_s`` in sum; ``overcommitted`` were above the budget. ``core_seconds`` is the sum of cores
    times seconds of leases that have ended.
    """

    active: int = 0
    leased: int = 0
    waiting: int = 0
    cores: int = 0
    scope: str = ""
    runnable: int | None = None
    granted: float = 0.0
    waits: float = 0.0
    wait_s: float = 0.0
    overcommitted: float = 0.0
    core_seconds: float = 0.0

    @property
    def counters(self) -> tuple[float, ...]:
        """The fields that only grow."""
        return self.granted, self.waits, self.wait_s, self.overcommitted, self.core_seconds

    def with_counters(self, counters: tuple[float, ...]) -> Activity:
        granted, waits, wait_s, overcommitted, core_seconds = counters
        return self._replace(
            granted=granted, waits=waits, wait_s=wait_s, overcommitted=overcommitted, core_seconds=core_seconds
        )


def read_activity(runnable: int | None) -> Activity:
    """This process's own. No budget is made for it: where none is, nothing has been leased."""
    core = process.budget
    # In a forked child the parent's budget stays for a moment, and its lock may be held for ever.
    if not isinstance(core, CoreBudget) or core.budget._pid != os.getpid():
        return Activity(runnable=runnable)
    found = core.statistics()
    return Activity(
        active=found.active,
        leased=found.leased,
        waiting=found.waiting,
        cores=found.cores,
        scope=found.scope,
        runnable=runnable,
        granted=found.granted,
        waits=sum(number for bound, number in found.waits if bound > 0),
        wait_s=found.waited_s,
        overcommitted=found.overcommitted,
        core_seconds=found.core_seconds,
    )


class RunnableThreads:
    """The number of runnable threads of this process, counted anew as often as that costs nothing to speak of."""

    def __init__(self) -> None:
        self._due_s = 0.0
        self._count: int | None = None

    def count(self) -> int | None:
        """The threads that run or wait for a CPU, without the one that counts."""
        now = time.monotonic()
        if now >= self._due_s:
            began = time.thread_time()  # a stop by the quota is no cost
            self._count = count_runnable()
            self._due_s = now + max(MIN_SCAN_S, (time.thread_time() - began) / SCAN_SHARE)
        return self._count


def count_runnable() -> int | None:
    """Threads of this process that run or wait for a CPU, but for the calling one.

    None where /proc does not tell, or if there are more than MAX_SCANNED.
    """
    try:
        if os.stat(_TASKS).st_nlink - 2 > MAX_SCANNED:  # a directory's links are its entries: no list is made
            return None
        names = os.listdir(_TASKS)
        own = os.readlink("/proc/thread-self").rpartition("/")[2]
    except OSError:
        return None
    if len(names) > MAX_SCANNED:
        return None
    running = 0
    for name in names:
        text = None if name == own else read_text(f"{_TASKS}/{name}/stat")
        parsed = None if text is None else parse_task_stat(text)
        running += parsed is not None and parsed[1] == "R"
    return running
