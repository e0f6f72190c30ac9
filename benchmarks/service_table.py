"""The table of the service benchmark, from its records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.service_cells import ARMS, Cell, distinct_arms, is_ours, parse_cell
from benchmarks.service_load import quantile

ENOUGH_FOR_P99 = 1000
SLOW, LATE = 0.85, 1.3
"""A cell where ours has less than this share of the best throughput, or more than this multiple of the best tail."""


class Summary(NamedTuple):
    """One arm in one cell: medians over its rounds; ``pooled`` all latencies in ms, sorted."""

    rate: float
    spread: tuple[float, float]
    pooled: tuple[float, ...]
    requests: int
    rounds: int
    threads: int
    running_max: int
    running_mean: float
    cpu: float
    throttled: float
    generator: float
    workers: tuple[int, ...]
    errors: int

    @property
    def p50(self) -> float:
        return quantile(self.pooled, 0.5) if self.pooled else math.nan

    def tail(self, q: float) -> float:
        return quantile(self.pooled, q) if self.pooled else math.nan


class Comparison(NamedTuple):
    """Ours against one arm, or against the best static arm of a cell for each of the two figures."""

    cell: Cell
    throughput: float
    throughput_arm: str
    tail: float
    tail_arm: str
    tail_name: str


Summaries = dict[Cell, dict[str, Summary]]


def summarise(runs: Sequence[dict[str, Any]]) -> Summary:
    """The rounds of one arm in one cell."""

    def median(name: str) -> float:
        return float(statistics.median(run[name] for run in runs))

    rates = [run["rate"] for run in runs]
    return Summary(
        rate=float(statistics.median(rates)),
        spread=(min(rates), max(rates)),
        pooled=tuple(sorted(value / 10 for run in runs for value in run["latencies"])),
        requests=sum(run["requests"] for run in runs),
        rounds=len(runs),
        threads=max(run["threads"] for run in runs),
        running_max=max(run["running_max"] for run in runs),
        running_mean=median("running_mean"),
        cpu=float(statistics.median(run["cpu"] / run["seconds"] for run in runs)),
        throttled=median("throttled"),
        generator=median("generator_cpu"),
        workers=tuple(runs[-1]["spread"]),
        errors=sum(run["errors"] for run in runs),
    )


def collect(records: Iterable[dict[str, Any]]) -> Summaries:
    """Summaries by cell and arm. Of a measurement that was taken again the last one counts."""
    runs: dict[Cell, dict[str, dict[int, dict[str, Any]]]] = {}
    for record in records:
        if record.get("kind") == "run":
            arms = runs.setdefault(parse_cell(record["cell"]), {})
            arms.setdefault(record["arm"], {})[record["round"]] = record
    return {
        cell: {arm: summarise(list(rounds.values())) for arm, rounds in arms.items()}
        for cell, arms in sorted(runs.items())
    }


def tail_of(summaries: Iterable[Summary]) -> tuple[float, str]:
    """The highest quantile that all of them have enough requests for."""
    enough = all(summary.requests >= ENOUGH_FOR_P99 for summary in summaries)
    return (0.99, "p99") if enough else (0.95, "p95")


def compare(cell: Cell, ours: Summary, others: dict[str, Summary]) -> Comparison | None:
    """``ours`` against the best of ``others``, which may be another arm for throughput than for the tail.

    Only arms that answered without errors are compared; by p99 where both have enough requests for it, else p95.
    """
    answering = {name: summary for name, summary in others.items() if summary.pooled and not summary.errors}
    if not answering or not ours.pooled or ours.errors:
        return None
    fastest = max(answering, key=lambda name: answering[name].rate)
    q, title = tail_of([ours, answering[fastest]])
    best = min(answering, key=lambda name: answering[name].tail(q))
    return Comparison(
        cell=cell,
        throughput=ours.rate / answering[fastest].rate,
        throughput_arm=fastest,
        tail=ours.tail(q) / answering[best].tail(q),
        tail_arm=best,
        tail_name=title,
    )


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else math.nan


def figure(value: float) -> str:
    """Three digits, without an exponent."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


HEAD = (
    "cell | arm | req/s (min-max) | p50 ms | tail ms | requests | OS threads | running mean/max | CPU "
    "| throttled | per worker | generator"
)


