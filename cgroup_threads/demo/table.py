"""The demo's result as a table and as JSON."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..notices import shown
from . import ArmResult, DemoResult

SCHEMA: Final = 1
WIDTH: Final = 80
SMALL_GAP: Final = 4  # visible CPUs over the quota


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


def to_dict(result: DemoResult) -> dict[str, Any]:
    """JSON-ready values; times in milliseconds, shares 0 to 1."""
    rows = [summarise(arm) for arm in result.arms]
    return {
        "schema": SCHEMA,
        "workload": result.workload._asdict(),
        "callers": result.callers,
        "seconds": result.seconds,
        "rounds": max(len(arm.rounds) for arm in result.arms),
        "quota": result.quota,
        "quota_directory": result.quota_directory,
        "quota_refused": result.quota_refused,
        "cpus": result.cpus,
        "user_variables": list(result.user_variables),
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
        "remarks": remarks(result),
    }


def to_json(result: DemoResult) -> str:
    """The result as indented JSON text."""
    return json.dumps(to_dict(result), indent=2)


def remarks(result: DemoResult) -> list[str]:
    """What a reader must know before believing the figures."""
    found: list[str] = []
    for arm in result.arms:
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
    if result.quota is not None and result.cpus > result.quota:
        gap = ", a small gap" if result.cpus <= SMALL_GAP * result.quota else ""
        found.append(
            f"Libraries see {result.cpus} CPUs here and the quota is {result.quota:g}{gap}: "
            "the wider the gap, the worse they choose."
        )
    return found


def render(result: DemoResult) -> str:
    """The table with what it was measured under."""
    rows = [summarise(arm) for arm in result.arms]
    if result.quota is None:
        quota = "no CPU quota"
    else:
        cores = "1 core" if result.quota == 1 else f"{result.quota:g} cores"
        quota = f"CPU quota of {cores} ({shown(result.quota_directory, 200)[1:-1]})"
    callers = "1 caller" if result.callers == 1 else f"{result.callers} callers at once"
    lines = [
        shown(result.workload.title, 200)[1:-1],
        f"{callers}, rounds of {result.seconds:g} s taking turns, {result.cpus} CPUs visible",
        quota,
        "",
        _line("", "calls/s", "p50 ms", "p95 ms", "threads", "throttled"),
        *(_row(row) for row in rows),
    ]
    ratio = compare(rows)
    if any(ratio.values()):
        cells = [f"{value:.2f}x" if value else "-" for value in ratio.values()]
        lines.append(_line("better when governed", *cells, "", ""))
    lines.append("")
    for text in [f"{row.name}: {row.detail}" for row in rows if row.detail] + remarks(result):
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _row(row: Row) -> str:
    return _line(
        row.name,
        *(figure(value) for value in (row.rate, row.p50, row.p95)),
        "-" if row.threads is None else str(row.threads),
        "-" if row.throttled is None else f"{100 * row.throttled:.0f} %",
    )


def figure(value: float | None) -> str:
    """Three digits that count: 0.0213, 3.46, 17.2, 1234."""
    if value is None:
        return "-"
    return f"{value:#.3g}".rstrip(".") if 1e-4 < value < 999.5 else f"{value:.0f}"


def _line(name: str, *cells: str) -> str:
    return (f"{name:<26}" + "".join(f"{cell:>10}" for cell in cells)).rstrip()
