"""Scalability laws fitted to a measured curve, in closed form.

Both laws are linear in threads / rate, the seconds that one thread spends on a unit:

    threads / rate(threads) = parallel + serial * threads + crosstalk * threads * (threads - 1)

with all three at least 0; parallel + serial is the time of one thread alone, so that the serial *share* cannot leave 0
to 1. What is made least is the sum of the squares of measured rate / predicted rate - 1, each round counting once: the
noise of a rate grows with the rate.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final, Literal, NamedTuple

from .records import Fit, Point

Law = Literal["amdahl", "universal"]

OUTLIER_SPREADS: Final = 2.0
"""Rounds farther than so many typical deviations from the median of their count are drawn in to there."""
WIDEST: Final = 100.0
"""Natural logarithm of the greatest ratio between two rates that still is a curve."""
MOST_LOG: Final = 700.0
"""The exponential of little more than this is no float."""
MOST_THREADS: Final = 1 << 20
"""No machine has more; counts above it are left out."""
NOTHING: Final = 1e-9
"""A term that is a smaller part of the whole is rounding, not contention."""


class Level(NamedTuple):
    """Where a count's rounds lie: natural logarithm of the rate, without outliers, and the number of rounds."""

    threads: int
    log_rate: float
    rounds: int


def fit_amdahl(points: Iterable[Point]) -> Fit | None:
    """Amdahl's law fitted to the rounds of ``points``; None below two counts that can be used.

    Counts marked as burst are left out, since a quota is no serial share, and so are rates that are no positive number.
    Through two counts the law passes exactly wherever it can: a goodness of 1 says nothing then.
    """
    levels = usable_levels(points)
    return _fit(levels, universal=False) if len({level.threads for level in levels}) >= 2 else None


def fit_universal(points: Iterable[Point]) -> Fit | None:
    """The universal scalability law fitted to the rounds of ``points``; None below three counts that can be used."""
    levels = usable_levels(points)
    return _fit(levels, universal=True) if len({level.threads for level in levels}) >= 3 else None


def usable_levels(points: Iterable[Point]) -> list[Level]:
    """The level of each count up to the usable cores that has a rate.

    The mean of a few rounds is steadier than their median, but one disturbed round moves it: rounds far from their
    count's median are drawn in. How far is far is learnt from all counts together, relative to their rates.
    """
    logs = {}
    for point in points:
        if not point.burst and 1 <= point.threads <= MOST_THREADS:
            rates = [math.log(rate) for rate in point.rates if 0.0 < rate < math.inf]
            if rates:
                logs[point.threads] = (statistics.median(rates), rates)
    deviations = [abs(rate - middle) for middle, rates in logs.values() for rate in rates]
    far = OUTLIER_SPREADS * 1.4826 * statistics.median(deviations) if deviations else 0.0  # 1.4826: of a normal law

    def level(threads: int, middle: float, rates: Sequence[float]) -> Level:
        drawn_in = [max(-far, min(far, rate - middle)) for rate in rates]
        return Level(threads, middle + math.fsum(drawn_in) / len(rates), len(rates))

    return [level(threads, *logs[threads]) for threads in sorted(logs)]


def _fit(levels: Sequence[Level], *, universal: bool) -> Fit | None:
    """The law that comes nearest to ``levels``; None where no rate of one thread follows."""
    # Around 1, whatever the unit: so nothing overflows.
    middle = statistics.fmean(level.log_rate for level in levels)
    if max(abs(level.log_rate - middle) for level in levels) > WIDEST:
        return None
    rates = [math.exp(level.log_rate - middle) for level in levels]
    weights = [float(level.rounds) for level in levels]
    # Measured rate / predicted rate is the sum of these, each times its parameter.
    columns = [[rate / level.threads for rate, level in zip(rates, levels, strict=True)], rates]
    if universal:
        columns.append([rate * (level.threads - 1) for rate, level in zip(rates, levels, strict=True)])
    solution = solve(columns, weights)
    parallel, serial, crosstalk = _without_rounding((*solution, 0.0)[:3], levels[-1].threads)
    alone = parallel + serial
    if alone <= 0.0 or abs(log_rate := middle - math.log(alone)) > MOST_LOG:
        return None
    return _record(
        "universal" if universal else "amdahl",
        math.exp(log_rate),
        serial / alone,
        crosstalk / alone,
        _goodness(columns, weights, solution),
    )


