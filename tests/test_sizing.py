"""How large the core budget is and who shares it: pure, from limits as they may be found."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from cgroup_threads.detection.records import BoundBy, CgroupLevel, CpuLimits, Topology
from cgroup_threads.governor.sizing import process_size, shared_size, size
from cgroup_threads.settings import Scope, Settings, read_settings

HOST = 64


def limits(
    quota: float | None, cpus: Collection[int], bound: BoundBy, cpuset: Collection[int] | None = None, job: str = "a"
) -> CpuLimits:
    """cgroup v1: one group of the cpu controller for all, a cpuset for each job."""
    return CpuLimits(
        quota=quota,
        status="unlimited" if quota is None else "limited",
        affinity=frozenset(cpus),
        affinity_source="test",
        cpuset=None if cpuset is None else frozenset(cpuset),
        host_cpus=HOST,
        physical_cores=HOST,
        bound_by=bound,
        topology=Topology(HOST),
        levels=(CgroupLevel(1, "/cpu/jobs", "/cpu/jobs/cpu.cfs_quota_us", None, quota),),
        cpuset_directory=None if cpuset is None else f"/cpuset/{job}",
    )


def settings(workers: int | None = None, scope: Scope = "auto") -> Settings:
    return read_settings({})._replace(workers=workers, scope=scope)


@pytest.mark.parametrize(
    ("quota", "cores", "extra"),
    [
        (1.0, 1, 0),
        (1.1, 1, 0),
        (1.2, 1, 1),
        (1.5, 1, 1),
        (2.0, 2, 0),
        (2.3, 2, 0),
        (2.4, 2, 1),
        (4.8, 4, 1),
        (0.5, 1, 0),
    ],
)
def test_a_quotas_fraction_counts_from_a_fifth_of_its_whole_cores_on(quota: float, cores: int, extra: int) -> None:
    found = size(limits(quota, range(HOST), "quota"), settings())
    assert (found.cores, found.extra) == (cores, extra)


def test_workers_that_divide_the_cores_do_not_multiply_the_fraction() -> None:
    found = process_size(limits(1.5, range(HOST), "quota"), settings(workers=4))
    assert (found.cores, found.extra) == (1, 0)


def test_jobs_with_a_cpuset_each_under_one_quota_have_their_own_slots() -> None:
    first = size(limits(16.0, range(HOST), "cpuset", (0, 1), "a"), settings())
    second = size(limits(16.0, range(HOST), "cpuset", (2, 3), "b"), settings())
    assert (first.scope, first.cores, first.directory) == ("container", 2, "/cpuset/a")
    assert second.directory == "/cpuset/b"


def test_a_quota_below_the_cpuset_is_what_is_shared() -> None:
    found = size(limits(2.0, range(HOST), "quota", range(4)), settings())
    assert (found.cores, found.directory) == (2, "/cpu/jobs")


def test_of_equal_quotas_the_outer_one_is_shared() -> None:
    """Siblings with two cores each below a group of two cores in all."""
    own = limits(2.0, range(HOST), "quota")
    outer = own.levels[0]._replace(path="/cpu")
    found = size(own._replace(levels=(*own.levels, outer)), settings())
    assert found.directory == "/cpu"
    narrower = own.levels[0]._replace(quota=1.0)
    assert size(own._replace(quota=1.0, levels=(narrower, outer)), settings()).directory == "/cpu/jobs"


def test_workers_pinned_apart_share_nothing() -> None:
    assert size(limits(16.0, (0, 1), "affinity"), settings()).scope == "process"


def test_a_pinned_worker_meets_the_others_where_it_is_told_to_share() -> None:
    wide = size(limits(None, range(4), "cpuset", range(4)), settings(scope="container"))
    narrow = size(limits(None, range(2), "affinity", range(4)), settings(scope="container"))
    assert wide.directory == narrow.directory == "/cpuset/a"
    assert (wide.cores, narrow.cores) == (4, 2)


def test_what_is_shared_is_not_divided() -> None:
    assert shared_size(limits(None, range(8), "affinity"), settings(workers=4)).cores == 8
