"""The result of a tuning as a table for the terminal, as Markdown for an issue, and as JSON. Pure."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any, Final

from ..notices import Notice, shown
from .records import Bandwidth, Curve, Fit, ProcessUse, Recommendation, TuneResult
from .table import KNEE, Table, figure, make_table, measure_spread, percent, plural, relate

SCHEMA: Final = 1  # raised when a key changes its meaning or goes away; new keys do not raise it
WIDTH: Final = 100
IN_SIGHT: Final = 2.0  # times the highest count: a law says little of what is farther away
PARAMETERS: Final = {"amdahl": 2, "universal": 3}
_SPECIAL: Final = "\\`*_~<>|[]#"  # Markdown would read these in foreign text


def collect_arguments(result: TuneResult) -> dict[str, int]:
    """The arguments to pass, with the recommended counts."""
    return {curve.task.argument: curve.recommendation.threads for curve in result.curves}


def _say_arguments(result: TuneResult) -> str:
    return ", ".join(f"{name}={threads}" for name, threads in collect_arguments(result).items())


def render(result: TuneResult) -> str:
    """The tables, what follows from them, and under which conditions they were measured."""
    lines = [*_wrap(_plain(result.title)), *_wrap(_conditions(result))]
    for curve in result.curves:
        lines += ["", _heading(curve), *_align(make_table(curve))]
        for text in conclude(curve):
            lines += _wrap(text, "  ")
    lines.append("")
    for text in summarise(result):
        lines += _wrap(text)
    warnings, notes = sort_notices(result)
    return "\n".join([*lines, *_list_notices("Warnings", warnings), *_list_notices("Notes", notes)])


def sort_notices(result: TuneResult) -> tuple[list[Notice], list[Notice]]:
    """Warnings and problems, and those that only explain."""
    notes = [notice for notice in result.notices if notice.level == "info"]
    return [notice for notice in result.notices if notice.level != "info"], notes


def _list_notices(title: str, notices: Sequence[Notice]) -> list[str]:
    lines = ["", title] if notices else []
    for notice in notices:
        lines += _wrap(_plain(notice.message, 500), "  - ")
        if notice.fix:
            lines += _wrap(_plain(notice.fix, 500), "    fix: ")
    return lines


def _plain(text: str, limit: int = 200) -> str:
    """Foreign text that cannot break a line or a terminal."""
    return text if text.isascii() and text.isprintable() and len(text) <= limit else shown(text, limit)[1:-1]


def _wrap(text: str, prefix: str = "") -> list[str]:
    indent = " " * (len(prefix) if prefix.strip() else len(prefix) + 2)
    return textwrap.wrap(text, WIDTH, initial_indent=prefix, subsequent_indent=indent, break_long_words=False)


def _align(table: Table) -> list[str]:
    rows = [table.head, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head) - 1)]
    return [
        ("  " + "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])).rstrip()
        for row in rows
    ]


def _heading(curve: Curve) -> str:
    return _plain(f"{curve.task.name}, by {curve.task.argument}")


def _conditions(result: TuneResult) -> str:
    identity = result.identity
    cores = plural(identity.usable, "usable core")
    quota = "no CPU quota" if identity.quota is None else f"CPU quota of {identity.quota:g}"
    parts = [f"{cores} of {plural(result.cpus, 'CPU')}", quota]
    return ", ".join([*parts, *(_plain(text) for text in (identity.cpu,) if text)])


def conclude(curve: Curve) -> list[str]:
    """What one task's measurement says, a sentence each: which count, and what the fitted laws predict."""
    unit = curve.task.unit
    fitted = [point.threads for point in curve.points if point.rates and not point.burst]
    lines = [_recommend(curve.task.argument, curve.recommendation)]
    if curve.amdahl is not None:
        lines.append(_say_amdahl(curve.amdahl, unit) + _say_goodness(curve.amdahl, len(fitted)))
    if curve.universal is not None:
        law = _say_universal(curve.universal, unit, max(fitted, default=1))
        lines.append(law + _say_goodness(curve.universal, len(fitted)))
    return lines


def _say_goodness(fit: Fit, counts: int) -> str:
    """A law passes through as many counts as it has parameters, or nearly: how well says nothing there."""
    if counts <= PARAMETERS[fit.law]:
        return f"; from {plural(counts, 'count')}, not tested"
    return f"; R squared {fit.r_squared:.3f}"


def _recommend(argument: str, found: Recommendation) -> str:
    if found.threads == found.best:
        what = "the best median"
    else:
        what = f"{percent(found.within, 1)} of the best median ({plural(found.best, 'thread')})"
    agree = f"{percent(found.confidence)} of resamples agree"
    if found.low != found.high:
        agree += f", 90 % say {found.low} to {found.high}"
    return f"{argument}={found.threads}: {what}; {agree}"


def _say_amdahl(fit: Fit, unit: str) -> str:
    if fit.serial >= 1:  # as far as it goes: it knows no curve that falls
        return "Amdahl's law: no part of it gains from a second thread"
    if math.isfinite(fit.limit) and fit.rate > 0:
        limit = f"at most {figure(fit.limit)} {unit}/s, {figure(fit.limit / fit.rate)} times one thread"
    else:
        limit = "no limit in sight"
    return f"Amdahl's law: {percent(fit.serial, 1)} serial, {limit}"


