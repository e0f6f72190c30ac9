"""``cgroup-threads tune`` as a real process: real measurements, short ones."""

from __future__ import annotations

import argparse
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.commands.tune import choose_target
from cgroup_threads.errors import CgroupThreadsError
from tests.lab import models, require, require_module
from tests.lab.commands import COMMAND, clean_environ, run

SHORT = ("--rounds", "3", "--seconds", "0.1", "--time-limit", "60")
# Two threads need half of the time of one, and a call sleeps: what a busy machine adds to 0.1 s and to 0.2 s is little.
SLEEPER = "import time\ndef call(threads):\n    time.sleep(0.2 / min(threads, 2))\n"
# Says in a file that it was called, and then takes for ever.
STUCK = """
import os, time
def call(threads):
    with open("pids", "a") as file:
        print(os.getpid(), file=file, flush=True)
    time.sleep(3600)
"""
SLEEPING = ("/bin/sh", "-c", 'sleep "0.$((6 / $1))"', "sleeping")  # and the count: 0.6 s, or 0.3 s with two


def environ(**changes: str) -> dict[str, str]:
    """Two usable cores on any machine that has them."""
    return clean_environ(CGROUP_THREADS_CORES="2", **changes)


def tune(directory: Path, *arguments: str, timeout: float = 120, **changes: str) -> subprocess.CompletedProcess[str]:
    return run([*COMMAND, "tune", *arguments], environ(**changes), timeout=timeout, cwd=str(directory))


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with modules to measure."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "failing.py").write_text("def call(threads):\n    raise ValueError('not\\ntoday')\n")
    return tmp_path


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


# Real runs.


def test_a_function_is_measured_and_its_knee_marked(workplace: Path) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "on one CPU there is one count")
    done = tune(workplace, "sleeper:call", *SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("sleeper:call")
    assert "2 usable cores of" in lines[1]
    (knee,) = [line for line in lines if "<- knee" in line]
    assert knee.split()[0] == "2"
    assert any(line.startswith("Pass threads=2") for line in lines)  # a busy machine adds a warning


def test_json_goes_alone_to_standard_output(workplace: Path) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "on one CPU there is one count")
    done = tune(workplace, "--json", "sleeper:call", *SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["arguments"] == {"threads": 2}
    (task,) = found["tasks"]
    assert task["unit"] == "calls"
    one, two = task["points"][:2]
    assert (one["threads"], two["threads"]) == (1, 2)
    assert two["ratio"] == pytest.approx(two["median"] / one["median"])
    assert len(one["rates"]) >= 1  # disturbed rounds are left out


def test_a_command_after_two_dashes(workplace: Path) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "on one CPU there is one count")
    done = tune(workplace, "--max-threads", "2", "--markdown", *SHORT, "--", *SLEEPING, "{threads}", "--json", "--")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("**")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0].split()[:4] == ["|", "threads", "|", "runs/s"]
    assert [row.split()[1] for row in rows[2:]] == ["1", "2"]
    assert rows[3].endswith("**knee** |")


