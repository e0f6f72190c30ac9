"""The parent's side of one arm: start it inside the quota, send it rounds, watch its threads, end it in time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from ..errors import CgroupThreadsError
from ..measuring.quota import QuotaGroup
from ..reporting.counters import count_threads
from ..state import process
from .workloads import Workload

POLL_SECONDS: Final = 0.05
# Joining the group comes before anything is imported: the package detects its limits as it is imported.
_START: Final = """\
import json, sys
start = json.loads(sys.argv[1])
if start["procs"]:
    with open(start["procs"], "w") as file:
        file.write("0")
sys.path[:] = start["path"]
from cgroup_threads.demo.arm import main
main(sys.argv[2])
"""


class DemoError(CgroupThreadsError, RuntimeError):
    """An arm of the demo failed; ``arm`` is its name, or empty where none could be started."""

    def __init__(self, arm: str, reason: str) -> None:
        self.arm = arm
        super().__init__(f"demo, arm {arm!r}: {reason}" if arm else f"demo: {reason}")


class Answer(NamedTuple):
    """What an arm sent for one request, and the most native threads it had meanwhile. None: the time ran out."""

    data: dict[str, Any] | None
    threads: int


def arm_environment(governed: bool) -> dict[str, str]:
    """The user's environment; the ungoverned arm leaves thread variables to the libraries."""
    environment = dict(process.user_environ())
    environment["HF_HUB_OFFLINE"] = "1"  # models come from local paths
    if not governed:
        environment["CGROUP_THREADS_AUTO"] = "0"
    elif environment.get("CGROUP_THREADS_AUTO"):
        del environment["CGROUP_THREADS_AUTO"]
    return environment


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit inside the block, so that arms are ended and the group is removed.

    Only in the main thread; elsewhere it does nothing, since Python allows no handlers there.
    """

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None:
                previous[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class ArmProcess:
    """A running arm, for ``callers`` at once at most. ``close`` ends it in every case."""

    def __init__(self, name: str, workload: Workload, callers: int, governed: bool, group: QuotaGroup | None) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the arm; close() closes it
        start = {"procs": group.procs if group else "", "path": [os.path.abspath(entry) for entry in sys.path]}
        options = {"workload": workload, "callers": callers, "governed": governed}
        self.child = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(start), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=arm_environment(governed),
            start_new_session=True,  # Ctrl-C goes to the parent alone, which ends the arms itself
        )
        self._rest = b""

    def ask(self, callers: int, seconds: float, limit: float, tick: Callable[[], None]) -> Answer:
        """Run one round of ``seconds``; give it up ``limit`` seconds after it should have ended."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps({"callers": callers, "seconds": seconds}).encode() + b"\n")
            self.child.stdin.flush()
        except OSError:
            raise DemoError(self.name, self._last_words()) from None
        return self.wait(seconds + limit, tick)

    def wait(self, limit: float, tick: Callable[[], None]) -> Answer:
        """The arm's next line, within ``limit`` seconds. Raises DemoError if it failed or ended."""
        assert self.child.stdout is not None
        deadline = time.monotonic() + limit
        threads = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self.child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if time.monotonic() > deadline:
                    return Answer(None, threads)
                threads = max(threads, count_threads(self.child.pid))
                tick()
                if selector.select(POLL_SECONDS):
                    chunk = os.read(self.child.stdout.fileno(), 1 << 20)
                    if not chunk:
                        raise DemoError(self.name, self._last_words())
                    self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        data: dict[str, Any] = json.loads(line)
        if "error" in data:
            raise DemoError(self.name, data["error"])
        return Answer(data, threads)

    def _last_words(self) -> str:
        try:
            self.child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.seek(0)
        lines = self.log.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
        code = self.child.returncode
        if code == -signal.SIGILL:
            # Seen with amx in /proc/cpuinfo of a virtual machine that traps on it.
            fix = "llama.cpp: build it with GGML_NATIVE=OFF, or try --workload"
            return f"illegal instruction: a library was built for another CPU ({fix})"
        end = f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"
        return end + (f": {lines[-1]}" if lines else "")

    def close(self) -> None:
        """Kill the arm and wait for it."""
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout, self.log):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # a flush into a dead arm's pipe
