"""The command line as a real process: answers, exit codes, one-line errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cgroup_threads.cli import main
from tests.lab import require_module
from tests.lab.commands import COMMAND, clean_environ, inside, quota_group, run, run_cli, run_python

COMMANDS = ("report", "cores", "env", "exec", "inspect", "demo")


def test_without_arguments_it_reports() -> None:
    done = run_cli(CGROUP_THREADS_CORES="3")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("3 usable cores, bound by override (CGROUP_THREADS_CORES=3)\n")
    for section in ("Constraints", "Variables", "Pools"):
        assert f"\n{section}\n" in done.stdout


def test_a_real_quota_is_the_answer_and_fits_a_screen() -> None:
    with quota_group(1.5) as group:
        done = run(inside(group, [*COMMAND]), clean_environ(OMP_NUM_THREADS="24"))
        whole = run(inside(group, [*COMMAND, "cores", "--rounding", "ceil"]))
    lines = done.stdout.splitlines()
    assert lines[0] == "1 usable core, bound by quota (1.5 cores, rounded down)"
    assert any(group.directory in line and "150000" in line for line in lines)
    assert "24     24         kept  OMP_NUM_THREADS" in done.stdout
    assert "- OMP_NUM_THREADS=24 kept; usable cores 1" in done.stdout
    assert len(lines) <= 40
    assert whole.stdout == f"{min(2, len(os.sched_getaffinity(0)))}\n"


def test_m07_cores_prints_one_integer() -> None:
    done = run_cli("cores", CGROUP_THREADS_CORES="2.5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert run_cli("cores", "--rounding", "ceil", CGROUP_THREADS_CORES="2.5").stdout == "3\n"
    found = json.loads(run_cli("cores", "--json", CGROUP_THREADS_CORES="2").stdout)
    assert found["usable_cores"] == 2
    assert found["bound_by"] == "override"


def test_check_fails_on_a_problem_alone() -> None:
    # A harmful value is a problem, a wasteful one a warning.
    harmful = run_cli("--check", CGROUP_THREADS_CORES="2", OMP_NUM_THREADS="24")
    assert (harmful.returncode, harmful.stderr) == (1, "")
    assert "fix: unset OMP_NUM_THREADS, set it to 2" in harmful.stdout
    wasteful = run_cli("report", "--check", CGROUP_THREADS_CORES="2", OMP_NUM_THREADS="1")
    assert wasteful.returncode == 0
    assert "Warnings" in wasteful.stdout
    assert run_cli(CGROUP_THREADS_CORES="2", OMP_NUM_THREADS="24").returncode == 0
    both = run_cli("--json", "--check", CGROUP_THREADS_CORES="2", OMP_NUM_THREADS="500m")
    assert both.returncode == 1
    assert [problem["code"] for problem in json.loads(both.stdout)["problems"]] == ["variable-malformed"]


def test_imported_libraries_show_their_pools() -> None:
    require_module("numpy")
    done = run_cli("report", "--json", "--import", "numpy", CGROUP_THREADS_CORES="1")
    found = json.loads(done.stdout)
    assert found["modules"] == ["numpy"]
    assert {pool["threads"] for pool in found["pools"]} == {1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["cores", "two\nlines"], "two lines"),
        (["cores", "--rounding", "up"], "choose from"),
        (["report", "--interval", "-1"], "--interval"),
        (["report", "--interval", "1e9"], "seconds"),
        (["report", "--import", "no_such_module"], "No module named 'no_such_module'"),
        (["report", "--import", "../x"], "module names"),
        (["env", "--shell", "powershell"], "choose from"),
        (["exec"], "no command given"),
        (["exec", "--"], "no command given"),
        (["exec", "--", ""], "no command given"),
        (["exec", "--workers", "0", "--", "true"], "--workers"),
        (["exec", "--json", "--", "true"], "--json needs --dry-run"),
        (["exec", "--nonsense", "--", "true"], "--nonsense"),
        (["demo", "--callers", "0"], "from 1 to 256"),
        (["demo", "--quota", "0"], "number of cores"),
        (["demo", "--model", "/no/such\n\udcff.gguf"], "existing .gguf file"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    done = run_cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("cgroup-threads")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("error", ["raise ValueError('first\\nsecond')", "import no.such", "1/0", "raise SystemError"])
def test_a_module_that_cannot_be_imported_is_one_line_too(tmp_path: Path, error: str) -> None:
    (tmp_path / "broken_module.py").write_text(error)
    path = os.pathsep.join([clean_environ()["PYTHONPATH"], str(tmp_path)])
    done = run_cli("report", "--import", "broken_module", PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("cgroup-threads: error: cannot import broken_module: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("status", ["0", "1", "'text'", ""])
def test_a_module_that_ends_the_program_does_not_end_the_check(tmp_path: Path, status: str) -> None:
    (tmp_path / "script.py").write_text(f"raise SystemExit({status})")
    path = os.pathsep.join([clean_environ()["PYTHONPATH"], str(tmp_path)])
    environ = {"PYTHONPATH": path, "CGROUP_THREADS_CORES": "2"}
    for threads, code in (("24", 1), ("2", 0)):
        done = run_cli("report", "--check", "--import", "script,json", OMP_NUM_THREADS=threads, **environ)
        assert done.returncode == code
        assert done.stdout.startswith("2 usable cores")
        assert done.stderr.startswith("cgroup-threads: script ended with status ")
        assert len(done.stderr.splitlines()) == 1


def test_help_teaches() -> None:
    top = run_cli("--help")
    assert top.returncode == 0
    assert all(f"    {command} " in top.stdout for command in COMMANDS)
    for command in COMMANDS:
        done = run_cli(command, "--help")
        assert done.returncode == 0
        assert "examples:\n  " in done.stdout, command


def test_version() -> None:
    import cgroup_threads

    assert run_cli("--version").stdout == f"cgroup-threads {cgroup_threads.__version__}\n"


@pytest.mark.parametrize("arguments", [["report"], ["report", "--json"], ["env"], ["cores"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=clean_environ(OMP_NUM_THREADS="3"),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_an_object_in_place_of_standard_output(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Output(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stdout", Output())
    code = main(["cores"])
    monkeypatch.undo()
    assert code == (141 if isinstance(error, BrokenPipeError) else 2)
    assert capsys.readouterr().err == ("" if code == 141 else "cgroup-threads: error: No space left on device\n")


def test_output_that_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND], env=clean_environ(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (2, "cgroup-threads: error: No space left on device\n")
    closed = run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", *COMMAND])
    assert (closed.returncode, closed.stderr) == (2, "cgroup-threads: error: standard output is closed\n")
    silent = run(["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *COMMAND, "nonsense"])
    assert (silent.returncode, silent.stdout) == (2, "")


def test_ctrl_c(tmp_path: Path) -> None:
    """The signal comes while a module is imported, at a point that is the same in each run."""
    (tmp_path / "interrupting.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([clean_environ()["PYTHONPATH"], str(tmp_path)])
    done = run_cli("report", "--import", "interrupting", PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_any_working_directory(tmp_path: Path) -> None:
    for directory in ("/", str(tmp_path)):
        done = run([*COMMAND, "cores"], cwd=directory)
        assert done.returncode == 0
        assert done.stdout.strip().isdigit()


def test_the_command_is_installed_under_its_name() -> None:
    from importlib.metadata import entry_points

    from cgroup_threads.cli import main

    assert [entry.load() for entry in entry_points(group="console_scripts", name="cgroup-threads")] == [main]


def test_unpiped_output_is_ascii_in_any_locale() -> None:
    done = run_cli(LC_ALL="C", PYTHONIOENCODING="ascii", OMP_NUM_THREADS="\N{SNOWMAN}")
    assert done.returncode == 0
    assert "'\\u2603'" in done.stdout or "\\udc" in done.stdout


# What stands where another part of the machine is broken.

HOSTILE = {"OMP_NUM_THREADS": "\udcff\n'", "MKL_NUM_THREADS": "9" * 100_000, "PATH": os.environ.get("PATH", "")}


@pytest.mark.parametrize("arguments", [[], ["--json"], ["env"], ["env", "--json"], ["cores"]])
def test_a_hostile_environment(arguments: list[str]) -> None:
    junk = {f"JUNK_{number}": "\udcfe" * 10_000 for number in range(100)}
    done = run_cli(
        *arguments, **HOSTILE, **junk, CGROUP_THREADS_CORES="nonsense", CGROUP_THREADS_APPLIED="\udcff;" * 99
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert len(done.stdout) < 50_000 or "--json" in arguments


def test_v04_a_report_needs_no_library() -> None:
    done = run_python(
        "import json, sys\n"
        "for name in ('numpy', 'torch', 'joblib', 'resource', 'fcntl', 'pwd', 'grp', 'termios', 'threadpoolctl'):\n"
        "    sys.modules[name] = None\n"
        "import cgroup_threads as ct\n"
        "import cgroup_threads.cli, cgroup_threads.shells, cgroup_threads.demo.table, cgroup_threads.demo.workloads\n"
        "found = ct.report()\n"
        "print(json.dumps([json.loads(found.to_json())['usable_cores'], str(found)]))",
        CGROUP_THREADS_CORES="2",
    )
    cores, text = json.loads(done.stdout)
    assert cores == 2
    assert text.startswith("2 usable cores")


def test_a_library_that_fails_to_answer_becomes_a_notice() -> None:
    done = run_python(
        "import json, sys, types\n"
        "import cgroup_threads as ct\n"
        "def broken(*_): raise RuntimeError('no answer\\nat all')\n"
        "sys.modules['torch'] = torch = types.ModuleType('torch')\n"
        "torch.get_num_threads = torch.get_num_interop_threads = torch.set_num_threads = broken\n"
        "print(json.dumps([[notice.code, notice.message] for notice in ct.report().notices]))"
    )
    assert ["pool-unreadable", "torch does not tell its count: RuntimeError: no answer"] in json.loads(done.stdout)


@pytest.mark.parametrize("place", ["/proc", "/sys", "/sys/fs/cgroup"])
def test_kernel_file_systems_that_are_not_there(place: str) -> None:
    from tests.lab.commands import hidden

    done = run(hidden(place, [*COMMAND, "--json"]))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["usable_cores"] == len(os.sched_getaffinity(0))
    assert done.stderr == ""
    text = run(hidden(place, [*COMMAND])).stdout
    if place == "/proc":
        assert found["limits"]["status"] == "unknown"
        assert "the quota is unknown" in text.splitlines()[0] or found["bound_by"] != "host"
        assert "unknown: which libraries are loaded could not be read" in text


@pytest.mark.parametrize("system", ["win32", "darwin", "freebsd14"])
def test_other_systems_get_an_answer(system: str) -> None:
    """Their modules are not there (Windows has no fcntl and no resource), and nothing here needs them."""
    done = run_python(
        "import argparse, ctypes, json, platform, selectors, subprocess, sys, tempfile, threading\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios'): sys.modules[name] = None\n"
        f"sys.platform = {system!r}\n"
        "from cgroup_threads.cli import main\n"
        "codes = [main(['report', '--json']), main(['cores']), main(['env', '--shell', 'sh'])]\n"
        "if sys.platform == 'win32': codes.append(main(['demo']) - 2)\n"
        "assert codes.count(0) == len(codes), codes\n"
    )
    found, end = json.JSONDecoder().raw_decode(done.stdout)
    assert found["usable_cores"] >= 1
    assert done.stdout[end:].split()[0] == str(found["usable_cores"])
    assert done.stderr == ("cgroup-threads: error: demo: it needs Linux or macOS\n" if system == "win32" else "")
