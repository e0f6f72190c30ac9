"""A command with ``{threads}`` in it as something to measure: run from its beginning to its end, each time anew."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final, NamedTuple

from ..errors import InvalidArgumentError
from ..measuring.child import describe_end, kill_session, read_end, user_environment
from ..measuring.ending import putting_off_signals
from ..measuring.sessions import Guard
from ..profiles.identity import present_identity
from ..profiles.records import Identity
from .errors import TuneError
from .records import Sample, Task

PLACE: Final = "{threads}"
COMMAND: Final = Task("command", "runs")
FIRST_LIMIT: Final = 3600.0
LEAST_LIMIT: Final = 30.0
PATIENCE: Final = 8.0  # times what one thread would need


class Usage(NamedTuple):
    """One run: seconds by the clock and of CPU, and the most memory it held, in bytes; None where nothing tells."""

    threads: int
    seconds: float
    cpu_seconds: float | None
    max_resident: int | None


class CommandSubject:
    """Runs the command with the count in place of each ``{threads}``, in the user's environment; its output is dropped.

    A run that ends with another code than 0 fails. One that takes longer than ``limit`` seconds (None: several times
    what one thread would need) is killed, and counts as one run in the time that was waited. ``close`` may be called
    from another thread: a measurement that runs then raises TuneError.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, limit: float | None = None
    ) -> None:
        check_command(command)
        self._command = tuple(command)
        self._environment = user_environment(environment)
        self._limit = limit
        self._bound: float | None = None
        self._lock = threading.Lock()
        """Held while a process is started, killed or waited for."""
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._closed = False
        self.title: str = " ".join(self._command)
        self.tasks: tuple[Task, ...] = (COMMAND,)
        self.usages: list[Usage] = []
        """All runs that ended well, in their order."""
        self.given_up: tuple[tuple[str, int], ...] = ()
        """The name of the task and the count of each run that was given up."""

    @property
    def identity(self) -> Identity:
        """What a measurement made now belongs to; no model and no library is known of a command."""
        return present_identity("", "")

    @property
    def pids(self) -> tuple[int, ...]:
        """The command while it runs."""
        process = self._process
        return () if process is None else (process.pid,)

    def measure(self, task: Task, threads: int, seconds: float) -> Sample:
        """Run the command back to back for about ``seconds``, at least once. Raises TuneError where it fails."""
        calls: list[float] = []
        total = 0.0
        while not calls or total + calls[-1] / 2 < seconds:
            limit = self._patience()
            usage = self._run(threads, limit)
            if usage is None:
                self.given_up += ((task.name, threads),)
                return Sample(len(calls) + 1, total + limit, (*calls, limit), stuck=not calls)
            self.usages.append(usage)
            calls.append(usage.seconds)
            total += usage.seconds
            bound = threads * usage.seconds
            self._bound = bound if self._bound is None else min(self._bound, bound)
        return Sample(len(calls), total, tuple(calls))

    def close(self) -> None:
        """End what runs."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                kill_session(self._process)  # whoever measures waits for it
                if self._guard is not None:
                    self._guard.forget(self._process.pid)
            if self._guard is not None:
                self._guard.close()

    def _patience(self) -> float:
        patience = FIRST_LIMIT if self._bound is None else max(LEAST_LIMIT, PATIENCE * self._bound)
        return patience if self._limit is None else min(patience, self._limit)

    def _run(self, threads: int, limit: float) -> Usage | None:
        """One run; None if it was killed after ``limit`` seconds."""
        command = [argument.replace(PLACE, str(threads)) for argument in self._command]
        with tempfile.TemporaryFile() as log:
            begin = time.perf_counter()
            process = self._start(command, log)
            late = threading.Event()
            timer = threading.Timer(limit, self._end_late, (process, late))
            timer.daemon = True
            timer.start()
            try:
                _wait_for_end(process)
                seconds = time.perf_counter() - begin
            finally:
                timer.cancel()
                with self._lock:  # no signal is sent once the process has been waited for
                    kill_session(process)  # what it left running would disturb the next run
                    if self._guard is not None:
                        self._guard.forget(process.pid)
                    cpu, resident = _reap(process)
                    self._process = None
            if self._closed:
                raise TuneError(self.title, "it was closed")
            if late.is_set():
                return None
            if process.returncode != 0:
                count = f"{threads} thread{'s' if threads > 1 else ''}"
                raise TuneError(self.title, f"with {count} {describe_end(process.returncode, read_end(log))}")
            return Usage(threads, seconds, cpu, resident)

    def _start(self, command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise TuneError(self.title, "it was closed")
            if self._guard is None:
                self._guard = Guard()
            try:
                with putting_off_signals():
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=log,
                        env=self._environment,
                        start_new_session=True,
                    )
                    self._guard.watch(self._process.pid)
            except OSError as error:
                raise TuneError(self.title, f"it cannot be started: {error.strerror}") from error
            return self._process

    def _end_late(self, process: subprocess.Popen[bytes], late: threading.Event) -> None:
        with self._lock:
            if self._process is process:
                late.set()
                kill_session(process)


def check_command(command: Sequence[str]) -> None:
    """Raise InvalidArgumentError for a command without a place for the thread count."""
    if not command or not all(isinstance(argument, str) and "\0" not in argument for argument in command):
        raise InvalidArgumentError("target", command, "a command: a list of strings")
    if not any(PLACE in argument for argument in command):
        raise InvalidArgumentError("target", command, f"a command with {PLACE} where its thread count goes")


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended; it stays a zombie, so that its number is not given to another."""
    if sys.platform != "win32" and hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _reap(process: subprocess.Popen[bytes]) -> tuple[float | None, int | None]:
    """Wait for a process that was killed or has ended: the CPU seconds and bytes that it used with its children."""
    if sys.platform == "win32" or process.returncode is not None:
        process.wait()
        return None, None
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:  # somebody else waited for it
        process.wait()
        return None, None
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit
