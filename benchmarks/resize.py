"""A running service is resized: do its threads follow, and does each core do its work again?

    python -m benchmarks.resize                    # quota 2 -> 1 -> 0.5 -> 2, four callers of torch
    python -m benchmarks.resize --quotas 1,2 --max-cores 2

Needs root, a writable cgroup and torch. Each caller multiplies matrices under ``limit_threads()`` without end; the
quota of the group is changed in between. For each phase: how long until a lease had the new number of cores to share,
how many cores leases had in sum at most, and calls a second and core of the quota.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.quota_group import PERIOD_US, quota_group

CALLERS = 4


def serve() -> None:
    """Computes until its input ends; for each line tells the calls since the last one and the largest sum of cores."""
    import cgroup_threads as ct

    torch = importlib.import_module("torch")  # after the package, as an entry point does
    left, right = torch.ones(384, 384), torch.ones(384, 384)
    calls = [0] * CALLERS
    stop = threading.Event()

    def work(index: int) -> None:
        while not stop.is_set():
            with ct.limit_threads():
                for _ in range(4):
                    torch.mm(left, right)
            calls[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        for _ in sys.stdin:
            now = ct.statistics()
            told = {"s": time.monotonic(), "calls": sum(calls), "cores": now.cores, "leased": now.leased}
            print(json.dumps(told), flush=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        codes = sorted(notice.code for notice in ct.report().notices)
        print(json.dumps({"overcommitted": ct.statistics().overcommitted, "notices": codes}), flush=True)


def ask(server: subprocess.Popen[str]) -> dict[str, Any]:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer


def write_quota(group: Path, cores: float) -> None:
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{round(cores * PERIOD_US)} {PERIOD_US}")
    else:
        (group / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))


def measure(quotas: list[float], seconds: float, max_cores: int | None) -> None:
    root = str(Path(__file__).parents[1])
    environ = os.environ | {"PYTHONPATH": root} | ({"CGROUP_THREADS_MAX_CORES": str(max_cores)} if max_cores else {})
    with quota_group(quotas[0]) as group:
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.resize", "--serve"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        ask(server)
        time.sleep(2)
        print("quota\tbudget\tfollowed after s\tmost leased\tcalls/s\tcalls/s and core")
        for quota in quotas:
            write_quota(group, quota)
            expected = max(1, min(int(quota), os.cpu_count() or 1))
            changed = time.monotonic()
            while (now := ask(server))["cores"] != expected and time.monotonic() < changed + 10:
                time.sleep(0.01)
            followed = time.monotonic() - changed
            time.sleep(0.5)  # leases that were open at the change have ended
            first = last = ask(server)
            most = 0
            while last["s"] < first["s"] + seconds:
                time.sleep(0.02)
                last = ask(server)
                most = max(most, last["leased"])
            rate = (last["calls"] - first["calls"]) / (last["s"] - first["s"])
            cores = min(quota, os.cpu_count() or 1)
            print(f"{quota:g}\t{now['cores']}\t{followed:.2f}\t{most}\t{rate:.0f}\t{rate / cores:.0f}", flush=True)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        print(server.stdout.readline().strip())
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quotas", default="2,1,0.5,2", help="cores, one phase each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each phase (default: %(default)s)")
    parser.add_argument("--max-cores", type=int, help="CGROUP_THREADS_MAX_CORES of the service")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    else:
        measure([float(text) for text in arguments.quotas.split(",")], arguments.seconds, arguments.max_cores)


if __name__ == "__main__":
    main()
