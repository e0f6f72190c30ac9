"""One process under watch: its threads' counters from the first look to the last, and the sample they make."""

from __future__ import annotations

import os
import time
from typing import Final

from ...detection.affinity import find_binding
from ...detection.cpulist import parse_cpulist
from ...detection.throttling import Throttling, read_throttling, throttling_between
from ...settings import read_settings
from ...variables import VARIABLES
from ..counters import binding_level
from .access import GONE, LARGE, MEDIUM, Stacks, read_bytes
from .limits import GUESSES, read_limits_of
from .owners import find_libraries, find_owner
from .records import Child, Sample, Thread
from .tasks import TaskStat, TaskStatus, parse_environ, parse_maps, parse_stat, parse_status, printable

MAX_THREADS: Final = 4096  # followed of one process
_MAX_DETAILS: Final = 512  # threads whose place of sleep is read
_MAX_STACKS: Final = 96  # threads whose stack is read in one look
_MAX_TRIES: Final = 4  # looks at the stack of one thread
_MAX_ENVIRON: Final = 1 << 20
_SPREAD: Final = 2654435761  # Knuth's multiplier: a fixed choice of threads, spread over their numbers
_NAMES: Final = (
    *(variable.name for variable in VARIABLES),
    "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "OMP_WAIT_POLICY",
    "OMP_DYNAMIC", "MKL_DYNAMIC", "CGROUP_THREADS_CORES", "CGROUP_THREADS_ROUNDING", "CGROUP_THREADS_AUTO",
    "WEB_CONCURRENCY",
)  # fmt: skip  # a list


class _Followed:
    """The counters of one thread, at its first look and at its latest."""

    __slots__ = ("base", "looks", "owner", "runnable", "stat", "ticks", "tries")

    def __init__(self, stat: TaskStat, ticks: int, base: tuple[int, int]) -> None:
        self.stat = stat
        self.ticks = ticks
        self.base = base
        self.looks = self.runnable = self.tries = 0
        self.owner: str | None = None


def find_living_task(pid: int) -> int:
    """The first thread of a process, or another if that has ended: its files show nothing of the process then."""
    try:
        tids = [pid, *(int(name) for name in os.listdir(f"/proc/{pid}/task") if name.isdigit())]
    except OSError:  # it has ended
        return pid
    for tid in tids:
        stat = parse_stat(read_bytes(f"/proc/{pid}/task/{tid}/stat").data)
        if stat is not None and stat.state not in "ZX":
            return tid
    return pid


