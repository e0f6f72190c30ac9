"""One run of a command: its time, its CPU seconds, what it wrote; ended at a time limit with all it started."""

from __future__ import annotations

import hashlib
import os
import queue
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, NamedTuple

from ..measuring.ending import noticing_stops, putting_off_signals
from ..measuring.sessions import Guard, end_session
from ..notices import shown
from ..reporting.counters import read_throttling, throttling_between
from .records import Arm, CompareError, Output, Run, Terms

POLL_SECONDS: Final = 0.1
MAX_TRIES: Final = 5
GRACE_SECONDS: Final = 10.0  # after SIGKILL
MAX_KEPT: Final = 16 << 20  # of one output, for a look into it
MAX_OUTPUT: Final = 1 << 30  # on disk, of each stream
MAX_LOG: Final = 256 << 10  # the end of standard error
_CHUNK: Final = 1 << 20


class _End(NamedTuple):
    """When the command ended, its status as wait() tells it, and its CPU seconds."""

    moment: float
    status: int
    cpu: float


def run_once(arm: Arm, terms: Terms, tick: Callable[[], None], guard: Guard | None = None) -> Run:
    """Run the arm's command once, to its end or the time limit; again where this process was stopped meanwhile.

    Whatever it left in its session is ended with it; ``guard`` ends all that if this process is killed. Raises
    CompareError where it cannot be started or written files cannot be read.
    """
    for _ in range(MAX_TRIES):
        with noticing_stops() as stops:
            run = _try_once(arm, terms, tick, guard)
        if not stops:
            return run
    raise CompareError(f"compare: this process was stopped in each of {MAX_TRIES} runs of the same command")


def _try_once(arm: Arm, terms: Terms, tick: Callable[[], None], guard: Guard | None) -> Run:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        old = None if terms.output is None else _identify(terms.output)
        before = read_throttling(terms.counters) if terms.counters else None
        start = time.perf_counter()
        with putting_off_signals():
            child = _Child(_start(arm, terms, out, log), guard)
        try:
            end = _wait(child, start + terms.limit, (out, log), tick)
        finally:
            child.kill()
        limited = end is None
        if end is None:
            end = _wait(child, time.perf_counter() + GRACE_SECONDS, (), tick)
        if end is None:
            raise CompareError(f"compare: {shown(arm.command[0], 200)}: process {child.process.pid} cannot be ended")
        counted = throttling_between(before, read_throttling(terms.counters)) if terms.counters else None
        code = os.waitstatus_to_exitcode(end.status)
        output = None
        if not limited:
            output = _read(out) if terms.output is None else _read_file(terms.output, old, code)
        return Run(
            seconds=end.moment - start,
            cpu=end.cpu,
            code=code,
            output=output,
            log=_read_end(log),
            periods=counted.periods if counted else 0,
            throttled=counted.throttled if counted else 0,
            limited=limited,
        )


class _Child:
    """A started command. Its end is put into ``ended`` by a thread of its own: only wait4 tells its CPU time."""

    def __init__(self, process: subprocess.Popen[bytes], guard: Guard | None) -> None:
        self.process = process
        self._guard = guard
        if guard is not None:
            guard.watch(process.pid)
        self.ended: queue.SimpleQueue[_End] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._gone = False
        threading.Thread(target=self._reap, daemon=True).start()

    def _reap(self) -> None:
        pid = self.process.pid
        if hasattr(os, "waitid"):  # looks without reaping, so that the number of the group stays taken
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        moment = time.perf_counter()
        self.kill()
        if self._guard is not None:
            self._guard.forget(pid)
        _, status, usage = os.wait4(pid, 0)
        with self._lock:
            self._gone = True
        self.process.returncode = os.waitstatus_to_exitcode(status)  # or it would wait for it itself
        self.ended.put(_End(moment, status, usage.ru_utime + usage.ru_stime))

    def kill(self) -> None:
        """End the session; nothing, once it is gone."""
        with self._lock:
            if not self._gone:
                end_session(self.process.pid)


def _start(arm: Arm, terms: Terms, out: IO[bytes], log: IO[bytes]) -> subprocess.Popen[bytes]:
    given: Any = subprocess.DEVNULL
    try:
        if terms.given is not None:
            if stat.S_ISFIFO(os.stat(terms.given).st_mode):  # the second run would find it empty
                raise CompareError(f"compare: {shown(terms.given, 200)}: a pipe cannot be read anew by every run")
            given = open(terms.given, "rb")  # noqa: SIM115  # DEVNULL has no end
    except OSError as error:
        raise CompareError(f"compare: {shown(terms.given or '', 200)}: {error.strerror}") from None
    try:
        return subprocess.Popen(
            arm.command,
            env={name: value for name, value in arm.environment.items() if name},  # Python takes no empty name
            stdin=given,
            stdout=out,
            stderr=log,
            start_new_session=True,  # Ctrl-C goes to the parent alone, which ends the command and all it started
        )
    except OSError as error:
        raise CompareError(f"compare: {shown(arm.command[0], 200)}: {error.strerror}") from None
    except ValueError as error:  # a NUL in a word
        raise CompareError(f"compare: {shown(arm.command[0], 200)}: {error}") from None
    finally:
        if given is not subprocess.DEVNULL:
            given.close()


def _wait(child: _Child, deadline: float, written: Sequence[IO[bytes]], tick: Callable[[], None]) -> _End | None:
    """The end of the child; None if it has not come by ``deadline``.

    Raises CompareError once one of the files that are ``written`` is too large: they are on a disk of others.
    """
    while True:
        tick()
        left = deadline - time.perf_counter()
        try:
            return child.ended.get(timeout=max(0.0, min(left, POLL_SECONDS)))
        except queue.Empty:
            if left <= 0:
                return None
        for file, name in zip(written, ("output", "error"), strict=False):
            if os.fstat(file.fileno()).st_size > MAX_OUTPUT:
                raise CompareError(f"compare: the command wrote more than {MAX_OUTPUT >> 30} GiB to standard {name}")


def _read(file: IO[bytes]) -> Output:
    """Digest and, unless it is too much, contents."""
    file.seek(0)
    digest = hashlib.sha256()
    size = 0
    kept: list[bytes] = []
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if size <= MAX_KEPT:
            kept.append(chunk)
    return Output(digest.hexdigest(), size, b"".join(kept) if size <= MAX_KEPT else None)


def _identify(path: str) -> tuple[int, ...] | None:
    """What changes when a file is written."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_file(path: str, old: tuple[int, ...] | None, code: int) -> Output | None:
    """The file the command wrote; None where a command that failed wrote none."""
    now = _identify(path)
    if now is None or now == old:
        if code != 0:
            return None
        raise CompareError(f"compare: the command did not write {shown(path, 200)}")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise CompareError(f"compare: {shown(path, 200)}: not a regular file")
        with open(path, "rb") as file:
            return _read(file)
    except OSError as error:
        raise CompareError(f"compare: {shown(path, 200)}: {error.strerror}") from None


def _read_end(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - MAX_LOG))
    return log.read().decode("utf-8", "replace")
