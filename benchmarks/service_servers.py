"""Server processes of the service benchmark inside a quota group, and what is seen of them from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.service_cells import Arm, thread_variables
from benchmarks.service_load import Job

ROOT = Path(__file__).parents[1]
START_SECONDS = 900.0
"""Until a server has to listen: twenty processes load torch under a quota of one core."""
TICK = os.sysconf("SC_CLK_TCK")
SAMPLES_PER_SECOND = 50
SAMPLER_SHARE = 0.03
"""The part of one CPU that looking at the threads may take; with many threads they are looked at less often."""


class Failure(RuntimeError):
    """A server or the load generator did not do what it should; the text says which and how."""


class Lab(NamedTuple):
    """``package``: the directory that holds the cgroup_threads to measure; ``shim``: the compiled believed_cpus.c."""

    package: Path
    shim: Path | None


class Server:
    """All processes of one arm; they share a port by SO_REUSEPORT. ``pause`` stops them, ``resume`` lets them run."""

    def __init__(self, arm: Arm, app: str, quota: float, workers: int, group: Path, lab: Lab) -> None:
        self.arm, self.app, self.quota, self.workers = arm, app, quota, workers
        self.group, self.lab = group, lab
        self.processes: list[subprocess.Popen[bytes]] = []
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        # Bound but not listening: it keeps the port's number and gets no connections.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind(("127.0.0.1", 0))
        self.port: int = self._port.getsockname()[1]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def start(self) -> None:
        """Start the processes inside the group; ``wait_ready`` waits for them."""
        keep = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
        environ = {name: value for name, value in os.environ.items() if name in keep}
        environ.update(thread_variables(self.arm, self.quota), PYTHONPATH=str(ROOT), HF_HUB_OFFLINE="1")
        if self.arm.believed:
            environ.update(LD_PRELOAD=str(self.lab.shim), BELIEVED_CPUS=str(self.arm.believed))
        # The shell joins the group and becomes Python: everything happens inside.
        script = f'echo $$ > {self.group}/cgroup.procs && exec "$0" "$@"'
        command = [sys.executable, "-m", "benchmarks.service_app", "--app", self.app]
        command += ["--style", self.arm.style, "--port", str(self.port)]
        for _ in range(self.workers):
            self.processes.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", script, *command],
                    env=environ,
                    cwd=self.lab.package,  # python -m searches it before everything else
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    start_new_session=True,
                )
            )

    def wait_ready(self) -> None:
        """Until all processes listen. Raises Failure with the end of their messages."""
        until = time.monotonic() + START_SECONDS
        for process in self.processes:
            assert process.stdout is not None
            seen, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not seen or process.stdout.readline() != b"ready\n":
                raise Failure(f"a server of arm {self.arm.name} did not start\n{self.messages()}")

    def messages(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-20:])

    def check(self) -> None:
        """Raises Failure if a process has ended."""
        for process in self.processes:
            if process.poll() is not None:
                raise Failure(f"a server of arm {self.arm.name} ended: {process.returncode}\n{self.messages()}")

    def pause(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.processes.clear()

    def close(self) -> None:
        self.stop()
        self._port.close()
        self._log.close()


class Usage(NamedTuple):
    """Counters at one moment: CPU seconds of the processes, periods of the group and how many were throttled."""

    cpu: float
    periods: int
    throttled: int


def parse_stat(text: str) -> tuple[str, float, int]:
    """State, CPU seconds and number of threads from a ``stat`` file of /proc."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / TICK, int(fields[17])


def read_usage(pids: list[int], group: Path) -> Usage:
    cpu = sum(parse_stat(Path(f"/proc/{pid}/stat").read_text())[1] for pid in pids)
    counters = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return Usage(cpu, int(counters["nr_periods"]), int(counters["nr_throttled"]))


class Sampler:
    """Counts the threads of processes that can run (state R): running, waiting for a CPU, or throttled."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.running: list[int] = []
        self.threads = 0
        self.interval = 1 / SAMPLES_PER_SECOND

    def sample(self) -> None:
        began = time.thread_time()
        running = threads = 0
        for pid in self.pids:
            try:
                names = os.listdir(f"/proc/{pid}/task")
            except FileNotFoundError:
                continue
            threads += len(names)
            for name in names:
                running += _is_running(f"/proc/{pid}/task/{name}/stat")
        self.running.append(running)
        self.threads = max(self.threads, threads)
        self.interval = max(1 / SAMPLES_PER_SECOND, (time.thread_time() - began) / SAMPLER_SHARE)

    def result(self) -> dict[str, Any]:
        mean = sum(self.running) / len(self.running) if self.running else 0.0
        return {
            "threads": self.threads,
            "running_max": max(self.running, default=0),
            "running_mean": mean,
            "samples": len(self.running),
        }


def _is_running(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # the thread has ended
        return False
    try:
        text = os.read(descriptor, 512)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return text[text.rindex(b")") + 2 : text.rindex(b")") + 3] == b"R"


def measure(server: Server, job: Job) -> dict[str, Any]:
    """Send the load to a running server and watch it. Raises Failure."""
    load = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.service_load"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert load.stdin is not None
    assert load.stdout is not None
    try:
        load.stdin.write(json.dumps(job._asdict()).encode())
        load.stdin.close()
        _next_line(load.stdout, server)
        before = read_usage(server.pids, server.group)
        sampler = Sampler(server.pids)
        ready: list[Any] = []
        while not ready:
            sampler.sample()
            ready, _, _ = select.select([load.stdout], [], [], sampler.interval)
        _next_line(load.stdout, server)
        after = read_usage(server.pids, server.group)
        result = _next_line(load.stdout, server)
        load.wait()
    finally:
        load.kill()
        load.wait()
        load.stdout.close()
    periods = after.periods - before.periods
    return {
        **result,
        **sampler.result(),
        "cpu": after.cpu - before.cpu,
        "throttled": (after.throttled - before.throttled) / periods if periods else 0.0,
    }


def _next_line(stream: IO[bytes], server: Server) -> dict[str, Any]:
    line = stream.readline()
    if not line:
        server.check()
        raise Failure(f"the load generator ended early on arm {server.arm.name}")
    values: dict[str, Any] = json.loads(line)
    return values
