"""Processes in one real cgroup that share a core budget: each obeys lines on its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .cgroup1 import CPU, CPUSET
from .commands import clean_environ
from .containers import PERIOD_US
from .guest_worker import LEASING

# Each line is Python: an expression is answered with its value as JSON, a statement with null.
WORKER = f"""
import json, os, signal, sys, threading, time
{LEASING}
def core(): return core_budget().budget
for line in sys.stdin:
    try: answer = eval(line, globals())
    except SyntaxError: exec(line, globals()); answer = None
    try: text = json.dumps(answer)
    except TypeError: text = "null"
    print(text, flush=True)
"""


class Worker:
    """A process with the package imported, in a group."""

    def __init__(self, name: str, environ: dict[str, str], command: tuple[str, ...] = ()) -> None:
        def join() -> None:
            for hierarchy in (CPU, CPUSET):
                with open(hierarchy / name / "cgroup.procs", "w", encoding="ascii") as file:
                    file.write(str(os.getpid()))

        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", WORKER],
            env=clean_environ(**environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=join,
        )

    def __call__(self, line: str) -> Any:
        """Have one line carried out; returns its value."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the worker ended: {self.process.wait(20)}"
        return json.loads(text)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> int:
        """End it in order; returns its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(20)
        finally:
            self.kill()
            if self.process.stdout is not None:
                self.process.stdout.close()


@contextmanager
def workers(name: str, number: int, **environ: str) -> Iterator[list[Worker]]:
    """``number`` workers in the group ``name``."""
    started: list[Worker] = []
    try:
        for _ in range(number):
            started.append(Worker(name, environ))
        yield started
    finally:
        for worker in started:
            worker.close()


def set_quota(name: str, cores: float) -> None:
    """Resize the group, as an in-place resize of a pod does."""
    (CPU / name / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))


def slot_files(name: str) -> set[str]:
    """The slots of the group ``name``; other processes of this machine have theirs."""
    inode = f"{(CPU / name).stat().st_ino:x}"
    return {path.name for path in Path("/dev/shm").glob(f"cgroup_threads-*-{inode}.slots")}
