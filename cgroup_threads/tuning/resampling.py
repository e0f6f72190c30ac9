"""What else the rounds could have shown: bootstrap samples of them. Rates are natural logarithms here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from .fit import MOST_THREADS
from .records import Point


class Rounds(NamedTuple):
    """The rates (not yet their logarithms) of the counts that may be recommended, ascending by count.

    ``paired`` where the rounds of the same index were measured side by side, so that what disturbed one of them
    disturbed all.
    """

    threads: tuple[int, ...]
    rates: tuple[tuple[float, ...], ...]
    paired: bool

    @property
    def fewest(self) -> int:
        """The rounds of the count that has the fewest; 0 without counts."""
        return min(map(len, self.rates), default=0)

    @property
    def medians(self) -> list[float]:
        """The logarithm of each count's median rate."""
        return [_log_median(rates) for rates in self.rates]


def gather(points: Iterable[Point]) -> Rounds:
    """What ``points`` say of the counts up to the usable cores; rates that are no positive number are left out."""
    found = {}
    whole = True
    for point in points:
        rates = tuple(rate for rate in point.rates if 0.0 < rate < math.inf)
        if rates and not point.burst and 1 <= point.threads <= MOST_THREADS:
            found[point.threads] = rates
            whole = whole and len(rates) == len(point.rates)
    threads = tuple(sorted(found))
    paired = whole and len({len(rates) for rates in found.values()}) == 1
    return Rounds(threads, tuple(found[count] for count in threads), paired)


def resample(rounds: Rounds, draws: int, rng: random.Random) -> Iterator[list[float]]:
    """The medians of ``draws`` bootstrap samples: as many rounds as there are, each drawn with replacement."""
    size = rounds.fewest
    for _ in range(draws):
        if rounds.paired and size > 1:
            pick = itemgetter(*rng.choices(range(size), k=size))
            yield [_log_median(pick(rates)) for rates in rounds.rates]
        else:
            yield [_log_median(rng.choices(rates, k=len(rates))) for rates in rounds.rates]


def measure_noise(medians: Sequence[float], samples: Sequence[Sequence[float]]) -> float:
    """The typical error of a median (standard deviation, relative), from ``samples`` of all of them.

    What moves all counts of a sample alike is left out: it cannot make one look better than another.
    """
    freedom = len(samples) * (len(medians) - 1)
    if not freedom:
        return 0.0
    total = 0.0
    for sample in samples:
        errors = [value - median for value, median in zip(sample, medians, strict=True)]
        mean = sum(errors) / len(errors)
        total += sum([(error - mean) ** 2 for error in errors])
    return math.sqrt(total / freedom)


def _log_median(rates: Sequence[float]) -> float:
    # statistics.median costs several times as much, and a sweep waits for thousands of them after each round.
    ordered = sorted(rates)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return math.log(ordered[half])
    below = ordered[half - 1]
    return math.log(below + (ordered[half] - below) / 2)  # no sum, which may be infinite, nor halves, which may be 0
