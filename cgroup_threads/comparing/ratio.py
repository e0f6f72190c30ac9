"""How many times faster one arm is, and whether that is more than the spread of its rounds. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, Literal

from .records import ArmResult, Ratio

# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; 1.96 is its limit.
_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
_MANY: Final = 2.086
NEGLIGIBLE: Final = 1.02  # below that a difference is no finding, however steady

Verdict = Literal["faster", "slower", "same", "unknown"]


def find_ratio(plain: ArmResult, governed: ArmResult, limit: float) -> Ratio | None:
    """The ratio of wall times; None where an arm has no run, or both met the time limit."""
    if plain.median is not None and governed.median is not None:
        return ratio_of([run.seconds for run in plain.ended], [run.seconds for run in governed.ended])
    if plain.gave_up and governed.median is not None:
        return Ratio(limit / governed.median, bound="at least")
    if governed.gave_up and plain.median is not None:
        return Ratio(plain.median / limit, bound="at most")
    return None


def ratio_of(plain: Sequence[float], governed: Sequence[float]) -> Ratio:
    """The ratio of two series that were measured in turns, so that what slowed a round slowed both of its runs.

    The interval is Student's on the logarithms of the rounds' ratios: one odd round widens it.
    """
    value = statistics.median(plain) / statistics.median(governed)
    rounds = tuple(a / b for a, b in zip(plain, governed, strict=True))
    if len(rounds) < 2:
        return Ratio(value, rounds)
    logs = [math.log(ratio) for ratio in rounds]
    freedom = len(rounds) - 1
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _MANY
    half = student * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.fmean(logs)
    return Ratio(value, rounds, statistics.stdev(rounds), math.exp(middle - half), math.exp(middle + half))


def invert(ratio: Ratio) -> Ratio:
    """The same the other way round: how many times slower."""
    rounds = tuple(1 / each for each in ratio.rounds)
    low, high = ratio.low, ratio.high
    return Ratio(
        value=1 / ratio.value,
        rounds=rounds,
        spread=statistics.stdev(rounds) if len(rounds) > 1 else None,
        low=None if high is None else 1 / high,
        high=None if low is None else 1 / low,
        bound="at least" if ratio.bound == "at most" else "at most" if ratio.bound else "",
    )


def judge_ratio(ratio: Ratio | None) -> Verdict:
    """Whether the governed arm is faster or slower by more than chance and by more than is worth a word."""
    if ratio is None:
        return "unknown"
    if ratio.bound:  # the limit of one arm against the time of the other: beyond 1, or it shows nothing
        beyond = ratio.value > 1 if ratio.bound == "at least" else ratio.value < 1
        return ("faster" if ratio.bound == "at least" else "slower") if beyond else "unknown"
    if ratio.low is None or ratio.high is None:
        return "unknown"
    if max(ratio.value, 1 / ratio.value) < NEGLIGIBLE or ratio.low <= 1 <= ratio.high:
        return "same"
    return "faster" if ratio.low > 1 else "slower"
