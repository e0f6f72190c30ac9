"""The processes that a process has started: their CPU time, from two looks at all of /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from .access import read_bytes
from .records import Child
from .tasks import TaskStat, parse_stat

MAX_PROCESSES: Final = 1 << 14  # of one look
_IDLE: Final = 0.05  # cores: less is a child that sleeps
_DEAD: Final = "ZX"


def take_census() -> dict[int, TaskStat]:
    """The processes there are, by number."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    found = {}
    for pid in [int(name) for name in names if name.isascii() and name.isdigit()][:MAX_PROCESSES]:
        stat = parse_stat(read_bytes(f"/proc/{pid}/stat").data)
        if stat is not None and not stat.kernel:
            found[pid] = stat
    return found


def busy_children(
    pid: int, before: Mapping[int, TaskStat], after: Mapping[int, TaskStat], ticks: float
) -> tuple[Child, ...]:
    """Children of ``pid``, and theirs, that used a CPU between two censuses ``ticks`` apart, busiest first. Pure.

    Those that have ended meanwhile are missing: it is a lower bound.
    """
    families: dict[int, list[int]] = {}
    for number, stat in after.items():
        families.setdefault(stat.parent, []).append(number)
    found, seen, waiting = [], {pid}, [pid]
    while waiting:
        for number in families.get(waiting.pop(), ()):
            if number in seen:  # a number given again between two reads can close a circle
                continue
            seen.add(number)
            waiting.append(number)
            stat, old = after[number], before.get(number)
            used = stat.ticks - (old.ticks if old is not None and old.start == stat.start else 0)
            if stat.state not in _DEAD and used >= _IDLE * ticks:
                found.append(Child(number, stat.name, used / ticks))
    return tuple(sorted(found, key=lambda child: (-child.cpu, child.pid)))
