"""Waiting for something to happen elsewhere, without guessing how long it takes."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Return as soon as ``condition()`` holds; the test fails if it does not come to that."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to that within {DEADLINE} s"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def read_line(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line that ``process`` writes; a failure if it does not come, or the process ends."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], seconds)[0], "no answer"
    line = process.stdout.readline()
    assert line, f"it has ended ({process.wait(seconds)})"
    return line