def _say_universal(fit: Fit, unit: str, top: int) -> str:
    if fit.peak is None or not fit.peak <= IN_SIGHT * top:
        peak = "no peak in sight"
    else:
        peak = f"peak at {figure(fit.peak)} threads with {figure(fit.limit)} {unit}/s"
    return f"universal law: contention {percent(fit.serial, 1)}, crosstalk {percent(fit.crosstalk, 2)}, {peak}"


def summarise(result: TuneResult) -> list[str]:
    """What holds for the whole result: the arguments to pass, the memory's part, the length of the run."""
    doubt = ", but see the warnings" if sort_notices(result)[0] else ""
    lines = [f"Pass {_say_arguments(result)}{doubt}."]
    if result.bandwidth is not None:
        lines.append(_say_bandwidth(result.bandwidth))
    if result.processes:
        lines.append(f"A run used {'; '.join(map(_say_use, result.processes))}.")
    rounds = sorted(len(point.rates) for curve in result.curves for point in curve.points)
    few, most = rounds[0], rounds[-1]
    kept = plural(most, "round") if few == most else f"{few} to {plural(most, 'round')}"
    lines.append(f"Took {result.elapsed:.0f} s, {kept} of each count.")
    return lines


def _say_use(use: ProcessUse) -> str:
    cpu = "-" if use.cpu_seconds is None else figure(use.cpu_seconds)
    memory = "-" if use.max_resident is None else f"{use.max_resident / 1e6:.0f}"
    return f"{cpu} s of CPU and {memory} MB at most with {plural(use.threads, 'thread')}"


def _say_bandwidth(bandwidth: Bandwidth) -> str:
    used, machine = (f"{figure(value / 1e9)} GB/s" for value in (bandwidth.used, bandwidth.machine))
    weights = f"{figure(bandwidth.weights / 1e6)} MB"
    share = percent(bandwidth.used / bandwidth.machine) if bandwidth.machine > 0 else "-"
    return f"Decode reads {weights} of weights a token: {used}, {share} of the {machine} measured here."


def markdown(result: TuneResult) -> str:
    """The same as GitHub's Markdown, to paste into an issue."""
    lines = [f"**{_escape(result.title)}**", "", _escape(_conditions(result))]
    for curve in result.curves:
        table = make_table(curve)
        lines += ["", f"**{_escape(_heading(curve))}**", ""]
        lines += [_line(table.head), _line(["---:"] * (len(table.head) - 1) + ["---"])]
        lines += [_line(row) for row in table.rows]
        lines += ["", *(f"- {_escape(text)}" for text in conclude(curve))]
    lines += ["", *(f"- {_escape(text)}" for text in summarise(result))]
    warnings, notes = sort_notices(result)
    lines += [f"- Warning: {_escape(_say_notice(notice))}" for notice in warnings]
    lines += [f"- {_escape(_say_notice(notice))}" for notice in notes]
    return "\n".join(lines)


def _say_notice(notice: Notice) -> str:
    return f"{notice.message} (fix: {notice.fix})" if notice.fix else notice.message


def _escape(text: str) -> str:
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in _plain(text, 500))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace(KNEE, '**knee**') for cell in cells)} |"


def to_dict(result: TuneResult) -> dict[str, Any]:
    """JSON-ready values: rates in units a second, times in seconds, shares 0 to 1; None for what is not a number."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "title": result.title,
        "arguments": collect_arguments(result),
        "identity": result.identity._asdict(),
        "cpus": result.cpus,
        "elapsed_seconds": result.elapsed,
        "tasks": [_curve_to_dict(curve) for curve in result.curves],
        "bandwidth": None if result.bandwidth is None else _bandwidth_to_dict(result.bandwidth),
        "processes": [use._asdict() for use in result.processes],
        "notices": [notice._asdict() for notice in result.notices],
    }
    cleaned: dict[str, Any] = _finite(found)
    return cleaned


def _curve_to_dict(curve: Curve) -> dict[str, Any]:
    return {
        **curve.task._asdict(),
        "recommendation": curve.recommendation._asdict(),
        "points": [
            {
                **point._asdict(),
                "median": point.median if point.rates else None,
                "spread": measure_spread(point),
                **relate(point, curve.points)._asdict(),
            }
            for point in curve.points
        ],
        "amdahl": None if curve.amdahl is None else curve.amdahl._asdict(),
        "universal": None if curve.universal is None else curve.universal._asdict(),
    }


def _bandwidth_to_dict(bandwidth: Bandwidth) -> dict[str, Any]:
    share = bandwidth.used / bandwidth.machine if bandwidth.machine > 0 else None
    return {
        "weights_bytes": bandwidth.weights,
        "used_bytes_per_second": bandwidth.used,
        "machine_bytes_per_second": bandwidth.machine,
        "share": share,
    }


def _finite(value: Any) -> Any:
    """``value`` with None in place of infinities and not-a-numbers, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(result: TuneResult) -> str:
    """The result as indented JSON text."""
    return json.dumps(to_dict(result), indent=2, allow_nan=False)
