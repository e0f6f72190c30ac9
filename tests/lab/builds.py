"""llama-cpp-python as PyPI's sources make it with other options than usual, built once into a cache directory.

Without OpenMP, as it comes out where the compiler has none, its threads spin at barriers without end. libmtmd, which
reads pictures, is in the same build. It takes minutes: tests that need it are slow ones.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks.gguf_models import cache_directory
from cgroup_threads import usable_cores

from . import require, require_module

OPTIONS = (
    "GGML_OPENMP=OFF",
    "GGML_NATIVE=OFF",
    "LLAVA_BUILD=ON",
    "LLAMA_BUILD_TOOLS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_SERVER=OFF",
    "LLAMA_BUILD_TESTS=OFF",
)
# llama-cpp-python asks for the common library by force, though nothing in the wheel uses it. A variable that is set as
# the project begins goes before that.
PROJECT = "set(LLAMA_BUILD_COMMON OFF)\n"
BUILD_SECONDS = 3000


def llama_without_openmp() -> str:
    """A directory with the package ``llama_cpp``, of the installed version, for the head of ``sys.path``."""
    require_module("llama_cpp")
    directory, cause = _build(importlib.metadata.version("llama-cpp-python"))
    require(directory, f"llama-cpp-python cannot be built without OpenMP: {cause}")
    return directory


@cache
def _build(version: str) -> tuple[str, str]:
    """The directory, or an empty name and why there is none. Of two processes the second waits for the first."""
    root = cache_directory().parent / "wheels"
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"llama-cpp-python-{version}-without-openmp"
    with open(root / f"{target.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = target / "options.txt", "\n".join((*OPTIONS, PROJECT))
        if stamp.exists() and stamp.read_text() == wanted:
            return str(target), ""
        shutil.rmtree(target, ignore_errors=True)
        cause = _build_wheel(version, target)
        if cause:
            return "", cause
        (wheel,) = target.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        stamp.write_text(wanted)
    return str(target), ""


def _build_wheel(version: str, target: Path) -> str:
    """Build the wheel into ``target``; the reason if that fails."""
    target.mkdir()
    project = target / "project.cmake"
    project.write_text(PROJECT)
    options = " ".join(f"-D{option}" for option in (*OPTIONS, f"CMAKE_PROJECT_INCLUDE={project}"))
    environ = {"CMAKE_BUILD_PARALLEL_LEVEL": str(usable_cores()), **os.environ, "CMAKE_ARGS": options}
    # pip's own cache may hold a wheel of the same name that was built with other options.
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "--no-binary=llama-cpp-python"]
    command += ["--wheel-dir", str(target), f"llama-cpp-python=={version}"]
    return run_build(command, environ, target / "build.log", BUILD_SECONDS)


def run_build(command: Sequence[str | Path], environ: Mapping[str, str], log: Path, seconds: float) -> str:
    """Run pip with its output in ``log``; the reason if it fails."""
    with open(log, "w") as output:
        pip = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = pip.wait(seconds)
        except BaseException as error:  # a test's timeout, too: compilers must not go on alone
            os.killpg(pip.pid, signal.SIGKILL)
            pip.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return f"pip took longer than {seconds} s"
            raise
    errors = [line.strip() for line in log.read_text().splitlines() if "error" in line.lower()]
    return "" if code == 0 else f"exit {code}, see {log}: {errors[0] if errors else 'it names no error'}"
