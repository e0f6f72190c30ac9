"""Real thread libraries in fresh interpreters: under limits, and in forked children that must not hang."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import require, require_module
from .commands import clean_environ

# ``watch`` reads a count before, in, between and after nested limits. ``team`` counts the threads of a real parallel
# region: GNU's entry point, which LLVM's and Intel's runtimes export too.
PRELUDE = """
import ctypes, json, os, signal, sys, threading, traceback
import cgroup_threads as ct

seen = {}
def watch(*gets):
    def look(): return [get() for get in gets]
    counts = [look()]
    with ct.limit_threads(2):
        counts.append(look())
        with ct.limit_threads(1): counts.append(look())
        counts.append(look())
    counts.append(look())
    return counts

def team(library):
    members = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: members.append(1))
    library.GOMP_parallel(body, None, 0, 0)
    return len(members)

def tasks(): return len(os.listdir("/proc/self/task"))

def child(function, seconds=60):
    '''What ``function`` returns in a forked child, or the signal or status that ended it; SIGALRM ends a hang.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            os.write(writer, json.dumps(function()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as file: answer = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0: return signal.Signals(-status).name
    return json.loads(answer) if status == 0 else f"exit {status}"

def notices(): return [notice.code for notice in ct.report().notices]
"""

# One parallel region of torch's own code, one of the MKL in it, and one that counts the team of the same runtime.
TORCH = """
import torch
def mapped(name): return next(line.split()[-1] for line in open("/proc/self/maps") if name in line)
gomp = ctypes.CDLL(mapped("libgomp"))
def work():
    torch.ones(1 << 20).add_(1).sum()
    torch.mm(torch.ones(256, 256), torch.ones(256, 256))
    return [torch.get_num_threads(), team(gomp)]
"""


def pool_script(script: str, *, modules: tuple[str, ...] = (), timeout: float = 120, **environ: str) -> Any:
    """Run ``script`` after the prelude on 4 usable cores, all counts at 3; returns what it put into ``seen``.

    After ``timeout`` seconds the script and all its children are killed, and the test fails.
    """
    for name in modules:
        require_module(name)
    # MKL_DYNAMIC: MKL, and torch with it, would not go above the machine's physical cores.
    values = {"CGROUP_THREADS_CORES": "4", "MKL_DYNAMIC": "FALSE", **dict.fromkeys(_VARIABLES, "3"), **environ}
    process = subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}{script}\nprint(json.dumps(seen))"],
        env=clean_environ(**values),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own: hung children would keep the pipes open
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"no end within {timeout} s\n{out}\n{err}") from None
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
    return json.loads(out.splitlines()[-1])


_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


def followed(counts: list[list[int]], baseline: int | None = None) -> bool:
    """Whether what ``watch`` read is a baseline above 1 (exactly ``baseline``), 2, 1, 2 and the baseline again."""
    first = counts[0]
    assert min(first) > 1, f"nothing to lower: {counts}"
    assert baseline is None or first == [baseline] * len(first), counts
    two = [min(count, 2) for count in first]
    return counts == [first, two, [1] * len(first), two, first]


def debian_library(package: str, name: str) -> str:
    """Path of the shared library ``name`` (may hold a folder) that Debian's ``package`` installs."""
    found = next((str(path) for path in sorted(Path("/usr/lib").glob(f"*/{name}"))), None)
    require(found, f"{package} is not installed")
    assert found is not None
    return found


def wheel_library(distribution: str, start: str) -> str:
    """Path of the first shared library of an installed distribution whose name begins with ``start``."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = next((str(file.locate()) for file in files if file.name.startswith(start) and ".so" in file.name), None)
    require(found, f"{distribution} is not installed")
    assert found is not None
    return os.path.realpath(found)


def compiled(source: str, path: Path) -> str:
    """Compile C ``source`` to the shared library at ``path``."""
    compiler = shutil.which("cc")
    require(compiler, "no C compiler is installed")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-xc", "-", "-o", path], input=source, text=True, check=True)
    return str(path)
