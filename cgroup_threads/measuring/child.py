"""The parent's side of a fresh interpreter that measures: start it, ask it, end it in every case.

``serving.py`` is the other side.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final, NamedTuple

from ..environment import ours_and_users
from ..marker import MARKER
from .ending import putting_off_signals
from .interpreter import find_interpreter
from .sessions import Guard, end_session

POLL_SECONDS: Final = 0.05
_LAST_WORDS: Final = 1 << 16
_ASSERTION: Final = "GGML_ASSERT"  # llama.cpp aborts with it, before the lines of a debugger
_SECONDS_TO_END: Final = 5.0
_LOOK_SECONDS: Final = 0.01
# Joining a group comes before anything is imported, since the package detects its limits then; and so does where
# modules are found.
_START: Final = """\
import sys
if sys.path[:1] == [""]: del sys.path[0]  # the working directory may hold a json.py
import json
start = json.loads(sys.argv[1])
if start["procs"]:
    with open(start["procs"], "w") as file:
        file.write("0")
sys.path[:] = start["path"]
from importlib import import_module
import_module(start["module"]).main(start["options"])
"""


def user_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment (or ``environment``) without anything that was computed here or by a governed parent."""
    found = dict(ours_and_users()[1] if environment is None else environment)
    found.pop(MARKER, None)
    return found


def worker_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """``user_environment`` for a process that imports this package and must not be governed by it."""
    return {**user_environment(environment), "CGROUP_THREADS_AUTO": "0"}


class Start(NamedTuple):
    """How a child begins: ``main(options)`` of ``module``, in ``environment``.

    ``first_path`` is where modules are looked for first, ``procs`` the file of a cgroup to join ("" for none).
    """

    module: str
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    first_path: str | None = None
    procs: str = ""


class Child:
    """A running child. ``fail`` makes the exception that is raised where it fails, from a reason in one line.

    ``guard`` ends it if this process is killed.
    """

    def __init__(self, start: Start, guard: Guard, fail: Callable[[str], Exception]) -> None:
        self._fail = fail
        self._guard = guard
        paths = [os.path.abspath(entry) for entry in sys.path]
        told = {
            "module": start.module,
            "options": start.options,
            "path": paths if start.first_path is None else [start.first_path, *paths],
            "procs": start.procs,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child; close() closes it
        try:
            with putting_off_signals():
                self._process = subprocess.Popen(
                    [find_interpreter(), "-c", _START, json.dumps(told)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    env=dict(start.environment),
                    start_new_session=True,  # Ctrl-C goes to the parent alone, which ends its children itself
                )
                guard.watch(self.pid)
        except OSError as error:
            self._log.close()
            raise fail(f"no process can be started: {error.strerror}") from error
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="cgroup-threads-child", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return not has_ended(self._process)

    def ask(
        self, request: Mapping[str, Any], limit: float, tick: Callable[[], None] | None = None
    ) -> dict[str, Any] | None:
        """Send one request and return its answer; see ``wait``."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: another thread has closed it
            raise self._fail(self._last_words()) from None
        return self.wait(limit, tick)

    def wait(self, limit: float, tick: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """The child's next line; None if there was none within ``limit`` seconds.

        ``tick`` is called meanwhile, several times a second. Raises what ``fail`` makes if the child says that the
        work failed, or has ended.
        """
        deadline = time.monotonic() + min(limit, threading.TIMEOUT_MAX)
        while True:
            left = deadline - time.monotonic()
            if tick is not None:
                tick()
            try:
                line = self._lines.get(timeout=max(0.0, left if tick is None else min(left, POLL_SECONDS)))
                break
            except queue.Empty:
                if left <= 0:
                    return None
        if line is None:
            raise self._fail(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._fail(answer["error"])
        return answer

    def close(self) -> None:
        """Kill the child, and what it started, and wait for it. Twice does nothing."""
        self._end()
        self._reader.join(_SECONDS_TO_END)  # what left the session may still hold the pipe
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass  # a flush into a dead child's pipe
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _end(self) -> None:
        kill_session(self._process)
        self._guard.forget(self.pid)
        self._process.wait()

    def _last_words(self) -> str:
        deadline = time.monotonic() + _SECONDS_TO_END
        while not has_ended(self._process) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._end()  # what it started may outlive it
        try:
            return describe_end(self._process.returncode, read_end(self._log))
        except ValueError:
            return "it was ended"  # by another thread, whose time was over, and which has closed the log


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended. It stays a zombie, so that what is left of its session can still be killed."""
    if process.returncode is None and sys.platform != "win32" and hasattr(os, "waitid"):
        try:
            return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            pass  # somebody else waited for it
    return process.poll() is not None


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, with all that are in it; nothing, once it was waited for."""
    if process.returncode is not None:
        return
    if sys.platform == "win32":
        process.kill()
    else:
        end_session(process.pid)


def read_end(log: IO[bytes]) -> bytes:
    """The last bytes written to an open file."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LAST_WORDS))
    return log.read()


def describe_end(code: int, log: bytes) -> str:
    """How a process ended, with what it wrote last. A negative ``code`` is a signal's."""
    lines = log.decode("utf-8", "replace").strip().splitlines()
    if code == -getattr(signal, "SIGILL", 0):
        # Seen with amx in /proc/cpuinfo of a virtual machine that traps on it.
        return "illegal instruction: a library was built for another CPU (llama.cpp: build it with GGML_NATIVE=OFF)"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal
            name = f"signal {-code}"
        end = f"it was ended by {name}"
        if name == "SIGKILL":
            end += " (out of memory?)"
    else:
        end = f"it ended with code {code}"
    words = next((line for line in lines if _ASSERTION in line), lines[-1] if lines else "")
    return end + (f": {words}" if words else "")
