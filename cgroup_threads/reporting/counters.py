"""Kernel counters of this process and its cgroup: throttling, CPU pressure, native threads.

Parsers are pure; readers are bounded and answer None (or nothing) where a file cannot be read.
"""

from __future__ import annotations

import os
import re
from typing import Final, Literal, NamedTuple

from ..detection.procfs import Files
from ..detection.records import CgroupLevel

MAX_TASKS: Final = 8192
_NUMBERED: Final = re.compile(r"(?<![\d.])[ \-_#/:]*\d+$")  # "worker-12" is "worker"; "python3.11" stays


class Throttling(NamedTuple):
    """How often a CPU quota stopped the group.

    ``periods`` are quota periods in which the group wanted to run, ``throttled`` those that ended with it stopped,
    ``seconds`` the time its threads stood still, summed over CPUs. ``file`` is the cpu.stat that was read.
    """

    file: str
    periods: int
    throttled: int
    seconds: float

    @property
    def share(self) -> float:
        """Throttled periods over all periods, 0.0 to 1.0."""
        return self.throttled / self.periods if self.periods > 0 else 0.0


class ThreadGroup(NamedTuple):
    """Threads of this process with one name (``comm``, without a trailing number); ``running`` were runnable."""

    name: str
    threads: int
    running: int


class Pressure(NamedTuple):
    """Share of the last 10 and 60 seconds in which some thread waited for a CPU, in per cent (kernel's PSI)."""

    file: str
    avg10: float
    avg60: float


def read_text(path: str) -> str | None:
    """Text of a small file; None if it cannot be read."""
    return Files().read(path).text


def parse_cpu_stat(text: str, file: str) -> Throttling | None:
    """Throttling from a cpu.stat: v1 has ``throttled_time`` in nanoseconds, v2 ``throttled_usec`` in microseconds.

    None where the counters are missing: a group without the cpu controller, or the root group.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        number = number.strip()
        if number.isascii() and number.isdigit() and len(number) <= 20:
            values[name] = int(number)
    if "nr_periods" not in values or "nr_throttled" not in values:
        return None
    nanoseconds = values.get("throttled_time", values.get("throttled_usec", 0) * 1000)
    return Throttling(file, values["nr_periods"], min(values["nr_throttled"], values["nr_periods"]), nanoseconds / 1e9)


def read_throttling(directory: str) -> Throttling | None:
    """Throttling counters of the cgroup at ``directory``."""
    file = f"{directory}/cpu.stat"
    text = read_text(file)
    return None if text is None else parse_cpu_stat(text, file)


def binding_level(levels: tuple[CgroupLevel, ...]) -> CgroupLevel | None:
    """The level that throttles: the smallest quota, the process's own group if none limits.

    The counters of a group tell of its own quota only, so a limiting parent keeps them, and the mount point's file
    may belong to the whole host.
    """
    limiting = [level for level in levels if level.quota is not None]
    if limiting:
        return min(limiting, key=lambda level: level.quota or 0.0)
    return levels[0] if levels else None


def throttling_between(before: Throttling | None, after: Throttling | None) -> Throttling | None:
    """What was counted between two samples of one file; None if either is missing or the file changed."""
    if before is None or after is None or before.file != after.file or after.periods < before.periods:
        return None
    periods = after.periods - before.periods
    throttled = min(max(0, after.throttled - before.throttled), periods)
    return Throttling(after.file, periods, throttled, max(0.0, after.seconds - before.seconds))


def parse_pressure(text: str, file: str) -> Pressure | None:
    """The ``some`` line of a PSI file."""
    for line in text.splitlines():
        if not line.startswith("some "):
            continue
        fields = dict(field.partition("=")[::2] for field in line.split()[1:])
        try:
            return Pressure(file, float(fields["avg10"]), float(fields["avg60"]))
        except (KeyError, ValueError):
            return None
    return None


def read_pressure(level: CgroupLevel | None) -> Pressure | None:
    """CPU pressure of the process's v2 group, else of the whole machine."""
    files = ["/proc/pressure/cpu"]
    if level is not None and level.version == 2:
        files.insert(0, f"{level.path}/cpu.pressure")
    for file in files:
        text = read_text(file)
        pressure = None if text is None else parse_pressure(text, file)
        if pressure is not None:
            return pressure
    return None


def parse_task_stat(text: str) -> tuple[str, Literal["R", ""]] | None:
    """Name and state from /proc/.../stat, whose name field may hold spaces and brackets itself."""
    start, end = text.find("("), text.rfind(")")
    if start < 0 or end < start:
        return None
    state = text[end + 1 :].strip()[:1]
    return text[start + 1 : end], "R" if state == "R" else ""


def group_threads(tasks: list[tuple[str, bool]]) -> tuple[ThreadGroup, ...]:
    """Threads grouped by name, most first. ``AwsEventLoop 1`` and ``AwsEventLoop 2`` are one group."""
    groups: dict[str, list[int]] = {}
    for name, running in tasks:
        stem = _NUMBERED.sub("", name) or name
        entry = groups.setdefault(stem, [0, 0])
        entry[0] += 1
        entry[1] += running
    ordered = sorted(groups.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(ThreadGroup(name, count, running) for name, (count, running) in ordered)


def read_threads(pid: str = "self") -> tuple[ThreadGroup, ...]:
    """The native threads of a process by name; empty where /proc is not there."""
    directory = f"/proc/{pid}/task"
    try:
        identifiers = os.listdir(directory)[:MAX_TASKS]
    except OSError:
        return ()
    tasks: list[tuple[str, bool]] = []
    for identifier in identifiers:
        text = read_text(f"{directory}/{identifier}/stat")
        parsed = None if text is None else parse_task_stat(text)
        if parsed is not None:
            tasks.append((parsed[0], parsed[1] == "R"))
    return group_threads(tasks)


def count_threads(pid: int) -> int:
    """Native threads of a process, 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