def test_a_model_decodes_and_reads_prompts(workplace: Path) -> None:
    model = models.gemma_gguf()
    done = tune(workplace, model, *SHORT, "--max-threads", "1", "--json", timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["arguments"] == {"n_threads": 1, "n_threads_batch": 1}
    rates = {task["name"]: task["points"][0]["median"] for task in found["tasks"]}
    assert rates["prefill"] > rates["decode"] > 1
    assert found["bandwidth"]["used_bytes_per_second"] == pytest.approx(
        found["bandwidth"]["weights_bytes"] * rates["decode"]
    )
    assert found["bandwidth"]["share"] > 0


def test_a_picture_is_drawn_beside_the_table(workplace: Path) -> None:
    require_module("matplotlib")
    done = tune(workplace, "sleeper:call", *SHORT, "--plot", "knee.svg")
    assert (done.returncode, done.stderr) == (0, "cgroup-threads: drawn into knee.svg\n")
    assert "<- knee" in done.stdout
    assert (workplace / "knee.svg").read_bytes().startswith(b"<?xml")
    done = tune(workplace, "sleeper:call", *SHORT, "--plot", "knee.png", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert (workplace / "knee.png").exists()


def test_a_profile_is_saved_into_a_directory(workplace: Path) -> None:
    model = models.tiny_gguf()
    done = tune(workplace, f"--save={workplace / 'profiles'}", model, *SHORT, "--max-threads", "1", timeout=240)
    assert done.returncode == 0, done.stderr
    (profile,) = (workplace / "profiles").iterdir()
    assert "saved as" in done.stdout
    assert json.loads(profile.read_text())


def test_the_bar_is_drawn_on_a_terminal_only(workplace: Path) -> None:
    for options, drawn in (((), True), (("--quiet",), False)):
        master, terminal = pty.openpty()
        process = subprocess.Popen(
            [*COMMAND, "tune", "sleeper:call", *SHORT, *options],
            env=environ(),
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=terminal,
        )
        os.close(terminal)
        shown = bytearray()
        try:
            while chunk := os.read(master, 4096):
                shown += chunk
        except OSError:  # EIO: the last one who had the terminal open has ended
            pass
        os.close(master)
        assert process.stdout is not None
        assert b"<- knee" in process.stdout.read()
        process.stdout.close()
        assert process.wait(60) == 0
        assert (b"[#" in shown, b"call, 2 threads" in shown) == (drawn, drawn)
        assert not shown or shown.endswith(b"\x1b[K")  # the line is cleared in the end


# It ends when it is told to.


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_with_all_that_it_started(workplace: Path, number: signal.Signals, code: int) -> None:
    started = workplace / "pids"
    process = subprocess.Popen(
        [*COMMAND, "tune", "stuck:call"],
        env=environ(),
        cwd=workplace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: started.exists() and started.read_text().endswith("\n"))
        pids = [int(word) for word in started.read_text().split()]
        assert all(map(is_running, pids))
        assert process.pid not in pids
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (code, b"", b"")
    wait_until(lambda: not any(map(is_running, pids)))


# Errors.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no target given"),
        ([""], "no target given"),
        (["--save", "model.gguf"], "no target given (--save took 'model.gguf' as its directory: put it last)"),
        (["--", "true"], "'true'"),
        (["--", "true", "1"], "the command has no {threads} to put the thread count in"),
        (["missing.gguf"], "missing.gguf"),
        (["sleeper"], "sleeper"),
        (["sleeper:nothing"], "nothing"),
        (["nowhere:call"], "nowhere"),
        (["failing:call", *SHORT], "ValueError: not"),
        (["--", "./not-there", "{threads}"], "not-there"),
        (["--", "false", "{threads}"], "1"),
        (["sleeper:call", "--plot", "knee.pdf"], "ends in .svg or .png"),
        (["sleeper:call", "--plot", "nowhere/knee.svg"], "nowhere: no such directory"),
        (["sleeper:call", "--json", "--markdown"], "not allowed with"),
        (["sleeper:call", "--rounds", "0"], "--rounds"),
        (["sleeper:call", "--rounds", "1"], "rounds must be"),
        (["sleeper:call", "--max-threads", "two"], "--max-threads"),
        (["sleeper:call", "--seconds", "0"], "seconds"),
        (["sleeper:call", "--time-limit", "forever"], "--time-limit"),
        (["sleeper:call", "--confidence", "2"], "is not a share from 0.5 to 0.999"),
        (["sleeper:call", "--task", "sing"], "sing"),
        (["sleeper:call", "--task", "decode"], "tasks must be some of call"),
        (["sleeper:call", "--save"], "save"),
        (["sleeper:call", "--nonsense"], "--nonsense"),
    ],
)
def test_errors_are_one_line(workplace: Path, arguments: list[str], words: str) -> None:
    done = tune(workplace, *arguments)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("cgroup-threads")
    assert words in done.stderr


def test_without_matplotlib_it_says_so_before_it_measures(workplace: Path) -> None:
    script = "import sys; sys.modules['matplotlib'] = None; from cgroup_threads.cli import main; sys.exit(main())"
    done = run(
        [sys.executable, "-c", script, "tune", "stuck:call", "--plot", "knee.svg"], environ(), cwd=str(workplace)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'cgroup-threads[plot]'" in done.stderr
    assert not (workplace / "pids").exists()


def test_help_teaches_with_examples(workplace: Path) -> None:
    done = tune(workplace, "--help")
    assert done.returncode == 0
    for words in ("usage: cgroup-threads tune [options] TARGET", "-- ./bench --threads {threads}", "--plot knee.svg"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_targets() -> None:
    assert choose_target(["model.gguf"]) == "model.gguf"
    assert choose_target(["./run-{threads}.sh"]) == ["./run-{threads}.sh"]
    assert choose_target(["a", "b={threads}"]) == ["a", "b={threads}"]
    with pytest.raises(CgroupThreadsError, match=r"no \{threads\}"):
        choose_target(["a", "b"])


def test_options_go_before_and_after_the_target() -> None:
    from cgroup_threads.commands import tune as command

    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    for words in (["x.gguf", "--json"], ["--json", "x.gguf"], ["--json", "--rounds", "5", "x.gguf", "--quiet"]):
        options = parser.parse_args(["tune", *words])
        assert (options.target, options.json) == (["x.gguf"], True)
    options = parser.parse_args(["tune", "--save", "--", "x", "--save", "{threads}", "--", "y"])
    assert (options.target, options.save) == (["x", "--save", "{threads}", "--", "y"], True)
