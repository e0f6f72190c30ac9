"""The smallest thread count that is as good as the best, how sure that is, and what else a curve tells."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..notices import Level, Notice
from .records import Curve, Point, Recommendation, Task
from .resampling import Rounds, gather, measure_noise, resample
from .table import figure, percent, plural

TOLERANCE: Final = 0.03
"""So much slower than the best may the recommended count be."""
CAUTION: Final = 0.75
"""So many standard errors of a median are taken off the tolerance."""
FEWEST_ROUNDS: Final = 3
"""Fewer say nothing of their own spread."""
QUICK_DRAWS: Final = 200
"""Bootstrap samples where a share of 95 % is to be told from less, between rounds."""
UNSURE: Final = 0.9
"""The choice of fewer resamples is said to be uncertain."""


def recommend(
    points: Iterable[Point], *, tolerance: float = TOLERANCE, seed: int = 0, draws: int = 2000
) -> Recommendation:
    """The smallest count up to the usable cores whose median is within ``tolerance`` of the best.

    The noise of the medians is taken off the tolerance, so that too slow a count seldom passes by luck; it vanishes as
    rounds are added.

    How sure the choice is comes from ``draws`` bootstrap samples of the rounds; with a single round that is 0, unless
    there is but one count. Where nothing was measured it is 1 thread with confidence 0.
    """
    rounds = gather(points)
    threads = rounds.threads
    if not threads:
        return Recommendation(1, 0.0, 1, 1, 1, 0.0)
    choice = _choose(rounds, tolerance, seed, draws)
    if len(threads) == 1:
        confidence, low, high = 1.0, 0, 0
    elif rounds.fewest == 1 or not choice.samples:
        confidence, low, high = 0.0, 0, len(threads) - 1
    else:
        choices = sorted(first_within(sample, choice.bar) for sample in choice.samples)
        confidence = choices.count(choice.chosen) / len(choices)
        tail = len(choices) // 20
        low, high = min(choice.chosen, choices[tail]), max(choice.chosen, choices[-1 - tail])
    medians = rounds.medians
    best = medians.index(max(medians))
    within = math.exp(medians[choice.chosen] - medians[best])
    return Recommendation(threads[choice.chosen], confidence, threads[low], threads[high], threads[best], within)


def needs_more(
    points: Iterable[Point],
    confidence: float = 0.95,
    tolerance: float = TOLERANCE,
    *,
    seed: int = 0,
    draws: int = QUICK_DRAWS,
) -> bool:
    """Whether more rounds would make it surer that the recommended count is within ``tolerance`` of the best.

    So it is while less than ``confidence`` of the bootstrap samples say so, and while a count has too few rounds to
    tell. With a single count there is nothing to choose.
    """
    points = tuple(points)
    contenders = sum(not point.burst for point in points)
    if contenders <= 1:
        return False
    rounds = gather(points)
    if len(rounds.threads) < contenders or rounds.fewest < FEWEST_ROUNDS:
        return True
    choice = _choose(rounds, tolerance, seed, draws)
    bar = math.log1p(-tolerance)
    good = sum(sample[choice.chosen] >= max(sample) + bar for sample in choice.samples)
    return good < confidence * len(choice.samples)


class _Choice(NamedTuple):
    """The index of the ``chosen`` count, the ``bar`` (a logarithm, below the best) and ``samples`` of the medians."""

    chosen: int
    bar: float
    samples: list[list[float]]


def _choose(rounds: Rounds, tolerance: float, seed: int, draws: int) -> _Choice:
    medians = rounds.medians
    samples = list(resample(rounds, draws, random.Random(seed))) if len(medians) > 1 else []
    bar = math.log1p(-max(0.0, tolerance - CAUTION * measure_noise(medians, samples)))
    return _Choice(first_within(medians, bar), bar, samples)


def first_within(logs: Sequence[float], bar: float) -> int:
    """The index of the first of ``logs`` that is at most ``-bar`` below the highest."""
    least = max(logs) + bar
    return next(i for i, value in enumerate(logs) if value >= least)


def explain(curve: Curve, usable: int, quota: float | None) -> tuple[Notice, ...]:
    """What a reader of ``curve`` would else ask, where ``usable`` cores of a ``quota`` (None: no quota) may be used."""
    measured = [point for point in curve.points if not point.burst and 0.0 < point.median < math.inf]
    chosen = next((point for point in measured if point.threads == curve.recommendation.threads), None)
    if chosen is None:
        return ()
    notices = (
        _explain_burst(curve, chosen, usable, quota),
        _explain_knee(curve.task, measured, chosen),
        _explain_rise(curve.task, measured, chosen, usable),
        _explain_doubt(curve, measured),
    )
    return tuple(notice for notice in notices if notice is not None)


def _explain_burst(curve: Curve, chosen: Point, usable: int, quota: float | None) -> Notice | None:
    """Why a count above the usable cores that looked faster is not recommended."""

    def gains(point: Point) -> tuple[float, float]:
        quicker = _call(chosen) / _call(point) if _call(point) > 0.0 else 0.0
        return quicker, point.median / chosen.median

    faster = [point for point in curve.points if point.burst and max(gains(point)) > 1 + TOLERANCE]
    if not faster:
        return None
    burst = max(faster, key=lambda point: max(gains(point)))
    quicker, sustained = gains(burst)
    message = f"{curve.task.name}: {plural(burst.threads, 'thread')} looked faster than {chosen.threads}"
    if quicker > 1 + TOLERANCE:
        message += f": a call took {figure(1e3 * _call(burst))} ms instead of {figure(1e3 * _call(chosen))}"
    if quota is None:
        message += f"; above the {plural(usable, 'usable core')} they run only while others leave cores idle"
    else:
        message += f"; a short call may use more cores than the quota of {quota:g} inside one of its periods"
    message += f"; kept up, it makes {sustained:.2f}x of the {curve.task.unit} a second"
    if burst.throttled:
        message += f" and is throttled in {percent(burst.throttled)} of the periods"
    return Notice("tune-burst", message, "info", "use more threads only where calls are short and rare")


def _call(point: Point) -> float:
    """Seconds of a single call that nothing stopped, 0 if none was timed."""
    calls = [seconds for seconds in point.quick or point.calls if 0.0 < seconds < math.inf]
    return statistics.median(calls) if calls else 0.0


def _explain_knee(task: Task, measured: Sequence[Point], chosen: Point) -> Notice | None:
    """What the cores past the knee bring, or that all of them bring little."""
    alone, top = measured[0], measured[-1]
    if alone.threads != 1 or top is alone:
        return None
    ratio = top.median / alone.median
    if chosen.threads == top.threads and ratio >= (top.threads + 1) / 2:  # half of what the others could bring
        return None
    message = f"{task.name}: {plural(top.threads, 'thread')} give only {ratio:.2f}x of one"
    if chosen.threads < top.threads:
        message += f", {chosen.threads} {'gives' if chosen is alone else 'give'} {chosen.median / alone.median:.2f}x"
    return Notice("tune-past-the-knee", message, "info", "leave the other cores to other calls")


def _explain_rise(task: Task, measured: Sequence[Point], chosen: Point, usable: int) -> Notice | None:
    """That the knee lies above what was measured."""
    if len(measured) < 2 or chosen is not measured[-1] or chosen.median < measured[-2].median * (1 + TOLERANCE):
        return None
    message = f"{task.name}: the rate still rises at {plural(chosen.threads, 'thread')}, the most measured"
    fix = "raise max_threads" if chosen.threads < usable else "more cores would be used"
    return Notice("tune-never-flat", message, "info", fix)


def _explain_doubt(curve: Curve, measured: Sequence[Point]) -> Notice | None:
    """Which counts the rounds cannot tell apart; a warning where one of them is clearly slower than the best."""
    found = curve.recommendation
    if found.confidence >= UNSURE or found.low == found.high:
        return None
    message = f"{curve.task.name}: {found.low} to {found.high} threads cannot be told apart by these rounds"
    if found.confidence > 0.0:
        message += f"; {percent(found.confidence)} of the resamples choose {found.threads}"
    slowest = min(point.median for point in measured if found.low <= point.threads <= found.high)
    best = max(point.median for point in measured)
    level: Level = "warning" if slowest < best * (1 - 2 * TOLERANCE) else "info"
    return Notice("tune-uncertain", message, level, "give it more rounds, or measure on a quieter machine")
