"""What the benchmark of llama.cpp's batch threads compares, and its table from the records."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.llama_arms import FIRST_IMPORT, Counters, spread, table
from benchmarks.service_table import figure

FORGOTTEN = "llm = Llama(path, n_threads=1, **common)"
RIGHT = "both"
FLAT = 1.5
"""Four times the tokens or more for less than this multiple of the time: a fixed cost, not computation."""


class Arm(NamedTuple):
    """``code`` builds ``llm`` from ``path`` and ``common``."""

    name: str
    title: str
    code: str = FORGOTTEN
    environ: tuple[tuple[str, str], ...] = ()
    ubatch: int = 512


ARMS = (
    Arm("default", "Llama(n_threads=1)"),
    Arm("omp1", "OMP_NUM_THREADS=1", environ=(("OMP_NUM_THREADS", "1"),)),
    Arm("ubatch32", "n_ubatch=32, not 512", ubatch=32),
    Arm(RIGHT, "Llama(n_threads=1, n_threads_batch=1)", "llm = Llama(path, n_threads=1, n_threads_batch=1, **common)"),
    Arm("factory", "create_llama()", FIRST_IMPORT + "llm = cgroup_threads.create_llama(path, **common)"),
    Arm("backstop", "import cgroup_threads; Llama(n_threads=1)", FIRST_IMPORT + FORGOTTEN),
    Arm("unhooked", "the same, its hook switched off", FIRST_IMPORT + FORGOTTEN, (("CGROUP_THREADS_PATCH", "0"),)),
)
ENCODERS = ("minilm",)
MODELS = {"minilm": "all-MiniLM-L6-v2 f16", "qwen": "random weights in Qwen3-0.6B's shape, Q4_1"}


class Place(NamedTuple):
    """Where arms are compared."""

    model: str
    believed: int


def difference(vector: Sequence[float], right: Sequence[float]) -> float:
    """The greatest between two numbers in the same place."""
    return max(abs(one - other) for one, other in zip(vector, right, strict=True))


class Cell(NamedTuple):
    """One arm at one length: seconds of each round that was not killed, and what the first round used."""

    seconds: tuple[float, ...]
    killed: int
    calls: int
    used: Counters
    off: float | None


def collect(records: Iterable[dict[str, Any]]) -> dict[tuple[Place, str], dict[int, Cell]]:
    """The cells of each arm in each place, by length; outputs against the right setting's first one of that model."""
    runs = [record for record in records if record["kind"] == "run"]
    right = {
        (run["model"], run["length"]): run["vector"]
        for run in reversed(runs)
        if run["arm"] == RIGHT and run["seconds"] is not None
    }
    found: dict[tuple[Place, str], dict[int, list[dict[str, Any]]]] = {}
    for run in runs:
        lengths = found.setdefault((Place(run["model"], run["believed"]), run["arm"]), {})
        lengths.setdefault(run["length"], []).append(run)
    cells: dict[tuple[Place, str], dict[int, Cell]] = {}
    for (place, arm), lengths in found.items():
        cells[place, arm] = {}
        for length, rounds in lengths.items():
            done = [run for run in rounds if run["seconds"] is not None]
            compared = right.get((place.model, length))
            offs = [difference(run["vector"], compared) for run in done] if compared else []
            used, seconds = Counters(*rounds[0]["used"]), tuple(run["seconds"] for run in done)
            cells[place, arm][length] = Cell(
                seconds, len(rounds) - len(done), rounds[0]["calls"], used, max(offs) if offs else None
            )
    return cells


def row(place: Place, arm: Arm, counts: str, arms: dict[tuple[Place, str], dict[int, Cell]], about: Any) -> list[str]:
    cells, right, lengths = arms[place, arm.name], arms.get((place, RIGHT), {}), about["lengths"]
    shown, ratios = [], []
    for length in lengths:
        cell, compared = cells.get(length), right[length].seconds if length in right else ()
        if cell is None:
            shown.append("-")
        elif not cell.seconds:
            shown.append(f"> {about['cap']:g}")
            ratios.append(f"> {figure(about['cap'] / statistics.median(compared))}" if compared else "-")
        else:
            shown.append(spread(cell.seconds) + (f", {cell.killed} killed" if cell.killed else ""))
            ratios.append(figure(statistics.median(cell.seconds) / statistics.median(compared)) if compared else "-")
    ends = [cells[length].seconds if length in cells else () for length in (lengths[0], lengths[-1])]
    scaling = "-"
    if all(ends):
        grown = statistics.median(ends[1]) / statistics.median(ends[0])
        scaling = f"{figure(grown)}{' flat' if grown < FLAT and lengths[-1] >= 4 * lengths[0] else ''}"
    cell = cells[lengths[0]]
    sign = "" if cell.seconds else "> "
    switches = [f"{sign}{figure(number / cell.calls)}" for number in cell.used[:2]]
    offs = [cell.off for cell in cells.values() if cell.off is not None]
    output = "none" if not offs else "equal" if not max(offs) else f"off by {max(offs):.2g}"
    start = [str(place.believed), arm.title, counts]
    return [*start, *shown, " / ".join(ratios), scaling, f"{cell.used.share:.0%}", " + ".join(switches), output]


def render(records: Sequence[dict[str, Any]]) -> str:
    """One table a model."""
    about = next(record for record in records if record["kind"] == "about")
    arms = collect(records)
    heads = ["CPUs seen", "arm", "threads", *(f"{length} tokens, s" for length in about["lengths"]), "x right"]
    heads += [f"{about['lengths'][-1]} : {about['lengths'][0]}", "throttled", "switches", "output"]
    lines = [
        f"Quota 1 core, {about['machine']['cpus']} CPUs, llama-cpp-python {about['versions']['llama-cpp-python']}; "
    ]
    lines[0] += f"{about['rounds']} interleaved rounds, killed after {about['cap']:g} s. threads: generation, batch. "
    lines[0] += "switches: context switches an embedding, voluntary + involuntary."
    others = [record["others"] for record in records if "others" in record]
    if others:
        lines[0] += f" Other processes used {statistics.median(others):.2f} CPUs meanwhile."
    for model in dict.fromkeys(place.model for place, _ in arms):
        runs = [record for record in records if record.get("model") == model and record["kind"] == "run"]
        lines += ["", f"**{MODELS[model]}**, {runs[0]['parameters'] / 1e6:.0f} million parameters", ""]
        rows = []
        places = sorted({place for place, _ in arms if place.model == model})
        for place, arm in itertools.product(places, ARMS):
            own = [run for run in runs if run["arm"] == arm.name and run["believed"] == place.believed]
            if own:
                rows.append(row(place, arm, ", ".join(map(str, own[0]["counts"])), arms, about))
        lines += table(heads, rows)
    return "\n".join(lines)
