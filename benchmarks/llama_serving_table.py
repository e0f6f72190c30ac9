"""The arms and figures of three chats beside an embedding load, and the table from the records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.llama_arms import FIRST_IMPORT, Counters, spread, table
from benchmarks.service_load import quantile
from benchmarks.service_table import figure

QUOTA = 2.0
CHATS = 3
NEAR = 0.05
"""Ours may be so much worse than the best arm of a column."""
OURS = "ours"


class Arm(NamedTuple):
    """``code`` builds ``llm`` from ``path`` and ``common``."""

    name: str
    title: str
    code: str
    environ: tuple[tuple[str, str], ...] = ()


ARMS = (
    Arm("default", "Llama(path)", "llm = Llama(path, **common)"),
    Arm("omp1", "OMP_NUM_THREADS=1", "llm = Llama(path, **common)", (("OMP_NUM_THREADS", "1"),)),
    Arm("one", "each at 1 thread", "llm = Llama(path, n_threads=1, n_threads_batch=1, **common)"),
    Arm("two", "each at 2 threads", "llm = Llama(path, n_threads=2, n_threads_batch=2, **common)"),
    Arm(OURS, "create_llama(path)", FIRST_IMPORT + "llm = cgroup_threads.create_llama(path, **common)"),
)


class Column(NamedTuple):
    """A figure of a run; ``sign`` is 1 where more is better, -1 where less is."""

    name: str
    title: str
    sign: int


COLUMNS = (
    Column("tokens", "tokens/s", 1),
    Column("gap95", "p95 between tokens, ms", -1),
    Column("embeddings", "embeddings/s", 1),
)


class Mark(NamedTuple):
    """Something ended at ``at``, ``seconds`` after what it is counted from: a first or a next token, an embedding."""

    at: float
    kind: str
    seconds: float


def figures(marks: Sequence[Mark], seconds: float) -> dict[str, float | None]:
    """Rates, and the 95th percentile of waiting in ms (None where nothing ended)."""

    def of(*kinds: str) -> list[float]:
        return sorted(mark.seconds * 1000 for mark in marks if mark.kind in kinds)

    gaps, firsts, embeddings = of("next"), of("first"), of("embedding")
    return {
        "tokens": (len(gaps) + len(firsts)) / seconds,
        "gap95": quantile(gaps, 0.95) if gaps else None,
        "first": statistics.median(firsts) if firsts else None,
        "embeddings": len(embeddings) / seconds,
        "embedding95": quantile(embeddings, 0.95) if embeddings else None,
    }


def medians(records: Sequence[dict[str, Any]], column: Column) -> dict[str, float]:
    """By arm; infinity where a run had nothing to measure, as it is late then."""
    found: dict[str, list[float]] = {}
    for run in records:
        if run["kind"] == "run":
            value = run[column.name]
            found.setdefault(run["arm"], []).append(float("inf") if value is None else value)
    return {arm: statistics.median(values) for arm, values in found.items()}


def best_of(values: dict[str, float], column: Column) -> str:
    return max(values, key=lambda arm: column.sign * values[arm])


def near(records: Sequence[dict[str, Any]]) -> dict[str, tuple[float, str, bool]]:
    """For each column ours as a ratio of the best other arm, which arm that is, and whether ours is near or better."""
    found = {}
    for column in COLUMNS:
        values = medians(records, column)
        ours = values.pop(OURS, None)
        if ours is not None and values:
            best = best_of(values, column)
            ratio = ours / values[best] if values[best] else float("inf")
            found[column.name] = ratio, best, (ratio - 1) * column.sign >= -NEAR
    return found


def render(records: Sequence[dict[str, Any]]) -> str:
    """The table; the best of a column is marked with a star."""
    about = next(record for record in records if record["kind"] == "about")
    heads = ["arm", "threads", *(column.title for column in COLUMNS), "first token, ms", "embedding p95, ms"]
    heads += ["CPU", "others", "throttled", "involuntary switches/s", "leases/s", "OS threads"]
    best = {column.name: best_of(medians(records, column), column) for column in COLUMNS}
    rows = []
    for arm in ARMS:
        runs = [record for record in records if record.get("arm") == arm.name]
        if runs:
            cells = [arm.title, ", ".join(map(str, runs[0]["counts"]))]
            for name in (*(column.name for column in COLUMNS), "first", "embedding95"):
                values = [run[name] for run in runs if run[name] is not None]
                cells.append((spread(values) if values else "-") + (" *" if best.get(name) == arm.name else ""))
            used = [Counters(*run["used"]) for run in runs]
            cells.append(f"{statistics.median(run['cpu'] for run in runs):.2f}")
            cells.append(f"{statistics.median(run['others'] for run in runs):.2f}")
            cells.append(f"{statistics.median(counters.share for counters in used):.0%}")
            cells.append(figure(statistics.median(counters.involuntary for counters in used) / about["seconds"]))
            cells.append(figure(statistics.median(run["leases"] for run in runs) / about["seconds"]))
            rows.append([*cells, str(max(run["threads"] for run in runs))])
    seen = f", {about['believed']} CPUs seen" if about["believed"] else ""
    lines = [f"{CHATS} chats and an embedding load, quota {QUOTA:g}, {about['machine']['cpus']} CPUs{seen}; "]
    lines[0] += f"{about['rounds']} interleaved rounds of {about['seconds']:g} s; medians (min-max). "
    lines[0] += "CPU: cores used; others: by other processes, which should be next to none."
    lines += ["", *table(heads, rows), ""]
    for column in COLUMNS:
        if column.name in near(records):
            ratio, other, within = near(records)[column.name]
            lines.append(f"{column.title}: ours / {other} = {ratio:.3f}{'' if within else '  MISSED'}")
    return "\n".join(lines)
