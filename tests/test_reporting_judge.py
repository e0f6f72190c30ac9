"""Findings: pure, from made-up evidence."""

from __future__ import annotations

from typing import Any

import pytest

from cgroup_threads.notices import Notice
from cgroup_threads.reporting.counters import Pressure, ThreadGroup, Throttling
from cgroup_threads.reporting.judge import find_problems, pool_kind
from cgroup_threads.reporting.records import VariableState
from cgroup_threads.settings import Settings
from tests.report_samples import make_evidence, make_limits, make_pool


def find(code: str, **changes: Any) -> Notice | None:
    evidence = make_evidence(changes.pop("limits", None), changes.pop("settings", None), **changes)
    found = [notice for notice in find_problems(evidence) if notice.code == code]
    assert len(found) <= 1
    return found[0] if found else None


def test_an_ordinary_process_has_no_findings() -> None:
    pools = (make_pool(threads=2), make_pool("openblas", 2, "process"))
    computed = VariableState("OMP_NUM_THREADS", None, "2", "computed")
    assert find_problems(make_evidence(pools=pools, variables=(computed,), modules=("numpy",))) == ()


def test_a_pool_above_the_usable_cores_is_a_problem() -> None:
    notice = find("pool-oversubscribed", pools=(make_pool(threads=64),))
    assert notice is not None
    assert notice.level == "problem"
    assert "64 threads on 2 usable cores" in notice.message
    assert "limit_threads" in notice.fix


def test_the_fix_names_the_users_variable() -> None:
    state = VariableState("OMP_NUM_THREADS", "64", "64", "user")
    notice = find("pool-oversubscribed", pools=(make_pool(threads=64),), variables=(state,))
    assert notice is not None
    assert notice.fix == "unset OMP_NUM_THREADS or set it to 2"


def test_the_fix_of_a_late_import_is_the_order() -> None:
    state = VariableState("OMP_NUM_THREADS", None, "2", "computed", late=True)
    notice = find("pool-oversubscribed", pools=(make_pool(threads=64),), variables=(state,))
    assert notice is not None
    assert notice.fix.startswith("import cgroup_threads first")


def test_the_fix_with_auto_off() -> None:
    notice = find("pool-oversubscribed", pools=(make_pool(threads=64),), settings=Settings(auto=False))
    assert notice is not None
    assert "CGROUP_THREADS_AUTO" in notice.fix


def test_pools_of_unknown_size_are_not_judged() -> None:
    assert find_problems(make_evidence(pools=(make_pool("rayon", None, "process"),))) == ()


def test_l13_a_library_that_reports_more_than_was_asked() -> None:
    state = VariableState("OPENBLAS_NUM_THREADS", None, "2", "computed")
    limits = make_limits(quota=8.0)
    notice = find("pool-differs", pools=(make_pool("openblas", 8, "process"),), variables=(state,), limits=limits)
    assert notice is not None
    assert notice.message == "OPENBLAS_NUM_THREADS asks for 2 threads, openblas reports 8"


def test_fewer_threads_than_asked_are_fine() -> None:
    state = VariableState("OPENBLAS_NUM_THREADS", None, "8", "computed")
    limits = make_limits(quota=8.0)
    assert find("pool-differs", pools=(make_pool("openblas", 2),), variables=(state,), limits=limits) is None


def test_l12_numpy_without_a_blas_that_can_be_set() -> None:
    assert find("no-controllable-blas", modules=("numpy",)) is not None
    assert find("no-controllable-blas", modules=("numpy",), pools=(make_pool("openblas"),)) is None
    assert find("no-controllable-blas", modules=("torch",)) is None
    unseen = (Notice("pools-unseen", "no /proc", "warning"),)
    assert find("no-controllable-blas", modules=("numpy",), notices=unseen) is None


def test_e23_throttling_over_an_interval() -> None:
    throttling = Throttling("cpu.stat", 100, 78, 2.0)
    limits = make_limits(quota=4.0)
    notice = find("throttled", throttling=throttling, interval=10.0, limits=limits, pools=(make_pool(threads=40),))
    assert notice is not None
    assert notice.level == "problem"
    assert "78 % of periods of the last 10 s" in notice.message
    assert "quota of 4 cores" in notice.message
    assert "40 threads" in notice.message


@pytest.mark.parametrize(
    ("periods", "throttled", "level"),
    [(10, 10, None), (100, 4, None), (100, 10, "warning"), (100, 30, "problem"), (0, 0, None)],
)
def test_how_much_throttling_matters(periods: int, throttled: int, level: str | None) -> None:
    notice = find("throttled", throttling=Throttling("cpu.stat", periods, throttled, 1.0), interval=10.0)
    assert (notice.level if notice else None) == level


def test_throttling_since_the_group_was_made() -> None:
    notice = find("throttled", throttling=Throttling("cpu.stat", 9000, 8000, 90.0), limits=make_limits(quota=1.0))
    assert notice is not None
    assert notice.level == "warning"
    assert notice.message == "the quota of 1 core stopped this group in 89 % of periods since it was made"
    assert "--interval 10" in notice.fix


