"""What drivers use inside a guest: groups, processes in them that do what they are told, and a line an answer.

Starting Python takes more than a second on an emulated CPU: processes are forked from the driver, which has imported
what they need of the standard library, and nothing of the package.
"""

# ruff: noqa: F401  # the modules that are imported here need not be read again in each process
from __future__ import annotations

import argparse
import ast
import asyncio
import atexit
import bisect
import contextvars
import ctypes
import dataclasses
import functools
import glob
import json
import os
import platform
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .guest_worker import WORKER
else:  # a driver is a script of its own in the guest
    from guest_worker import WORKER

CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
ROOT = os.environ["GUEST_ROOT"]
PACKAGES = next(iter(glob.glob(str(Path(sys.executable).parents[1] / "lib" / "python3*" / "site-packages"))))
PERIOD_US = 100_000
CASE_S = 240.0


def group(path: str, **files: object) -> Path:
    """Make the group ``path`` with the controllers that its ancestors have; ``cpu_max=2.5`` is cores, ``cpuset_cpus``
    and other files are as the kernel has them."""
    directory = CGROUP
    for name in path.split("/"):
        with suppress(OSError):  # a parent that has no cpu controller cannot give one
            (directory / "cgroup.subtree_control").write_text("+cpu")
        with suppress(OSError):
            (directory / "cgroup.subtree_control").write_text("+cpuset")
        directory /= name
        directory.mkdir(exist_ok=True)
    for name, value in files.items():
        if name == "cpu_max":
            set_quota(directory, value)
        else:
            (directory / name.replace("_", ".", 1)).write_text(str(value))
    return directory


def set_quota(directory: Path, cores: object) -> None:
    """Resize a group, as an in-place resize of a pod does; None is no limit."""
    quota = "max" if cores is None else str(round(float(str(cores)) * PERIOD_US))
    (directory / "cpu.max").write_text(f"{quota} {PERIOD_US}")


def mount(source: str, target: str, kind: str | None = None, *, bind: bool = False) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = 4096 if bind else 0  # MS_BIND
    if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None):
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}")


def unshare(*, groups: bool = False, of: int | None = None) -> None:
    """A mount namespace of one's own, and with ``groups`` one for cgroups: the root is the group one is in now, or that
    of process ``of``."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_cgroup, new_mounts = 0x2000000, 0x20000  # CLONE_NEWCGROUP, CLONE_NEWNS
    if of is not None:
        with open(f"/proc/{of}/ns/cgroup") as file:
            failed = libc.setns(file.fileno(), new_cgroup) or libc.unshare(new_mounts)
    else:
        failed = libc.unshare(new_mounts | (new_cgroup if groups else 0))
    if failed:
        raise OSError(ctypes.get_errno(), "no namespace")
    libc.mount(None, b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
    if groups:
        libc.umount2(str(CGROUP).encode(), 2)  # MNT_DETACH
        mount("cgroup2", str(CGROUP), "cgroup2")


class Worker:
    """A process in ``directory`` that evaluates what it is told; ``enter`` runs in it before the package is imported.

    ``shared`` is memory that a driver gives to several.
    """

    def __init__(
        self,
        directory: Path | None = None,
        enter: Callable[[], None] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        shared: Any = None,
        prelude: str = WORKER,
    ) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            ours.close()
            _serve(theirs, directory, enter, environ or {}, shared, prelude)
        theirs.close()
        self._stream = ours.makefile("rw", encoding="utf-8")
        ours.close()
        self.answer()

    def __call__(self, line: str) -> Any:
        """Have one line carried out; returns its value."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def answer(self) -> Any:
        text = self._stream.readline()
        if not text:
            raise AssertionError(f"the worker has ended with {os.waitpid(self.pid, os.WNOHANG)[1]}")
        error, value = json.loads(text)
        if error:
            raise AssertionError(error)
        return value

    def kill(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with suppress(OSError):
            self._stream.close()


def _serve(
    theirs: socket.socket,
    directory: Path | None,
    enter: Callable[[], None] | None,
    environ: Mapping[str, str],
    shared: Any,
    prelude: str,
) -> NoReturn:
    stream = theirs.makefile("rw", encoding="utf-8")

    def reply(error: str, value: object) -> None:
        try:
            text = json.dumps([error, value])
        except TypeError:
            text = json.dumps([error, None])
        stream.write(text + "\n")
        stream.flush()

    names = {**globals(), "__name__": "worker", "cells": shared}
    try:
        if directory is not None:
            (directory / "cgroup.procs").write_text("0")
        if enter is not None:
            enter()
        os.environ.update(environ)
        exec(prelude, names)
        reply("", None)
        for line in stream:
            source = json.loads(line)
            try:
                value = eval(source, names)
            except SyntaxError:
                exec(source, names)
                value = None
            reply("", value)
    except BaseException:  # noqa: BLE001  # whatever it is, the driver is to hear of it
        reply(traceback.format_exc(), None)
        os._exit(1)
    with suppress(Exception):
        names["core_budget"]().budget.end()
    os._exit(0)


@contextmanager
def workers(number: int, *arguments: Any, **options: Any) -> Iterator[list[Worker]]:
    """``number`` workers, killed at the end."""
    started: list[Worker] = []
    try:
        for _ in range(number):
            started.append(Worker(*arguments, **options))
        yield started
    finally:
        for worker in started:
            worker.kill()


def until(condition: Callable[[], object], seconds: float = 60.0) -> Any:
    """What ``condition`` returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come to that within {seconds:g} s: {found}")
        time.sleep(0.02)


class Driver:
    """Runs cases, and says the answer of each on the second serial port."""

    def __init__(self) -> None:
        sys.path[0:1] = [ROOT, PACKAGES]  # in place of the driver's directory
        self._out = open("/dev/ttyS1", "w", encoding="ascii")  # noqa: SIM115  # open until the machine stops

    def case(self, name: str, function: Callable[[], object]) -> None:
        """One case; an exception, or no end within CASE_S, becomes its error."""
        began = time.monotonic()
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(int(CASE_S))
        try:
            said: dict[str, object] = {"answer": function()}
        except BaseException:  # noqa: BLE001  # whatever it is, the test is to hear of it
            said = {"error": traceback.format_exc()}
        finally:
            signal.alarm(0)
        seconds = round(time.monotonic() - began, 2)
        self._out.write(json.dumps({"case": name, "seconds": seconds, **said}) + "\n")
        self._out.flush()


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"no end within {CASE_S:g} s")
