"""The demo's result as tables and as JSON."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..notices import shown
from ..tuning.table import figure
from . import ArmResult, Comparison, DemoResult, Round, say_callers

SCHEMA: Final = 2  # 2: one comparison for each number of callers
WIDTH: Final = 80
LABELS: Final = {"calls_per_second": "calls/s", "p50": "p50", "p95": "p95"}
SMALL_GAP: Final = 2  # visible CPUs over the quota
CLEAR: Final = 1.5  # a ratio that shows a fault, whatever the gap
NOISE: Final = 1.05
# Three rounds of an arm that are all beyond three of the other are chance once in ten times; one or two say little.
FEW_ROUNDS: Final = 3
NOISE_OF_FEW: Final = 1.5


class Row(NamedTuple):
    """Figures of one arm: calls a second (median of rounds), milliseconds over all calls, threads at the peak.

    A figure is None where no round ended.
    """

    name: str
    detail: str
    rate: float | None
    p50: float | None
    p95: float | None
    threads: int | None
    throttled: float | None
    gave_up_after: float | None


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: an observed value, never an interpolated one."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarise(arm: ArmResult) -> Row:
    """One row of the table."""
    calls = [1000 * value for measured in arm.rounds for value in measured.latencies]
    periods = sum(measured.periods for measured in arm.rounds)
    throttled = sum(measured.throttled for measured in arm.rounds)
    return Row(
        name=arm.name,
        detail=arm.detail,
        rate=statistics.median(len(r.latencies) / r.elapsed for r in arm.rounds) if arm.rounds else None,
        p50=quantile(calls, 0.50) if calls else None,
        p95=quantile(calls, 0.95) if calls else None,
        threads=max((measured.threads for measured in arm.rounds), default=0) or None,  # 0: there is no /proc
        throttled=throttled / periods if periods else None,
        gave_up_after=arm.gave_up_after,
    )


def _ratio(better: float | None, worse: float | None) -> float | None:
    return None if not better or not worse else better / worse


def compare(rows: Sequence[Row]) -> dict[str, float | None]:
    """How many times better the governed arm is, for each figure; above 1 is better."""
    plain, governed = rows
    return {
        "calls_per_second": _ratio(governed.rate, plain.rate),
        "p50": _ratio(plain.p50, governed.p50),
        "p95": _ratio(plain.p95, governed.p95),
    }


def find_differences(comparison: Comparison) -> dict[str, float | None]:
    """``compare`` without what is noise: None where rounds of both arms overlap or hardly differ."""
    ratios = compare([summarise(arm) for arm in comparison.arms])
    plain, governed = ([_figures(measured) for measured in arm.rounds] for arm in comparison.arms)
    noise = NOISE if min(len(plain), len(governed)) >= FEW_ROUNDS else NOISE_OF_FEW
    found: dict[str, float | None] = {}
    for index, (name, ratio) in enumerate(ratios.items()):
        apart = ratio is not None and _are_apart([f[index] for f in plain], [f[index] for f in governed])
        found[name] = ratio if apart and ratio is not None and max(ratio, 1 / ratio) >= noise else None
    return found


def _figures(measured: Round) -> tuple[float, float, float]:
    latencies = measured.latencies
    return len(latencies) / measured.elapsed, quantile(latencies, 0.50), quantile(latencies, 0.95)


def _are_apart(some: Sequence[float], others: Sequence[float]) -> bool:
    return max(some) < min(others) or max(others) < min(some)


def to_dict(result: DemoResult) -> dict[str, Any]:
    """JSON-ready values; times in milliseconds, shares 0 to 1."""
    return {
        "schema": SCHEMA,
        "workload": result.workload._asdict(),
        "seconds": result.seconds,
        "rounds": max(len(arm.rounds) for comparison in result.comparisons for arm in comparison.arms),
        "quota": result.quota,
        "quota_directory": result.quota_directory,
        "quota_refused": result.quota_refused,
        "cpus": result.cpus,
        "user_variables": list(result.user_variables),
        "comparisons": [_comparison_to_dict(comparison) for comparison in result.comparisons],
        "remarks": remarks(result),
    }


def _comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    rows = [summarise(arm) for arm in comparison.arms]
    differences = find_differences(comparison)
    return {
        "callers": comparison.callers,
        "arms": [
            {
                "name": row.name,
                "detail": row.detail,
                "calls_per_second": row.rate,
                "p50_ms": row.p50,
                "p95_ms": row.p95,
                "threads_peak": row.threads,
                "throttled_share": row.throttled,
                "gave_up_after_seconds": row.gave_up_after,
            }
            for row in rows
        ],
        "ratio": compare(rows),
        "measurable": {name: value is not None for name, value in differences.items()},
    }


def to_json(result: DemoResult) -> str:
    """The result as indented JSON text."""
    return json.dumps(to_dict(result), indent=2)


def remarks(result: DemoResult) -> list[str]:
    """What the figures say, and what a reader must know before believing them."""
    found: list[str] = []
    for arm in (arm for comparison in result.comparisons for arm in comparison.arms):
        if arm.gave_up_after is not None:
            what = f"a round of {result.seconds:g} s" if arm.detail else "its first call"
            found.append(f"{arm.name}: {what} had not ended after {arm.gave_up_after:g} s, and was given up.")
    if result.quota is None:
        reason = f" ({result.quota_refused})" if result.quota_refused else ""
        found.append(f"No CPU quota is in force{reason}: these figures do not show the fault, which needs one.")
    elif result.quota_refused:
        found.append(f"No smaller quota could be made ({result.quota_refused}): the one in force was used.")
    elif result.quota >= result.cpus:
        found.append("The quota is not below the visible CPUs: these figures do not show the fault.")
    if result.workload.kind == "numpy":
        found.append(
            "Only numpy was used: these figures do not show the fault, which is that of inference libraries. "
            "Install llama-cpp-python or sentence-transformers and pass --model."
        )
    if result.user_variables:
        names = ", ".join(shown(text)[1:-1] for text in result.user_variables)
        found.append(f"Your environment sets {names}: both arms keep it.")
    found += (text for text in map(_conclude, result.comparisons) if text)
    if result.quota is not None and result.cpus > result.quota:
        small = result.cpus <= SMALL_GAP * result.quota and _best(result) < CLEAR
        found.append(
            f"Libraries see {result.cpus} CPUs here and the quota is {result.quota:g}{', a small gap' if small else ''}"
            ": the wider the gap, the worse they choose."
        )
    return list(dict.fromkeys(found))  # an arm that was given up is so in every comparison after it


def _conclude(comparison: Comparison) -> str:
    """What one comparison shows; empty where an arm has no figures."""
    if not all(arm.rounds for arm in comparison.arms):
        return ""
    ratios = {LABELS[name]: ratio for name, ratio in find_differences(comparison).items() if ratio is not None}
    parts = [
        _range({name: ratio for name, ratio in ratios.items() if ratio > 1}, "better"),
        _range({name: 1 / ratio for name, ratio in ratios.items() if ratio < 1}, "worse"),
    ]
    text = ", ".join(part for part in parts if part)
    return f"{say_callers(comparison.callers)}: {text or 'no measurable difference here'}."


def _range(ratios: Mapping[str, float], word: str) -> str:
    if not ratios:
        return ""
    low, high = f"{min(ratios.values()):.2f}", f"{max(ratios.values()):.2f}"
    names = "" if len(ratios) == len(LABELS) else f"{' and '.join(ratios)} "
    return f"{names}{low if low == high else f'{low} to {high}'} times {word} when governed"


def _best(result: DemoResult) -> float:
    """The largest difference in favour of the governed arm; endless where the other one never ended."""
    if any(arms[0].gave_up_after is not None for _, arms in result.comparisons):
        return math.inf
    return max(ratio or 0.0 for comparison in result.comparisons for ratio in find_differences(comparison).values())


def render(result: DemoResult) -> str:
    """The tables with what they were measured under."""
    if result.quota is None:
        quota = "no CPU quota"
    else:
        cores = "1 core" if result.quota == 1 else f"{result.quota:g} cores"
        quota = f"CPU quota of {cores} ({shown(result.quota_directory, 200)[1:-1]})"
    lines = [
        shown(result.workload.title, 200)[1:-1],
        f"rounds of {result.seconds:g} s taking turns, {result.cpus} CPUs visible",
        quota,
    ]
    tables = [_render_comparison(comparison) for comparison in result.comparisons]
    for table in tables:
        lines += ["", *table]
    notes = [f"{arm.name}: {arm.detail}" for arm in result.comparisons[0].arms if arm.detail]
    notes.append("threads: the most that the arm's process had at one moment, its callers included.")
    if any("same" in table[-1].split() for table in tables):
        notes.append("same: no measurable difference here, rounds of both arms overlap or hardly differ.")
    lines.append("")
    for text in notes + remarks(result):
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _render_comparison(comparison: Comparison) -> list[str]:
    rows = [summarise(arm) for arm in comparison.arms]
    lines = [
        _line(say_callers(comparison.callers), "calls/s", "p50 ms", "p95 ms", "threads", "throttled"),
        *(_row(row) for row in rows),
    ]
    if all(arm.rounds for arm in comparison.arms):
        cells = [f"{value:.2f}x" if value else "same" for value in find_differences(comparison).values()]
        lines.append(_line("better when governed", *cells, "", ""))
    return lines


def _row(row: Row) -> str:
    return _line(
        row.name,
        *(figure(value) for value in (row.rate, row.p50, row.p95)),
        "-" if row.threads is None else str(row.threads),
        "-" if row.throttled is None else f"{100 * row.throttled:.0f} %",
    )


def _line(name: str, *cells: str) -> str:
    return (f"{name:<26}" + "".join(f"{cell:>10}" for cell in cells)).rstrip()
