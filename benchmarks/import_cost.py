"""What `import cgroup_threads` costs beside `import threadpoolctl`: fresh interpreters, arms taking turns.

Each run starts a bare interpreter (`-I -S`: no site-packages hooks) and times the one import inside it, so both pay for
the same modules of the standard library. The ratio is taken pair by pair; its median must be at most 1.0, else the exit
code is 1. The start of the interpreter with nothing imported stands beside them as a scale.

    python benchmarks/import_cost.py            table
    python benchmarks/import_cost.py --json     the same as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

OURS = "cgroup_threads"
PEER = "threadpoolctl"
CODE = """
import os, sys, time
sys.path[:0] = sys.argv[2:]
wall, cpu = time.perf_counter_ns(), time.process_time_ns()
__import__(sys.argv[1])
print(time.perf_counter_ns() - wall, time.process_time_ns() - cpu, len(sys.modules))
if sys.argv[1] == "cgroup_threads" and "CGROUP_THREADS_APPLIED" not in os.environ:
    sys.exit("cgroup_threads has set nothing: its import did not finish")
"""


def time_import(module: str) -> tuple[float, float, int]:
    """Milliseconds of wall clock and of CPU time for the import, and the modules loaded after it."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith("CGROUP_THREADS_")}
    command = [sys.executable, "-I", "-S", "-c", CODE, module, *filter(None, sys.path[1:]), os.getcwd()]
    printed = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.split()
    return int(printed[0]) / 1e6, int(printed[1]) / 1e6, int(printed[2])


def time_start() -> float:
    """Milliseconds of wall clock for an interpreter that does nothing."""
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return (time.perf_counter_ns() - start) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs of each arm (default: 20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    for module in (OURS, PEER):  # byte code and file caches
        time_import(module)
    runs: dict[str, list[tuple[float, float, int]]] = {OURS: [], PEER: []}
    starts = []
    for turn in range(options.runs):
        starts.append(time_start())
        for module in (OURS, PEER) if turn % 2 else (PEER, OURS):
            runs[module].append(time_import(module))
    rows = {
        module: {
            "wall_ms": statistics.median(run[0] for run in taken),
            "cpu_ms": statistics.median(run[1] for run in taken),
            "modules": taken[0][2],
        }
        for module, taken in runs.items()
    }
    pairs = list(zip(runs[OURS], runs[PEER], strict=True))
    wall = statistics.median(ours[0] / peer[0] for ours, peer in pairs)
    cpu = statistics.median(ours[1] / peer[1] for ours, peer in pairs)
    if options.json:
        result = {"runs": options.runs, "start_ms": statistics.median(starts), "arms": rows}
        print(json.dumps(result | {"wall_ratio": wall, "cpu_ratio": cpu}, indent=2))
    else:
        print(f"{'arm':<26}{'wall ms':>9}{'CPU ms':>9}{'modules':>9}   medians of {options.runs} runs")
        print(f"{'start, nothing imported':<26}{statistics.median(starts):>9.1f}")
        for module, row in rows.items():
            print(f"{'import ' + module:<26}{row['wall_ms']:>9.1f}{row['cpu_ms']:>9.1f}{row['modules']:>9}")
        print(f"median ratio to {PEER}: wall {wall:.2f}, CPU {cpu:.2f}")
    return 0 if wall <= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
