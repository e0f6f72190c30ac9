"""Times, ratios and ends in words. Pure."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Sequence
from typing import Final

from ..notices import Notice, shown
from .records import ArmResult, Ratio, Run

WIDTH: Final = 100


def say_notices(notices: Sequence[Notice], *, mark: str = "- ", width: int = WIDTH) -> list[str]:
    """One item a notice, with its fix where no notice before it had the same; in lines of ``width`` characters."""
    lines: list[str] = []
    seen = {""}
    for notice in notices:
        level = "" if notice.level == "info" else f"{notice.level}: "
        fix = "" if notice.fix in seen else f" ({notice.fix})"
        seen.add(notice.fix)
        text = f"{mark}{level}{notice.message}{fix}"
        lines += textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def say_seconds(seconds: float) -> str:
    """Three digits that count, in the unit that fits: 12.3 ms, 1.23 s, 123 s."""
    if seconds < 0.9995:
        return f"{1000 * seconds:#.3g}".rstrip(".") + " ms"
    return (f"{seconds:#.3g}".rstrip(".") if seconds < 999.5 else f"{seconds:.0f}") + " s"


def say_time(result: ArmResult, limit: float) -> str:
    """The median of an arm's wall times, or that it met the limit."""
    if result.gave_up:
        return f"> {limit:g} s"
    return "-" if result.median is None else say_seconds(result.median)


def say_ratio(ratio: Ratio, word: str) -> str:
    """``3.21 ± 0.12 times faster (rounds: 3.02 to 3.33)``."""
    if ratio.bound:
        return f"{ratio.bound} {_figure(ratio.value)} times {word}"
    spread = "" if ratio.spread is None else f" ± {_figure(ratio.spread)}"
    rounds = f" (rounds: {_figure(min(ratio.rounds))} to {_figure(max(ratio.rounds))})" if len(ratio.rounds) > 1 else ""
    return f"{_figure(ratio.value)}{spread} times {word}{rounds}"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


def say_end(run: Run) -> str:
    """How a run that failed ended, and the last line it wrote to standard error."""
    if run.code < 0:
        try:
            end = f"ended by {signal.Signals(-run.code).name}"
        except ValueError:  # a real-time signal
            end = f"ended by signal {-run.code}"
    else:
        end = f"exit code {run.code}"
    lines = [line for line in run.log.splitlines() if line.strip()]
    return f"{end}: {shown(lines[-1].strip(), 200)[1:-1]}" if lines else end


def say_throttled(result: ArmResult) -> str:
    """The share of quota periods that ended with the group stopped; "-" where none was counted."""
    periods = sum(run.periods for run in result.runs)
    throttled = sum(run.throttled for run in result.runs)
    return f"{100 * throttled / periods:.0f} % of {periods}" if periods else "-"