def _without_rounding(parameters: Sequence[float], top: int) -> tuple[float, float, float]:
    """``parameters`` without those that matter nowhere up to ``top`` threads: they would put the peak at a billion."""
    parallel, serial, crosstalk = parameters
    whole = parallel + serial * top + crosstalk * top * (top - 1)
    if crosstalk * top * (top - 1) < NOTHING * whole:
        crosstalk = 0.0
    if serial * top < NOTHING * whole:
        serial = 0.0
    return parallel, serial, crosstalk


def _record(law: Law, rate: float, serial: float, crosstalk: float, r_squared: float) -> Fit:
    fit = Fit(law, rate, serial, crosstalk, math.inf, None, r_squared)
    if crosstalk:
        peak = max(1.0, math.sqrt((1.0 - serial) / crosstalk))
        return fit._replace(peak=peak, limit=fit.predict(peak))
    return fit._replace(limit=rate / serial) if serial else fit


def _goodness(columns: Sequence[Sequence[float]], weights: Sequence[float], solution: Sequence[float]) -> float:
    """How much of the error of the best constant rate the law explains, 0 to 1.

    A constant rate is the law of the serial term alone (column 1), so that the law can never do worse.
    """
    flat = solve([columns[1]], weights)
    most = _error([columns[1]], weights, flat)
    left = _error(columns, weights, solution)
    return 1.0 - min(1.0, left / most) if most > NOTHING * NOTHING * math.fsum(weights) else 1.0


def _error(columns: Sequence[Sequence[float]], weights: Sequence[float], solution: Sequence[float]) -> float:
    predicted = [math.fsum(map(float.__mul__, row, solution)) for row in zip(*columns, strict=True)]
    return math.fsum(weight * (value - 1.0) ** 2 for weight, value in zip(weights, predicted, strict=True))


def solve(columns: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """The factors >= 0 of ``columns`` whose weighted sum comes nearest to 1 everywhere, by least squares.

    The best solution is the unbounded one of those columns whose factors are above 0. With at most three columns all
    seven sets of them can be tried.
    """
    scales = [math.sqrt(_dot(column, column, weights)) for column in columns]
    units = [[value / scale for value in column] for column, scale in zip(columns, scales, strict=True)]
    products = [[_dot(left, right, weights) for right in units] for left in units]
    sums = [_dot(unit, [1.0] * len(unit), weights) for unit in units]
    best = [0.0] * len(columns)
    explained = 0.0
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            factors = _eliminate([[products[i][j] for j in chosen] for i in chosen], [sums[i] for i in chosen])
            if factors is None or min(factors) < 0.0:
                continue
            part = math.fsum(factor * sums[i] for factor, i in zip(factors, chosen, strict=True))
            if part > explained:
                explained = part
                best = [0.0] * len(columns)
                for factor, i in zip(factors, chosen, strict=True):
                    best[i] = factor / scales[i]
    return best


def _dot(left: Sequence[float], right: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(a * b * weight for a, b, weight in zip(left, right, weights, strict=True))


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """The solution of normal equations with ones on the diagonal; None where columns are multiples of each other."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i, pivot in enumerate(rows):
        if pivot[i] < 1e-12:
            return None
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            row[i:] = [value - factor * above for value, above in zip(row[i:], pivot[i:], strict=True)]
    solution = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        known = math.fsum(rows[i][j] * solution[j] for j in range(i + 1, len(rows)))
        solution[i] = (rows[i][-1] - known) / rows[i][i]
    return solution