def render(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: cells, comparisons, and what stands out."""
    found = collect(records)
    if not found:
        return "no measurements"
    lines = [*_about(records), "", f"| {HEAD} |", "|---" * len(HEAD.split("|")) + "|"]
    for cell, arms in found.items():
        lines += [_row(cell, name, arms[name]) for name in _ordered(arms)]
        names = tuple(arms)
        for left_out, measured in distinct_arms([*names, *(n for n in ("quota",) if n not in names)], cell.quota)[
            1
        ].items():
            lines.append(f"| {cell.name} | {left_out} | the same settings as {measured} |" + " |" * 9)
    subjects = sorted({name for arms in found.values() for name in arms if is_ours(name)})
    for subject in subjects:
        lines += ["", *_comparisons(found, subject)]
    return "\n".join(lines)


def _ordered(arms: Iterable[str]) -> list[str]:
    return sorted(arms, key=list(ARMS).index)


def _about(records: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for record in records:
        if record.get("kind") == "about":
            machine, versions, settings = record["machine"], record["versions"], record["settings"]
            lines = [
                f"{machine['cpus']} CPUs, Linux {machine['kernel']}, Python {machine['python']}, "
                + ", ".join(f"{name} {version}" for name, version in versions.items())
                + f"; {settings['rounds']} rounds of {settings['seconds']:g} s after {settings['warmup']:g} s, "
                + f"connections spread: {settings['spread']}.",
                "Medians over the rounds; latencies of all rounds together. tail: p99 with at least "
                f"{ENOUGH_FOR_P99} requests, else p95. running: threads in state R. CPU: cores used by the servers. "
                "throttled: share of the quota's periods. generator: its share of one CPU.",
            ]
    return lines


def _row(cell: Cell, name: str, arm: Summary) -> str:
    q, title = tail_of([arm])
    errors = f", {arm.errors} errors" if arm.errors else ""
    low, high = arm.spread
    values = (
        cell.name,
        name,
        f"{figure(arm.rate)} ({figure(low)}-{figure(high)})",
        figure(arm.p50),
        f"{figure(arm.tail(q))} {title}",
        f"{arm.requests}{errors}",
        f"{arm.threads}",
        f"{arm.running_mean:.1f} / {arm.running_max}",
        f"{arm.cpu:.2f}",
        f"{arm.throttled:.0%}",
        " ".join(map(str, arm.workers)),
        f"{arm.generator:.1%}",
    )
    return "| " + " | ".join(values) + " |"


def _comparisons(found: Summaries, subject: str) -> list[str]:
    """One arm of ours against the best static arm of each cell, and against each static arm over all cells."""
    lines = [f"**{subject}** / best static arm of the cell (for each figure its own)", ""]
    lines += ["| cell | throughput | against | tail latency | against |", "|---|---|---|---|---|"]
    best: list[Comparison] = []
    single: dict[str, list[Comparison]] = {}
    for cell, arms in found.items():
        statics = {name: summary for name, summary in arms.items() if not is_ours(name)}
        if subject not in arms:
            continue
        compared = compare(cell, arms[subject], statics)
        if compared is None:
            lines.append(f"| {cell.name} | - | errors or no answers | - | |")
            continue
        best.append(compared)
        lines.append(
            f"| {cell.name} | {compared.throughput:.2f} | {compared.throughput_arm} "
            f"| {compared.tail:.2f} ({compared.tail_name}) | {compared.tail_arm} |"
        )
        for name, summary in statics.items():
            one = compare(cell, arms[subject], {name: summary})
            if one is not None:
                single.setdefault(name, []).append(one)
    if not best:
        return lines
    lines.append(
        f"| geometric mean of {len(best)} | {geometric_mean([c.throughput for c in best]):.2f} | "
        f"| {geometric_mean([c.tail for c in best]):.2f} | |"
    )
    slow = [f"{c.cell.name} {c.throughput:.2f}" for c in best if c.throughput < SLOW]
    late = [f"{c.cell.name} {c.tail:.2f} ({c.tail_name})" for c in best if c.tail > LATE]
    lines += ["", f"Below {SLOW} x throughput: {', '.join(slow) or 'none'}."]
    lines += [f"Above {LATE} x tail latency: {', '.join(late) or 'none'}.", ""]
    lines += [
        f"| {subject} / static arm | cells | throughput, geometric mean | best cell | worst cell |",
        "|---|---|---|---|---|",
    ]
    for name in _ordered(single):
        rows = sorted(single[name], key=lambda c: c.throughput)
        lines.append(
            f"| {name} | {len(rows)} | {geometric_mean([c.throughput for c in rows]):.2f} "
            f"| {rows[-1].throughput:.2f} in {rows[-1].cell.name} | {rows[0].throughput:.2f} in {rows[0].cell.name} |"
        )
    return lines
