"""numpy on MKL: PyPI's wheels hold OpenBLAS, so its sources are built against the ``mkl`` wheels, once.

It takes minutes, in an environment of its own that is removed afterwards; the wheel stays in the cache directory.
numpy's own loops are built for the least processor: nothing here depends on how fast they are.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.gguf_models import cache_directory
from cgroup_threads import usable_cores

from . import require
from .builds import BUILD_SECONDS, run_build

OPTIONS = (
    "-Csetup-args=-Dblas=mkl-sdl",
    "-Csetup-args=-Dlapack=mkl-sdl",
    "-Csetup-args=-Dallow-noblas=false",
    "-Csetup-args=-Ddisable-optimization=true",
)
# MKL's libraries lie in the environment's lib, above lib/python3.11/site-packages/numpy/_core.
RUN_PATH = "$ORIGIN/../../../.."


def numpy_on_mkl() -> str:
    """Path of a wheel of the installed numpy's version, for this Python, whose BLAS and LAPACK are MKL's."""
    for name in ("numpy", "mkl"):
        require(_version(name), f"{name} is not installed")
    require(shutil.which("pkg-config"), "pkg-config is not installed")
    require(shutil.which("c++"), "no C++ compiler is installed")
    wheel, cause = _build(_version("numpy"), _version("mkl"))
    require(wheel, f"numpy cannot be built on MKL: {cause}")
    return wheel


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _build(numpy: str, mkl: str) -> tuple[str, str]:
    """The wheel, or an empty name and why there is none. Of two processes the second waits for the first."""
    root = cache_directory().parent / "wheels"
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"numpy-{numpy}-mkl-{sys.implementation.cache_tag}"
    with open(root / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = target / "options.txt", "\n".join((*OPTIONS, RUN_PATH, mkl))
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            cause = _build_wheel(numpy, mkl, target)
            if cause:
                return "", cause
            stamp.write_text(wanted)
        (wheel,) = target.glob("*.whl")
    return str(wheel), ""


def _build_wheel(numpy: str, mkl: str, target: Path) -> str:
    """Build the wheel into ``target``; the reason if that fails."""
    place = target / "environment"
    python = place / "bin" / "python"
    made = subprocess.run(
        [sys.executable, "-m", "venv", place], capture_output=True, text=True, timeout=300, check=False
    )
    if made.returncode != 0:
        return made.stderr.strip() or "it has no venv"
    pip, log = [str(python), "-m", "pip"], target / "build.log"
    # mkl-devel has the headers, and the file by which pkg-config finds them.
    cause = run_build([*pip, "install", "pip>=25.1", f"mkl-devel=={mkl}"], os.environ, log, BUILD_SECONDS)
    if cause:
        return cause
    environ = {
        **os.environ,
        "PKG_CONFIG_PATH": str(place / "lib" / "pkgconfig"),
        "LDFLAGS": f"-Wl,-rpath,{RUN_PATH}",
    }
    options = [*OPTIONS, f"-Ccompile-args=-j{usable_cores()}"]
    command = [*pip, "wheel", "--no-deps", "--no-cache-dir", "--no-binary=numpy", "--wheel-dir", str(target), *options]
    cause = run_build([*command, f"numpy=={numpy}"], environ, log, BUILD_SECONDS)
    shutil.rmtree(place, ignore_errors=True)
    return cause
