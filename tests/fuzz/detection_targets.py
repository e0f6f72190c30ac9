"""Targets: CPU lists, cgroup trees through the whole detection, the tables of /proc, batch schedulers' variables."""

from __future__ import annotations

import math
import os
from functools import partial

from cgroup_threads.detection.cgroup import parse_cfs, parse_cpu_max
from cgroup_threads.detection.cpulist import MAX_CPUS, format_cpulist, parse_cpulist, parse_mask
from cgroup_threads.detection.linux import observe
from cgroup_threads.detection.placement import place_groups
from cgroup_threads.detection.probe import conclude
from cgroup_threads.detection.procfs import (
    Reading,
    parse_all_tasks,
    parse_membership,
    parse_mounts,
    parse_soft_limit,
    unescape,
)
from cgroup_threads.detection.records import CpuLimits
from cgroup_threads.detection.schedulers import read_grants
from cgroup_threads.detection.tasks import parse_owner, parse_stack_size
from cgroup_threads.detection.throttling import parse_cpu_stat, parse_pressure
from cgroup_threads.planning import decide
from cgroup_threads.settings import MAX_COUNT, Settings

from .checks import SEPARATOR, check_notices, environ_of, pieces, scratch, steady, text_of

_MAX_FILES = 32


def check_cpulist(data: bytes) -> None:
    text = text_of(data)
    for parse in (parse_cpulist, parse_mask):
        cpus = steady(partial(parse, text))
        if cpus is not None:
            assert all(type(cpu) is int and 0 <= cpu < MAX_CPUS for cpu in cpus)
            assert parse_cpulist(format_cpulist(cpus)) == cpus


def lay(root: str, data: bytes) -> None:
    """Write a tree: each piece is a path, a newline and the content. Paths that cannot be are left out."""
    for record in data.split(SEPARATOR)[:_MAX_FILES]:
        name, _, content = record.partition(b"\n")
        parts = [part for part in name.split(b"/") if part not in (b"", b".", b"..")]
        path = os.path.join(os.fsencode(root), *parts)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        except (OSError, ValueError):  # a name too long or with a NUL, or a directory in its place
            continue


def check_tree(data: bytes) -> None:
    with scratch() as root:
        lay(root, data)
        seen = steady(lambda: observe(root, None, {}))
        limits = conclude(seen, {})
        check_limits(limits)
        again = conclude(observe(root, None, {}, known=seen), {})
        for field in ("quota", "status", "affinity", "cpuset", "physical_cores", "tasks", "levels"):
            assert getattr(again, field) == getattr(limits, field), f"{field} changed at the second look"


def check_limits(limits: CpuLimits) -> None:
    assert limits.status in ("limited", "unlimited", "unknown")
    assert (limits.quota is not None) == (limits.status == "limited")
    assert limits.quota is None or 0 < limits.quota < math.inf
    assert limits.affinity
    for cpus in (limits.affinity, limits.cpuset or (), limits.topology.online, limits.topology.performance_cpus):
        assert all(0 <= cpu < MAX_CPUS for cpu in cpus)
    assert limits.bound_by in ("host", "cpuset", "affinity", "scheduler", "quota", "override")
    assert 1 <= limits.physical_cores <= len(limits.affinity)
    assert 1 <= limits.usable("floor") <= limits.usable("ceil") <= MAX_CPUS
    assert limits.quota is None or limits.usable("ceil") < limits.quota + 1.1
    assert all(limit.allowance >= 0 and limit.limit >= 0 for limit in limits.tasks)
    check_notices(limits.notices)
    plan = decide(limits, Settings())
    assert 1 <= plan.threads <= plan.usable == limits.usable()
    check_notices(plan.notices)


def check_proc_tables(data: bytes) -> None:
    parts = [text_of(piece) for piece in pieces(data, 6)]
    groups, mounts, limits, status, counters, numbers = parts
    members = steady(lambda: parse_membership(groups))
    assert all(path.startswith("/") for path in members.controllers.values())
    for mount in steady(lambda: parse_mounts(mounts)):
        assert mount.version in (1, 2)
        assert mount.root.startswith("/")
        assert mount.point.startswith("/")
    placement = steady(lambda: place_groups(Reading(groups), Reading(mounts)))
    check_notices(placement.notices)
    for place in (placement.cpu, placement.cpuset, placement.pids):
        if place is not None:
            check_notices(place.notices)
            assert all(".." not in chain.directories[0].split("/") or ".." in mounts for chain in place.chains)
    for name in ("Max processes", "Max address space", "Max stack size"):
        limit = parse_soft_limit(limits, name)
        assert limit is None or 0 <= limit < 10**20
    owner = parse_owner(status)
    assert owner is None or (owner.uid >= 0 and owner.capabilities >= 0 and owner.threads >= 1)
    throttling = steady(lambda: parse_cpu_stat(counters, "file"))
    assert throttling is None or (0.0 <= throttling.share <= 1.0 and 0.0 <= throttling.seconds < math.inf)
    pressure = steady(lambda: parse_pressure(counters, "file"))
    assert pressure is None or (0.0 <= pressure.avg10 < math.inf and 0.0 <= pressure.avg60 < math.inf)
    tasks = parse_all_tasks(numbers)
    assert tasks is None or tasks >= 0
    stack = parse_stack_size(numbers)
    assert stack is None or stack >= 0
    first, _, second = numbers.partition("\n")
    for cores in (parse_cpu_max(numbers), parse_cfs(first, second), parse_cfs(first, None)):
        assert cores is None or cores > 0
    assert len(unescape(mounts)) <= len(mounts)


def check_schedulers(data: bytes) -> None:
    environ = environ_of(data)
    grant, notices = steady(lambda: read_grants(environ))
    check_notices(notices)
    if grant is not None:
        assert 0 < grant.cores <= MAX_COUNT
        assert environ[grant.variable] == grant.raw
