"""The parent's side of a fresh interpreter that measures: start it, ask it, end it in every case.

``worker.py`` is the other side, and says what goes over the pipes.
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
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..environment import ours_and_users
from ..marker import MARKER
from .errors import TuneError

_LAST_WORDS: Final = 1 << 16
_ASSERTION: Final = "GGML_ASSERT"  # llama.cpp aborts with it, before the lines of a debugger
_SECONDS_TO_END: Final = 5.0
_POLL_SECONDS: Final = 0.01
_LOOKS: Final = 3  # for members of a session: one that is being killed may start another
# Where modules are found comes before anything is imported.
_START: Final = """\
import json, sys
start = json.loads(sys.argv[1])
sys.path[:] = start["path"]
from cgroup_threads.tuning.worker import main
main(start["options"])
"""


def user_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The user's environment (or ``environment``) without anything that was computed here or by a governed parent."""
    found = dict(ours_and_users()[1] if environment is None else environment)
    found.pop(MARKER, None)
    return found


def worker_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """``user_environment`` for a process that imports this package and must not be governed by it."""
    return {**user_environment(environment), "CGROUP_THREADS_AUTO": "0"}


class Child:
    """A running worker. ``what`` names the work in errors; ``options`` are those of ``worker.main``."""

    def __init__(
        self, what: str, options: Mapping[str, Any], environment: Mapping[str, str], first_path: str | None = None
    ) -> None:
        self.what = what
        paths = [os.path.abspath(entry) for entry in sys.path]
        start = {"path": paths if first_path is None else [first_path, *paths], "options": options}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child; close() closes it
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(start)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C goes to the parent alone, which ends its children itself
            )
        except OSError as error:
            self._log.close()
            raise TuneError(what, f"no process can be started: {error.strerror}") from error
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="cgroup-threads-tune", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return not has_ended(self._process)

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any] | None:
        """Send one request and return its answer; None if there was none within ``limit`` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise TuneError(self.what, self._last_words()) from None
        return self.wait(limit)

    def wait(self, limit: float) -> dict[str, Any] | None:
        """The worker's next line; None if there was none within ``limit`` seconds.

        Raises TuneError if it says that the work failed, or has ended.
        """
        try:
            line = self._lines.get(timeout=min(limit, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
        if line is None:
            raise TuneError(self.what, self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TuneError(self.what, answer["error"])
        return answer

    def close(self) -> None:
        """Kill the child, and what it started, and wait for it. Twice does nothing."""
        kill_session(self._process)
        self._process.wait()
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

    def _last_words(self) -> str:
        deadline = time.monotonic() + _SECONDS_TO_END
        while not has_ended(self._process) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        kill_session(self._process)  # what it started may outlive it
        self._process.wait()
        if self._log.closed:
            return "it was ended"  # by another thread, whose time was over
        return describe_end(self._process.returncode, read_end(self._log))


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended. It stays a zombie, so that what is left of its session can still be killed."""
    if process.returncode is None and sys.platform != "win32" and hasattr(os, "waitid"):
        try:
            return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            pass  # somebody else waited for it
    return process.poll() is not None


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, with all that are in it. It must not have been waited for.

    Without /proc those in a process group of their own are left.
    """
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, PermissionError):  # Windows has no sessions; macOS refuses for one that has just ended
        process.kill()
    except ProcessLookupError:
        pass
    killed = {process.pid}
    for _ in range(_LOOKS):
        found = set(_find_members(process.pid)) - killed
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it ended by itself, or is another user's
        killed |= found
        if not found:
            return


def _find_members(session: int) -> Iterator[int]:
    """The processes in ``session``, also in groups of their own, as timeout(1) and job control make them."""
    if sys.platform == "win32":
        return
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isascii() and name.isdigit():
            try:
                if os.getsid(int(name)) == session:
                    yield int(name)
            except OSError:
                pass  # it has ended


def read_end(log: Any) -> bytes:
    """The last bytes written to an open file."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LAST_WORDS))
    found: bytes = log.read()
    return found


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
