"""How many native threads of a process run at once, seen by the kernel: sampled from outside while it computes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

from tests.lab import require_module
from tests.lab.commands import clean_environ

CALLERS, BUDGET = 8, 2
SAMPLES, SECONDS = 600, 3.0
# Eight callers that multiply without end. The lock of the interpreter is free while a product is computed.
SCRIPT = """
import sys, threading
from contextlib import nullcontext
import cgroup_threads as ct
import numpy, torch
callers, limited = int(sys.argv[1]), sys.argv[2] == "limited"
square, rows = torch.ones(512, 512), numpy.ones((256, 256))
started, stop = threading.Semaphore(0), threading.Event()
def call():
    while not stop.is_set():
        with ct.limit_threads(patience=60) if limited else nullcontext():
            for _ in range(20):
                torch.relu(torch.mm(square, square))
                started.release()
                if stop.is_set(): break
            rows @ rows
threads = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
for thread in threads: thread.start()
for _ in range(callers): started.acquire()
print("started", flush=True)
sys.stdin.read()
stop.set()
for thread in threads: thread.join()
print(ct.statistics().overcommitted, flush=True)
"""


def running(pid: int) -> int:
    """How many threads of ``pid`` run or are ready to: state R. Who waits for a lock, the interpreter's too, sleeps."""
    number = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            stat = (task / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it ended between listing and reading
            continue
        number += stat.rpartition(b") ")[2].startswith(b"R")
    return number


def sample(kind: str) -> Counter[int]:
    """Samples by the number of running threads, over three seconds of the script."""
    for module in ("numpy", "torch"):
        require_module(module)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(CALLERS), kind],
        env=clean_environ(CGROUP_THREADS_CORES=str(BUDGET), MKL_DYNAMIC="FALSE"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            seen: Counter[int] = Counter()
            began = time.monotonic()
            while seen.total() < SAMPLES or time.monotonic() < began + SECONDS:
                seen[running(process.pid)] += 1
                time.sleep(SECONDS / SAMPLES / 2)
            out, _ = process.communicate("", timeout=60)
            assert out == "0\n", "nobody was given a core above the budget"
            assert process.returncode == 0
        finally:
            process.kill()
    print(kind, seen.total(), "samples", sorted(seen.items()), f"{within(seen):.4f} within {BUDGET + 1}")
    return seen


def within(seen: Counter[int]) -> float:
    """The share of samples with at most one running thread above the budget."""
    return sum(number for threads, number in seen.items() if threads <= BUDGET + 1) / seen.total()


def test_under_the_limit_no_more_threads_run_than_the_budget_has_cores() -> None:
    """Leases never have more than two cores in sum, so two threads compute and six callers sleep. One more may run
    Python, before its lease or after it: only one holds the interpreter's lock.

    A third and fourth can be ready where a lease or that lock passes on: whoever was woken is ready at once, and on
    busy CPUs whoever woke it is not asleep yet. A sample, too, looks at one thread after the other. So the promise is
    one of nearly all samples; the same loop without a limit is far from it.
    """
    seen = sample("limited")
    assert within(seen) >= 0.95
    assert median(seen.elements()) == BUDGET


def test_without_the_limit_they_do() -> None:
    """The same loop: were it within the bound, the test above would prove nothing."""
    assert within(sample("unlimited")) < 0.5
