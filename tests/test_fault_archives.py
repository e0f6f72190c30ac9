"""The package in a zip archive, in a frozen application, and beside a user's own ``json.py``.

What has no file of its own must not be run by its path, and what is no interpreter must not be started as one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from tests.lab import require_module
from tests.lab.commands import ROOT, clean_environ, run
from tests.test_fault_interpreter import packages


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An application in one file: this package, threadpoolctl, and the command line as what it runs."""
    folder = tmp_path_factory.mktemp("archive")
    source = folder / "source"
    for path in (ROOT / "cgroup_threads").rglob("*"):
        if path.suffix in (".py", ".typed"):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (source / "threadpoolctl.py").write_bytes((Path(packages()[1]) / "threadpoolctl.py").read_bytes())
    (source / "own_work.py").write_text("def work(threads): sum(range(1000))\n")
    zipapp.create_archive(source, folder / "app.pyz", main="cgroup_threads.cli:main")
    return str(folder / "app.pyz")


def run_archive(archive: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environ(CGROUP_THREADS_CORES="2")
    environ.pop("PYTHONPATH")
    return run([sys.executable, "-I", "-S", archive, *arguments], environ, cwd="/")


def test_a_zip_archive_is_imported(archive: str) -> None:
    """Libraries with threads come from outside of it."""
    require_module("numpy")
    script = f"""
import sys
sys.path.insert(0, {archive!r})
import importlib.resources, json, threadpoolctl
import cgroup_threads as ct
import numpy
blas = next(c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.user_api == "blas")
blas.set_num_threads(2)
with ct.limit_threads(1): inside = blas.get_num_threads()
print(json.dumps([
    ct.__file__.startswith({archive!r}), threadpoolctl.__file__.startswith({archive!r}), ct.usable_cores(), inside,
    blas.get_num_threads(), (importlib.resources.files(ct) / "py.typed").is_file(), str(ct.report())[:14],
    sorted(set(dir(ct)) - {{name for name in dir(ct) if getattr(ct, name) is not None}}),
]))
"""
    environ = clean_environ(CGROUP_THREADS_CORES="2")
    environ.pop("PYTHONPATH")
    done = run([sys.executable, "-W", "error", "-c", script], environ, cwd="/")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, 2, 1, 2, True, "2 usable cores", []]


def test_commands_of_a_zip_archive(archive: str) -> None:
    assert run_archive(archive).stdout.startswith("2 usable cores")
    assert run_archive(archive, "cores").stdout == "2\n"
    assert "export OMP_NUM_THREADS=2;" in run_archive(archive, "env").stdout
    governed = run_archive(archive, "exec", "--", "/bin/sh", "-c", "echo $OMP_NUM_THREADS")
    assert governed.stdout == "2\n"
    assert "\n    tune " in run_archive(archive, "--help").stdout


def test_children_of_a_zip_archive_find_it(archive: str) -> None:
    """One that measures a function of the archive's own, and one that searches lines."""
    options = ("--rounds", "3", "--seconds", "0.01", "--max-threads", "2", "--json")
    tuned = run_archive(archive, "tune", "own_work:work", *options)
    assert tuned.returncode == 0, tuned.stderr
    assert json.loads(tuned.stdout)
    different = ("--runs", "2", "--warmup", "0", "--ignore", "process", "--", "sh", "-c", 'echo "process $$"')
    compared = run_archive(archive, "compare", *different)
    assert (compared.returncode, compared.stderr) == (0, "")
    assert "output: equal" in compared.stdout


def test_the_guard_of_a_zip_archive(archive: str) -> None:
    """It ends what was started if the process that measures is killed."""
    reader, writer = os.pipe()
    script = f"""
import os, signal, subprocess, sys
sys.path.insert(0, {archive!r})
from cgroup_threads.measuring.sessions import Guard
guard = Guard()
child = subprocess.Popen(["sh", "-c", "sleep 20; echo it was not killed"], stdout={writer}, start_new_session=True)
guard.watch(child.pid)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], pass_fds=(writer,), timeout=60, check=False)
    os.close(writer)
    assert done.returncode == -signal.SIGKILL
    with open(reader) as file:
        assert file.read() == ""


def test_a_json_module_in_the_working_directory_is_not_taken(tmp_path: Path) -> None:
    """Children of the command begin without the directory that they are started in."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_work.py").write_text("def work(threads): sum(range(1000))\n")
    environ = clean_environ(CGROUP_THREADS_CORES="2", PYTHONSAFEPATH="")
    environ["PYTHONPATH"] += os.pathsep + str(tmp_path / "elsewhere")
    script = "import sys; sys.path[:1] = []; from cgroup_threads.cli import main; sys.exit(main())"
    options = ("--rounds", "3", "--seconds", "0.01", "--max-threads", "2", "--json")
    command = [sys.executable, "-c", script, "tune", "own_work:work", *options]
    done = run(command, environ, cwd=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_a_frozen_application_is_not_started_again(tmp_path: Path) -> None:
    """PyInstaller makes the application itself ``sys.executable``."""
    starts, application = tmp_path / "starts", tmp_path / "application"
    application.write_text(f"""#!{sys.executable}
import sys
with open({str(starts)!r}, "a") as file: file.write("started\\n")
sys.frozen, sys.executable = True, {str(application)!r}
sys.path[:0] = {[*packages(), str(tmp_path)]!r}
from cgroup_threads.cli import main
sys.exit(main())
""")
    application.chmod(0o755)
    (tmp_path / "own_work.py").write_text("def work(threads): pass\n")
    lines = ["compare", "--runs", "2", "--warmup", "0", "--ignore", "process", "--", "sh", "-c", 'echo "process $$"']
    for arguments in (["tune", "own_work:work"], ["demo", "--workload", "numpy"], lines):
        starts.unlink(missing_ok=True)
        done = run([str(application), *arguments], clean_environ(CGROUP_THREADS_CORES="2"))
        assert starts.read_text() == "started\n", arguments
        assert done.returncode == 2
        assert "a frozen application has no Python interpreter to start" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert run([str(application), "cores"], clean_environ(CGROUP_THREADS_CORES="2")).stdout == "2\n"
    governed = run([str(application), "exec", "--", "/bin/echo", "x"], clean_environ())
    assert (governed.stdout, governed.stderr) == ("x\n", "")
