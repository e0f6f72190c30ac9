"""Evidence for the report's tests, with only what a test is about changed."""

from __future__ import annotations

from typing import Any

from cgroup_threads.detection.records import CgroupLevel, CpuLimits, Topology
from cgroup_threads.planning import decide
from cgroup_threads.pools.records import PoolState, Scope
from cgroup_threads.reporting.records import Evidence
from cgroup_threads.settings import Settings

POD = "/sys/fs/cgroup/kubepods.slice/pod1.slice"


def make_level(quota: float | None = 2.5, path: str = POD) -> CgroupLevel:
    raw = "max 100000" if quota is None else f"{int(quota * 100000)} 100000"
    return CgroupLevel(2, path, f"{path}/cpu.max", raw, quota)


def make_limits(quota: float | None = 2.5, cpus: int = 16, host: int = 64, **changes: Any) -> CpuLimits:
    levels = (make_level(quota), make_level(None, "/sys/fs/cgroup/kubepods.slice"))
    limits = CpuLimits(
        quota=quota,
        status="unlimited" if quota is None else "limited",
        affinity=frozenset(range(cpus)),
        affinity_source="sched_getaffinity",
        cpuset=None,
        host_cpus=host,
        physical_cores=max(1, cpus // 2),
        bound_by="affinity" if quota is None else "quota",
        topology=Topology(max(1, cpus // 2)),
        levels=levels,
    )
    return limits._replace(**changes)


def make_evidence(limits: CpuLimits | None = None, settings: Settings | None = None, **changes: Any) -> Evidence:
    limits = make_limits() if limits is None else limits
    settings = Settings() if settings is None else settings
    evidence = Evidence(
        version="0.1.0", pid=7, python="3.11.7", limits=limits, plan=decide(limits, settings), settings=settings
    )
    return evidence._replace(**changes)


def make_pool(name: str = "libgomp", threads: int | None = 2, scope: Scope = "thread", **changes: Any) -> PoolState:
    pool = PoolState(name, f"/usr/lib/{name}.so.1", "1.0", scope, threads, "")
    return pool._replace(**changes)
