"""Recommendations: the exhaustive answer without noise, the true one under noise, and how sure it is."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cgroup_threads.tuning.counts import sweep_counts
from cgroup_threads.tuning.fit import fit_amdahl, fit_universal
from cgroup_threads.tuning.recommend import explain, needs_more, recommend
from cgroup_threads.tuning.records import Curve, Fit, Point, Task

COUNTS = sweep_counts(64, 64)
# Tokens a second of a 0.5B model at 1, 2, 4 and 8 threads, bound by memory bandwidth.
MEMORY_WALL = {1: 45.6, 2: 60.8, 4: 66.5, 8: 67.4}


def law(serial: float, crosstalk: float = 0.0) -> Callable[[int], float]:
    return Fit("universal", 7.0, serial, crosstalk, math.inf, None, 1.0).predict


def measure(
    curve: Callable[[int], float], noise: float, seed: int, counts: Iterable[int] = COUNTS, rounds: int = 5
) -> tuple[Point, ...]:
    """Points of ``curve`` with multiplicative noise."""
    rng = random.Random(seed)
    return tuple(
        Point(count, tuple(curve(count) * math.exp(rng.gauss(0.0, noise)) for _ in range(rounds)), ())
        for count in counts
    )


def table(*rates: float, rounds: int = 3) -> tuple[Point, ...]:
    return tuple(Point(count, (rate,) * rounds, ()) for count, rate in enumerate(rates, 1))


# What is recommended


def test_the_knee_at_the_memory_wall_is_four_threads() -> None:
    found = recommend(Point(count, (rate,) * 3, ()) for count, rate in MEMORY_WALL.items())
    assert found.threads == found.low == found.high == 4
    assert found.best == 8
    assert found.within == pytest.approx(66.5 / 67.4)
    assert found.confidence == 1.0


@given(st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=20), st.integers(1, 6))
def test_without_noise_the_answer_is_the_exhaustive_one(rates: list[float], rounds: int) -> None:
    found = recommend(table(*rates, rounds=rounds), draws=20)
    assert found.threads == next(
        count for count, rate in enumerate(rates, 1) if rate >= 0.97 * max(rates) * (1 - 1e-12)
    )
    assert rates[found.best - 1] == max(rates)
    assert found.within == pytest.approx(rates[found.threads - 1] / max(rates))
    assert found.confidence == (1.0 if rounds > 1 or len(rates) == 1 else 0.0)


def test_the_tolerance_can_be_chosen() -> None:
    points = table(80.0, 91.0, 96.0, 100.0)
    assert [recommend(points, tolerance=share, draws=20).threads for share in (0.0, 0.03, 0.05, 0.1, 0.3)] == [
        4,
        4,
        3,
        2,
        1,
    ]


@pytest.mark.parametrize("noise", [0.02, 0.05])
@pytest.mark.parametrize(
    ("curve", "best"),
    [
        pytest.param(law(0.05, 0.95 / 144), 12, id="slower past 12"),
        pytest.param(law(0.1), 64, id="10 % serial"),
        pytest.param(law(0.5), 64, id="50 % serial"),
        pytest.param(law(0.9), 64, id="90 % serial"),
        pytest.param(law(0.0), 64, id="ideal"),
        pytest.param(lambda count: min(count, 6.5), 7, id="wall at 6.5"),
    ],
)
def test_the_recommended_count_is_within_three_percent_of_the_true_best(
    curve: Callable[[int], float], best: int, noise: float
) -> None:
    """Rounds are added as long as they would help, up to 15."""
    assert max(COUNTS, key=curve) == best
    seeds = 30
    good = 0
    for seed in range(seeds):
        points = measure(curve, noise, seed, rounds=15)
        for rounds in range(3, 16):
            kept = [point._replace(rates=point.rates[:rounds]) for point in points]
            if not needs_more(kept, draws=100):
                break
        good += curve(recommend(kept, draws=100).threads) >= 0.97 * curve(best)
    assert good >= 0.9 * seeds


def test_past_a_wall_few_threads_are_wasted() -> None:
    """The first of many equal counts is meant, not the one whose noise made it the highest."""
    points = [measure(lambda count: min(count, 6.5), 0.03, seed, rounds=10) for seed in range(30)]
    chosen = sorted(recommend(rounds, draws=100).threads for rounds in points)
    best = sorted(max(rounds, key=lambda point: point.median).threads for rounds in points)
    assert chosen[15] <= 8
    assert chosen[-1] <= 16
    assert best[15] > 12


@pytest.mark.parametrize(("gain", "threads"), [(1.92, 2), (1.1, 2), (1.0, 1), (0.5, 1)])
def test_two_counts_are_told_apart(gain: float, threads: int) -> None:
    for seed in range(20):
        points = measure(lambda count: gain if count == 2 else 1.0, 0.01, seed, (1, 2))
        assert recommend(points, draws=50).threads == threads


@given(
    st.lists(
        st.builds(
            Point,
            st.integers(1, 70),
            st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.5, 2.0), max_size=5).map(tuple),
            st.just(()),
            st.booleans(),
        ),
        max_size=10,
        unique_by=lambda point: point.threads,
    )
)
@example([Point(1, (5e-324, 5e-324), ()), Point(2, (5e-324, 1e308, 1e308, 5e-324), ())])
@example([Point(1, (1e308, 1.7e308), ()), Point(2, (1.7e308, 1.7e308), ())])
def test_whatever_was_measured_a_usable_count_is_recommended(points: list[Point]) -> None:
    found = recommend(points, draws=20)
    usable = {point.threads for point in points if not point.burst}
    assert {found.threads, found.low, found.high, found.best} <= (usable or {1}) | {1}
    assert found.low <= found.threads <= found.high
    assert 0.0 <= found.confidence <= 1.0
    assert 0.0 <= found.within <= 1.0
    assert isinstance(needs_more(points, draws=20), bool)
    curve = Curve(Task("call", "calls"), tuple(points), fit_amdahl(points), fit_universal(points), found)
    for notice in explain(curve, 8, 8.0):
        assert "\n" not in notice.message


@given(st.integers(0, 1000), st.floats(0.01, 0.1), st.randoms())
def test_the_order_of_counts_and_the_burst_do_not_matter(seed: int, noise: float, shuffler: random.Random) -> None:
    points = list(measure(law(0.2, 0.01), noise, seed, range(1, 9)))
    expected = recommend(points, draws=20)
    points += [Point(9, (1e9,) * 5, (), burst=True), Point(10, (), (), burst=True)]
    shuffler.shuffle(points)
    assert recommend(points, draws=20) == expected


# How sure it is


def test_nothing_measured_is_one_thread_without_confidence() -> None:
    for points in ((), (Point(4, (), ()),), (Point(3, (5.0,), (), burst=True),)):
        found = recommend(points)
        assert found.threads == 1
        assert found.confidence == 0.0


def test_one_round_says_nothing_of_its_spread() -> None:
    found = recommend(table(1.0, 1.9, 2.7, rounds=1))
    assert found.threads == 3
    assert found.confidence == 0.0
    assert (found.low, found.high) == (1, 3)
    assert needs_more(table(1.0, 1.9, 2.7, rounds=2))
    assert not needs_more(table(1.0, 1.9, 2.7, rounds=3))


def test_a_single_count_is_certain() -> None:
    assert recommend(table(1.0, rounds=1)).confidence == 1.0
    assert not needs_more([Point(1, (1.0,), ()), Point(2, (), (), burst=True)])


def test_a_count_without_rounds_needs_some() -> None:
    assert needs_more((*table(1.0, 1.9), Point(3, (), ())))


def test_rounds_help_while_counts_cannot_be_told_apart() -> None:
    points = measure(lambda count: 1.08 if count == 2 else 1.0, 0.1, 2, (1, 2), rounds=400)
    few = [point._replace(rates=point.rates[:4]) for point in points]
    unsure, sure = recommend(few), recommend(points, draws=500)
    assert unsure.confidence < 0.9
    assert (unsure.low, unsure.high) == (1, 2)
    assert needs_more(few)
    assert (sure.threads, sure.low, sure.high) == (2, 2, 2)
    assert sure.confidence > 0.95
    assert not needs_more(points)


def test_the_confidence_asked_for_counts() -> None:
    points = measure(lambda count: 1.08 if count == 2 else 1.0, 0.1, 2, (1, 2), rounds=400)
    few = [point._replace(rates=point.rates[:4]) for point in points]
    assert needs_more(few, 1.0)
    assert not needs_more(few, 0.1)


def test_noise_makes_it_cautious() -> None:
    """A count that is 2 % slower by its median is not within 3 % for sure while medians are that noisy."""
    calm = (Point(1, (0.979, 0.98, 0.981), ()), Point(2, (0.999, 1.0, 1.001), ()))
    noisy = (Point(1, (0.93, 0.98, 1.03), ()), Point(2, (1.05, 1.0, 0.95), ()))
    assert recommend(calm).threads == 1
    assert recommend(noisy).threads == 2


def test_what_disturbs_a_whole_round_does_not_count() -> None:
    """Rounds run side by side: twice as slow for all counts says nothing about one of them."""
    shared = (1.0, 0.5, 0.8, 1.2, 0.6)
    points = tuple(
        Point(count, tuple(rate * factor for factor in shared), ()) for count, rate in enumerate((1.0, 1.9, 2.0), 1)
    )
    found = recommend(points)
    assert (found.threads, found.confidence) == (3, 1.0)
    assert not needs_more(points)
    apart = (*points[:2], points[2]._replace(rates=points[2].rates[1:]))  # a round is missing: no pairs any more
    assert recommend(apart).confidence < 1.0
    assert needs_more(apart)


def test_the_seed_decides_the_resamples() -> None:
    points = measure(law(0.3), 0.05, 1, range(1, 9))
    assert recommend(points, seed=1) == recommend(points, seed=1)
    assert {recommend(points, seed=seed, draws=100).threads for seed in range(5)} <= set(range(1, 9))


def test_whether_more_rounds_help_is_quickly_said() -> None:
    points = measure(law(0.1), 0.03, 1, range(1, 21), rounds=10)
    spent = []
    for _ in range(5):
        start = time.thread_time()
        needs_more(points)
        spent.append(time.thread_time() - start)
    assert min(spent) < 0.1  # a sweep asks after each round, which takes seconds
