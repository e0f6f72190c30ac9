"""What detection costs, and how right it is beside others.

    python -m benchmarks.detection             detect() against joblib.cpu_count(), taking turns in one process
    python -m benchmarks.detection --peers     cores seen in real cgroup v1 groups and in a runc container
    ... --json                                 the same as JSON

--peers needs root, writable cgroup v1 hierarchies, and runc for the container; it prints the table of
docs/detection.md and ends with 1 if our answer is wrong in any row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from benchmarks.limiter import time_calls
from tests.lab.cgroup1 import LAYOUTS, ask

CALLS = 20  # in a row, of each arm, in each round
COLUMNS = ("cgroup_threads", "joblib", "proclimits", "os.cpu_count")


def time_detection(rounds: int) -> dict[str, Any]:
    """Medians in microseconds and the median of the ratios round by round."""
    import joblib

    import cgroup_threads as ct

    arms = {"detect()": ct.detect, "joblib.cpu_count()": joblib.cpu_count}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        for name in sorted(arms, reverse=turn % 2 == 1):
            took = time_calls(arms[name], CALLS)
            if turn:  # the first round fills caches
                times[name].append(took)
    ratios = [ours / peer for ours, peer in zip(*times.values(), strict=True)]
    return {
        "rounds": rounds,
        "median_us": {name: statistics.median(values) for name, values in times.items()},
        "ratio": statistics.median(ratios),
    }


def ask_peers() -> list[dict[str, Any]]:
    """One row for each layout: the right answer and what each library says."""
    rows = []
    for layout in LAYOUTS:
        print(f"\r\033[K{layout.title}", end="", file=sys.stderr)
        rows.append({"layout": layout.title, "view": layout.view, "right": layout.usable, **ask(layout)})
    print("\r\033[K", end="", file=sys.stderr)
    return rows


def is_right(row: dict[str, Any], name: str) -> bool:
    return row[name] is not None and max(1, int(row[name])) == row["right"]


def print_table(rows: list[dict[str, Any]]) -> None:
    """Markdown; answers that are not right stand in bold. A fraction is right if its whole cores, at least 1, are."""
    print("| layout | view | right |", " | ".join(COLUMNS), "|")
    print("|---" * (3 + len(COLUMNS)) + "|")
    for row in rows:
        cells = [f"{row[name]}" if is_right(row, name) else f"**{row[name]}**" for name in COLUMNS]
        print(f"| {row['layout']} | {row['view']} | {row['right']} |", " | ".join(cells), "|")
    right = [sum(is_right(row, name) for row in rows) for name in COLUMNS]
    print(f"| right of {len(rows)} | | |", " | ".join(map(str, right)), "|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101, help="rounds in which the arms take turns (default: 101)")
    parser.add_argument("--peers", action="store_true", help="compare answers in real groups")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.peers:
        rows = ask_peers()
        if options.json:
            print(json.dumps(rows, indent=2))
        else:
            print_table(rows)
        return 0 if all(row["cgroup_threads"] == row["right"] for row in rows) else 1
    result = time_detection(options.rounds)
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    for name, took in result["median_us"].items():
        print(f"{name:<22}{took:>9.1f} us   median of {options.rounds} rounds of {CALLS} calls")
    print(f"{'median ratio':<22}{result['ratio']:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
