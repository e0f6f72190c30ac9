"""A comparison as text, Markdown and JSON. Pure."""

from __future__ import annotations

import json
import shlex
import statistics
from typing import Any, Final

from ..notices import shown
from .ratio import judge_ratio
from .records import ArmResult, Comparison, Run
from .wording import say_notices, say_seconds, say_throttled, say_time

SCHEMA: Final = 1
_HEAD: Final = ("", "median", "min .. max", "CPU", "throttled", "exit")


def render(comparison: Comparison) -> str:
    """The table, and below it what it says."""
    rows = [_HEAD, *(_row(result, comparison) for result in (comparison.plain, comparison.governed))]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_HEAD))]
    lines = [_say_command(comparison), _say_terms(comparison), ""]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    lines.append("")
    return "\n".join([*lines, *say_notices(comparison.notices)])


def markdown(comparison: Comparison) -> str:
    """A table for an issue or a pull request."""
    rows = [_row(result, comparison) for result in (comparison.plain, comparison.governed)]
    lines = ["| " + " | ".join(_HEAD) + " |", "|---|" + "---:|" * (len(_HEAD) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    command = _say_command(comparison)
    ticks = "``" if "`" in command else "`"
    lines += ["", f"{ticks}{command}{ticks}", "", _say_terms(comparison), ""]
    return "\n".join([*lines, *say_notices(comparison.notices, width=10_000)])


def to_json(comparison: Comparison) -> str:
    """The comparison as one JSON object; times in seconds, shares 0 to 1."""
    terms, output = comparison.terms, comparison.output
    found = {
        "schema": SCHEMA,
        "runs": terms.rounds,
        "warmup": terms.warmup,
        "time_limit": terms.limit,
        "cgroup": terms.counters,
        "arms": [_arm(result) for result in (comparison.plain, comparison.governed)],
        "ratio": None if comparison.ratio is None else comparison.ratio._asdict(),
        "verdict": judge_ratio(comparison.ratio),
        "output": {
            "of": terms.output,
            "tolerance": terms.tolerance,
            "state": output.state,
            "reason": output.reason,
            "largest_error": output.error if output.error != float("inf") else None,
            "varying": dict(zip(("both", "as_it_is", "governed"), output.varying, strict=True)),
            "differences": [difference._asdict() for difference in output.differences],
        },
        "notices": [notice._asdict() for notice in comparison.notices],
        "ok": not comparison.fails,
    }
    return json.dumps(found, indent=2)


def _arm(result: ArmResult) -> dict[str, Any]:
    return {
        "name": result.arm.name,
        "command": list(result.arm.command),
        "detail": result.arm.detail,
        "median": result.median,
        "gave_up": result.gave_up,
        "runs": [_run(run) for run in result.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "seconds": run.seconds,
        "cpu_seconds": run.cpu,
        "exit_code": run.code,
        "time_limit_met": run.limited,
        "periods": run.periods,
        "throttled": run.throttled,
        "sha256": None if run.output is None else run.output.digest,
        "bytes": None if run.output is None else run.output.size,
    }


def _row(result: ArmResult, comparison: Comparison) -> tuple[str, ...]:
    seconds = [run.seconds for run in result.ended]
    spread = f"{say_seconds(min(seconds))} .. {say_seconds(max(seconds))}" if seconds else "-"
    cpu = say_seconds(statistics.median(run.cpu for run in result.runs)) if result.runs else "-"
    codes = sorted({run.code for run in result.ended})
    ends = [*map(str, codes), *(["killed"] if result.gave_up else [])]
    time = say_time(result, comparison.terms.limit)
    return result.arm.name, time, spread, cpu, say_throttled(result), ", ".join(ends)


def _say_command(comparison: Comparison) -> str:
    """As a shell takes it."""
    text = shlex.join(comparison.plain.arm.command)
    plain = text.isascii() and text.isprintable() and len(text) <= 200
    return text if plain else shown(" ".join(comparison.plain.arm.command), 200)[1:-1]


def _say_terms(comparison: Comparison) -> str:
    terms, detail = comparison.terms, comparison.governed.arm.detail
    rounds = f"{terms.rounds} round{'s' if terms.rounds > 1 else ''} in turns"
    return f"{rounds}; governed: {detail}" if detail else rounds
