"""What a terminal would obey never reaches it through what the commands print for people; JSON stays JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import require
from tests.lab.cgroup1 import CPU
from tests.lab.commands import COMMAND, clean_environ
from tests.test_exec_characters import READ

EVIL = "\x1b]0;title\x07\x1b[31m\x9b31m\u202e\x08\x7f\r\n\udcff\udc9b"
PATH = EVIL.replace("\n", "").replace("\r", "")


def said(
    *arguments: str, environ: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What a command prints, in which a terminal must find nothing to obey."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=clean_environ(**(environ or {})),
        capture_output=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )
    texts = [stream.decode("utf-8") for stream in (done.stdout, done.stderr)]
    for text in texts:
        assert not [c for c in text if not c.isprintable() and c != "\n"], (arguments, text)
        assert "Traceback" not in text
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report"], ["cores"], ["env"], ["exec", "--dry-run", "--", "true", EVIL], ["exec", "--", "true"],
        ["exec", "--dry-run", "--", "gunicorn", "-w", EVIL],
        ["exec", "--dry-run", "--", "env", f"OMP_NUM_THREADS={EVIL}", "x"],
        ["exec", "--dry-run", "--", "llama-server", "-t", EVIL], ["exec", "--dry-run", "--", f"taskset{EVIL}", "x"],
    ],
    ids=lambda arguments: " ".join(arguments)[:30].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_values_of_variables(arguments: list[str]) -> None:
    done = said(*arguments, environ=dict.fromkeys(READ, EVIL))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        [EVIL], ["report", EVIL], ["cores", EVIL], ["cores", "--rounding", EVIL], ["report", f"--{EVIL}"],
        ["exec", "--workers", EVIL, "--", "x"], ["exec", "--", EVIL], ["exec", "--", f"/{EVIL}/x"], ["inspect", EVIL],
        ["tune", EVIL], ["tune", f"{EVIL}.gguf"], ["demo", "--model", EVIL], ["env", "--shell", EVIL],
        ["compare", "--input", EVIL, "--", "true"], ["compare", "--output", EVIL, "--runs", "1", "--", "true"],
        ["compare", "--runs", "1", "--", EVIL],
        ["compare", "--runs", "1", "--quiet", "--", "sh", "-c", "echo \"$0\"; echo \"$0\" >&2; exit 3", EVIL],
    ],
    ids=lambda arguments: " ".join(arguments)[:30].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_usage_errors_are_one_line(arguments: list[str]) -> None:
    done = said(*arguments)
    assert done.returncode in (2, 127)
    assert done.stdout == ""
    assert re.match("cgroup-threads( [a-z]+)?: error: ", done.stderr)


@pytest.mark.parametrize("form", [[], ["--markdown"], ["--json"]])
def test_outputs_that_are_compared(form: list[str]) -> None:
    script = 'printf "%s" "$0$$"'
    done = said("compare", "--runs", "1", "--warmup", "0", "--quiet", *form, "--", "sh", "-c", script, EVIL)
    assert done.returncode == 0
    if form == ["--json"]:
        json.loads(done.stdout)


TARGET = r"""
import ctypes, os, sys, threading
with open("/proc/self/comm", "wb") as file: file.write(b"\x1b[31m\x9b\n\xffx")
ctypes.CDLL(sys.argv[1])
def work():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb") as file: file.write(b"\x1b]0;x\x07\n")
    started.wait()
    while True: pass
started = threading.Barrier(3)
for _ in range(2): threading.Thread(target=work, daemon=True).start()
started.wait()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose name, arguments, variables, threads, directory, libraries and control group are hostile."""
    directory = tmp_path / PATH
    directory.mkdir()
    library = directory / f"libgomp{PATH}.so.1"
    found = next((path for path in _libraries() if path.exists()), None)
    require(found, "there is no libgomp")
    assert found is not None
    shutil.copy(found, library)
    group = CPU / f"cgroup-threads{PATH}"
    if os.access(CPU, os.W_OK):
        group.mkdir()
    environ = clean_environ(**dict.fromkeys((*READ, "MALLOC_ARENA_MAX", f"X{PATH}"), EVIL))
    process = subprocess.Popen(
        [sys.executable, "-c", TARGET, str(library), EVIL],
        env=environ,
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if group.exists():
            (group / "cgroup.procs").write_text(str(process.pid))
        yield process
    finally:
        process.kill()
        process.communicate()
        if group.exists():
            group.rmdir()


def _libraries() -> Iterator[Path]:
    for directory in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        yield Path(directory) / "libgomp.so.1"


def test_a_process_that_is_inspected(target: subprocess.Popen[bytes]) -> None:
    pid = str(target.pid)
    done = said("inspect", pid, "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert pid in done.stdout
    found = json.loads(said("inspect", pid, "--seconds", "0.1", "--json").stdout)
    assert "title" in json.dumps(found)
    listed = said("inspect", "--all", "--seconds", "0.1")
    assert f"process {pid}: " in listed.stdout


def test_a_directory_of_a_hostile_name(tmp_path: Path) -> None:
    """As home, for temporary files, for profiles, and to work in."""
    directory = tmp_path / PATH
    directory.mkdir()
    places = {"TMPDIR": str(directory), "HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    for arguments in (["report"], ["cores"], ["exec", "--", "true"], ["exec", "--dry-run", "--", "./no"]):
        done = said(*arguments, environ={**places, "CGROUP_THREADS_PROFILES": str(directory)}, cwd=directory)
        assert (done.returncode, done.stderr) == (0, "")