class Target:
    """A process under watch. ``look`` is called again and again, ``finish`` once."""

    def __init__(self, pid: int, stat: TaskStat) -> None:
        self.pid = pid
        self.stat = stat
        self._task = find_living_task(pid)
        self._unread: dict[str, str] = {}
        self.environ = parse_environ(self._read("environ", "its variables", _MAX_ENVIRON))
        code, stacks, paths = parse_maps(self._read("maps", "its libraries", LARGE))
        self._libraries = find_libraries(paths)
        self._stacks = Stacks(pid, self._task, code, stacks)
        self._threads: dict[int, _Followed] = {}
        self._alive: list[int] = []
        self._total = self._looks = 0
        self._chosen = False
        self._runnable = 0.0
        self._began = self._ended = 0.0
        self._began_tick = 0
        self._first = self._last = stat
        self._before: Throttling | None = None
        level = binding_level(read_limits_of(pid, stat.parent, self.environ, (), self._task).levels)
        self._directory = level.path if level is not None else ""

    def _read(self, name: str, what: str, limit: int) -> bytes:
        content = read_bytes(f"/proc/{self.pid}/task/{self._task}/{name}", limit)
        if content.problem and content.problem != GONE:
            self._unread[what] = f"{what} (/proc/{self.pid}/{name}: {content.problem})"
        return content.data

    def look(self, last: bool = False) -> None:
        """Read the state of every thread once."""
        try:
            tids = [int(name) for name in os.listdir(f"/proc/{self.pid}/task") if name.isdigit()]
        except OSError:  # it has ended
            return
        self._total = len(tids)
        step = -(-len(tids) // MAX_THREADS)
        if step > 1:
            tids = [tid for tid in tids if tid == self.pid or (tid * _SPREAD >> 12) % step == 0]
        first = not self._looks
        stacks = _MAX_DETAILS if last else _MAX_STACKS
        runnable = details = 0
        alive: list[int] = []
        for tid in tids:
            stat = parse_stat(read_bytes(f"/proc/{self.pid}/task/{tid}/stat").data)
            if stat is None or stat.state in "ZX":
                continue
            alive.append(tid)
            thread = self._follow(tid, stat, first)
            thread.looks += 1
            if stat.state == "R":
                runnable += 1
                thread.runnable += 1
            elif thread.owner is None and thread.tries < _MAX_TRIES and details < stacks and tid != self.pid:
                details += 1
                thread.tries += 1
                thread.owner = self._stacks.owner_of(tid)
        self._stacks.close()
        self._chosen = step > 1
        if not self._chosen:
            self._total = len(alive)  # a first thread that has ended stays until the process ends
        now = parse_stat(read_bytes(f"/proc/{self.pid}/stat").data)
        if now is not None:
            self._last = now
        self._ended = time.monotonic()
        if first:
            self._began, self._first = self._ended, self._last
            self._began_tick = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
            self._before = read_throttling(self._directory) if self._directory else None
        self._looks += 1
        self._runnable += self._scale(runnable, len(alive)) if self._chosen else runnable
        self._alive = alive

    def _scale(self, runnable: int, followed: int) -> float:
        """Runnable threads of all, from a choice: the first thread is always in it and stands for itself alone."""
        main = self._threads.get(self.pid)
        own = int(main is not None and main.stat.state == "R")
        return own + (runnable - own) * (self._total - 1) / max(1, followed - 1)

    def _follow(self, tid: int, stat: TaskStat, first: bool) -> _Followed:
        known = self._threads.get(tid)
        if known is not None and known.stat.start == stat.start:
            known.stat = stat
            return known
        if first or stat.start < self._began_tick:
            status = self._status(tid)
            thread = _Followed(stat, stat.ticks, (status.voluntary or 0, status.involuntary or 0))
        else:  # younger than the interval: all it has done was done in it
            thread = _Followed(stat, 0, (0, 0))
        self._threads[tid] = thread
        return thread

    def _status(self, tid: int) -> TaskStatus:
        return parse_status(read_bytes(f"/proc/{self.pid}/task/{tid}/status", MEDIUM).data)

    def finish(self, children: tuple[Child, ...] = ()) -> Sample:
        """What was seen, after the last look; ``children`` are busy processes below it."""
        seconds = max(self._ended - self._began, 1e-3)
        tick = os.sysconf("SC_CLK_TCK") * seconds
        masks: dict[str, frozenset[int] | None] = {}
        threads = []
        for at, tid in enumerate(self._alive):
            followed, status = self._threads[tid], self._status(tid)
            if status.cpus is not None and status.cpus not in masks:
                masks[status.cpus] = parse_cpulist(status.cpus)
            wchan = read_bytes(f"/proc/{self.pid}/task/{tid}/wchan").data if at < _MAX_DETAILS else b""
            name = followed.stat.name
            threads.append(
                Thread(
                    tid,
                    name,
                    find_owner(tid, self.pid, name, self.stat.name, followed.owner),
                    cpu=(followed.stat.ticks - followed.ticks) / tick,
                    runnable=followed.runnable / followed.looks,
                    voluntary=max(0, (status.voluntary or followed.base[0]) - followed.base[0]) / seconds,
                    involuntary=max(0, (status.involuntary or followed.base[1]) - followed.base[1]) / seconds,
                    affinity=masks.get(status.cpus or ""),
                    wchan="" if wchan == b"0" else printable(wchan),
                )
            )
        if self._stacks.problem and self._stacks.problem != GONE:
            self._unread["stacks"] = f"its stacks, so owners are told from names alone ({self._stacks.problem})"
        if self._chosen and len(threads) < self._total:
            self._unread["threads"] = f"{self._total - len(threads)} of {self._total} threads (a choice is followed)"
        if self._alive and self._task not in self._alive:
            self._task = self._alive[0]
        known = [mask for mask in masks.values() if mask]
        limits = read_limits_of(self.pid, self._last.parent, self.environ, known, self._task)
        if limits.status == "unknown":
            why = next((n.message for n in limits.notices if n.code.startswith("cgroup")), "no reason known")
            self._unread["quota"] = f"its quota ({printable(why.encode('utf-8', 'backslashreplace'))})"
        command = read_bytes(f"/proc/{self.pid}/task/{self._task}/cmdline").data.rstrip(b"\0").replace(b"\0", b" ")
        return Sample(
            pid=self.pid,
            name=self._last.name,
            command=printable(command) or self._last.name,
            state=self._last.state,
            limits=limits,
            seconds=seconds,
            looks=self._looks,
            cpu=max(0, self._last.ticks - self._first.ticks) / tick,
            runnable=self._runnable / max(1, self._looks),
            total=self._total,
            threads=tuple(threads),
            variables=tuple((name, self.environ[name]) for name in _NAMES if name in self.environ),
            libraries=self._libraries,
            binding=find_binding(self.environ),
            rounding=read_settings(self.environ).rounding,
            guessed=limits.affinity_source if limits.affinity_source in GUESSES else "",
            throttling=throttling_between(self._before, read_throttling(self._directory) if self._directory else None),
            group=self._directory,
            children=children,
            unread=tuple(self._unread.values()),
        )
