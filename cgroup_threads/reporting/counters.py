"""Kernel counters of this process and its cgroup: throttling, CPU pressure, native threads.

Parsers are pure; readers are bounded and answer None (or nothing) where a file cannot be read.
"""

from __future__ import annotations

import os
import re
from typing import Final, Literal, NamedTuple

from ..detection.records import CgroupLevel
from ..detection.throttling import (
    Pressure,
    Throttling,
    parse_cpu_stat,
    parse_pressure,
    read_pressure,
    read_text,
    read_throttling,
    throttling_between,
)

__all__ = [
    "MAX_TASKS",
    "Pressure",
    "ThreadGroup",
    "Throttling",
    "binding_level",
    "count_threads",
    "group_threads",
    "parse_cpu_stat",
    "parse_pressure",
    "parse_task_stat",
    "read_pressure",
    "read_text",
    "read_threads",
    "read_throttling",
    "throttling_between",
]

MAX_TASKS: Final = 8192
_NUMBERED: Final = re.compile(r"(?<![\d.])[ \-_#/:]*\d+$")  # "worker-12" is "worker"; "python3.11" stays


class ThreadGroup(NamedTuple):
    """Threads of this process with one name (``comm``, without a trailing number); ``running`` were runnable."""

    name: str
    threads: int
    running: int


def binding_level(levels: tuple[CgroupLevel, ...]) -> CgroupLevel | None:
    """The level that throttles: the smallest quota, the process's own group if none limits.

    The counters of a group tell of its own quota only, so a limiting parent keeps them, and the mount point's file
    may belong to the whole host.
    """
    limiting = [level for level in levels if level.quota is not None]
    if limiting:
        return min(limiting, key=lambda level: level.quota or 0.0)
    return levels[0] if levels else None


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
