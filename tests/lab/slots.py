"""Processes that share slots: one that does what it is told, and some that lease as fast as they can until killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cgroup_threads.governor.slots import Slots, open_slots

from .commands import clean_environ
from .waiting import read_line

SHM = "/dev/shm"
DEADLINE_S = 30.0

IMPORTS = """
import errno, json, os, select, signal, socket, subprocess, sys, tempfile, time
from cgroup_threads.governor.slots import SlotsUnavailable, View, open_slots, slot_key
"""
_TOLD = (
    IMPORTS
    + """
s = open_slots(sys.argv[1], directory=sys.argv[2])

def heard(seconds):
    poll = select.poll()
    poll.register(s.fileno(), select.POLLIN)
    return bool(poll.poll(seconds * 1000))

def fork(abandon):
    '''A child that lives until it is killed, once it has (or has not) left its parent's slots.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = s.abandon_in_child() if abandon else None
        os.write(writer, b"x")
        signal.pause()
        os._exit(1)
    os.read(reader, 1)
    return pid

print(json.dumps(os.getpid()), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""
)

# The oracle has eight bytes a core: the pid that holds it. They are written and checked by holders only, so that a core
# with two holders shows: at the second one's start, or at the first one's end.
_HOLDER = (
    IMPORTS
    + """
import random
s = open_slots(sys.argv[1], directory=sys.argv[2])
budget, oracle, reopening = int(sys.argv[3]), os.open(sys.argv[4], os.O_RDWR), float(sys.argv[5])
me, leases = os.getpid(), 0
stop = select.poll()
stop.register(0, select.POLLIN | select.POLLHUP)

def owner(core): return int.from_bytes(os.pread(oracle, 8, 8 * core), "little")
def own(core, pid): os.pwrite(oracle, pid.to_bytes(8, "little"), 8 * core)
def cores(mask): return [core for core in range(mask.bit_length()) if mask >> core & 1]

def dead(pid):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except OSError:
            return True
    return False

def check(right, what):
    if not right:
        print(what, file=sys.stderr)
        os._exit(3)

while leases % 8 or not leases or not stop.poll(0):
    view = s.look()
    mask = s.take(random.randint(1, budget), budget, view.held)
    check(mask < 1 << budget, f"{mask:b} of {budget}")
    if not mask:
        s.publish(0, 1, time.monotonic(), time.monotonic())
        s.reap()
        wait = select.poll()
        wait.register(s.fileno(), select.POLLIN)
        wait.poll(10)
        s.drain()
        if leases and stop.poll(0):
            break
        continue
    leases += 1
    for core in cores(mask):
        before = owner(core)
        check(before in (0, me) or dead(before), f"core {core} is held by {before}, too")
        own(core, me)
    s.publish(1, 0, None, time.monotonic())
    for _ in range(random.choice((0, 0, 300, 3000))):
        pass
    for core in cores(mask):
        check(owner(core) == me, f"core {core} was taken by {owner(core)}")
        own(core, 0)
    s.give(mask)
    s.publish(0, 0, None, time.monotonic())
    row = s.look().oldest_row
    if row is not None:
        s.wake(row)
    if random.random() < reopening:
        s.close()
        s = open_slots(sys.argv[1], directory=sys.argv[2])
s.close()
print(leases)
"""
)


class Worker:
    """A process that has opened slots and evaluates what it is asked, with ``s`` for its slots."""

    def __init__(self, key: str, directory: str = SHM, prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _TOLD, key, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environ(CGROUP_THREADS_AUTO="0"),
        )
        self.pid: int = self._answer()

    def ask(self, expression: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return self._answer()

    def tell(self, expression: str) -> None:
        """``ask`` where no answer comes."""
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Let it end by itself; it must not have been killed by then for that."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(DEADLINE_S)

    def _answer(self) -> Any:
        return json.loads(read_line(self._process, DEADLINE_S))


@contextmanager
def two_parties(directory: Path) -> Iterator[tuple[Slots, Slots]]:
    """What counts is the open file description, not the process."""
    with (
        closing(open_slots("k", directory=str(directory))) as one,
        closing(open_slots("k", directory=str(directory))) as two,
    ):
        yield one, two


@contextmanager
def workers(number: int, key: str, directory: str = SHM, prefix: Sequence[str] = ()) -> Iterator[list[Worker]]:
    """``number`` workers, killed at the end if they still run."""
    started: list[Worker] = []
    try:
        for _ in range(number):
            started.append(Worker(key, directory, prefix))
        yield started
    finally:
        for worker in started:
            worker.kill()


def become(condition: Callable[[], object], what: str) -> None:
    """Look until ``condition`` holds; fails after a time that no sound machine needs."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what


class Holders:
    """Processes that lease without pause and prove to each other that no core has two holders.

    ``reopening`` is how likely one closes its slots after a lease and opens them again.
    """

    def __init__(self, number: int, key: str, budgets: Sequence[int], oracle: Path, *, reopening: float = 0.0) -> None:
        self._key, self._budgets, self._oracle, self._reopening = key, budgets, oracle, reopening
        oracle.write_bytes(bytes(8 * max(budgets)))
        self._processes = [self._start(index) for index in range(number)]

    def kill_one(self) -> None:
        """Kill a process that holds a core at this moment, and start another."""
        data = b""
        pids: list[int] = []

        def holding() -> bool:
            nonlocal data
            data = self._oracle.read_bytes()
            alive = {process.pid for process in self._processes if process.poll() is None}
            assert len(alive) == len(self._processes), self.errors()
            pids[:] = [
                pid
                for pid in (int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))
                if pid in alive
            ]
            return bool(pids)

        become(holding, "nobody holds a core")
        victim = random.choice(pids)
        index = next(i for i, process in enumerate(self._processes) if process.pid == victim)
        self._processes[index].kill()
        self._processes[index].communicate()
        self._processes[index] = self._start(index)

    def stop(self) -> int:
        """End them; returns how many leases those that were still there had."""
        leases = 0
        for process in self._processes:
            out, error = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, error
            leases += int(out)
        return leases

    def errors(self) -> list[str]:
        return [process.communicate()[1] for process in self._processes if process.poll() is not None]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _start(self, index: int) -> subprocess.Popen[str]:
        budget = self._budgets[index % len(self._budgets)]
        return subprocess.Popen(
            [sys.executable, "-c", _HOLDER, self._key, SHM, str(budget), str(self._oracle), str(self._reopening)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environ(CGROUP_THREADS_AUTO="0"),
        )


@contextmanager
def a_key() -> Iterator[str]:
    """A key of one's own, whose file is removed at the end."""
    key = f"test-{os.getpid()}-{random.randrange(2**64):x}"
    try:
        yield key
    finally:
        try:
            os.unlink(f"{SHM}/cgroup_threads-{key}.slots")
        except FileNotFoundError:
            pass
