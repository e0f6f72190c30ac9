"""``cgroup-threads exec`` as a real process: it becomes the command, and the command gets what it should."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.llama_forgotten_argument import build_shim
from cgroup_threads.marker import MARKER
from tests.lab import require, require_module
from tests.lab.cgroup1 import group
from tests.lab.commands import COMMAND, ROOT, clean_environ, inside, quota_group, run, run_cli
from tests.lab.shared_budget import set_quota
from tests.test_shells import SHOW, evaluate, shell

EXEC = (*COMMAND, "exec")
DUMP = "import json, os; print(json.dumps(dict(os.environ)))"
ODD = (
    "two words",
    "it's",
    "new\nline",
    "\udcff\udcfeab",
    "\N{SNOWMAN}",
    "",
    "--help",
    "--workers",
    "--",
    "$HOME `x` \\",
)


def launched(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command through ``exec`` to its end."""
    return run([*EXEC, "--", *command], clean_environ(**environ))


def planned(*command: str, **environ: str) -> dict[str, str | None]:
    """The variables of ``--dry-run --json``."""
    done = run([*EXEC, "--dry-run", "--json", "--", *command], clean_environ(**environ))
    assert (done.returncode, done.stderr) == (0, "")
    return {change["name"]: change["value"] for change in json.loads(done.stdout)["variables"]}


def test_the_process_is_the_commands_and_signals_reach_it() -> None:
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(23))\n"
        "print(os.getpid(), flush=True)\n"
        "while True: signal.pause()\n"
    )
    command = [*EXEC, "--", sys.executable, "-c", script]
    with subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 23


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -PIPE $$", -13)]
)
def test_the_exit_status_is_the_commands(script: str, status: int) -> None:
    done = launched("sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_signals_are_ignored_no_more_than_before() -> None:
    look = ["grep", "^Sig[BI]", "/proc/self/status"]
    # As a child of any Python has them: 3.13.0 starts children that ignore glibc's own signals, 32 and 33.
    between = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    assert launched(*look).stdout == run([*between, *look]).stdout != ""


def test_an_ignored_sigpipe_becomes_the_default_as_the_documentation_says() -> None:
    look = "grep ^SigIgn /proc/self/status"
    ignored = ["sh", "-c", "trap '' PIPE HUP; exec \"$@\"", "sh"]
    plain, through = (run([*ignored, *args, "sh", "-c", look]).stdout.split()[1] for args in ((), (*EXEC, "--")))
    masks = [int(mask, 16) for mask in (plain, through)]
    pipe, hangup = (1 << number - 1 for number in (signal.SIGPIPE, signal.SIGHUP))
    assert [mask & pipe for mask in masks] == [pipe, 0]
    assert [mask & hangup for mask in masks] == [hangup, hangup]


def test_descriptors_and_input_are_the_commands() -> None:
    for command, given in ((["cat"], "text"), (["ls", "/proc/self/fd"], "")):
        plain, through = (
            subprocess.run(c, env=clean_environ(), input=given, capture_output=True, text=True, timeout=60, check=True)
            for c in (command, [*EXEC, "--", *command])
        )
        assert through.stdout == plain.stdout


def test_closed_standard_output_is_the_commands_business() -> None:
    close = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *EXEC, "--"]
    done = run([*close, "sh", "-c", "echo here >&2; exit 5"])
    assert (done.returncode, done.stderr) == (5, "here\n")
    told = run([*close[:-1], "--dry-run", "--", "true"])
    assert (told.returncode, told.stderr) == (2, "cgroup-threads: error: standard output is closed\n")


def test_any_argument_arrives() -> None:
    command = ["sh", "-c", r'printf "%s\0" "$@"', "sh", *ODD]
    for separator in (["--"], []):
        done = subprocess.run(
            [*EXEC, *separator, *command], env=clean_environ(), capture_output=True, timeout=60, check=True
        )
        assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in ODD)


def test_the_rest_of_the_environment_arrives_as_it_was() -> None:
    given = clean_environ(LANG="C", ODD="a\n\udcff='\"", EMPTY="", OMP_NUM_THREADS="64", BLIS_NUM_THREADS="500m")
    given.pop("LC_ALL", None)
    done = subprocess.run([*EXEC, "--", "env", "-0"], env=given, capture_output=True, timeout=60, check=True)
    found = dict(os.fsdecode(entry).split("=", 1) for entry in done.stdout.split(b"\0")[:-1])
    assert given.items() <= found.items()
    added = found.keys() - given.keys()
    assert MARKER in added
    assert added <= planned("env").keys()  # no LC_CTYPE, for one


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [("no-such-command", 127, "no-such-command: No such file"), ("/tmp", 126, "/tmp: Permission denied"),
     ("/no/such\ncommand\udcff", 127, r"'/no/such\ncommand\udcff': No such file")],
)  # fmt: skip
def test_what_cannot_be_run(command: str, status: int, words: str) -> None:
    done = launched(command)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(f"cgroup-threads: error: {words}")
    assert len(done.stderr.splitlines()) == 1


