"""What the service benchmark measures: cells, arms, and the file that keeps finished runs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

QUOTAS = (1.0, 1.5, 2.0)
CALLERS = (1, 4, 10, 32)
WORKERS = (1, 4)
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

_WORDS = (
    "the",
    "small",
    "group",
    "of",
    "people",
    "had",
    "to",
    "wait",
    "for",
    "water",
    "and",
    "food",
    "in",
    "the",
    "city",
)


class Workload(NamedTuple):
    """One kind of request: ``app`` names the service that answers it."""

    name: str
    app: str
    path: str
    body: str


def _texts(count: int, words: int) -> str:
    # One word is one token of MiniLM's vocabulary; [CLS] and [SEP] make two more.
    texts = [" ".join(_WORDS[(first + i) % len(_WORDS)] for i in range(words)) for first in range(count)]
    return json.dumps({"texts": texts})


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("st-small", "st", "/encode", json.dumps({"texts": ["How many cores may this container keep busy?"]})),
        Workload("st-med", "st", "/encode", _texts(4, 78)),
        Workload("np-10", "numpy", "/multiply", json.dumps({"size": 680})),
        Workload("np-50", "numpy", "/multiply", json.dumps({"size": 1180})),
    )
}


class Arm(NamedTuple):
    """One way to run the same service.

    ``style``: "sync" handlers in FastAPI's thread pool, "run" for ``await ct.run(...)``, "with" for sync handlers under
    ``limit_threads``. ``threads``: the value of VARIABLES, None leaves them unset, 0 is the quota's whole cores.
    ``believed``: CPUs the process believes in (believed_cpus.c), 0 for the real ones.
    """

    name: str
    style: str = "sync"
    threads: int | None = None
    believed: int = 0


ARMS = {
    arm.name: arm
    for arm in (
        Arm("defaults"),
        Arm("host24", threads=24),
        Arm("omp1", threads=1),
        Arm("quota", threads=0),
        Arm("ours", "run"),
        Arm("ours-with", "with"),
        Arm("believe24", believed=24),
        Arm("ours-believe24", "run", believed=24),
    )
}
DEFAULT_ARMS = ("defaults", "host24", "omp1", "quota", "ours")


def is_ours(arm: str) -> bool:
    return arm.startswith("ours")


def thread_variables(arm: Arm, quota: float) -> dict[str, str]:
    """The environment variables of ``arm`` under a quota of ``quota`` cores."""
    if arm.threads is None:
        return {}
    threads = arm.threads or max(1, math.floor(quota))
    variables = dict.fromkeys(VARIABLES, str(threads))
    if threads > quota:
        # Else MKL lowers the count to this machine's cores, and torch with it. OpenBLAS lowers it in any case: for
        # numpy only a preloaded library makes a larger host.
        variables["MKL_DYNAMIC"] = "FALSE"
    return variables


def distinct_arms(names: Iterable[str], quota: float) -> tuple[list[Arm], dict[str, str]]:
    """The arms to measure, and those left out because another has the very same settings: {left out: measured}."""
    measured: dict[tuple[object, ...], Arm] = {}
    same: dict[str, str] = {}
    for name in names:
        arm = ARMS[name]
        settings = (arm.style, arm.believed, tuple(thread_variables(arm, quota).items()))
        if settings in measured:
            same[name] = measured[settings].name
        else:
            measured[settings] = arm
    return list(measured.values()), same


class Cell(NamedTuple):
    """One situation in which all arms are compared."""

    quota: float
    callers: int
    workers: int
    workload: str

    @property
    def name(self) -> str:
        return f"q{self.quota:g}-c{self.callers}-w{self.workers}-{self.workload}"

    @property
    def family(self) -> tuple[float, int, str]:
        """Cells of one family are measured with the same server processes."""
        return self.quota, self.workers, WORKLOADS[self.workload].app


def parse_cell(name: str) -> Cell:
    """The cell of this name."""
    quota, callers, workers, workload = name.split("-", 3)
    return Cell(float(quota[1:]), int(callers[1:]), int(workers[1:]), workload)


def choose_cells(patterns: Sequence[str], quick: bool = False) -> list[Cell]:
    """The cells whose names match one of the shell patterns (all, without patterns), family by family."""
    axes: tuple[Sequence[Any], ...] = (QUOTAS, WORKERS, WORKLOADS, CALLERS)
    if quick:
        axes = ((1.0, 2.0), WORKERS, ("st-small", "np-10"), (1, 10))
    cells = [Cell(quota, callers, workers, name) for quota, workers, name, callers in itertools.product(*axes)]
    if patterns:
        cells = [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    return sorted(cells, key=lambda cell: cell.family)


def families(cells: Sequence[Cell]) -> Iterator[tuple[tuple[float, int, str], list[Cell]]]:
    for family, members in itertools.groupby(cells, key=lambda cell: cell.family):
        yield family, list(members)


def rotate(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """The arms, another one first each round."""
    first = turn % len(arms)
    return [*arms[first:], *arms[:first]]


def estimate_seconds(cells: Sequence[Cell], names: Sequence[str], rounds: int, each: float) -> float:
    """How long the matrix will take; ``each`` is one measurement with its warm-up."""
    total = 0.0
    for (quota, workers, app), members in families(cells):
        arms, _ = distinct_arms(names, quota)
        start = 7.0 if app == "st" else 1.5  # CPU seconds to load one process, measured on the 2-core machine
        total += start * workers * len(arms) / quota + len(members) * len(arms) * rounds * (each + 0.6)
    return total


class Store:
    """Finished measurements as JSON lines, appended as they come: an interrupted run keeps what it has."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(record, separators=(",", ":")) + "\n")


def load_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a last line cut off by a kill is left out."""
    records = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def finished(records: Iterable[dict[str, Any]]) -> set[tuple[str, str, int]]:
    """What --resume need not repeat: (cell, arm, round); one with errors is taken again."""
    runs = (record for record in records if record.get("kind") == "run")
    return {(run["cell"], run["arm"], run["round"]) for run in runs if not run["errors"]}