@pytest.mark.parametrize(
    ("periods", "throttled", "level"),
    [
        (100, 90, "info"),  # it may go on, or be over
        (600, 600, "info"),
        (700, 640, "warning"),
        (9000, 600, "info"),
        (9000, 1100, "warning"),  # 500 of the 8400 that were not the start
        (12000, 1100, "info"),
        (13000, 600, None),
    ],
)
def test_a_heavy_start_is_no_warning_for_ever(periods: int, throttled: int, level: str | None) -> None:
    """Models were loaded and compiled; the group's counters keep that as long as it is there."""
    counters = Throttling("cpu.stat", periods, throttled, throttled / 10)
    notice = find("throttled", throttling=counters)
    assert (notice.level if notice else None) == level
    if level == "info":
        assert notice is not None
        assert "may all be its start" in notice.message
        assert "--interval 10" in notice.fix


def test_a_start_is_no_excuse_over_an_interval() -> None:
    notice = find("throttled", throttling=Throttling("cpu.stat", 100, 90, 9.0), interval=10.0)
    assert notice is not None
    assert notice.level == "problem"


def test_below_one_core_throttling_cannot_be_mended_by_threads() -> None:
    limits = make_limits(quota=0.5)
    notice = find("throttled", throttling=Throttling("cpu.stat", 100, 90, 1.0), interval=10.0, limits=limits)
    assert notice is not None
    assert notice.level == "warning"
    assert "whole core" in notice.fix


def test_without_a_quota_counters_are_not_judged() -> None:
    limits = make_limits(quota=None)
    assert find("throttled", throttling=Throttling("cpu.stat", 100, 90, 1.0), limits=limits) is None


def test_s05_fork_after_an_openmp_pool() -> None:
    pools = (make_pool(threads=2),)
    notice = find("fork-after-openmp", pools=pools, start_method="fork")
    assert notice is not None
    assert notice.level == "warning"
    assert find("fork-after-openmp", pools=pools, start_method="fork", fork_guarded=True) is None
    assert find("fork-after-openmp", pools=pools, start_method="spawn") is None
    assert find("fork-after-openmp", pools=(make_pool(threads=1),), start_method="fork") is None
    assert find("fork-after-openmp", pools=(make_pool("openblas", 2),), start_method="fork") is None


def test_e20_address_space_limit() -> None:
    notice = find("address-space-limited", address_space=4 * 2**30)
    assert notice is not None
    assert "4.0 GiB" in notice.message
    assert find("address-space-limited", address_space=4 * 2**30, limits=make_limits(None, 2, 2)) is None


def test_different_openmp_runtimes() -> None:
    gomp, iomp = make_pool("libgomp"), make_pool("libiomp5")
    notice = find("openmp-runtimes-mixed", pools=(gomp, iomp))
    assert notice is not None
    assert "libgomp, libiomp" in notice.message
    other = make_pool("libgomp", path="/venv/torch/lib/libgomp-1a2b.so.1")
    assert find("openmp-runtimes-mixed", pools=(gomp, other)) is None
    copies = find("openmp-runtimes-duplicate", pools=(gomp, other))
    assert copies is not None
    assert copies.level == "info"
    assert find("openmp-runtimes-duplicate", pools=(gomp, gomp)) is None


def test_o02_another_library_that_counts_differently() -> None:
    notice = find("other-count-differs", other_counts=(("joblib", 64),))
    assert notice is not None
    assert "joblib counts 64 cores, 2 are usable" in notice.message
    assert find("other-count-differs", other_counts=(("joblib", 2),)) is None


def test_more_runnable_threads_than_cores() -> None:
    assert find("threads-runnable", threads=(ThreadGroup("python", 240, 5),)) is not None
    assert find("threads-runnable", threads=(ThreadGroup("python", 240, 4),)) is None


def test_cpu_pressure() -> None:
    assert find("cpu-pressure", pressure=Pressure("/proc/pressure/cpu", 35.0, 10.0)) is not None
    assert find("cpu-pressure", pressure=Pressure("/proc/pressure/cpu", 3.0, 10.0)) is None


def test_a_judge_that_fails_is_a_finding_and_the_others_are_asked() -> None:
    """Evidence comes from libraries: here a pool without a name."""
    nameless = make_pool(threads=64)._replace(name=None)  # type: ignore[arg-type]
    evidence = make_evidence(pools=(nameless,), other_counts=(("joblib", 64),), settings=Settings(auto=False))
    found = find_problems(evidence)
    assert [notice.code for notice in found] == [*["report-incomplete"] * 2, "other-count-differs", "auto-off"]
    message = "could not be judged: AttributeError: 'NoneType' object has no attribute 'lower'"
    assert [notice.message for notice in found[:2]] == [f"pools {message}", f"OpenMP runtimes {message}"]
    assert {notice.level for notice in found[:2]} == {"warning"}


def test_what_a_judge_found_before_it_failed_is_kept() -> None:
    pools = (make_pool(threads=64), make_pool(threads="2"))  # type: ignore[arg-type]
    codes = [notice.code for notice in find_problems(make_evidence(pools=pools))]
    assert codes == ["pool-oversubscribed", *["report-incomplete"] * 2]


def test_the_worst_comes_first_and_twins_come_once() -> None:
    info, warning = Notice("a", "a"), Notice("b", "b", "warning")
    evidence = make_evidence(notices=(info, warning, info, warning), pools=(make_pool(threads=64),))
    assert [notice.code for notice in find_problems(evidence)] == ["pool-oversubscribed", "b", "a"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("libiomp5", "libiomp"), ("libgomp", "libgomp"), ("scipy-openblas", "openblas"), ("cv2", "cv2"), ("x", "x")],
)
def test_pool_kinds(name: str, kind: str) -> None:
    assert pool_kind(name) == kind
