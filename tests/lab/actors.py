"""Processes of any user that do what they are told: victims that lease cores, and whoever is after them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import require
from .commands import clean_environ
from .waiting import read_line

VICTIM = 64001
OTHER = 64002
DEADLINE_S = 30.0

# Everything is imported before rights are given up: root's own interpreter may be out of a plain user's reach.
_ACTOR = """
import errno, fcntl, json, os, random, select, signal, socket, stat, struct, sys, tempfile, threading, time
if sys.argv[2] == "victim":
    import cgroup_threads as ct
    import cgroup_threads.governor.sharing, cgroup_threads.reporting.collect
    from cgroup_threads.governor.core_budget import core_budget
    from cgroup_threads.governor.slot_rows import PAGE_SIZE, pack_row
    from cgroup_threads.governor.slots import SlotsUnavailable, open_slots, slot_key
    from cgroup_threads.integrations.prometheus_workers import Workers
    from cgroup_threads.profiles.files import ProfileError, load_profile, save_profile
    from cgroup_threads.profiles.records import Identity, Profile
    from cgroup_threads.profiles.identity import identify_model, library_version, present_identity
    from cgroup_threads.profiles.lookup import find_counts
    from cgroup_threads.state import process
    ct.configure(scope="process", cores=2)
    with ct.limit_threads(): pass
    ct.report()
    present_identity(identify_model("/etc/passwd"), library_version("pytest"))
uid = int(sys.argv[1])
if uid != os.geteuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
os.umask(0)
tempfile.tempdir = None

def enter(patience=None, key_path=None):
    '''The first lease in a budget made anew: its seconds, threads and scope, and what is said of it.'''
    ct.configure(scope="process", cores=2)
    process._notices.clear()
    ct.configure(scope="container", cores=2)
    began = time.monotonic()
    with ct.limit_threads(patience=patience) as lease:
        took = time.monotonic() - began
    said = [[n.code, n.message, n.fix] for n in process.notices if n.code.startswith("slots")]
    return {"took": took, "threads": lease.threads, "scope": ct.statistics().scope, "said": said}

def again(times, patience=None):
    '''More leases: the longest of their seconds.'''
    longest = 0.0
    for _ in range(times):
        began = time.monotonic()
        with ct.limit_threads(patience=patience): pass
        longest = max(longest, time.monotonic() - began)
    return longest

def opened(key, directory):
    '''What comes of opening slots: the reason they cannot be had, or "".'''
    began = time.monotonic()
    try: open_slots(key, directory=directory).close()
    except SlotsUnavailable as error: return [time.monotonic() - began, error.reason]
    return [time.monotonic() - began, ""]

def lock(fd, kind, start, length):
    fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", kind, 0, start, length, 0))

print("null", flush=True)
for line in sys.stdin:
    code = json.loads(line)
    try:
        try: answer = eval(code, globals())
        except SyntaxError: exec(code, globals()); answer = None
    except Exception as error: answer = {"raised": repr(error)}
    try: text = json.dumps(answer)
    except TypeError: text = "null"
    print(text, flush=True)
"""


class Actor:
    """A process of user ``uid``; only a ``victim`` has the package loaded."""

    def __init__(self, uid: int, role: str) -> None:
        self.uid = uid
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ACTOR, str(uid), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environ(CGROUP_THREADS_AUTO="0"),
        )
        self._answer()

    def ask(self, code: str) -> Any:
        """The value of an expression, or None after statements."""
        self.tell(code)
        answer = self._answer()
        assert not isinstance(answer, dict) or "raised" not in answer, (code, answer)
        return answer

    def tell(self, code: str) -> None:
        """``ask`` where no answer is waited for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait(DEADLINE_S)

    def _answer(self) -> Any:
        return json.loads(read_line(self._process, DEADLINE_S))


@contextmanager
def actor(uid: int, role: str = "attacker") -> Iterator[Actor]:
    """An actor, killed at the end."""
    require(os.geteuid() == 0 or uid == os.geteuid(), "only root can become other users")
    found = Actor(uid, role)
    try:
        yield found
    finally:
        found.kill()


def state(path: Path) -> tuple[object, ...]:
    """What an attack may not change of a file: its content, size, mode, owner and the time of its last change."""
    found = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
    return (content, found.st_size, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns)
