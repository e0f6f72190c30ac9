"""The command line as a real process, in environments, shells, quota groups and users of one's own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cgroup_threads.detection import detect
from cgroup_threads.measuring.quota import QuotaGroup, Refusal, create_group, remove_group

from . import require

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "cgroup_threads")
NOBODY = 65534


def clean_environ(**changes: str) -> dict[str, str]:
    """An environment without thread variables and tuned counts, in which the package is found."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG", "SHELL")}
    ours = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "CGROUP_THREADS_PROFILES": "0"}
    return {**kept, **ours, **changes}


def run(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, timeout: float = 120, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it said."""
    return subprocess.run(
        [*command],
        env=clean_environ() if environ is None else {**environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd,
    )


def run_cli(*arguments: str, timeout: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``cgroup-threads`` with ``arguments`` and the variables in ``environ``."""
    return run([*COMMAND, *arguments], clean_environ(**environ), timeout=timeout)


def run_python(script: str, *, timeout: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter; it must end well."""
    done = run([sys.executable, "-c", script], clean_environ(**environ), timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@contextmanager
def quota_group(cores: float) -> Iterator[QuotaGroup]:
    """A real cgroup with a quota of ``cores``, removed at the end."""
    group = create_group(detect(), cores)
    reason = group.reason if isinstance(group, Refusal) else ""
    require(not reason, f"no cgroup with a quota can be made: {reason}")
    assert isinstance(group, QuotaGroup)
    try:
        yield group
    finally:
        assert remove_group(group)


def inside(group: QuotaGroup, command: Sequence[str]) -> list[str]:
    """``command`` as one that joins ``group`` first."""
    return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', group.procs, *command]


def hidden(place: str, command: Sequence[str]) -> list[str]:
    """``command`` in a mount namespace where ``place`` (such as /proc) is an empty directory."""
    unshare = shutil.which("unshare")
    require(unshare, "unshare is not installed")
    assert unshare is not None
    prefix = [unshare, "--mount", "/bin/sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', place]
    require(run([*prefix, "true"]).returncode == 0, "no mount namespace can be made (root is needed)")
    return [*prefix, *command]


def unprivileged_command(directory: Path, packages: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """``cgroup-threads`` as a user without rights, with ``packages``: the command and its environment.

    Root's own interpreter may be out of a plain user's reach: then copies of the packages under ``directory`` are run
    by the system's.
    """
    if os.geteuid() != 0:
        return [*COMMAND], clean_environ()
    setpriv = shutil.which("setpriv")
    require(setpriv, "setpriv is not installed")
    assert setpriv is not None
    user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    names = ("threadpoolctl", "cgroup_threads", *packages)
    # An interpreter may run and still be out of its own reach: its path is looked up before rights are given up.
    again = "subprocess.run([sys.executable, '-c', ''], check=True)"
    test = ["-c", f"import subprocess, sys, {', '.join(names)}; {again}"]
    for parent in directory.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    directory.chmod(0o755)
    environ = clean_environ(HOME=str(directory), TMPDIR="/tmp")
    if _can_run([setpriv, *user, sys.executable, *test], environ):
        return [setpriv, *user, *COMMAND], environ
    python = "/usr/bin/python3"
    require(os.path.exists(python), "there is no /usr/bin/python3 for an unprivileged user to run")
    for name in names:
        spec = importlib.util.find_spec(name)
        require(spec and spec.origin, f"{name} is not installed")
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin)
        if source.name != "__init__.py":
            shutil.copy(source, directory)
            continue
        for folder in (source.parent, source.parent.with_name(f"{name}.libs")):  # wheels keep their libraries beside
            if folder.is_dir():
                shutil.copytree(folder, directory / folder.name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for path in directory.rglob("*"):
        path.chmod(0o755)
    environ["PYTHONPATH"] = str(directory)
    require(_can_run([setpriv, *user, python, *test], environ), f"/usr/bin/python3 cannot import {', '.join(names)}")
    return [setpriv, *user, python, "-m", "cgroup_threads"], environ


def _can_run(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    try:
        return run(command, environ, cwd="/").returncode == 0
    except OSError:
        return False
