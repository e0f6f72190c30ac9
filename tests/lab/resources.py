"""Programs under limits on tasks, address space and descriptors: real cgroups, rlimits, users and mount namespaces."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from . import require
from .commands import clean_environ, run

PIDS = Path("/sys/fs/cgroup/pids")
_FIRST_USER = 61000
_numbers = itertools.count(1)


@contextmanager
def pids_group(limit: int) -> Iterator[Path]:
    """A cgroup in which at most ``limit`` tasks fit."""
    require(os.geteuid() == 0, "making a cgroup needs root")
    require((PIDS / "cgroup.procs").exists(), "no cgroup v1 pids hierarchy")
    path = PIDS / f"ct-test-{os.getpid()}-{next(_numbers)}"
    try:
        path.mkdir()
    except OSError as error:
        require(False, f"the pids hierarchy is not writable: {error}")
    try:
        (path / "pids.max").write_text(str(limit))
        yield path
    finally:
        path.rmdir()


def in_group(path: Path, command: Sequence[str]) -> list[str]:
    """``command`` as one that joins the group first; nothing is forked."""
    return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(path), *command]


def some_user() -> int:
    """A user whom nobody else in this test run is: RLIMIT_NPROC counts all tasks of a user."""
    return _FIRST_USER + (os.getpid() * 16 + next(_numbers)) % 4000


def as_user(user: int, command: Sequence[str]) -> list[str]:
    """``command`` as a plain user, who may read all files: the interpreter may be in root's home."""
    require(os.geteuid() == 0, "becoming another user needs root")
    setpriv = shutil.which("setpriv")
    require(setpriv, "setpriv is not installed")
    assert setpriv is not None
    kept = ",".join(("-all", "+dac_read_search"))
    rights = [f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"]
    return [setpriv, "--reuid", str(user), "--regid", str(user), "--clear-groups", *rights, *command]


def limited(option: str, value: int, command: Sequence[str]) -> list[str]:
    """``command`` under an rlimit of util-linux's prlimit, soft and hard."""
    prlimit = shutil.which("prlimit")
    require(prlimit, "prlimit is not installed")
    assert prlimit is not None
    return [prlimit, f"--{option}={value}", *command]


def python(script: str) -> list[str]:
    """The command of a fresh interpreter that runs ``script``."""
    return [sys.executable, "-c", script]


def run_outside(command: Sequence[str], *, timeout: float = 120, **environ: str) -> CompletedProcess[str]:
    """Run ``command`` where any user may be."""
    places = {"HOME": tempfile.gettempdir(), "TMPDIR": tempfile.gettempdir(), "HF_HUB_OFFLINE": "1"}
    return run(command, clean_environ(**{**places, **environ}), timeout=timeout, cwd="/")
