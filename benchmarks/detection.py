"""What detection costs: ``detect()`` against ``joblib.cpu_count()``, taking turns in one process.

python -m benchmarks.detection [--json] [--rounds 101]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from benchmarks.limiter import time_calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101, help="rounds in which the arms take turns (default: 101)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    import joblib

    import cgroup_threads as ct

    arms = {"detect()": ct.detect, "joblib.cpu_count()": joblib.cpu_count}
    results: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(options.rounds + 1):
        for name, call in arms.items():
            took = time_calls(call, 20)
            if turn:
                results[name].append(took)
    medians = {name: statistics.median(values) for name, values in results.items()}
    ratio = medians["detect()"] / medians["joblib.cpu_count()"]
    if options.json:
        print(json.dumps({"median_us": medians, "ratio": ratio}, indent=2))
        return 0
    for name, took in medians.items():
        print(f"{name:<22}{took:>9.1f} us")
    print(f"{'ratio':<22}{ratio:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
