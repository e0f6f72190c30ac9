"""What another process may use: its cgroups, its affinity, and the mask it had before an OpenMP runtime narrowed it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

from ...detection.affinity import find_binding
from ...detection.probe import conclude, observe
from ...detection.records import CpuLimits, Observation
from ...settings import parse_cores

PARENT: Final = "its parent"
CPUSET: Final = "its cpuset"
ONLINE: Final = "online CPUs"
GUESSES: Final = (PARENT, CPUSET, ONLINE)  # sources of a mask that tell what it may have been


def read_limits_of(
    pid: int, parent: int, environ: Mapping[str, str], masks: Collection[frozenset[int]], task: int | None = None
) -> CpuLimits:
    """The limits of process ``pid``, whose threads have ``masks``; ``task`` is one that lives. Never raises.

    The setting CGROUP_THREADS_CORES counts as the process was started with it, in ``environ``; ours does not.

    The kernel writes /proc/PID/cgroup for its reader: the paths are those of our cgroup namespace, and go with our own
    mounts. A group outside of what we see starts with ``/..`` or is covered by no mount: then the status is "unknown".
    """
    task = pid if task is None else task
    seen = observe("/", None, environ, pid=str(task))
    seen = seen._replace(
        notices=tuple(
            notice._replace(message=notice.message.replace("/proc/self/cgroup", f"/proc/{pid}/cgroup"))
            for notice in seen.notices
        )
    )
    return conclude(_widen(seen, parent, environ, masks), environ, parse_cores(environ.get("CGROUP_THREADS_CORES", "")))


def _widen(
    seen: Observation, parent: int, environ: Mapping[str, str], masks: Collection[frozenset[int]]
) -> Observation:
    """The mask of the process: all CPUs its threads may use; with a binding variable what it was started with."""
    union = frozenset().union(seen.affinity, *masks)
    if seen.topology.online:
        union = (union & seen.topology.online) or seen.affinity
    source = seen.affinity_source if union == seen.affinity else "its threads"
    if find_binding(environ) is not None:
        # The variable narrows threads, never the process. Its parent may still have the mask it was started with.
        outer = seen.cpuset or seen.topology.online
        inherited = _mask_of(parent)
        if inherited > union:
            union, source = inherited & (outer or inherited) | union, PARENT
        elif outer and outer > union:
            union, source = outer, CPUSET if seen.cpuset else ONLINE
    return seen._replace(affinity=union, affinity_source=source)


def _mask_of(pid: int) -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(pid)) if pid > 0 else frozenset()
    except OSError:
        return frozenset()
