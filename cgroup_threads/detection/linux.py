"""What a Linux kernel says, read from files below a root: this machine's, or a tree laid out like one."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ..notices import Notice
from .affinity import SYSCALL, Affinity, read_affinity
from .cgroup import CgroupLimits, read_cgroups
from .cpulist import parse_cpulist
from .procfs import MEDIUM, Files, parse_status_cpus
from .records import Observation
from .topology import ONLINE, judge_topology, read_list, read_topology


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
        notices=(*groups.notices, *mask.notices, *notices, *judge_topology(topology, mask.cpus)),
    )


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
