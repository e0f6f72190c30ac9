"""Was a measurement disturbed? Counters before and after it, and a judgement of each.

How much others took of our CPUs follows from idle time and from our own CPU time. In a container /proc/stat shows CPUs
of the whole host, where most of what others do meets nobody. So the threads' own run delay decides, wherever those that
computed are still there to be asked; without it others disturb only if they and we together need more than there is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from ..detection.cpulist import parse_number
from ..detection.procfs import LARGE, Files
from ..detection.records import CpuLimits
from ..governor import sampling
from ..governor.hidden import Look, ThreadTimes, difference
from ..governor.sampling import read_idle
from ..reporting.counters import Throttling, binding_level, read_throttling, throttling_between
from ..reporting.inspecting.children import take_census
from ..reporting.inspecting.tasks import TaskStat

Cause = Literal["neighbours", "steal", "throttled"]

LOST: Final = 0.05  # of what a measurement needed; less is how any machine is
SEEN: Final = 0.5  # of the CPU time: threads that ran less of it say nothing for the rest
GRAIN_S: Final = 0.02  # /proc/stat counts in steps of 10 ms, for each CPU
_NAMED: Final = 0.05  # cores
_DIGITS: Final = 20  # 2**64 has 20 digits


class Window(NamedTuple):
    """What happened during one measurement with ``threads`` threads.

    ``used`` are the cores that we used; ``others`` and ``steal`` those that other processes used of our ``width`` CPUs
    and that the hypervisor took of them; None where that cannot be known. ``waited`` is the share of the time that one
    thread, the one with most, waited for a CPU; None where the threads that computed have ended or the kernel does not
    say. ``busy`` threads were runnable for more than a moment. ``throttling`` is that of the quota in force, and
    ``neighbour`` the process of others that used most.
    """

    wall_s: float
    threads: int
    width: int
    quota: float | None
    used: float = 0.0
    others: float | None = None
    steal: float | None = None
    waited: float | None = None
    busy: int = 0
    throttling: Throttling | None = None
    neighbour: str = ""


class Verdict(NamedTuple):
    """Whether a measurement was disturbed: ``cause`` is None if not, ``judged`` false if nobody can know.

    ``cores`` were taken from it; ``neighbour`` names the process that took most, where it could be seen.
    """

    cause: Cause | None = None
    cores: float = 0.0
    judged: bool = True
    periods: int = 0
    throttled: int = 0
    neighbour: str = ""


def judge(window: Window) -> Verdict:
    """What the counters of a measurement say. Pure.

    A quota that is smaller than the count throttles by its nature, and its stops look like waits. There others disturb
    only if they kept us from using up the quota.
    """
    counted = window.throttling
    periods, throttled = (0, 0) if counted is None else (counted.periods, counted.throttled)
    verdict = Verdict(periods=periods, throttled=throttled)
    needed = min(window.threads, window.width)
    within = window.quota is None or window.threads <= window.quota
    stopped = 0.0 if counted is None else counted.seconds / window.wall_s
    if within and stopped > LOST * needed:
        return verdict._replace(cause="throttled", cores=stopped)
    if window.steal is not None and window.steal > LOST * needed:
        return verdict._replace(cause="steal", cores=window.steal)
    if within and window.waited is not None:
        return _judge_waits(window, verdict, window.waited - stopped)
    if not within and window.quota is not None and window.used >= (1 - LOST) * window.quota:
        return verdict
    return _judge_room(window, verdict, needed)


def _judge_waits(window: Window, verdict: Verdict, waited: float) -> Verdict:
    """Threads also wait for each other, where a library starts more of them than there are CPUs: then nobody took
    anything."""
    if window.others is None:
        if window.busy > window.width:
            return verdict._replace(judged=False)
        lost = waited
    else:
        lost = min(waited, window.others)
    if lost <= LOST:
        return verdict
    cores = lost if window.others is None else window.others
    return verdict._replace(cause="neighbours", cores=cores, neighbour=window.neighbour)


def _judge_room(window: Window, verdict: Verdict, needed: int) -> Verdict:
    """Whether there was room for us and for the others."""
    if window.others is None:
        return verdict._replace(judged=False)
    taken = window.others + needed - window.width
    if taken <= LOST * needed + GRAIN_S / window.wall_s:
        return verdict
    return verdict._replace(cause="neighbours", cores=window.others, neighbour=window.neighbour)


class Meter:
    """Reads the counters around each measurement: ``begin`` before it, ``end`` after it.

    Both take the subject's processes, as far as they are known then.
    """

    def __init__(self, limits: CpuLimits, files: Files | None = None) -> None:
        level = binding_level(limits.levels)
        self._files = Files() if files is None else files
        self._cpus = limits.affinity & limits.cpuset if limits.cpuset else limits.affinity
        self._width = limits.width
        self._quota = limits.quota
        self._group = None if level is None or limits.quota is None else level.path
        self._family: frozenset[int] = frozenset()
        self._census: Mapping[int, TaskStat] = {}
        self._before: Counters | None = None

    def begin(self, pids: Sequence[int]) -> None:
        """A measurement begins. Another child of ours than the last one may compute in it."""
        self._census = take_census()
        self._family = find_family(self._census, os.getpid()).union(pids)
        self._before = self._read([*pids, *self._family.difference(pids, (os.getpid(),))])

    def end(self, pids: Sequence[int], threads: int) -> Verdict:
        """The measurement has ended: how was it?"""
        before, self._before = self._before, None
        if before is None:
            return Verdict(judged=False)
        after = self._read(pids)
        census = take_census()
        family = find_family(census, os.getpid()).union(pids)
        born = sum(read_cpu(pid) for pid in family - self._family)
        after = after._replace(look=after.look._replace(cpu_s=after.look.cpu_s + born))
        window = between(before, after, threads, self._width, self._quota)
        if window is None:
            return Verdict(judged=False)
        known = family | self._family
        return judge(window._replace(neighbour=name_busiest(self._census, census, known, window.wall_s)))

    def _read(self, pids: Sequence[int]) -> Counters:
        look = Look(
            at_s=time.monotonic(),
            cpu_s=time.process_time() + _read_reaped() + sum(read_cpu(pid) for pid in self._family - {os.getpid()}),
            threads=read_threads(self._files, pids),
            idle_s=read_idle(self._files, self._cpus),
            cpus=self._cpus,
            throttling=(),
            leased_s=0.0,
            budget=self._width,
        )
        times = None if look.idle_s is None else read_times(self._files, self._cpus)
        return Counters(look, times, None if self._group is None else read_throttling(self._group))


class CpuTimes(NamedTuple):
    """Seconds that the kernel has counted, and those that the hypervisor ran others while there was work."""

    total_s: float
    steal_s: float


class Counters(NamedTuple):
    """All counters at one moment."""

    look: Look
    times: CpuTimes | None
    throttling: Throttling | None


def between(before: Counters, after: Counters, threads: int, width: int, quota: float | None) -> Window | None:
    """What happened between two readings; None if no time passed. Pure."""
    sample = difference(before.look, after.look)
    if sample is None:
        return None
    wall = sample.wall_s
    steal = others = None
    if sample.idle_s is not None and before.times is not None and after.times is not None:
        passed = after.times.total_s - before.times.total_s
        if passed >= SEEN * width * wall:  # sandboxes have a /proc/stat in which no time passes
            steal = max(0.0, after.times.steal_s - before.times.steal_s) / wall
            others = max(0.0, width - sample.idle_s / wall - steal - sample.cpu_s / wall)
    seen = bool(after.look.threads) and sample.run_s >= SEEN * sample.cpu_s
    return Window(
        wall_s=wall,
        threads=threads,
        width=width,
        quota=quota,
        used=sample.cpu_s / wall,
        others=others,
        steal=steal,
        waited=min(1.0, sample.longest_s / wall) if seen else None,
        busy=sample.threads,
        throttling=throttling_between(before.throttling, after.throttling),
    )


def read_threads(files: Files, pids: Sequence[int]) -> dict[int, ThreadTimes]:
    """The times of all threads of ``pids``; thread numbers are unique among processes."""
    found: dict[int, ThreadTimes] = {}
    for pid in pids:
        found.update(sampling.read_threads(files, f"/proc/{pid}/task"))
    return found


def read_times(files: Files, cpus: frozenset[int]) -> CpuTimes | None:
    """What /proc/stat has counted of ``cpus`` in sum; None where it does not tell of steal."""
    total = steal = 0
    for line in (files.read("/proc/stat", LARGE).text or "").split("\n"):
        if not line.startswith("cpu"):
            break
        fields = line.split()
        if parse_number(fields[0][3:]) in cpus:
            times = [parse_number(field, _DIGITS) for field in fields[1:9]]  # user to steal; what follows is in user
            if len(times) < 8 or None in times:
                return None
            total += sum(time for time in times if time is not None)
            steal += times[7] or 0
    ticks = os.sysconf("SC_CLK_TCK")
    return CpuTimes(total / ticks, steal / ticks)


def read_cpu(pid: int) -> float:
    """CPU seconds of a process, its ended threads included; 0.0 if it is gone.

    The clock of another process counts in nanoseconds, its stat file in steps of 10 ms.
    """
    if sys.platform != "linux":
        return 0.0
    try:
        return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel's ABI
    except OSError:
        return 0.0


def _read_reaped() -> float:
    """CPU seconds of children that have ended and were waited for."""
    if sys.platform == "win32":
        return 0.0
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def find_family(census: Mapping[int, TaskStat], root: int) -> frozenset[int]:
    """``root`` and the processes below it. Pure."""
    families: dict[int, list[int]] = {}
    for pid, stat in census.items():
        families.setdefault(stat.parent, []).append(pid)
    found, waiting = {root}, [root]
    while waiting:
        for pid in families.get(waiting.pop(), ()):
            if pid not in found:  # a number given again between two reads can close a circle
                found.add(pid)
                waiting.append(pid)
    return frozenset(found)


def name_busiest(
    before: Mapping[int, TaskStat], after: Mapping[int, TaskStat], family: frozenset[int], wall_s: float
) -> str:
    """The process outside of ``family`` that used most CPU time between two censuses; "" if none did. Pure."""
    used = {
        pid: stat.ticks - (before[pid].ticks if pid in before and before[pid].start == stat.start else 0)
        for pid, stat in after.items()
        if pid not in family
    }
    pid = max(used, key=lambda pid: used[pid], default=0)
    if not pid or used[pid] / os.sysconf("SC_CLK_TCK") < _NAMED * wall_s:
        return ""
    return f"{after[pid].name} (process {pid})"
