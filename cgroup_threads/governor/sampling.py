"""Counters that show whether leases get the CPU time they stand for, read at most once a second as leases are taken."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..detection.cpulist import parse_number
from ..detection.procfs import LARGE, Files
from ..detection.throttling import Throttling, parse_cpu_stat
from ..settings import MAX_COUNT
from ..state import process
from .following import Following, follow
from .hidden import HiddenLimit, Look, Sample, ThreadTimes, difference, estimate, says_something

if TYPE_CHECKING:
    from .core_budget import CoreBudget

SAMPLE_S: Final = 1.0
SAMPLE_SHARE: Final = 0.01  # of one core, at most
KEPT: Final = 30
MAX_AGE_S: Final = 600.0  # what was seen before says nothing about today
MAX_THREADS: Final = 4096
MAX_LEVELS: Final = 4
_DIGITS: Final = 20  # 2**64 has 20 digits
_TASKS: Final = "/proc/self/task"


class Sampler:
    """Samples of one budget, the estimate from them, and the cap that follows it where the user wants that."""

    def __init__(self, files: Files | None = None) -> None:
        self.files = Files() if files is None else files
        self.lock = threading.Lock()
        """Taken by whoever samples; the others do not wait."""
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.estimate: HiddenLimit | None = None
        self.following = Following()
        self.due_s = 0.0
        self._look: Look | None = None

    @property
    def cap(self) -> int:
        """The most cores that the budget may have."""
        cap = self.following.cap
        return MAX_COUNT if cap is None else cap

    @property
    def found(self) -> HiddenLimit | None:
        """The estimate, or the one that the cap follows: under the cap nothing falls short any more."""
        return self.following.cause or self.estimate

    def sample(self, now: float, core: CoreBudget) -> None:
        """Take a sample if it is time to. ``now`` is monotonic."""
        if now < self.due_s or not self.lock.acquire(blocking=False):
            return
        began = time.thread_time()  # a stop by the very quota that is looked for costs nothing
        try:
            look = self._read(core)
            before, self._look = self._look, look
            if look is None:
                self.due_s = float("inf")  # this kernel or sandbox does not count
                return
            found = None if before is None else difference(before, look)
            if found is not None:
                self._add(found, look, core)
            self.due_s = now + max(SAMPLE_S, (time.thread_time() - began) / SAMPLE_SHARE)
        finally:
            self.lock.release()

    def _add(self, sample: Sample, look: Look, core: CoreBudget) -> None:
        samples = self.samples
        while samples and sample.at_s - samples[0].at_s > MAX_AGE_S:
            samples.popleft()
        if says_something(sample):
            if _is_pinned(sample.longest, look.cpus):
                sample = sample._replace(idle_s=None)  # others of our CPUs may idle while it waits for its own
            samples.append(sample)
        self.estimate = estimate(samples)
        if not core.settings.follow_hidden or core.size.scope != "process":
            self.following = Following()
        elif samples and samples[-1] is sample:
            self.following = follow(self.following, self.estimate, sample.at_s)

    def _read(self, core: CoreBudget) -> Look | None:
        threads = read_threads(self.files)
        if not threads:
            return None
        seen = process.observation
        cpus = frozenset[int]() if seen is None else seen.affinity
        levels = () if seen is None else seen.levels
        at_s = monotonic()
        return Look(
            at_s=at_s,
            cpu_s=time.process_time(),
            threads=threads,
            idle_s=read_idle(self.files, cpus),
            cpus=cpus,
            throttling=_read_throttling(self.files, [level.path for level in levels if level.quota is not None]),
            leased_s=_leased(core, at_s),
            budget=core.budget.cores,
        )


def read_threads(files: Files, tasks: str = _TASKS) -> dict[int, ThreadTimes]:
    """The times of the threads in ``tasks`` (/proc/PID/task; this process's), at most MAX_THREADS of them; empty where
    the kernel does not say or they have ended."""
    try:
        names = os.listdir(files.locate(tasks))[:MAX_THREADS]
    except OSError:
        return {}
    found: dict[int, ThreadTimes] = {}
    for name in names:
        tid = parse_number(name, _DIGITS)
        times = None if tid is None else parse_schedstat(files.read(f"{tasks}/{name}/schedstat").text or "")
        if tid is not None and times is not None:
            found[tid] = times
    return found


def parse_schedstat(text: str) -> ThreadTimes | None:
    """/proc/PID/task/TID/schedstat: nanoseconds on a CPU, nanoseconds waiting for one, and how often it got one."""
    fields = text.split()[:3]
    numbers = [number for number in (parse_number(field, _DIGITS) for field in fields) if number is not None]
    if len(numbers) != 3:
        return None
    return ThreadTimes(numbers[0] / 1e9, numbers[1] / 1e9, numbers[2])


def read_idle(files: Files, cpus: frozenset[int]) -> float | None:
    """Seconds that ``cpus`` were idle since the machine began, in sum; None where that cannot be known.

    LXCFS puts a file of its own over /proc/stat, with the idle time of a machine that is not there.
    """
    table, around = files.identify("/proc/stat"), files.identify("/proc")
    if not cpus or table is None or around is None or table[0] != around[0]:
        return None
    text = files.read("/proc/stat", LARGE).text
    return None if text is None else parse_idle(text, cpus, _ticks())


def parse_idle(text: str, cpus: frozenset[int], ticks: int) -> float | None:
    """Idle seconds of ``cpus`` in the text of /proc/stat: its ``idle`` and ``iowait``. None if any is missing."""
    total = 0
    missing = set(cpus)
    for line in text.split("\n"):
        if not line.startswith("cpu"):
            break
        fields = line.split()
        cpu = parse_number(fields[0][3:])
        if cpu not in missing or len(fields) < 6:
            continue
        idle, waiting = parse_number(fields[4], _DIGITS), parse_number(fields[5], _DIGITS)
        if idle is not None and waiting is not None:
            total += idle + waiting
            missing.remove(cpu)
    return None if missing else total / ticks


def _ticks() -> int:
    """Ticks a second in /proc/stat."""
    try:
        return os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):  # AttributeError: Windows
        return 100


def _read_throttling(files: Files, directories: list[str]) -> tuple[Throttling, ...]:
    """The counters of the groups that limit. The observation's paths are real ones, below no other root."""
    found = []
    for directory in directories[:MAX_LEVELS]:
        file = f"{directory}/cpu.stat"
        text = files.read(file).text
        counters = None if text is None else parse_cpu_stat(text, file)
        if counters is not None:
            found.append(counters)
    return tuple(found)


def _leased(core: CoreBudget, now: float) -> float:
    """Core seconds leased so far, those of open leases included."""
    budget = core.budget
    with budget.lock:
        leases = tuple(budget.leases)
        return budget.counters.core_seconds + sum((now - lease._since_s) * lease.threads for lease in leases)


def _is_pinned(tid: int, cpus: frozenset[int]) -> bool:
    """Whether a thread may use fewer CPUs than we may."""
    if not tid or not hasattr(os, "sched_getaffinity"):
        return False
    try:
        return not cpus <= os.sched_getaffinity(tid)
    except OSError:  # it has ended
        return False
