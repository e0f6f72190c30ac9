"""Who gets how many cores: the rule alone."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.governor.arbitration import DURATIONS_PER_TAU, grant, share, smooth, smooth_duration

BUDGETS = st.integers(1, 256)
CALLS = st.integers(1, 1000)
TOPS = st.integers(1, 1 << 20)
MEANS = st.floats(0, 10_000)


@given(BUDGETS, CALLS, MEANS, TOPS)
def test_a_share_is_at_least_one_core_and_at_most_the_budget_and_the_top(
    budget: int, calls: int, mean: float, top: int
) -> None:
    assert 1 <= share(budget, calls, mean, top) <= min(budget, top)


@given(BUDGETS, CALLS, MEANS, TOPS)
def test_the_mean_is_trusted_between_half_and_twice_the_present_number(
    budget: int, calls: int, mean: float, top: int
) -> None:
    got = share(budget, calls, mean, top)
    assert share(budget, 1, calls * 2 + 1, top) <= share(budget, 1, 0.0, top)
    most = share(budget, max(1, math.ceil(calls / 2)), max(1, math.ceil(calls / 2)), top)
    least = share(budget, calls * 2, calls * 2, top)
    assert least <= got <= max(most, share(budget, max(1, calls // 2), max(1, calls // 2), top))


@given(st.integers(1, 256), st.integers(-256, 256), st.integers(0, 256), st.booleans())
def test_a_grant_is_never_more_than_is_free_or_wanted(want: int, free: int, running: int, half: bool) -> None:
    got = grant(want, free, running, wait_for_half=half)
    assert 0 <= got <= max(0, min(want, free))
    if free >= want or (free >= 1 and (not running or not half)):
        assert got == min(want, free)


def test_a_call_waits_for_half_of_its_share_while_others_run() -> None:
    assert grant(8, 3, 1) == 0
    assert grant(8, 4, 1) == 4
    assert grant(8, 3, 0) == 3
    assert grant(8, 3, 1, wait_for_half=False) == 3


def test_the_fraction_of_a_quota_runs_one_thread() -> None:
    """Of 3 cores under a quota of 2.5, the last is for a call of one thread, the first or the third."""
    assert grant(2, 3, 0, extra=1) == 2
    assert grant(1, 1, 1, extra=1) == 1
    assert grant(2, 1, 1, extra=1) == 1  # half of its share
    assert grant(4, 1, 1, extra=1) == 0
    assert grant(4, 1, 0, extra=1) == 1
    assert grant(1, 0, 1, extra=1) == 0


def test_two_back_to_back_callers_do_not_form_a_convoy() -> None:
    """The caller that has just left is counted for some time: the other one does not take all cores."""
    assert share(64, 1, 2.0, 64) == 32


def test_a_lone_caller_has_all_cores_again_after_some_durations() -> None:
    mean, duration = 8.0, 0.01
    for _ in range(200):
        mean = smooth(mean, 1, duration, duration)
    assert share(64, 1, mean, 64) == 64


def test_the_mean_is_weighted_by_time() -> None:
    tau = DURATIONS_PER_TAU * 0.5
    assert smooth(4.0, 10, tau, 0.5) == 10 + (4.0 - 10) * math.exp(-1)
    assert smooth(4.0, 10, 0.0, 0.5) == 4.0
    assert smooth(4.0, 10, 1.0, 0.0) == 10.0, "no call has ended yet: the present number is all there is"


def test_the_mean_duration() -> None:
    assert smooth_duration(0.0, 2.0) == 2.0
    assert 1.0 < smooth_duration(1.0, 2.0) < 1.2
