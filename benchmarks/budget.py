"""The core budget under stress: its cost, its sums while processes are killed, hand-over, fairness and leaks.

    python -m benchmarks.budget                 # all parts, a few minutes
    python -m benchmarks.budget stress --leases 100000 --cores 6

Leases are counted, not computed on, so that budgets larger than the machine can be tried. Each worker thread notes its
lease in a shared file after it began and before it ends; a sampler that reads the file twice counts only what stood
in both readings with the same serial number: those leases were all open between the two.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROW = struct.Struct("qqqd")  # serial number, cores now, leases so far, longest wait in seconds
PROCESSES, THREADS = 4, 8


class Board:
    """The shared file: a row for each worker thread."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.rows = len(self.map) // ROW.size

    def row(self, index: int) -> tuple[int, int, int, float]:
        return ROW.unpack_from(self.map, index * ROW.size)  # type: ignore[return-value]

    def put(self, index: int, *values: Any) -> None:
        ROW.pack_into(self.map, index * ROW.size, *values)

    def held(self, skip: range = range(0)) -> int:
        """Cores of leases that were all open at one moment."""
        before = [self.row(index) for index in range(self.rows)]
        after = [self.row(index) for index in range(self.rows)]
        return sum(
            old[1]
            for index, (old, new) in enumerate(zip(before, after, strict=True))
            if old == new and index not in skip
        )


@contextmanager
def board(rows: int) -> Iterator[tuple[Board, str]]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        file.truncate(rows * ROW.size)
        yield Board(file.name), file.name


def environ(cores: int, scope: str = "container") -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return os.environ | {"CGROUP_THREADS_CORES": str(cores), "CGROUP_THREADS_SCOPE": scope, "PYTHONPATH": root}


