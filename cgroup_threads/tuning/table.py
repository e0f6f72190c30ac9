"""The figures of one task as rows of a table. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from .records import Curve, Point

KNEE: Final = "<- knee"


class Table(NamedTuple):
    """Rows of cells under a head; all but the last column, the marks, are figures."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Relation(NamedTuple):
    """A point beside the one with a single thread: how many times its rate, and that for each thread."""

    ratio: float | None
    efficiency: float | None


def figure(value: float | None) -> str:
    """Three digits that count: 0.0213, 3.46, 17.2, 1234."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:#.3g}".rstrip(".") if 1e-4 < value < 999.5 else f"{value:.0f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share, 0 to 1, in per cent."""
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def plural(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def measure_spread(point: Point) -> float | None:
    """Half the distance between the quartiles of the rounds, as a share of their median; None below two rounds."""
    if len(point.rates) < 2 or point.median <= 0:
        return None
    low, _, high = statistics.quantiles(point.rates, n=4, method="inclusive")
    return (high - low) / 2 / point.median


def relate(point: Point, points: Sequence[Point]) -> Relation:
    """How ``point`` stands to the one of ``points`` that has a single thread."""
    alone = next((other.median for other in points if other.threads == 1), 0.0)
    if alone <= 0 or not point.rates:
        return Relation(None, None)
    ratio = point.median / alone
    return Relation(ratio, ratio / point.threads)


def make_table(curve: Curve) -> Table:
    """The figures of one task, a row for each count."""
    unit, points = curve.task.unit, curve.points
    timed = unit in ("calls", "runs")
    quota = any(point.throttled is not None for point in points)
    head = ["threads", f"{unit}/s", "spread", *([f"one {unit[:-1]}"] if timed else []), "ratio", "efficiency"]
    head += [*(["throttled"] if quota else []), ""]
    return Table(tuple(head), tuple(_row(point, curve, timed, quota) for point in points))


def _row(point: Point, curve: Curve, timed: bool, quota: bool) -> tuple[str, ...]:
    relation, spread = relate(point, curve.points), measure_spread(point)
    cells = [str(point.threads), figure(point.median if point.rates else None)]
    cells.append("-" if spread is None else f"+- {percent(spread, 1)}")
    if timed:
        cells.append(_duration(statistics.median(point.calls)) if point.calls else "-")
    cells.append("-" if relation.ratio is None else f"{relation.ratio:.2f}")
    cells.append(percent(relation.efficiency))
    if quota:
        cells.append(percent(point.throttled))
    recommendation = curve.recommendation
    marks = [KNEE] if point.threads == recommendation.threads else []
    if point.threads == recommendation.best != recommendation.threads:
        marks.append("best")
    if point.burst:
        marks.append("burst")
    if point.spoilt:
        marks.append(f"{plural(point.spoilt, 'round')} spoilt")
    return (*cells, ", ".join(marks))


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{figure(seconds * factor)} {unit}"
    return f"{figure(seconds * 1e6)} us"
