"""Stops of a moment: as many busy threads as a quota has cores, on a host with more CPUs, are no problem."""

from __future__ import annotations

import pytest

from cgroup_threads.detection.records import CgroupLevel
from cgroup_threads.detection.throttling import Throttling, is_brief
from cgroup_threads.reporting.inspecting.verdict import judge
from cgroup_threads.reporting.since import Interval
from tests.report_samples import make_limits
from tests.test_inspect_verdicts import limits, sample, threads
from tests.test_reporting_judge import find

V2 = CgroupLevel(2, "/g", "/g/cpu.max", "800000 100000", 8.0)
V1 = CgroupLevel(1, "/g", "/g/cpu.cfs_quota_us", "800000 100000", 8.0)
# As counted in a guest with 64 CPUs over 9.4 s: eight threads, and 64.
EIGHT = Throttling("/g/cpu.stat", 94, 26, 0.235633)
SIXTY_FOUR = Throttling("/g/cpu.stat", 39, 39, 202.661407)


@pytest.mark.parametrize("level", [V1, V2])
def test_a_stop_counts_from_a_fiftieth_of_what_a_period_allows(level: CgroupLevel) -> None:
    assert is_brief(EIGHT, (level,))
    assert not is_brief(SIXTY_FOUR, (level,))
    assert is_brief(Throttling("/g/cpu.stat", 20, 10, 0.159), (level,))
    assert not is_brief(Throttling("/g/cpu.stat", 20, 10, 0.161), (level,))


def test_what_a_period_allows_must_be_known() -> None:
    assert not is_brief(EIGHT, ())
    assert not is_brief(EIGHT, (V2._replace(path="/other"),))
    for raw in (None, "", "max 100000", "-1", "0 100000", "junk"):
        assert not is_brief(EIGHT, (V2._replace(raw=raw),))
    assert not is_brief(Throttling("/g/cpu.stat", 20, 0, 0.0), (V2,))


def test_the_verdict_on_a_process() -> None:
    quota = limits(64, 8.0, levels=(V2,))
    assert judge(sample(threads(8), limits=quota, throttling=EIGHT)).code == "healthy"
    assert judge(sample(threads(8), limits=quota, throttling=EIGHT._replace(seconds=20.0))).code == "throttled"


def test_the_verdict_on_a_crowd() -> None:
    """Stops of a moment do not make a slight oversubscription a problem, nor explain what other processes take."""
    quota = limits(64, 8.0, levels=(V2,))
    long = EIGHT._replace(seconds=20.0)
    crowd = sample(threads(13), limits=quota)
    assert [judge(crowd._replace(throttling=of)).level for of in (None, EIGHT, long)] == [
        "warning",
        "warning",
        "problem",
    ]
    assert "throttled" not in judge(crowd._replace(throttling=EIGHT)).message
    assert "throttled in 28 % of periods" in judge(crowd._replace(throttling=long)).message
    starved = sample(threads(8, cpu=0.1), limits=quota)
    assert judge(starved._replace(throttling=EIGHT)).notes == judge(starved).notes != ()
    assert judge(starved._replace(throttling=long)).notes == ()


def test_the_report() -> None:
    quota = make_limits(quota=8.0)._replace(levels=(V2,))
    assert find("throttled", throttling=EIGHT, interval=10.0, limits=quota) is None
    assert find("throttled", throttling=EIGHT._replace(seconds=20.0), interval=10.0, limits=quota) is not None


def test_the_report_since_an_earlier_one() -> None:
    found = Interval(9.4, "1:2", 8.0, EIGHT, None, (V2,))
    assert not found.problem
    assert found._replace(throttling=EIGHT._replace(seconds=20.0)).problem
