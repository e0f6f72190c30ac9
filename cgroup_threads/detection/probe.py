"""From everything that can be read to one answer: which platform to ask, and which constraint binds."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping

from ..notices import Notice
from . import linux
from .records import EPSILON, BoundBy, CpuLimits, Observation, SchedulerGrant, Topology
from .schedulers import read_grants


def read_limits(
    root: str = "/",
    affinity: int | Collection[int] | None = None,
    environ: Mapping[str, str] | None = None,
    override: float | None = None,
    *,
    pid: str = "self",
    platform: str | None = None,
) -> CpuLimits:
    """Read the limits of process ``pid`` below ``root``; never raises.

    ``affinity`` (a count or CPU numbers, already checked) stands in for the mask, ``environ`` for the process's
    environment, ``platform`` for ``sys.platform``. ``override`` are the cores the user decided.
    """
    environ = os.environ if environ is None else environ
    seen = observe(root, affinity, environ, pid=pid, platform=platform)
    return conclude(seen, environ, override)


def observe(
    root: str,
    affinity: int | Collection[int] | None,
    environ: Mapping[str, str],
    *,
    pid: str = "self",
    platform: str | None = None,
    snapshot: frozenset[int] | None = None,
    known: Observation | None = None,
) -> Observation:
    """Ask the platform; a ``root`` other than ``/`` is always read as a Linux tree. See ``linux.observe``."""
    platform = platform or sys.platform
    if root != "/" or platform.startswith(("linux", "android")):
        return linux.observe(root, affinity, environ, pid=pid, snapshot=snapshot, known=known)
    seen = _observe_elsewhere(platform)
    if affinity is None:
        return seen
    cpus = frozenset(range(affinity) if isinstance(affinity, int) else affinity)
    topology = Topology(physical_cores=min(seen.topology.physical_cores, len(cpus)), mask=cpus)
    return seen._replace(affinity=cpus, affinity_source="argument", topology=topology)


def _observe_elsewhere(platform: str) -> Observation:
    if platform == "darwin":
        from . import macos

        return macos.observe()
    if platform == "win32":
        from . import windows

        return windows.observe()
    try:
        cpus, source = frozenset(os.sched_getaffinity(0)), "sched_getaffinity"
    except (AttributeError, OSError):  # most systems other than Linux have no such call
        cpus, source = frozenset(range(os.cpu_count() or 1)), "os.cpu_count"
    message = f"CPU limits are not read on {platform}: {source} is the answer"
    notice = Notice("platform-limits-unread", message, "info", "set CGROUP_THREADS_CORES if the process is limited")
    topology = Topology(physical_cores=len(cpus), mask=cpus)
    return Observation(cpus, source, max(len(cpus), os.cpu_count() or 1), topology, notices=(notice,))


def conclude(seen: Observation, environ: Mapping[str, str] | None = None, override: float | None = None) -> CpuLimits:
    """Put observation, scheduler variables and override together and name the constraint that binds. Pure."""
    grant, notices = read_grants(environ or {})
    return CpuLimits(
        quota=seen.quota,
        status=seen.status,
        affinity=seen.affinity,
        affinity_source=seen.affinity_source,
        cpuset=seen.cpuset,
        cpuset_directory=seen.cpuset_directory,
        host_cpus=seen.host_cpus,
        physical_cores=max(1, seen.topology.physical_cores),
        bound_by=_find_bound(seen, grant, override),
        topology=seen.topology,
        levels=seen.levels,
        scheduler=grant,
        override=override,
        notices=(*seen.notices, *notices),
        tasks=seen.tasks,
        address_space=seen.address_space,
    )


def _find_bound(seen: Observation, grant: SchedulerGrant | None, override: float | None) -> BoundBy:
    """The tightest constraint. Of equals the plainer fact is named, from the outside in: the machine, its cpuset, the
    mask, the scheduler's word, the quota. A quota of 2 on 2 CPUs takes nothing away, so it does not bind.
    """
    if override is not None:
        return "override"
    amounts: list[tuple[BoundBy, float | None]] = [
        ("host", seen.host_cpus if seen.host_known else None),
        ("cpuset", len(seen.cpuset) if seen.cpuset else None),
        ("affinity", len(seen.affinity)),
        ("scheduler", grant.cores if grant is not None else None),
        ("quota", seen.quota),
    ]
    bound: BoundBy = "affinity"
    least = float("inf")
    for name, amount in amounts:
        if amount is not None and amount < least - EPSILON:
            bound, least = name, amount
    return bound
