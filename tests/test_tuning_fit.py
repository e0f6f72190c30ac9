"""Scalability laws: known curves with noise, the nearest fit by another solver, and input that is no curve."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.tuning.counts import sweep_counts
from cgroup_threads.tuning.fit import fit_amdahl, fit_universal, usable_levels
from cgroup_threads.tuning.records import Fit, Point

COUNTS = sweep_counts(64, 64)
SHARES = (0.0, 0.1, 0.5, 0.9)
SEEDS = range(50)
FITS = (fit_amdahl, fit_universal)
# Tokens a second of a 0.5B model at 1, 2, 4 and 8 threads, bound by memory bandwidth.
MEMORY_WALL = {1: 45.6, 2: 60.8, 4: 66.5, 8: 67.4}


def law(serial: float, crosstalk: float = 0.0, rate: float = 7.0) -> Callable[[int], float]:
    return Fit("universal", rate, serial, crosstalk, math.inf, None, 1.0).predict


def measure(
    curve: Callable[[int], float], noise: float, seed: int, counts: Iterable[int] = COUNTS, rounds: int = 5
) -> list[Point]:
    """Points of ``curve`` with multiplicative noise."""
    rng = random.Random(seed)
    return [
        Point(count, tuple(curve(count) * math.exp(rng.gauss(0.0, noise)) for _ in range(rounds)), ())
        for count in counts
    ]


def exact(curve: Callable[[int], float], counts: Iterable[int] = COUNTS) -> list[Point]:
    return [Point(count, (curve(count),), ()) for count in counts]


@pytest.mark.parametrize("noise", [0.03, 0.04, 0.05])
@pytest.mark.parametrize("share", SHARES)
def test_the_serial_share_is_found_within_five_points(share: float, noise: float) -> None:
    errors = []
    for seed in SEEDS:
        fit = fit_amdahl(measure(law(share), noise, seed))
        assert fit is not None
        errors.append(abs(fit.serial - share))
    assert max(errors) < 0.05


@pytest.mark.parametrize("share", SHARES)
def test_without_noise_the_law_itself_comes_back(share: float) -> None:
    for fitter in FITS:
        fit = fitter(exact(law(share)))
        assert fit is not None
        assert fit.rate == pytest.approx(7.0)
        assert fit.serial == pytest.approx(share, abs=1e-9)
        assert fit.crosstalk == 0.0
        assert fit.peak is None
        assert fit.limit == (pytest.approx(7.0 / share) if share else math.inf)
        assert fit.r_squared == pytest.approx(1.0)


def test_the_peak_of_a_curve_that_gets_slower_past_twelve_threads_is_found() -> None:
    curve = law(0.05, 0.95 / 144)
    assert max(COUNTS, key=curve) == 12
    for seed in SEEDS:
        fit = fit_universal(measure(curve, 0.04, seed))
        assert fit is not None
        assert fit.peak is not None
        assert 9.0 < fit.peak < 16.0
        assert fit.limit == pytest.approx(fit.predict(fit.peak))
        assert fit.limit >= max(fit.predict(count) for count in COUNTS)
        assert fit.limit == pytest.approx(curve(12), rel=0.05)
        assert fit.r_squared > 0.9


@given(st.floats(0, 1), st.floats(0, 0.5), st.floats(1e-6, 1e6))
def test_any_universal_law_comes_back(serial: float, crosstalk: float, rate: float) -> None:
    curve = law(serial, crosstalk, rate)
    fit = fit_universal(exact(curve))
    assert fit is not None
    for count in COUNTS:
        assert fit.predict(count) == pytest.approx(curve(count), rel=1e-6)


def test_a_curve_that_only_falls_has_its_peak_at_one_thread() -> None:
    points = exact(lambda count: 10.0 / count)
    amdahl = fit_amdahl(points)
    universal = fit_universal(points)
    assert amdahl is not None
    assert universal is not None
    assert amdahl.serial == 1.0  # the bound: nothing is gained
    assert amdahl.limit == amdahl.rate
    assert universal.peak == pytest.approx(1.0, abs=1e-6)
    assert universal.r_squared == pytest.approx(1.0)
    assert universal.limit == pytest.approx(10.0)


def test_a_flat_curve_is_all_serial_and_fits() -> None:
    for fitter in FITS:
        fit = fitter(exact(lambda count: 3.0))
        assert fit is not None
        assert fit.serial == pytest.approx(1.0)
        assert fit.r_squared == pytest.approx(1.0)
        assert fit.limit == pytest.approx(3.0)


def test_the_memory_wall_is_fitted() -> None:
    fit = fit_universal(exact(MEMORY_WALL.__getitem__, MEMORY_WALL))
    assert fit is not None
    for count, rate in MEMORY_WALL.items():
        assert fit.predict(count) == pytest.approx(rate, rel=0.03)
    assert fit.limit == pytest.approx(67.4, rel=0.05)


def test_burst_counts_and_useless_rates_are_left_out() -> None:
    points = exact(law(0.3), range(1, 9))
    extra = [
        Point(9, (0.01, 0.01), (), burst=True),
        Point(10, (), ()),
        Point(11, (0.0, -1.0, math.nan, math.inf, -math.inf), ()),
        Point(0, (5.0,), ()),
        Point(-3, (5.0,), ()),
        Point(10**400, (5.0,), ()),
    ]
    for fitter in FITS:
        assert fitter(points + extra) == fitter(points)


def test_too_few_counts_give_no_fit() -> None:
    one, two, three = exact(law(0.5), (1,)), exact(law(0.5), (1, 2)), exact(law(0.5), (1, 2, 3))
    assert [fit_amdahl(points) is None for points in ([], one, two, three)] == [True, True, False, False]
    assert [fit_universal(points) is None for points in ([], one, two, three)] == [True, True, True, False]
    assert fit_amdahl(one * 3) is None


def test_two_counts_give_the_serial_share_of_their_ratio() -> None:
    """1.92 times as fast with two threads: 2 / (1 + share) = 1.92."""
    fit = fit_amdahl([Point(1, (10.0,), ()), Point(2, (19.2,), ())])
    assert fit is not None
    assert fit.serial == pytest.approx(2 / 1.92 - 1)
    assert fit.r_squared == pytest.approx(1.0)


@pytest.mark.parametrize("fitter", FITS)
def test_a_few_disturbed_rounds_hardly_matter(fitter: Callable[[Iterable[Point]], Fit | None]) -> None:
    calm = measure(law(0.2), 0.02, seed=1)
    rng = random.Random(2)
    shaken = [point._replace(rates=(*point.rates[:4], point.rates[4] * rng.uniform(0.2, 0.5))) for point in calm]
    before, after = fitter(calm), fitter(shaken)
    assert before is not None
    assert after is not None
    assert after.serial == pytest.approx(before.serial, abs=0.02)
    assert after.rate == pytest.approx(before.rate, rel=0.05)


@given(st.integers(0, 10_000), st.floats(1e-9, 1e9))
def test_the_unit_of_the_rate_changes_nothing_else(seed: int, factor: float) -> None:
    points = measure(law(0.2, 0.01), 0.05, seed)
    scaled = [point._replace(rates=tuple(rate * factor for rate in point.rates)) for point in points]
    for fitter in FITS:
        before, after = fitter(points), fitter(scaled)
        assert before is not None
        assert after is not None
        assert after.serial == pytest.approx(before.serial, abs=1e-6)
        assert after.crosstalk == pytest.approx(before.crosstalk, abs=1e-6)
        assert after.r_squared == pytest.approx(before.r_squared, abs=1e-6)
        assert after.rate == pytest.approx(before.rate * factor)


RATES = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.5, 2.0)
POINTS = st.lists(
    st.builds(
        Point,
        st.integers(-2, 70) | st.integers(),
        st.lists(RATES, max_size=4).map(tuple),
        st.just(()),
        st.booleans(),
    ),
    max_size=12,
)


@given(POINTS)
def test_nothing_raises_and_what_comes_is_a_law(points: list[Point]) -> None:
    amdahl, universal = fit_amdahl(points), fit_universal(points)
    for fit in (amdahl, universal):
        if fit is None:
            continue
        assert 0.0 < fit.rate < math.inf
        assert 0.0 <= fit.serial <= 1.0
        assert 0.0 <= fit.crosstalk < math.inf
        assert 0.0 <= fit.r_squared <= 1.0
        assert fit.limit > 0.0
        assert fit.peak is None or fit.peak >= 1.0
    if amdahl is not None:
        assert amdahl.crosstalk == 0.0
        assert amdahl.peak is None
    if amdahl is not None and universal is not None:
        assert universal.r_squared >= amdahl.r_squared - 1e-9  # one parameter more


@pytest.mark.parametrize("curve", [law(0.0), law(0.1), law(0.9), law(0.05, 0.0066), law(0.0, 0.3), lambda n: 5.0 / n])
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_agrees_with_scipy(curve: Callable[[int], float], seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    numpy = pytest.importorskip("numpy")
    points = measure(curve, 0.05, seed)
    levels = usable_levels(points)
    threads = numpy.array([level.threads for level in levels], float)
    rates = numpy.exp([level.log_rate for level in levels])
    rounds = numpy.array([level.rounds for level in levels], float)

    def errors(parameters: list[float]) -> object:
        one, serial, *crosstalk = parameters
        share = 1 + serial * (threads - 1) + sum(crosstalk) * threads * (threads - 1)
        return numpy.sqrt(rounds) * (rates / (one * threads / share) - 1)

    for fitter, bounds in ((fit_amdahl, [math.inf, 1.0]), (fit_universal, [math.inf, 1.0, math.inf])):
        fit = fitter(points)
        assert fit is not None
        start = [rates[0], 0.5, 0.01][: len(bounds)]
        found = optimize.least_squares(errors, start, bounds=(0, bounds), xtol=1e-14, ftol=1e-14, gtol=1e-14)
        ours = [fit.rate, fit.serial, fit.crosstalk][: len(bounds)]
        least = float(numpy.sum(numpy.square(errors(ours)))) / 2
        assert least <= found.cost * (1 + 1e-6)
        assert fit.rate == pytest.approx(found.x[0], rel=1e-3)
        assert fit.serial == pytest.approx(found.x[1], abs=1e-3)
        assert fit.crosstalk == pytest.approx(found.x[2] if len(found.x) > 2 else 0.0, abs=1e-3)
