"""``cgroup-threads env`` in real shells."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cgroup_threads.marker import MARKER
from cgroup_threads.shells import find_changes, format_statement
from tests.lab import require
from tests.lab.commands import COMMAND, clean_environ, run, run_cli

BOURNE = ("sh", "bash", "zsh")
SHELLS = (*BOURNE, "fish")
# No start files of the user: they may set anything.
FLAGS = {"sh": [], "bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}
CLI = shlex.join(COMMAND)
SHOW = f'{shlex.quote(COMMAND[0])} -c "import json, os; print(json.dumps(dict(os.environ)))"'


def shell(name: str, script: str, directory: Path, **environ: str) -> str:
    """What ``script`` prints in the shell ``name``."""
    path = shutil.which(name)
    require(path, f"{name} is not installed")
    assert path is not None
    done = run([path, *FLAGS[name], "-c", script], clean_environ(HOME=str(directory), **environ))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def evaluate(name: str, *options: str) -> str:
    """The documented line for the shell ``name``."""
    command = shlex.join([*COMMAND, "env", *options])
    return f"{command} | source" if name == "fish" else f'eval "$({command})"'


VALUES = (
    "plain",
    "",
    "two words",
    "it's \"quoted\" `false` $HOME $(false) \\ \\\\ \\n \\' !! ~ * ? [a] {b,c} <x> | & ; # % = ^",
    "a newline\nand a tab\tand a return\r",
    "'",
    "\\",
    "ends in a backslash\\",
    "-n",
    "=4=",
    "=ls",
    "\N{SNOWMAN} \udcff\udcfe not UTF-8",
    "\x01\x1b[31m\x7f",
    "'" * 50,
)


@pytest.mark.parametrize("name", SHELLS)
def test_any_value_survives_the_shell(name: str, tmp_path: Path) -> None:
    path = shutil.which(name)
    require(path, f"{name} is not installed")
    assert path is not None
    names = [f"V{index}" for index in range(len(VALUES))]
    lines = [format_statement(name, variable, value) for variable, value in zip(names, VALUES, strict=True)]
    lines += [format_statement(name, "GONE", None), format_statement(name, "NEVER_THERE", None), SHOW]
    script = tmp_path / "script"
    script.write_bytes(os.fsencode("\n".join(lines)))
    done = subprocess.run(
        [path, *FLAGS[name], str(script)],
        env=clean_environ(HOME=str(tmp_path), GONE="1"),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)
    assert [found.get(variable) for variable in names] == [*VALUES]
    assert "GONE" not in found


@pytest.mark.parametrize("name", SHELLS)
def test_the_documented_line(name: str, tmp_path: Path) -> None:
    """Set by the line, the user's own value kept, and new values at the second time."""
    user = "it's 4\n\udcff"
    script = "\n".join(
        [
            evaluate(name),
            SHOW,
            "set -gx CGROUP_THREADS_CORES 5" if name == "fish" else "export CGROUP_THREADS_CORES=5",
            evaluate(name),
            SHOW,
        ]
    )
    first, second = (
        json.loads(line)
        for line in shell(name, script, tmp_path, CGROUP_THREADS_CORES="3", MKL_NUM_THREADS=user).splitlines()
    )
    assert first["OMP_NUM_THREADS"] == first["N_THREADS_BATCH"] == "3"
    assert second["OMP_NUM_THREADS"] == second["N_THREADS_BATCH"] == "5"
    assert first["MKL_NUM_THREADS"] == second["MKL_NUM_THREADS"] == user
    assert MARKER in first


@pytest.mark.parametrize("name", SHELLS)
def test_what_is_no_longer_wanted_is_unset(name: str, tmp_path: Path) -> None:
    off = "set -e CGROUP_THREADS_OMP_LIMIT" if name == "fish" else "unset CGROUP_THREADS_OMP_LIMIT"
    script = "\n".join([evaluate(name), SHOW, off, evaluate(name), SHOW])
    environ = {"CGROUP_THREADS_CORES": "3", "CGROUP_THREADS_OMP_LIMIT": "1"}
    first, second = (json.loads(line) for line in shell(name, script, tmp_path, **environ).splitlines())
    assert first["OMP_THREAD_LIMIT"] == "3"
    assert "OMP_THREAD_LIMIT" not in second


def test_a_second_time_in_the_same_shell_says_nothing(tmp_path: Path) -> None:
    script = f'{evaluate("sh")}\necho "[$({CLI} env)]"'
    assert shell("sh", script, tmp_path, CGROUP_THREADS_CORES="3") == "[]\n"


def test_values_reach_programs_that_are_not_python(tmp_path: Path) -> None:
    script = f"{evaluate('bash')}\nsh -c 'echo $LLAMA_ARG_THREADS $NPROC'"
    assert shell("bash", script, tmp_path, CGROUP_THREADS_CORES="3") == "3 3\n"


def test_json_lists_what_to_set_and_unset() -> None:
    found = json.loads(run_cli("env", "--json", CGROUP_THREADS_CORES="3", OMP_NUM_THREADS="2").stdout)
    assert found.keys() == {"set", "unset"}
    assert "OMP_NUM_THREADS" not in found["set"]
    assert found["set"]["RAYON_NUM_THREADS"] == "3"
    assert found["unset"] == []


def test_the_syntax_follows_the_calling_shell(tmp_path: Path) -> None:
    # $SHELL is the login shell; a fish under it is what counts.
    environ = {"CGROUP_THREADS_CORES": "3", "SHELL": "/bin/sh"}
    assert "set -gx OMP_NUM_THREADS '3';" in shell("fish", f"{CLI} env", tmp_path, **environ)
    assert "export OMP_NUM_THREADS=3;" in shell("bash", f"{CLI} env; true", tmp_path, **environ)


def test_only_our_variables_change() -> None:
    before = {"OMP_NUM_THREADS": "4", "HOME": "/a", "NPROC": "2"}
    after = {"OMP_NUM_THREADS": "2", "HOME": "/b", MARKER: "m"}
    assert find_changes(before, after) == {"OMP_NUM_THREADS": "2", "NPROC": None, MARKER: "m"}