def test_what_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\0" * 100)
    path.chmod(0o755)
    done = launched(str(path))
    assert done.returncode == 126
    assert "Exec format error" in done.stderr


def test_the_command_is_looked_up_on_the_path(tmp_path: Path) -> None:
    """A stand-in for llama-server; its variable is gone, as the argument says the same."""
    program = tmp_path / "llama-server"
    program.write_text('#!/bin/sh\necho "$@"; echo "${LLAMA_ARG_THREADS-unset} ${NPROC-unset} $OMP_NUM_THREADS"\n')
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CGROUP_THREADS_CORES": "3", "NPROC": "3"}
    inherited = {
        "LLAMA_ARG_THREADS": "5",
        "OMP_NUM_THREADS": "5",
        MARKER: "1;-;-;LLAMA_ARG_THREADS=5,OMP_NUM_THREADS=5",
    }
    done = launched("llama-server", "-m", "x", **environ, **inherited)
    assert done.stdout == "--threads 3 --threads-batch 3 -m x\nunset 3 3\n"


@pytest.mark.parametrize("auto", ["0", "1"])
def test_python_gets_variables_and_one_that_imports_us_computes_the_same(auto: str) -> None:
    show = (
        "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['LOKY_MAX_CPU_COUNT'], 'N_THREADS' in os.environ)"
    )
    for script in (show, f"import cgroup_threads; {show}; print(cgroup_threads.plan().threads)"):
        command = [*EXEC, "--workers", "4", "--", sys.executable, "-c", script]
        done = run(command, clean_environ(CGROUP_THREADS_CORES="8", CGROUP_THREADS_AUTO=auto))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["2 2 False", "2"][: done.stdout.count("\n")]


def test_a_governed_child_follows_a_change() -> None:
    """What exec set is computed, not the user's: a child that imports us elsewhere computes anew."""
    script = "import os, cgroup_threads; print(os.environ['OMP_NUM_THREADS'], os.environ['PYTHON_CPU_COUNT'])"
    command = ["env", "CGROUP_THREADS_CORES=2", sys.executable, "-c", script]
    assert launched(*command, CGROUP_THREADS_CORES="6").stdout == "2 2\n"


