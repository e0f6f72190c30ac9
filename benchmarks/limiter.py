"""What a limit costs: this library against threadpoolctl, arms taking turns in one process.

Loaded are numpy, scipy, scikit-learn, torch and OpenCV (those that are installed). Two figures for each arm: enter and
exit alone, and around a small torch operation that uses the calling thread's team.

    python benchmarks/limiter.py            table
    python benchmarks/limiter.py --json     the same as JSON
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

LIBRARIES = ("numpy", "scipy.linalg", "sklearn.cluster", "torch", "cv2")


def load() -> list[str]:
    found = []
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        found.append(name)
    return found


def time_calls(call: Callable[[], object], number: int) -> float:
    """Microseconds a call."""
    start = time.perf_counter_ns()
    for _ in range(number):
        call()
    return (time.perf_counter_ns() - start) / number / 1000


Limit = Callable[[], AbstractContextManager[object]]


def block(limit: Limit, work: Callable[[], object] | None = None) -> Callable[[], None]:
    if work is None:

        def enter_and_exit() -> None:
            with limit():
                pass

        return enter_and_exit

    def around() -> None:
        with limit():
            work()

    return around


def pools_alone() -> Callable[[], None]:
    """What threadpoolctl does too: pools are limited, but no cores are leased from the budget of all calls."""
    from cgroup_threads.pools.ledger import Lease, current

    ledger = current()

    def enter_and_exit() -> None:
        lease = Lease(1)
        ledger.enter(lease)
        ledger.leave(lease)

    return enter_and_exit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="rounds in which the arms take turns (default: 31)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    import cgroup_threads as ct

    libraries = load()
    from threadpoolctl import ThreadpoolController, threadpool_limits

    controller = ThreadpoolController()
    ours = ct.limit_threads(1)
    same = ct.limit_threads(64)
    arms: dict[str, tuple[Callable[[], None], int]] = {
        "limit_threads(1)": (block(lambda: ours), 300),
        "its limit of pools alone": (pools_alone(), 300),
        "limit_threads(1), nested": (block(lambda: ours), 300),
        "controller.limit(limits=1)": (block(lambda: controller.limit(limits=1)), 100),
        "threadpool_limits(1)": (block(lambda: threadpool_limits(1)), 5),
    }
    if "torch" in libraries:
        import torch

        values = torch.rand(256 * 1024)

        def work() -> object:
            return torch.relu(values)

        work()
        arms["relu alone"] = (lambda: (work(), None)[1], 50)
        arms["limit_threads(1) + relu"] = (block(lambda: ours, work), 50)
        arms["limit_threads(64) + relu, no change"] = (block(lambda: same, work), 50)
        arms["controller.limit(limits=1) + relu"] = (block(lambda: controller.limit(limits=1), work), 50)
        arms["threadpool_limits(1) + relu"] = (block(lambda: threadpool_limits(1), work), 5)
    results: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(options.rounds + 1):
        if sys.stderr.isatty():
            print(f"\rround {turn} of {options.rounds}", end="", file=sys.stderr)
        for name, (call, number) in arms.items():
            if name.endswith("nested"):
                with ours:
                    took = time_calls(call, number)
            else:
                took = time_calls(call, number)
            if turn:  # the first round warms up
                results[name].append(took)
    medians = {name: statistics.median(values) for name, values in results.items()}
    base = medians["limit_threads(1)"]
    ratios = {name: value / base for name, value in medians.items()}
    if options.json:
        rows = {name: {"median_us": medians[name], "ratio": ratios[name], "rounds": results[name]} for name in arms}
        print(json.dumps({"libraries": libraries, "arms": rows}, indent=2))
        return 0
    print(f"\nloaded: {', '.join(libraries)}; {len(controller.lib_controllers)} libraries known to threadpoolctl")
    print(f"{'arm':<38}{'median us':>11}{'spread':>16}{'of limit_threads(1)':>21}")
    for name, took in results.items():
        low, _, high = statistics.quantiles(took, n=4)
        print(f"{name:<38}{medians[name]:>11.1f}{f'{low:.1f} - {high:.1f}':>16}{ratios[name]:>20.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
