"""Thread counts from limits and settings."""

from __future__ import annotations

import pytest

from cgroup_threads.detection.records import CpuLimits, Topology
from cgroup_threads.errors import InvalidThreadsError
from cgroup_threads.planning import ThreadPlan, count, decide, share_plan, with_environment
from cgroup_threads.settings import Settings, read_settings


def limits(
    cpus: int, quota: float | None = None, physical: int | None = None, override: float | None = None
) -> CpuLimits:
    """Limits of a machine with ``cpus`` CPUs."""
    cores = cpus if physical is None else physical
    return CpuLimits(
        quota=quota,
        status="unlimited" if quota is None else "limited",
        affinity=frozenset(range(cpus)),
        affinity_source="test",
        cpuset=None,
        host_cpus=cpus,
        physical_cores=cores,
        bound_by="override" if override else "affinity" if quota is None else "quota",
        topology=Topology(cores),
        override=override,
    )


def plan(given: CpuLimits, **environ: str) -> ThreadPlan:
    settings = read_settings({f"CGROUP_THREADS_{name}": value for name, value in environ.items()})
    return with_environment(decide(given, settings), settings)


@pytest.mark.parametrize(
    ("quota", "threads"), [(0.5, 1), (1.0, 1), (1.5, 1), (1.9999999, 2), (7.65, 7), (8.0, 8), (64.0, 16), (None, 16)]
)
def test_threads_are_the_whole_cores_of_the_quota(quota: float | None, threads: int) -> None:
    decided = plan(limits(16, quota))
    assert (decided.threads, decided.usable, decided.interop) == (threads, threads, 1)
    assert decided.environment["OMP_NUM_THREADS"] == str(threads)


def test_physical_cores_cap_the_mask_but_not_a_quota() -> None:
    assert (plan(limits(16, physical=8)).threads, plan(limits(16, physical=8)).bound_by) == (8, "physical cores")
    assert plan(limits(16, physical=8)).usable == 16
    assert plan(limits(16, 6.0, physical=8)).threads == 6
    assert plan(limits(16, physical=8), SMT="1").threads == 16
    assert plan(limits(16, physical=8, override=12), CORES="12").threads == 12


@pytest.mark.parametrize(
    ("usable", "workers", "threads"), [(8, 1, 8), (8, 3, 2), (3, 3, 1), (1, 4, 1), (2, 4, 1), (368, 8, 46)]
)
def test_workers_divide_and_never_reach_zero(usable: int, workers: int, threads: int) -> None:
    by_setting = plan(limits(usable), WORKERS=str(workers))
    by_argument = decide(limits(usable), Settings(), workers=workers)
    assert by_setting.threads == by_argument.threads == threads
    assert by_setting.workers == workers
    assert by_setting.usable == usable
    assert by_setting.environment["RAYON_NUM_THREADS"] == str(max(1, usable // workers))


def test_local_world_size_and_web_concurrency_divide() -> None:
    for name in ("LOCAL_WORLD_SIZE", "WEB_CONCURRENCY"):
        assert decide(limits(368), read_settings({name: "8"})).threads == 46
        assert decide(limits(2), read_settings({name: "4"})).threads == 1
        assert decide(limits(2), read_settings({name: ""})).threads == 2


def test_an_argument_beats_the_setting() -> None:
    assert decide(limits(8), read_settings({"WEB_CONCURRENCY": "4"}), workers=1).threads == 8


def test_concurrency_divides_the_threads_of_a_call_alone() -> None:
    decided = decide(limits(8), Settings(), workers=2, concurrency=3)
    assert (decided.threads, decided.usable, decided.bound_by) == (1, 8, "concurrency")
    assert count(decided, Settings()).cores == 4


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "2"])
def test_counts_that_are_none_are_refused(bad: object) -> None:
    with pytest.raises(InvalidThreadsError):
        decide(limits(8), Settings(), workers=bad)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(InvalidThreadsError):
        decide(limits(8), Settings(), concurrency=bad)  # type: ignore[arg-type]  # the point of the test


def test_children_share_the_part_of_their_parent() -> None:
    decided = decide(limits(16), Settings(), workers=2)
    shared = share_plan(decided, 4)
    assert (shared.threads, shared.workers, shared.usable) == (2, 8, 16)
    assert share_plan(decided, 100).threads == 1
    assert share_plan(decided, 1) == decided


def test_the_environment_of_a_plan_with_a_binding_quota() -> None:
    assert plan(limits(16, 2.0)).environment == {
        **dict.fromkeys(
            [
                "OMP_NUM_THREADS",
                "MKL_NUM_THREADS",
                "OPENBLAS_NUM_THREADS",
                "BLIS_NUM_THREADS",
                "VECLIB_MAXIMUM_THREADS",
                "NUMEXPR_NUM_THREADS",
                "NUMEXPR_MAX_THREADS",
                "NUMBA_NUM_THREADS",
                "OPENCV_FOR_THREADS_NUM",
                "TF_NUM_INTRAOP_THREADS",
                "ORT_INTRA_OP_NUM_THREADS",
                "RAYON_NUM_THREADS",
                "POLARS_MAX_THREADS",
            ],
            "2",
        ),
        "TF_NUM_INTEROP_THREADS": "1",
        "ORT_INTER_OP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "2000",
    }


def test_spinning_is_shortened_only_where_a_quota_binds() -> None:
    assert "GOMP_SPINCOUNT" not in plan(limits(16)).environment
    assert "GOMP_SPINCOUNT" not in plan(limits(2, 4.0)).environment
    assert plan(limits(2, 1.5)).environment["GOMP_SPINCOUNT"] == "2000"


def test_pools_that_cannot_grow_are_sized_for_the_ceiling() -> None:
    environment = plan(limits(16, 2.0), MAX_CORES="8").environment
    grown = {name for name, value in environment.items() if value == "8"}
    assert grown == {"NUMEXPR_MAX_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS"}
    assert environment["NUMEXPR_NUM_THREADS"] == environment["OMP_NUM_THREADS"] == "2"
    shared = plan(limits(16, 4.0), MAX_CORES="8", WORKERS="2").environment
    assert (shared["NUMBA_NUM_THREADS"], shared["OMP_NUM_THREADS"]) == ("4", "2")


def test_the_ceiling_below_the_usable_cores_is_reported() -> None:
    decided = plan(limits(8), MAX_CORES="4")
    assert decided.threads == 8
    assert [notice.code for notice in decided.notices] == ["max-cores-below-usable"]


def test_omp_thread_limit_is_opt_in() -> None:
    assert "OMP_THREAD_LIMIT" not in plan(limits(8, 2.0)).environment
    assert plan(limits(8, 2.0), OMP_LIMIT="1").environment["OMP_THREAD_LIMIT"] == "2"
    assert plan(limits(8, 2.0), OMP_LIMIT="1", MAX_CORES="6").environment["OMP_THREAD_LIMIT"] == "6"
    assert plan(limits(8), OMP_LIMIT="1", WORKERS="4").environment["OMP_THREAD_LIMIT"] == "8"


def test_an_override_above_the_quota_is_reported() -> None:
    decided = plan(limits(8, 2.0, override=4.0))
    assert decided.threads == 4
    assert [notice.code for notice in decided.notices] == ["override-above-quota"]