def test_a_variable_without_a_name_is_no_obstacle() -> None:
    """The kernel passes any text on; Python refuses to."""
    script = (
        "import ctypes, sys\n"
        "words = [word.encode() for word in sys.argv[1:]]\n"
        "texts = lambda *all: (ctypes.c_char_p * (len(all) + 1))(*all, None)\n"
        f"ctypes.CDLL(None).execve(words[0], texts(*words), texts(b'=x', b'PATH=/usr/bin:/bin', b'PYTHONPATH={ROOT}'))"
    )
    done = run([sys.executable, "-c", script, *EXEC, "--", "sh", "-c", "echo $OMP_NUM_THREADS"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().isdigit()


def test_python_counts_the_usable_cores() -> None:
    """PYTHON_CPU_COUNT is read by Python 3.13 and newer."""
    script = "import os; print(os.environ['PYTHON_CPU_COUNT'], os.cpu_count())"
    done = launched(sys.executable, "-c", script, CGROUP_THREADS_CORES="3")
    counted = "3" if sys.version_info >= (3, 13) else str(os.cpu_count())
    assert done.stdout == f"3 {counted}\n"


@pytest.mark.parametrize(
    ("arguments", "environ", "threads"),
    [
        (["--workers", "2"], {}, "4"),
        (["-w4"], {"WEB_CONCURRENCY": "8"}, "2"),
        ([], {"GUNICORN_CMD_ARGS": "-w 4"}, "2"),
        ([], {"WEB_CONCURRENCY": "2"}, "4"),
        ([], {}, "8"),
    ],
)
def test_gunicorns_workers_divide(arguments: list[str], environ: dict[str, str], threads: str, tmp_path: Path) -> None:
    """The application, unchanged, in the environment that real workers would inherit."""
    require_module("gunicorn")
    (tmp_path / "service.py").write_text("import os\nprint(os.environ['OMP_NUM_THREADS'])\ndef app(*_): pass\n")
    gunicorn = [sys.executable, "-m", "gunicorn", "--check-config", "--chdir", str(tmp_path)]
    done = launched(*gunicorn, *arguments, "service:app", CGROUP_THREADS_CORES="8", **environ)
    assert (done.returncode, done.stdout) == (0, f"{threads}\n"), done.stderr


def test_llama_cpp_server_takes_the_arguments() -> None:
    for module in ("llama_cpp", "pydantic_settings", "fastapi", "starlette_context", "sse_starlette"):
        require_module(module)
    server = [sys.executable, "-m", "llama_cpp.server"]
    done = launched(*server, "--help", CGROUP_THREADS_CORES="3")
    assert done.returncode == 0, done.stderr
    assert "--n_threads_batch" in done.stdout
    plan = run_cli("exec", "--dry-run", "--json", "--", *server, "--model", "x", CGROUP_THREADS_CORES="3")
    words = json.loads(plan.stdout)["command"][3:]
    script = (
        "import argparse, sys\n"
        "from llama_cpp.server.cli import add_args_from_model\n"
        "from llama_cpp.server.settings import Settings\n"
        "parser = argparse.ArgumentParser()\n"
        "add_args_from_model(parser, Settings)\n"
        "found = parser.parse_args(sys.argv[1:])\n"
        "print(found.n_threads, found.n_threads_batch, found.model)\n"
    )
    assert run([sys.executable, "-c", script, *words]).stdout == "3 3 x\n"


def test_a_torch_script_on_a_big_host_under_a_quota(tmp_path: Path) -> None:
    """Unchanged, and without our import: on its own it takes a thread for each of the 64 CPUs it believes in."""
    require_module("torch")
    require(shutil.which("cc") or shutil.which("gcc"), "no C compiler is installed")
    script = tmp_path / "work.py"
    script.write_text(
        "import os, sys, torch\n"
        "assert 'cgroup_threads' not in sys.modules\n"
        "torch.mm(torch.ones(256, 256), torch.ones(256, 256)).relu()\n"
        "print(torch.get_num_threads(), torch.get_num_threads() + 1 >= len(os.listdir('/proc/self/task')))\n"
    )
    # MKL would not go above the CPUs that the processor itself tells of.
    environ = clean_environ(LD_PRELOAD=str(build_shim(tmp_path)), BELIEVED_CPUS="64", MKL_DYNAMIC="FALSE")
    with quota_group(1.0) as limited:
        command = [*EXEC, "--", sys.executable, str(script)]
        governed = run(inside(limited, command), environ)
        assert (governed.returncode, governed.stdout) == (0, "1 True\n"), governed.stderr
    imported = "import torch; print(torch.get_num_threads())"
    assert run([sys.executable, "-c", imported], environ).stdout == "64\n"


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_env_after_a_resize_tells_todays_value(name: str, tmp_path: Path) -> None:
    """Twice at one quota, then at another: nothing of the first time counts as the user's."""
    with group(quota=1.0) as cgroup:
        quota = Path("/sys/fs/cgroup/cpu") / cgroup / "cpu.cfs_quota_us"
        set_quota(cgroup, 1.0)
        join = f"echo {'$fish_pid' if name == 'fish' else '$$'} > {quota.parent}/cgroup.procs"
        script = "\n".join([join, evaluate(name), evaluate(name), SHOW, f"echo 200000 > {quota}", evaluate(name), SHOW])
        first, second = (json.loads(line) for line in shell(name, script, tmp_path).splitlines())
    for variable in ("OMP_NUM_THREADS", "N_THREADS", "N_THREADS_BATCH", "LLAMA_ARG_THREADS", "NPROC"):
        assert (first[variable], second[variable]) == ("1", "2")


def test_the_dry_run_can_be_pasted(tmp_path: Path) -> None:
    """The printed command line gives a shell the arguments as they were, whatever is in them."""
    bash = shutil.which("bash")
    require(bash, "bash is not installed")
    assert bash is not None
    program = tmp_path / "llama-cli"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    program.chmod(0o755)
    done = run_cli("exec", "--dry-run", "--", str(program), *ODD, CGROUP_THREADS_CORES="3", ODD="a\nb")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    lines = done.stdout.splitlines()
    line = lines[lines.index("Command") + 1]
    pasted = subprocess.run([bash, "-c", line], env=clean_environ(), capture_output=True, timeout=60, check=True)
    words = ["--threads", "3", "--threads-batch", "3", *ODD]
    assert pasted.stdout == b"".join(os.fsencode(word) + b"\0" for word in words)
    assert re.search(r"^  add    --threads 3 +decoding", done.stdout, re.MULTILINE)
    assert re.search(r"^  set    OMP_NUM_THREADS=3 +OpenMP", done.stdout, re.MULTILINE)


def test_the_dry_run_says_what_the_command_gets() -> None:
    told = planned(sys.executable, "app.py", CGROUP_THREADS_CORES="3", MKL_NUM_THREADS="2")
    done = run([*EXEC, "--", sys.executable, "-c", DUMP], clean_environ(CGROUP_THREADS_CORES="3", MKL_NUM_THREADS="2"))
    got = json.loads(done.stdout)
    assert {name: value for name, value in told.items() if value is not None}.items() <= got.items()


def modules_after(arguments: Sequence[str]) -> set[str]:
    script = (
        "import json, sys\nfrom cgroup_threads.cli import main\n"
        f"code = main({list(arguments)!r})\n"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    code, names = json.loads(run([sys.executable, "-c", script]).stdout.splitlines()[-1])
    assert code == 0
    return set(names)


def test_a_command_loads_what_it_needs() -> None:
    loaded = modules_after(["cores"])
    for name in ("reporting", "demo", "launching", "programs", "shells"):
        assert f"cgroup_threads.{name}" not in loaded
    assert not {"threadpoolctl", "subprocess", "tempfile"} & loaded
    assert "cgroup_threads.reporting" not in modules_after(["exec", "--dry-run", "--", shlex.quote("true")])
