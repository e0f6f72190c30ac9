"""What a Linux kernel says, read from files below a root: this machine's, or a tree laid out like one."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from ..notices import Notice
from .affinity import SYSCALL, Affinity, read_affinity
from .cgroup import CgroupLimits, read_cgroups, read_pids
from .cpulist import parse_cpulist
from .procfs import MEDIUM, Files, parse_all_tasks, parse_soft_limit, parse_status_cpus
from .records import Observation
from .topology import ONLINE, judge_topology, read_list, read_topology

if TYPE_CHECKING:
    from .tasks import AddressSpace, TaskLimit

NEED: Final = 16
"""Tasks for each CPU: a limit with more room than that is of no concern. Workers divide threads, not this number."""
MANY_TASKS: Final = 1 << 15
"""No user has so many."""


def observe(
    root: str,
    affinity: int | Collection[int] | None,
    environ: Mapping[str, str],
    *,
    pid: str = "self",
    snapshot: frozenset[int] | None = None,
    known: Observation | None = None,
) -> Observation:
    """Read everything below ``root``; never raises.

    ``affinity`` stands in for the mask; ``snapshot`` is the mask of this process at import. ``known`` is an earlier
    look at the same root. Its placement holds while the two files behind it are the same; its topology while the mask
    and the online CPUs are, since offlining is the only way cores change.
    """
    files = Files(root)
    notices: list[Notice] = []
    groups = read_cgroups(files, pid, known.placement if known is not None else None)
    online = read_list(files, ONLINE, notices)
    if affinity is not None:
        mask = Affinity(_as_mask(affinity, groups.cpuset, online), "argument")
    else:
        mask = _read_mask(files, environ, pid, snapshot, groups, online)
    if known is not None and online and known.topology.online == online and known.topology.mask == mask.cpus:
        topology = known.topology
    else:
        topology = read_topology(files, mask.cpus, online, notices)
    tasks, space = _read_task_limits(files, environ, pid, groups, len(mask.cpus), known)
    host = len(online)
    host_known = host > 0
    if not host_known and affinity is None and mask.source == SYSCALL:
        host, host_known = os.cpu_count() or len(mask.cpus), True
    return Observation(
        affinity=mask.cpus,
        affinity_source=mask.source,
        host_cpus=host or max(len(mask.cpus), len(groups.cpuset or ())),
        topology=topology,
        host_known=host_known,
        quota=groups.quota,
        status=groups.status,
        cpuset=groups.cpuset,
        cpuset_directory=groups.cpuset_directory,
        levels=groups.levels,
        placement=groups.placement,
        tasks=tasks,
        address_space=space,
        notices=(*groups.notices, *mask.notices, *notices, *judge_topology(topology, mask.cpus)),
    )


def _read_task_limits(
    files: Files,
    environ: Mapping[str, str],
    pid: str,
    groups: CgroupLimits,
    width: int,
    known: Observation | None,
) -> tuple[tuple[TaskLimit, ...], AddressSpace | None]:
    """Limits on threads that are near; most processes have none, and need not load what judges them."""
    processes, space, stack = _read_resource_limits(files, pid, first=known is None)
    if processes is not None and not _may_bind(files, processes, width):
        processes = None
    pids = read_pids(files, groups.placement.pids, NEED * width)
    if not pids and processes is None and space is None:
        return (), None
    from .tasks import make_address_space, read_task_limits

    tasks: tuple[TaskLimit, ...] = ()
    if pids or processes is not None:
        tasks = read_task_limits(files, pid, pids, processes, () if known is None else known.tasks)
    if space is None:
        return tasks, None
    return tasks, make_address_space(space, stack, environ.get("OMP_STACKSIZE", ""))


def _read_resource_limits(files: Files, pid: str, *, first: bool) -> tuple[int | None, int | None, int | None]:
    """Soft limits on processes, address space and stack, None where there is none.

    The kernel tells a process its own ones ten times as fast as it writes the file. The ``first`` look reads that all
    the same, because importing the package need not load a module for it.
    """
    if sys.platform != "win32" and pid == "self" and not first and not files.locate(""):
        try:
            import resource
        except (ImportError, OSError):  # OSError: no descriptor is free to look for it
            pass
        else:
            kinds = (resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_STACK)
            soft = [resource.getrlimit(kind)[0] for kind in kinds]
            processes, space, stack = (None if limit == resource.RLIM_INFINITY else limit for limit in soft)
            return processes, space, stack
    text = files.read(f"/proc/{pid}/limits", MEDIUM).text or ""
    return (
        parse_soft_limit(text, "Max processes"),
        parse_soft_limit(text, "Max address space"),
        parse_soft_limit(text, "Max stack size"),
    )


def _may_bind(files: Files, processes: int, width: int) -> bool:
    """Whether RLIMIT_NPROC could be reached if all tasks of the machine were this user's: that is read in no time."""
    if processes >= MANY_TASKS:
        return False
    tasks = parse_all_tasks(files.read("/proc/loadavg").text or "")
    return tasks is None or processes < tasks + NEED * width


def _as_mask(affinity: int | Collection[int], cpuset: frozenset[int] | None, online: frozenset[int]) -> frozenset[int]:
    """An affinity given by the caller as CPUs, or as a count: then CPUs of the cpuset, or online ones, if enough."""
    if not isinstance(affinity, int):
        return frozenset(affinity)
    for cpus in (cpuset, online):
        if cpus and len(cpus) >= affinity:
            return frozenset(sorted(cpus)[:affinity])
    return frozenset(range(affinity))


def _read_mask(
    files: Files,
    environ: Mapping[str, str],
    pid: str,
    snapshot: frozenset[int] | None,
    groups: CgroupLimits,
    online: frozenset[int],
) -> Affinity:
    """The mask of the process, from the nearest source that tells: kernel, status file, online list, cpuset."""
    real = not files.locate("")
    if real:
        mask = _ask_kernel(pid, environ, snapshot, groups.cpuset)
        if mask is not None:
            return mask
    allowed = parse_cpulist(parse_status_cpus(files.read(f"/proc/{pid}/status", MEDIUM).text or "") or "")
    if allowed:
        # The list may name CPUs that are only possible. lxcfs numbers the online CPUs anew: no intersection there.
        both = allowed & online
        cpus = both if both and not groups.placement.lxcfs else allowed
        return Affinity(cpus, f"/proc/{pid}/status")
    if online:
        return Affinity(online, ONLINE)
    if groups.cpuset:
        return Affinity(groups.cpuset, "cpuset")
    mask = None if real else _ask_kernel("self", environ, snapshot, None)
    return mask or Affinity(frozenset(range(os.cpu_count() or 1)), "os.cpu_count")


def _ask_kernel(
    pid: str, environ: Mapping[str, str], snapshot: frozenset[int] | None, cpuset: frozenset[int] | None
) -> Affinity | None:
    if pid == "self":
        return read_affinity(snapshot, environ, cpuset)
    try:
        return Affinity(frozenset(os.sched_getaffinity(int(pid))), SYSCALL)
    except (AttributeError, OSError, ValueError):  # no such call, process or number
        return None
