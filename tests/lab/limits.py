"""Scripts that watch real pools under a limit, each in a fresh interpreter."""

from __future__ import annotations

import json
from typing import Any

from . import require, require_module
from .commands import run_python

# The calling thread's OpenMP count, and that of numpy's OpenBLAS, which all threads share. Both begin at 4.
PRELUDE = """
import asyncio, ctypes, json, threading
import cgroup_threads as ct
import numpy
from threadpoolctl import ThreadpoolController

gomp = ctypes.CDLL("libgomp.so.1")
blas_library = next(c for c in ThreadpoolController().lib_controllers if c.user_api == "blas")
omp = gomp.omp_get_max_threads
blas = blas_library.get_num_threads
gomp.omp_set_num_threads(4)
blas_library.set_num_threads(4)
seen = []
def look(): return [omp(), blas()]
def see(): seen.append(look())
def in_thread(function):
    out = []
    thread = threading.Thread(target=lambda: out.append(function()))
    thread.start(); thread.join()
    return out[0]
"""


def limits_script(script: str, *, timeout: float = 120, **environ: str) -> Any:
    """Run ``script`` after the prelude, with a plan of 3 threads; returns its list ``seen``."""
    require_module("numpy")
    require(_has_libgomp(), "libgomp.so.1 is not installed")
    environ = {"CGROUP_THREADS_CORES": "3", "OMP_NUM_THREADS": "4", "CGROUP_THREADS_PATCH": "1"} | environ
    done = run_python(PRELUDE + script + "\nprint(json.dumps(seen))", timeout=timeout, **environ)
    return json.loads(done.stdout.splitlines()[-1])


def _has_libgomp() -> bool:
    import ctypes

    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return False
    return True