def start(arguments: list[str], cores: int, scope: str = "container") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.budget", *arguments]
    return subprocess.Popen(
        command, env=environ(cores, scope), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def worker(path: str, first: int, leases: int, seconds: float) -> None:
    """Threads that lease again and again, until ``leases`` each or ``seconds`` have passed; all begin at one line."""
    import cgroup_threads as ct

    shared = Board(path)
    ct.statistics()
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds

    def work(index: int) -> None:
        serial, _, done, longest = shared.row(index)
        while done < leases and time.monotonic() < end:
            with ct.limit_threads(1 + (done + index) % 4) as lease:
                done, longest, serial = done + 1, max(longest, lease.waited_s), serial + 1
                shared.put(
                    index,
                    serial,
                    lease.threads if lease._budget and lease._budget.leases.get(lease) else 0,
                    done,
                    longest,
                )
                if done % 8 == 0:
                    time.sleep(0.0005)
                serial += 1
                shared.put(index, serial, 0, done, longest)

    threads = [threading.Thread(target=work, args=(first + number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = ct.statistics()
    print(json.dumps({"granted": counted.granted, "overcommitted": counted.overcommitted, "active": counted.active}))


def go(processes: list[subprocess.Popen[str]]) -> None:
    """Let workers begin once all of them can."""
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def stress(cores: int, leases: int, kill_every_s: float | None) -> dict[str, Any]:
    """The largest sum that a sampler sees while processes lease, and one is killed now and then."""
    each = leases // (PROCESSES * THREADS)
    with board(PROCESSES * THREADS) as (shared, path):

        def begin(number: int) -> subprocess.Popen[str]:
            return start(["worker", path, str(number * THREADS), str(each), "600"], cores)

        processes = [begin(number) for number in range(PROCESSES)]
        go(processes)
        samples = most = kills = overcommitted = 0
        dead: range = range(0)
        next_kill = time.monotonic() + (kill_every_s or 1e9) + 1.0
        while any(process.poll() is None for process in processes):
            most = max(most, shared.held(dead))
            samples += 1
            if time.monotonic() >= next_kill and kill_every_s:
                number = kills % PROCESSES
                if processes[number].poll() is None:
                    processes[number].kill()
                    processes[number].wait()
                    for index in range(number * THREADS, (number + 1) * THREADS):
                        serial, _, done, longest = shared.row(index)
                        shared.put(index, serial + 1, 0, done, longest)
                    processes[number] = begin(number)
                    go(processes[number : number + 1])
                    kills += 1
                next_kill = time.monotonic() + kill_every_s
        for process in processes:
            out = process.communicate()[0]
            overcommitted += json.loads(out)["overcommitted"] if out else 0
        rows = [shared.row(index) for index in range(shared.rows)]
    return {
        "cores": cores,
        "leases": sum(row[2] for row in rows),
        "samples": samples,
        "kills": kills,
        "most": most,
        "overcommitted": overcommitted,
        "longest_wait_s": max(row[3] for row in rows),
    }


def fairness(cores: int, seconds: float) -> dict[str, Any]:
    """Jain's index over the leases of all threads: 1 is equal shares."""
    with board(PROCESSES * THREADS) as (shared, path):
        processes = [
            start(["worker", path, str(number * THREADS), "1000000000", str(seconds)], cores)
            for number in range(PROCESSES)
        ]
        go(processes)
        for process in processes:
            process.wait()
            process.communicate()
        rows = [shared.row(index) for index in range(shared.rows)]
    done = [row[2] for row in rows]
    return {
        "cores": cores,
        "leases": sum(done),
        "jain": sum(done) ** 2 / (len(done) * sum(count * count for count in done)),
        "longest_wait_s": max(row[3] for row in rows),
    }


def partner() -> None:
    """Obeys lines: takes all cores, gives them back, or waits for them; tells when (monotonic seconds)."""
    import cgroup_threads as ct

    block = ct.limit_threads()
    for line in sys.stdin:
        if line == "take\n":
            block = ct.limit_threads(patience=60)
            lease = block.__enter__()
            print(json.dumps([time.monotonic(), lease.threads]), flush=True)
        elif line == "give\n":
            began = time.monotonic()
            block.__exit__(None, None, None)
            print(json.dumps([began, 0]), flush=True)
        elif line == "waiting\n":
            print(json.dumps(ct.statistics().waiting), flush=True)


def ask(process: subprocess.Popen[str], line: str) -> Any:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def hand_over(cores: int, rounds: int, by_death: bool) -> list[float]:
    """Seconds from one process's giving back (or being killed) to another's beginning."""
    took = []
    processes = [start(["partner"], cores) for _ in range(2)]
    for process in processes:
        ask(process, "waiting")
        answer(process)
    for round_number in range(rounds):
        holder, waiter = processes[round_number % 2], processes[(round_number + 1) % 2]
        ask(holder, "take")
        answer(holder)
        ask(waiter, "take")
        time.sleep(0.02)  # it is in the queue by then; a later arrival would only make the figure better
        if by_death:
            began = time.monotonic()
            os.kill(holder.pid, signal.SIGKILL)
        else:
            ask(holder, "give")
            began = answer(holder)[0]
        took.append(answer(waiter)[0] - began)
        ask(waiter, "give")
        answer(waiter)
        if by_death:
            holder.communicate()
            processes[round_number % 2] = fresh = start(["partner"], cores)
            ask(fresh, "waiting")  # until it can wait
            answer(fresh)
    for process in processes:
        process.communicate()
    return took


def cost() -> None:
    """Prints microseconds of a lease with its limit, uncontended."""
    import cgroup_threads as ct

    def once() -> None:
        with ct.limit_threads():
            pass

    once()
    runs = timeit.repeat(once, number=2000, repeat=15)
    print(json.dumps({"median_us": statistics.median(runs) / 2000 * 1e6, "min_us": min(runs) / 2000 * 1e6}))


def leak(leases: int) -> None:
    """Prints resident memory and descriptors before and after many leases."""
    import cgroup_threads as ct

    def state() -> tuple[int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024, len(os.listdir("/proc/self/fd"))

    def many(number: int) -> None:
        for _ in range(number):
            with ct.limit_threads():
                pass

    many(leases // 10)
    before = state()
    many(leases)
    print(json.dumps({"leases": leases, "before_kib_fds": before, "after_kib_fds": state()}))


def run_json(arguments: list[str], cores: int, scope: str) -> Any:
    process = start(arguments, cores, scope)
    return json.loads(process.communicate()[0])


def percent(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report_part(part: str, arguments: argparse.Namespace) -> None:
    if part == "cost":
        for scope in ("process", "container"):
            print(f"cost, {scope}:\t{json.dumps(run_json(['cost-worker'], 4, scope))}", flush=True)
    elif part == "stress":
        found = stress(arguments.cores, arguments.leases, arguments.kill_every)
        print(f"stress:\t{json.dumps(found)}", flush=True)
    elif part == "fairness":
        for cores in (1, 6, 64):
            print(f"fairness:\t{json.dumps(fairness(cores, arguments.seconds))}", flush=True)
    elif part == "handover":
        for by_death in (False, True):
            took = hand_over(1, arguments.rounds, by_death)
            p50, p99 = percent(took, 0.5) * 1e3, percent(took, 0.99) * 1e3
            name = "after a kill" if by_death else "to another process"
            print(f"hand-over {name}:\tp50 {p50:.3f} ms\tp99 {p99:.3f} ms\t{len(took)} times", flush=True)
    elif part == "leak":
        for scope in ("process", "container"):
            found = run_json(["leak-worker", str(arguments.leak_leases)], 4, scope)
            print(f"leak, {scope}:\t{json.dumps(found)}", flush=True)


PARTS = ("cost", "stress", "fairness", "handover", "leak")


def main() -> None:
    inner = sys.argv[1:2]
    if inner == ["worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    elif inner == ["partner"]:
        partner()
    elif inner == ["cost-worker"]:
        cost()
    elif inner == ["leak-worker"]:
        leak(int(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
        parser.add_argument("--cores", type=int, default=6, help="the budget under stress (default: %(default)s)")
        parser.add_argument("--leases", type=int, default=100_000, help="of all threads (default: %(default)s)")
        parser.add_argument(
            "--kill-every", type=float, default=0.1, metavar="S", help="0: never (default: %(default)s)"
        )
        parser.add_argument("--seconds", type=float, default=8.0, help="of each fairness run (default: %(default)s)")
        parser.add_argument("--rounds", type=int, default=100, help="of hand-over (default: %(default)s)")
        parser.add_argument("--leak-leases", type=int, default=1_000_000, help="(default: %(default)s)")
        arguments = parser.parse_args()
        if unknown := set(arguments.parts) - set(PARTS):
            parser.error(f"no such part: {', '.join(sorted(unknown))}")
        for part in arguments.parts or PARTS:
            report_part(part, arguments)


if __name__ == "__main__":
    main()
