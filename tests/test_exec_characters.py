"""``exec`` and ``env`` with any characters in values: nothing is executed, and everything arrives byte for byte."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cgroup_threads.marker import MARKER
from cgroup_threads.settings import WORKER_VARIABLES
from cgroup_threads.variables import VARIABLES
from tests.lab import require
from tests.lab.commands import COMMAND, clean_environ, run
from tests.test_shells import FLAGS, evaluate

SETTINGS = (
    "AUTO CORES MAX_CORES ROUNDING WORKERS SCOPE PATIENCE SMT OVERRIDE PATCH OMP_LIMIT FOLLOW_HIDDEN PROFILES VERBOSE"
)
REFUSED = {"PYTHON_CPU_COUNT"} if sys.version_info >= (3, 13) else set()
"""Python itself does not start where these are no numbers."""
READ = (
    *dict.fromkeys(
        (
            *(variable.name for variable in VARIABLES if variable.name not in REFUSED),
            *(f"CGROUP_THREADS_{name}" for name in SETTINGS.split()),
            MARKER,
            *WORKER_VARIABLES,
            "GUNICORN_CMD_ARGS",
            "LLAMA_ARG_THREADS_BATCH",
            "OMP_PROC_BIND",
            "GOMP_CPU_AFFINITY",
            "XDG_CACHE_HOME",
            "SHELL",
        )
    ),
)
"""All that the commands read or echo."""
TRAP = b"/trap"
HOSTILE = (
    b"$(touch TRAP)",
    b"`touch TRAP`",
    b"'; touch TRAP; '",
    b'"; touch TRAP; "',
    b"\\'; touch TRAP #",
    b"4\ntouch TRAP\n",
    b"4\rtouch TRAP\r",
    b"; touch TRAP;",
    b"| touch TRAP &",
    b"(touch TRAP)",
    b"<(touch TRAP) >TRAP",
    b"() { :; }; touch TRAP",
    b"-n --help",
    b"--",
    b"=4=",
    b"a=b",
    b" \t4\t ",
    b"",
    b"\x1b]0;title\x07\x1b[31m\x9b",
    b"\xff\xfe\xc3(\xed\xa0\x80",
    b"\xe2\x80\xae\xc2\x9b31m",
    b"4" * (100 << 10),
    b"'" * 5000,
    b"%s%n%99999999s",
    b"!! !1 ^a^b ~ * ? [x] {1,2}",
)
ODD_NAMES = {b"BASH_FUNC_x%%": b"() { touch TRAP; }", b"a-b.c": b"1", b"OMP NUM THREADS": b"2", b"\xff": b"\xfe"}
# Written to a file: the shells' own start and their printing of odd bytes are of no concern here.
SHOW = "import os, sys; open(sys.argv[1], 'wb').write(b'\\0'.join(k + b'=' + v for k, v in os.environb.items()))"


def environ_with(values: dict[bytes, bytes], home: Path) -> dict[bytes, bytes]:
    """A clean environment and ``values``, whose traps touch a file in ``home``."""
    base = {os.fsencode(name): os.fsencode(value) for name, value in clean_environ(HOME=str(home)).items()}
    trap = os.fsencode(home) + TRAP
    return {**base, **{name: value.replace(b"TRAP", trap) for name, value in values.items()}}


def shifted(shift: int) -> dict[bytes, bytes]:
    """All variables, each with another hostile value."""
    values = itertools.cycle(HOSTILE[shift:] + HOSTILE[:shift])
    return {os.fsencode(name): value for name, value in zip(READ, values, strict=False)}


def read_back(path: Path) -> dict[bytes, bytes]:
    pairs = (entry.partition(b"=") for entry in path.read_bytes().split(b"\0"))
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("shift", [0, 7])
@pytest.mark.parametrize("name", ["bash", "zsh", "fish", "dash", "sh"])
def test_the_documented_line_with_hostile_values(name: str, shift: int, tmp_path: Path) -> None:
    """Run by the real shell: nothing is executed, what is the user's stays, what is ours is a number."""
    path = shutil.which(name)
    require(path, f"{name} is not installed")
    assert path is not None
    script = tmp_path / "script"
    command = evaluate(name)
    script.write_text(f'{command}\n{command}\nexec {sys.executable} -c "{SHOW}" {tmp_path}/seen\n')
    given = environ_with({**shifted(shift), **ODD_NAMES}, tmp_path)
    if name == "fish":
        given.pop(b"SHELL")
    done = subprocess.run(
        [path, *FLAGS.get(name, []), str(script)], env=given, capture_output=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    there = [name for name in os.listdir(tmp_path) if not name.startswith(".")]  # fish makes directories of its own
    assert sorted(there) == ["script", "seen"], "something was executed"
    seen = read_back(tmp_path / "seen")
    names = [name for name in shifted(shift) if name not in (os.fsencode(MARKER), b"SHELL")]
    # The shells' own affair: fish and zsh decode and encode what is no text in their locale.
    changed = [name for name in names if seen.get(name) != given[name]]
    computed = [name for name in changed if seen.get(name, b"1").isdigit()]
    assert changed == computed
    assert all(not given[name].strip() for name in computed), "a blank counts as unset, all else is the user's"
    assert MARKER.encode() in seen
    assert seen[MARKER.encode()].startswith(b"1;")


@pytest.mark.parametrize("shift", [0, 3, 11, 18])
def test_exec_passes_everything_on(shift: int, tmp_path: Path) -> None:
    given = environ_with({**shifted(shift), **ODD_NAMES, b"LD_AUDIT_": b"x", b"EMPTY": b""}, tmp_path)
    words = [word for word in HOSTILE if len(word) < 10_000]
    show = f"{SHOW}; open(sys.argv[2], 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[3:])))"
    command = [*COMMAND, "exec", "--", sys.executable, "-c", show, tmp_path / "seen", tmp_path / "words", *words]
    done = subprocess.run(command, env=given, capture_output=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(os.listdir(tmp_path)) == ["seen", "words"], "something was executed"
    assert (tmp_path / "words").read_bytes() == b"\0".join(words)
    seen = read_back(tmp_path / "seen")
    changed = {name for name in given if seen.get(name) != given[name]} - {os.fsencode(MARKER)}
    assert all(not given[name].strip() and seen[name].isdigit() for name in changed), changed


@pytest.mark.parametrize("shift", [0, 9])
def test_json_is_valid_whatever_is_set(shift: int, tmp_path: Path) -> None:
    given = environ_with(shifted(shift), tmp_path)
    words = [word for word in HOSTILE if word and len(word) < 10_000]
    for arguments in (["env", "--json"], ["report", "--json"], ["exec", "--dry-run", "--json", "--", "true", *words]):
        done = subprocess.run([*COMMAND, *arguments], env=given, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
        found = json.loads(done.stdout)
    assert [os.fsencode(word) for word in found["command"][1:]] == words
    assert not (tmp_path / "trap").exists()


def test_the_dry_run_is_pasted_into_real_shells(tmp_path: Path) -> None:
    """Its command line gives the same words back, and it does nothing else."""
    words = [word for word in HOSTILE if len(word) < 10_000]
    given = environ_with({}, tmp_path)
    show = "import os, sys; open(sys.argv[1], 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[2:])))"
    words = [word.replace(b"TRAP", os.fsencode(tmp_path) + TRAP) for word in words]
    command = [*COMMAND, "exec", "--dry-run", "--", sys.executable, "-c", show, tmp_path / "words", *words]
    done = subprocess.run(command, env=given, capture_output=True, timeout=60, check=True)
    lines = done.stdout.decode("ascii").splitlines()
    line = lines[lines.index("Command") + 1]
    for shell in ("bash", "zsh"):
        path = shutil.which(shell)
        require(path, f"{shell} is not installed")
        assert path is not None
        pasted = subprocess.run([path, *FLAGS[shell]], input=line.encode(), env=given, capture_output=True, check=False)
        assert (pasted.returncode, pasted.stdout, pasted.stderr) == (0, b"", b"")
        assert (tmp_path / "words").read_bytes() == b"\0".join(words)
        (tmp_path / "words").unlink()
        assert os.listdir(tmp_path) == []


def test_a_command_that_looks_like_an_assignment(tmp_path: Path) -> None:
    program(tmp_path / "a=b", "echo ran")
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = run([*COMMAND, "exec", "--dry-run", "--", "a=b"], environ)
    lines = done.stdout.splitlines()
    assert run(["sh", "-c", lines[lines.index("Command") + 1]], environ).stdout == "ran\n"


def launched(*words: str | bytes, cwd: Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, "exec", "--", *words],
        env=clean_environ(**environ),
        capture_output=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_where_the_command_is_looked_for(tmp_path: Path) -> None:
    """As the kernel and shells do: a name on PATH, whose empty entries are here; a path with a slash as it is."""
    program(tmp_path / "here", 'echo "$0" "$@"')
    (tmp_path / "sub").mkdir()
    program(tmp_path / "sub" / "-dash", 'echo "$0" "$@"')
    program(tmp_path / "sub" / "a=b", 'echo "$0"')
    assert launched("./here", "--", "-x", cwd=tmp_path).stdout == b"./here -- -x\n"
    assert launched("sub/../here", cwd=tmp_path).stdout == b"sub/../here\n"
    for path in (f":{os.environ['PATH']}", f"{os.environ['PATH']}:", f"/nowhere::{os.environ['PATH']}"):
        assert launched("here", cwd=tmp_path, PATH=path).returncode == 0
    assert launched("here", cwd=tmp_path).returncode == 127, "the directory is not on PATH"
    assert launched("-dash", "1", cwd=tmp_path, PATH=f"{tmp_path}/sub:{os.environ['PATH']}").stdout.endswith(b" 1\n")
    assert launched("a=b", cwd=tmp_path, PATH=f"{tmp_path}/sub:{os.environ['PATH']}").returncode == 0
    (tmp_path / "sub" / "here").mkdir()  # neither run nor in the way
    assert launched("here", cwd=tmp_path, PATH=f"{tmp_path}/sub:{tmp_path}:{os.environ['PATH']}").returncode == 0
    done = launched("\x1b[31m", cwd=tmp_path)
    assert done.returncode == 127
    assert b"\x1b" not in done.stderr


def test_a_set_user_id_program_keeps_its_rights(tmp_path: Path) -> None:
    """``exec`` adds nothing that a loader would refuse, and drops nothing that it needs."""
    require(os.geteuid() == 0, "only root can make such programs")
    directory = Path("/usr/bin")
    source = shutil.which("id", path=str(directory))
    require(source, "there is no id")
    assert source is not None
    copy = directory / f"cgroup-threads-test-{os.getpid()}"
    shutil.copy(source, copy)
    try:
        os.chown(copy, 64001, 64001)
        copy.chmod(0o4755)
        if run([str(copy), "-u"]).stdout != "64001\n":
            pytest.skip("set-user-id programs have no effect here")
        assert launched(str(copy), "-u", cwd=tmp_path).stdout == b"64001\n"
    finally:
        copy.unlink()


def test_a_command_line_at_the_kernels_limit(tmp_path: Path) -> None:
    """One string may have 128 KiB with its end, all together a quarter of the stack; what is added may be too much."""
    most = (128 << 10) - 2
    done = launched("sh", "-c", 'echo "${#1}"', "sh", "x" * most, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"%d\n" % most)
    limit = "ulimit -s 512; "  # 128 KiB for all strings
    for size in range(60, 121, 10):
        given = clean_environ()
        command = ["sh", "-c", f'{limit}exec "$@"', "sh", *COMMAND, "exec", "--", "true", "x" * (size << 10)]
        ended = run(command, given)
        assert ended.returncode in (0, 126, 2), ended.stderr
        if ended.returncode == 126 and "cgroup-threads" in ended.stderr:
            assert ended.stderr == "cgroup-threads: error: true: Argument list too long\n"
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(closed: str, tmp_path: Path) -> None:
    """They are closed for the command, too: no file of ours takes their number."""
    show = f"ls -l /proc/self/fd >{tmp_path}/seen 2>/dev/null; echo ran >{tmp_path}/ran"
    command = f'"$@" {closed}'
    run(["sh", "-c", command, "sh", *COMMAND, "exec", "--", "sh", "-c", show])
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert "cgroup_threads" not in (tmp_path / "seen").read_text()
