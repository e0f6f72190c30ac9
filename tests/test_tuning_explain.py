"""What is said about a curve: bursts, the knee, a rate that still rises, doubt."""

from __future__ import annotations

from collections.abc import Iterable

from cgroup_threads.notices import Notice
from cgroup_threads.tuning.fit import fit_amdahl, fit_universal
from cgroup_threads.tuning.recommend import explain, recommend
from cgroup_threads.tuning.records import Curve, Point, Task

DECODE = Task("decode", "tokens", "n_threads")
# Tokens a second of a 0.5B model at 1, 2, 4 and 8 threads, bound by memory bandwidth.
MEMORY_WALL = {1: 45.6, 2: 60.8, 4: 66.5, 8: 67.4}


def table(*rates: float) -> tuple[Point, ...]:
    return tuple(Point(count, (rate,) * 3, ()) for count, rate in enumerate(rates, 1))


def make_curve(points: tuple[Point, ...]) -> Curve:
    return Curve(DECODE, points, fit_amdahl(points), fit_universal(points), recommend(points))


def codes(notices: Iterable[Notice]) -> list[str]:
    return [notice.code for notice in notices]


def test_a_burst_that_looked_faster_is_explained() -> None:
    """Quota 1 on 2 CPUs: a short call has two cores until the quota is used up."""
    points = (
        Point(1, (50.0, 49.0, 51.0), (0.020, 0.0204, 0.0196), throttled=0.0),
        Point(2, (48.0, 49.0, 47.0), (0.012, 0.0121, 0.0119), burst=True, throttled=0.93),
    )
    notices = explain(make_curve(points), 1, 1.0)
    assert codes(notices) == ["tune-burst"]
    message = notices[0].message
    assert message.startswith("decode: 2 threads looked faster than 1: a call took 12.0 ms instead of 20.0")
    assert "quota of 1 " in message
    assert "0.96x" in message
    assert "93 % of the periods" in message
    assert notices[0].level == "info"


def test_a_burst_that_was_slower_needs_no_words() -> None:
    points = (Point(1, (50.0,) * 3, (0.02,) * 3, throttled=0.0), Point(2, (30.0,) * 3, (0.03,) * 3, True, 0, 0.9))
    assert explain(make_curve(points), 1, 1.0) == ()


def test_a_burst_without_a_quota_and_without_calls() -> None:
    points = (*table(10.0, 19.0), Point(3, (27.0,) * 3, (), burst=True))
    notice = explain(make_curve(points), 2, None)[0]
    assert notice.code == "tune-burst"
    assert "quota" not in notice.message
    assert "2 usable cores" in notice.message
    assert "1.42x" in notice.message


def test_threads_past_the_knee_are_named() -> None:
    points = tuple(Point(count, (rate,) * 3, ()) for count, rate in MEMORY_WALL.items())
    notices = explain(make_curve(points), 8, None)
    assert codes(notices) == ["tune-past-the-knee"]
    assert notices[0].message == "decode: 8 threads give only 1.48x of one, 4 give 1.46x"


def test_little_gain_is_named_even_where_all_cores_are_recommended() -> None:
    notices = explain(make_curve(table(100.0, 110.0)), 2, None)
    assert codes(notices) == ["tune-past-the-knee", "tune-never-flat"]
    assert "2 threads give only 1.10x of one" in notices[0].message


def test_a_rate_that_still_rises_is_named_with_its_remedy() -> None:
    curve = make_curve(table(10.0, 19.6, 29.0, 38.0))
    (capped,) = explain(curve, 8, None)
    assert capped.code == "tune-never-flat"
    assert "4 threads" in capped.message
    assert capped.fix == "raise max_threads"
    (all_cores,) = explain(curve, 4, None)
    assert "max_threads" not in all_cores.fix


def test_counts_that_cannot_be_told_apart_are_named() -> None:
    points = (
        Point(1, (10.0, 14.0, 9.0, 15.0), ()),
        Point(2, (13.0, 10.0, 14.0, 9.0), ()),
    )
    curve = make_curve(points)
    assert curve.recommendation.confidence < 0.9
    (notice,) = (notice for notice in explain(curve, 2, None) if notice.code == "tune-uncertain")
    assert "1 to 2 threads cannot be told apart" in notice.message
    assert f"choose {curve.recommendation.threads}" in notice.message
    assert notice.fix


def test_equal_rates_are_no_reason_to_warn_and_a_slow_one_is() -> None:
    def level(*rates: float) -> str:
        points = table(*rates)
        found = recommend(points)._replace(confidence=0.4, low=1, high=len(rates))
        curve = Curve(DECODE, points, None, None, found)
        return next(notice.level for notice in explain(curve, len(rates), None) if notice.code == "tune-uncertain")

    assert level(1.0, 1.01, 0.99) == "info"
    assert level(1.0, 1.2, 1.3) == "warning"


def test_nothing_is_said_of_nothing() -> None:
    assert explain(make_curve(()), 1, None) == ()
    assert explain(make_curve((Point(1, (), ()),)), 1, None) == ()
    assert explain(make_curve(table(5.0)), 1, 1.0) == ()
