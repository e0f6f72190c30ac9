"""``cgroup-threads compare`` as a real process: both arms, their order, their ends, and what is said of them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llama_forgotten_argument import build_shim
from cgroup_threads.comparing import rounds, running
from cgroup_threads.comparing.judging import find_notices
from cgroup_threads.comparing.ratio import find_ratio, invert, judge_ratio, ratio_of
from cgroup_threads.comparing.records import Arm, ArmResult, CompareError, Comparison, OutputVerdict, Ratio, Run, Terms
from cgroup_threads.comparing.render import render
from cgroup_threads.comparing.wording import say_ratio, say_seconds
from cgroup_threads.marker import MARKER
from tests.lab import require, require_module
from tests.lab.commands import COMMAND, clean_environ, inside, quota_group, run
from tests.lab.models import minilm_gguf

COMPARE = (*COMMAND, "compare")
SHORT = ("--runs", "2", "--warmup", "0")
# What tells a script which arm it is in: clean environments hold no thread variables.
GOVERNED = "import os, sys; governed = 'OMP_NUM_THREADS' in os.environ\n"


def compare(
    *arguments: str, script: str = "", options: Sequence[str] = SHORT, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Compare a Python ``script`` that knows whether it is ``governed``, or a command given by ``arguments``."""
    command = [sys.executable, "-c", GOVERNED + script, *arguments] if script else [*arguments]
    return run([*COMPARE, *options, "--", *command], clean_environ(**environ))


def compared(script: str, *options: str, short: Sequence[str] = SHORT, **environ: str) -> dict[str, Any]:
    """What ``--json`` says of a Python script."""
    done = compare(script=script, options=[*short, *options, "--json"], **environ)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [notice["code"] for notice in found["notices"]]


def is_gone(pid: int) -> bool:
    """Whether a process ends within a few seconds; a zombie has ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


# The ratio.


def result(*seconds: float, gave_up: bool = False) -> ArmResult:
    runs = tuple(Run(value, value, 0, None, "") for value in seconds)
    if gave_up:
        runs = (*runs, Run(60.0, 1.0, -9, None, "", limited=True))
    return ArmResult(Arm("x", ("x",), {}), runs, gave_up)


def test_the_ratio_and_its_spread() -> None:
    ratio = ratio_of([3.0, 3.3, 3.0], [1.0, 1.0, 1.0])
    assert ratio.value == 3.0
    assert ratio.rounds == pytest.approx((3.0, 3.3, 3.0))
    assert ratio.spread == pytest.approx(0.17320508)
    # Student's interval on the logarithms, computed by hand: mean 1.130382, sd 0.0550277, t 4.303, n 3.
    assert (ratio.low, ratio.high) == pytest.approx((2.70092, 3.55085), rel=1e-4)
    assert judge_ratio(ratio) == "faster"
    assert say_ratio(ratio, "faster") == "3.00 ± 0.17 times faster (rounds: 3.00 to 3.30)"


def test_rounds_in_turns_cancel_a_slow_drift() -> None:
    drift = [1.0, 1.5, 2.0, 2.5, 3.0]
    assert judge_ratio(ratio_of([1.2 * x for x in drift], drift)) == "faster"
    assert judge_ratio(ratio_of(drift, [1.2 * x for x in drift])) == "slower"


@pytest.mark.parametrize(
    ("plain", "governed", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.05, 0.95], [1.0, 0.95, 1.02, 1.0, 1.0], "same"),
        ([1.0, 1.001, 1.0, 1.001, 1.0], [0.99, 0.991, 0.99, 0.991, 0.99], "same"),  # steady, and not worth a word
        ([1.0], [0.5], "unknown"),
        ([2.0, 2.0, 2.0, 2.0, 9.0], [1.0, 1.0, 1.0, 1.0, 6.0], "faster"),
        ([1.2, 1.2, 1.2, 1.2, 0.4], [1.0, 1.0, 1.0, 1.0, 1.0], "same"),  # one odd round: not sure any more
    ],
)
def test_the_verdict(plain: list[float], governed: list[float], verdict: str) -> None:
    ratio = ratio_of(plain, governed)
    assert judge_ratio(ratio) == verdict
    opposite = {"faster": "slower", "slower": "faster"}
    assert judge_ratio(ratio_of(governed, plain)) == opposite.get(verdict, verdict)


def test_slower_is_the_ratio_the_other_way_round() -> None:
    ratio = invert(ratio_of([1.0, 1.0], [2.0, 4.0]))
    assert (ratio.value, ratio.rounds) == (3.0, (2.0, 4.0))
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 3.0 < ratio.high
    assert invert(Ratio(0.5, bound="at most")) == Ratio(2.0, bound="at least")


def test_an_arm_at_the_time_limit_gives_a_bound() -> None:
    never, some = result(gave_up=True), result(0.5, 0.5)
    ratio = find_ratio(never, some, 60.0)
    assert ratio is not None
    assert (ratio.value, ratio.bound, judge_ratio(ratio)) == (120.0, "at least", "faster")
    assert say_ratio(ratio, "faster") == "at least 120 times faster"
    back = find_ratio(some, never, 60.0)
    assert back is not None
    assert (back.bound, judge_ratio(back)) == ("at most", "slower")
    assert find_ratio(never, never, 60.0) is None


def test_seconds_in_words() -> None:
    assert [say_seconds(s) for s in (0.0123, 0.9999, 1.234, 123.4, 1234.5)] == [
        "12.3 ms", "1.00 s", "1.23 s", "123 s", "1234 s",
    ]  # fmt: skip


# The arms.

SHOW = "print(os.environ.get('OMP_NUM_THREADS'))"


def test_as_it_is_and_as_exec_would_run_it() -> None:
    found = compared(SHOW, CGROUP_THREADS_CORES="3")
    assert found["output"]["differences"] == [{"place": "line 1", "plain": "None", "governed": "3"}]
    assert [arm["name"] for arm in found["arms"]] == ["as it is", "governed"]
    assert found["arms"][1]["detail"].startswith("3 usable cores, 3 threads, bound by ")


def test_what_a_governed_parent_computed_is_not_the_users() -> None:
    inherited = {"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "9", MARKER: "1;-;-;OMP_NUM_THREADS=7"}
    show = SHOW + f"\nprint(os.environ.get('MKL_NUM_THREADS'), {MARKER!r} in os.environ)"
    found = compared(show, CGROUP_THREADS_CORES="3", **inherited)
    pairs = [(difference["plain"], difference["governed"]) for difference in found["output"]["differences"]]
    assert pairs == [("None", "3"), ("9 False", "9 True")]


def test_a_command_that_imports_us_is_governed_in_both_arms() -> None:
    show = "import cgroup_threads; print(os.environ['OMP_NUM_THREADS'])"
    assert compared(show, CGROUP_THREADS_CORES="3")["output"]["state"] == "equal"
    off = compared(show.replace("['OMP_NUM_THREADS']", ".get('OMP_NUM_THREADS')"), CGROUP_THREADS_AUTO="0")
    assert off["output"]["state"] == "differ"


def test_the_governed_arm_is_what_exec_runs(tmp_path: Path) -> None:
    """The environments of both, but for what a shell adds; and the arguments of a program of llama.cpp."""
    environ = clean_environ(CGROUP_THREADS_CORES="3", ODD="a\nb", MKL_NUM_THREADS="2")
    arms = (
        "import json; from cgroup_threads.commands.compare import make_arms\n"
        "print(json.dumps([[arm.command, arm.environment] for arm in make_arms(['env', '-0'], 2)]))"
    )
    plain, governed = json.loads(run([sys.executable, "-c", arms], environ).stdout)
    through = run([*COMMAND, "exec", "--workers", "2", "--", "env", "-0"], environ).stdout
    assert governed[1] == dict(entry.split("=", 1) for entry in through.split("\0")[:-1])
    assert plain[1] == environ
    assert plain[0] == governed[0] == ["env", "-0"]

    program = tmp_path / "llama-embedding"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    done = compare(str(program), "-p", "x", options=[*SHORT, "--json"], CGROUP_THREADS_CORES="3")
    found = json.loads(done.stdout)
    assert found["arms"][1]["command"][1:] == ["--threads", "3", "--threads-batch", "3", "-p", "x"]
    assert found["output"]["state"] == "differ"


def test_rounds_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"open({str(log)!r}, 'a').write('g' if governed else 'p')"
    compared(script, short=("--runs", "3", "--warmup", "1"))
    assert log.read_text() == "pggppggp"


def test_the_working_directory_and_input_are_the_commands(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("1.5 2.5\n")
    done = run([*COMPARE, *SHORT, "--json", "--input", "given", "--", "cat"], cwd=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["output"]["state"] == "equal"
    assert found["arms"][0]["runs"][0]["bytes"] == 8
    empty = json.loads(run([*COMPARE, *SHORT, "--json", "--", "cat"]).stdout)
    assert empty["arms"][0]["runs"][0]["bytes"] == 0


# What is measured.


def test_cpu_seconds_and_wall_seconds() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    for arm in compared(spin)["arms"]:
        for measured in arm["runs"]:
            assert measured["cpu_seconds"] >= 0.29
            assert measured["seconds"] >= 0.29
    wait = "import select; select.select([], [], [], 0.3)"
    for arm in compared(wait)["arms"]:
        assert all(measured["seconds"] >= 0.3 for measured in arm["runs"])


def test_throttling_is_counted_in_each_arm() -> None:
    spin = "import time\nif not governed:\n    while time.process_time() < 0.4: pass"
    with quota_group(0.2) as group:
        command = [*COMPARE, *SHORT, "--json", "--", sys.executable, "-c", GOVERNED + spin]
        done = run(inside(group, command), clean_environ())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cgroup"] == group.directory
    plain, _ = ([measured["throttled"] for measured in arm["runs"]] for arm in found["arms"])
    assert min(plain) >= 5  # 0.4 s of CPU are 20 periods of 20 ms


# Times of real runs are as noisy as the machine: what is made of them is tested with times that are given.
EQUAL = OutputVerdict("equal", "", 6)


def told(plain: ArmResult, governed: ArmResult) -> Comparison:
    ratio = find_ratio(plain, governed, 60.0)
    return Comparison(Terms(), plain, governed, ratio, EQUAL, find_notices(plain, governed, ratio, EQUAL, Terms()))


def test_slower_fails_the_check() -> None:
    found = told(result(1.0, 1.0, 1.0), result(2.0, 2.0, 2.1))
    assert found.fails
    assert "problem: governed is 2.00 ± 0.06 times slower (rounds: 2.00 to 2.10)" in render(found)
    assert not told(result(1.0, 1.0), result(2.0, 2.0)).fails


def test_faster_passes_the_check() -> None:
    found = told(result(2.0, 2.0, 2.1), result(1.0, 1.0, 1.0))
    assert not found.fails
    assert "- governed is 2.00 ± 0.06 times faster (rounds: 2.00 to 2.10)" in render(found)
    assert "- output: equal, byte for byte, 6 runs" in render(found)


def test_a_governed_arm_that_meets_the_time_limit_fails_the_check() -> None:
    hang = "import signal\nif governed: signal.pause()"
    done = compare(script=hang, options=("--runs", "2", "--warmup", "0", "--time-limit", "8", "--check"))
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem: governed is at least " in done.stdout


def test_outputs_that_differ_fail_the_check() -> None:
    done = compare(script="print('x', 1.5 if governed else 2.5)", options=[*SHORT, "--check"])
    assert done.returncode == 1
    assert "problem: output: differs; line 1: 2.5 as it is, 1.5 governed" in done.stdout
    ignored = compare(script="print('x', 1.5 if governed else 2.5)", options=[*SHORT, "--check", "--ignore", "^x"])
    assert ignored.returncode == 0
    near = compare(script="print(1.5 if governed else 1.6)", options=[*SHORT, "--check", "--tolerance", "0.1"])
    assert near.returncode == 0


def test_times_in_the_output_are_not_blamed_on_threads() -> None:
    varying = compared("print('sum', 42.5)\nprint('pid', os.getpid())")
    assert varying["output"]["state"] == "varies"
    assert varying["output"]["varying"]["both"] == 1
    assert varying["ok"]


def test_one_run_has_no_spread() -> None:
    found = compared("print(1)", short=("--runs", "1", "--warmup", "0"))
    assert found["verdict"] == "unknown"
    assert "compare-one-round" in codes(found)
    assert found["ratio"]["low"] is None


# Files that are written.


def test_a_file_that_is_written_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    script = f"import json; json.dump({{'v': [0.5, 0.25 + 1e-9 * governed]}}, open({str(path)!r}, 'w'))"
    found = compared(script + "; print('governed:', governed)", "--output", str(path))
    assert found["output"]["state"] == "close"
    assert found["output"]["of"] == str(path)


def test_an_array_that_is_written_is_compared(tmp_path: Path) -> None:
    require_module("numpy")
    path = tmp_path / "out.npy"
    script = f"import numpy; numpy.save({str(path)!r}, numpy.arange(6.0) + (0.5 if governed else 0))"
    found = compared(script, "--output", str(path))
    assert found["output"]["state"] == "differ"
    assert found["output"]["differences"][0]["place"].startswith("element [")


def test_a_file_that_is_not_written_is_an_error(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("from yesterday")
    for path in (tmp_path / "none", old):
        done = compare("true", options=[*SHORT, "--output", str(path)])
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"cgroup-threads: error: compare: the command did not write '{path}'\n"


# Ends.


def test_a_command_that_fails_in_both_arms_is_one_line() -> None:
    script = "sys.stderr.write('first\\nno such model\\n\\n'); sys.exit(3)"
    done = compare(script=script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "cgroup-threads: error: compare: the command fails in both arms: exit code 3: no such model "
        "(--ignore-failure goes on)\n"
    )
    found = compared(script, "--ignore-failure")
    assert [measured["exit_code"] for arm in found["arms"] for measured in arm["runs"]] == [3] * 4
    assert codes(found).count("compare-failed") == 2


def test_one_arm_that_fails_is_a_finding() -> None:
    script = "sys.stderr.write('cannot start threads\\n'); sys.exit(4 if governed is %s else 0)"
    plain = compare(script=script % False, options=[*SHORT, "--check"])
    assert plain.returncode == 0, plain.stderr
    assert "warning: as it is: 2 of 2 runs failed: exit code 4: cannot start threads" in plain.stdout
    governed = compare(script=script % True, options=[*SHORT, "--check"])
    assert governed.returncode == 1
    assert "problem: governed: 2 of 2 runs failed: exit code 4: cannot start threads" in governed.stdout


def judged(plain: ArmResult, governed: ArmResult) -> dict[str, str]:
    """Code and level of each notice."""
    ratio = find_ratio(plain, governed, 60.0)
    return {n.code: n.level for n in find_notices(plain, governed, ratio, OutputVerdict("equal"), Terms(rounds=2))}


def test_times_are_not_compared_where_one_arm_fails() -> None:
    failed = ArmResult(Arm("x", ("x",), {}), tuple(Run(0.01, 0.01, 4, None, "") for _ in range(5)), False)
    found = judged(failed, result(2.0, 2.0, 2.0, 2.0, 2.0))
    assert found["compare-failed-time"] == "warning"
    assert "compare-slower" not in found


def test_two_rounds_do_not_fail_a_check() -> None:
    assert judged(result(1.0, 1.0), result(2.0, 2.01))["compare-slower"] == "warning"
    assert judged(result(1.0, 1.0, 1.0), result(2.0, 2.01, 2.0))["compare-slower"] == "problem"
    assert judged(result(1.0), result(gave_up=True))["compare-slower"] == "problem"


def test_a_signal_that_ends_the_command_is_named() -> None:
    done = compare(script="os.kill(os.getpid(), 11) if not governed else None")
    assert done.returncode == 0, done.stderr
    assert "as it is: 2 of 2 runs failed: ended by SIGSEGV" in done.stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [("no-such-command", "'no-such-command': No such file or directory"), ("/tmp", "'/tmp': Permission denied"),
     ("/no/such\ncommand\udcff", r"'/no/such\ncommand\udcff': No such file or directory")],
)  # fmt: skip
def test_what_cannot_be_run(command: str, words: str) -> None:
    done = compare(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"cgroup-threads: error: compare: {words}\n"


HANG = """
import signal, subprocess
with open(sys.argv[1], 'a') as file:
    child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])
    file.write(f'{os.getpid()} {child.pid}\\n')
if governed is not True: signal.pause()
"""


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    options = ("--runs", "3", "--warmup", "1", "--time-limit", "8")  # the governed arm needs a tenth of a second
    done = compare(str(pids), script=HANG, options=[*options, "--check"])
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    row = next(line for line in lines if line.startswith("as it is  "))
    assert "> 8 s" in row
    assert row.endswith("killed")
    text = " ".join(done.stdout.split())
    assert "governed is at least " in text
    assert "warning: as it is: not ended after 8 s, killed, and not run again" in text
    rows = [[*map(int, line.split())] for line in pids.read_text().splitlines()]
    assert len(rows) == 5  # once as it is, four times governed: what those left behind is ended, too
    assert all(is_gone(pid) for row in rows for pid in row)


def test_two_arms_that_hang_are_an_error(tmp_path: Path) -> None:
    script = HANG.replace("is not True", "is not None")
    done = compare(str(tmp_path / "pids"), script=script, options=["--time-limit", "1"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cgroup-threads: error: compare: neither arm ended within 1 s (--time-limit)\n"


@pytest.mark.parametrize(("where", "stream"), [("", "output"), (">&2", "error")])
def test_a_command_that_writes_without_end_is_ended(
    where: str, stream: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "MAX_OUTPUT", 1 << 20)
    pids = tmp_path / "pids"
    arm = Arm("as it is", ("sh", "-c", f"yes {where} & echo $$ $! > {pids}; wait"), clean_environ())
    with pytest.raises(CompareError, match=f"wrote more than .* to standard {stream}"):
        running.run_once(arm, Terms(), lambda: None)
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())


def test_outputs_that_all_differ_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_KEPT_ALL", 100_000)
    arm = Arm("x", ("sh", "-c", "echo $$; head -c 40000 /dev/zero"), clean_environ())
    found = rounds.run_comparison(arm, arm, Terms(rounds=4, warmup=0))
    kept = [run.output is not None and run.output.data is not None for run in found.plain.runs]
    assert kept == [True, True, False, False]
    assert (found.output.state, found.output.varying) == ("varies", (1, 0, 0))


def test_a_pipe_cannot_be_the_input_of_every_run() -> None:
    # What `--input <(...)` gives: the second run would find nothing in it.
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x")
        with pytest.raises(CompareError, match="a pipe cannot be read anew by every run"):
            running.run_once(Arm("x", ("cat",), {}), Terms(given=f"/dev/fd/{reading}"), lambda: None)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_that_is_written_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    arm = Arm("x", ("mkfifo", str(pipe)), clean_environ())
    with pytest.raises(CompareError, match="not a regular file"):
        running.run_once(arm, Terms(output=str(pipe)), lambda: None)


def test_outputs_of_nothing_are_said_to_be_that() -> None:
    done = compare("true")
    assert "output: equal (nothing was written), 4 runs (--output FILE compares a file)" in done.stdout


def test_an_empty_place_is_seen() -> None:
    done = compare("sh", "-c", "echo $OMP_NUM_THREADS", CGROUP_THREADS_CORES="3")
    assert "line 1: '' as it is, 3 governed" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_the_command_and_all_it_started(number: signal.Signals, code: int, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    command = [*COMPARE, "--", sys.executable, "-c", GOVERNED + HANG, str(pids)]
    process = subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with open(pids) as file:
        started = [*map(int, file.readline().split())]
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (code, "", "")
    assert len(started) == 2
    assert all(map(is_gone, started))


def test_what_runs_ends_with_it_even_if_it_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    command = [*COMPARE, "--", sys.executable, "-c", GOVERNED + HANG, str(pids)]
    process = subprocess.Popen(command, env=clean_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(pids) as file:
        started = [*map(int, file.readline().split())]
    process.kill()
    process.wait()
    assert len(started) == 2
    assert all(map(is_gone, started))


def test_what_has_a_process_group_of_its_own_ends_with_the_command(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    arm = Arm("x", ("bash", "-c", f"set -m; sleep 1000 & echo $! > {path}"), clean_environ())
    running.run_once(arm, Terms(), lambda: None)
    assert is_gone(int(path.read_text()))


# What is printed.


def test_the_text() -> None:
    done = compare(script="print('x')", CGROUP_THREADS_CORES="3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{sys.executable} -c ")
    assert lines[1].startswith("2 rounds in turns; governed: 3 usable cores, 3 threads, bound by ")
    assert lines[3].split() == ["median", "min", "..", "max", "CPU", "throttled", "exit"]
    assert lines[4].startswith("as it is  ")
    assert lines[5].startswith("governed  ")
    assert max(map(len, lines[1:])) <= 120


def test_markdown() -> None:
    done = compare(script="print('x')", options=[*SHORT, "--markdown"])
    lines = done.stdout.splitlines()
    command = next(line for line in lines if line.startswith("`"))
    assert shlex.split(command[1:-1].replace("\\n", "\n"))[0] == sys.executable
    assert lines[:2] == ["|  | median | min .. max | CPU | throttled | exit |", "|---|---:|---:|---:|---:|---:|"]
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| as it is", "| governed"]
    assert "- output: equal, byte for byte, 4 runs" in lines


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "compare: no command given (see cgroup-threads compare --help)"),
        (["--"], "compare: no command given (see cgroup-threads compare --help)"),
        (["--read-llama", "x", "--", "true"], "compare: --read-llama runs no command"),
        (["--read-llama", "x", "--markdown"], "compare: --read-llama prints text or, with --json, JSON"),
        (["--read-llama", "/no/such"], "/no/such: No such file or directory"),
        (["--input", "/no/such", "--", "true"], "compare: '/no/such': No such file or directory"),
    ],
)
def test_errors_are_one_line(arguments: list[str], words: str) -> None:
    done = run([*COMPARE, *arguments])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"cgroup-threads: error: {words}\n"


@pytest.mark.parametrize(
    "arguments",
    [["--runs", "0"], ["--warmup", "-1"], ["--tolerance", "x"], ["--tolerance", "1"], ["--ignore", "("],
     ["--ignore", "a{99999999999999999999}"],
     ["--ignore", ""],
     ["--time-limit", "0"], ["--workers", "0"], ["--json", "--markdown"]],
)  # fmt: skip
def test_usage_errors_are_one_line(arguments: list[str]) -> None:
    done = run([*COMPARE, *arguments, "--", "true"])
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_words_of_the_command_are_its_own() -> None:
    found = json.loads(compare("echo", "--json", "--", "--runs", options=[*SHORT, "--json"]).stdout)
    assert found["arms"][0]["command"] == ["echo", "--json", "--", "--runs"]
    assert found["arms"][0]["runs"][0]["bytes"] == len("--json -- --runs\n")


# Real libraries on a host that seems to have 8 CPUs, under a quota of one core.


def believing(directory: Path, cpus: int) -> dict[str, str]:
    require(shutil.which("cc") or shutil.which("gcc"), "no C compiler is installed")
    # MKL would not go above the CPUs that the processor itself tells of.
    return clean_environ(LD_PRELOAD=str(build_shim(directory)), BELIEVED_CPUS=str(cpus), MKL_DYNAMIC="FALSE")


def limited(command: Sequence[str], options: Sequence[str], environ: dict[str, str]) -> dict[str, Any]:
    with quota_group(1.0) as group:
        done = run(inside(group, [*COMPARE, *options, "--json", "--", *command]), environ, timeout=280)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


MLP = """
import torch
torch.manual_seed(0)
layers = [torch.nn.Linear(256, 256) for _ in range(4)]
x = torch.randn(64, 256)
with torch.inference_mode():
    for _ in range(20):
        y = x
        for layer in layers:
            y = torch.nn.functional.gelu(layer(y))
print(" ".join(f"{value:.8f}" for value in y.mean(1).tolist()))
"""


def test_torch_is_faster_governed_and_says_the_same(tmp_path: Path) -> None:
    require_module("torch")
    command = [sys.executable, "-c", MLP]
    found = limited(command, ["--runs", "3", "--warmup", "0", "--time-limit", "90"], believing(tmp_path, 8))
    plain, governed = found["arms"]
    assert found["ratio"]["value"] > 1.5  # 6 beside other busy programs
    assert plain["gave_up"] or found["output"]["state"] in ("equal", "close")
    assert found["ok"]
    assert governed["detail"].startswith("1 usable core, 1 thread, bound by quota")
    assert share_throttled(plain) > share_throttled(governed)


def share_throttled(arm: dict[str, Any]) -> float:
    throttled, periods = (sum(each[name] for each in arm["runs"]) for name in ("throttled", "periods"))
    return float(throttled / periods)


EMBED = """
import json, sys
from llama_cpp import Llama
llm = Llama(sys.argv[1], embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=1, verbose=True)
for text in ("a short text", "a text that is longer " * 5):
    print(json.dumps(llm.embed(text)))
"""


def test_the_forgotten_argument_of_llama_is_found_and_explained(tmp_path: Path) -> None:
    """Story 1. Arguments in a script are out of reach from outside, but for OpenMP's own limit, set on request."""
    environ = {**believing(tmp_path, 4), "CGROUP_THREADS_OMP_LIMIT": "1"}
    command = [sys.executable, "-c", EMBED, minilm_gguf()]
    found = limited(command, ["--runs", "2", "--warmup", "0", "--time-limit", "90"], environ)
    assert found["ratio"]["value"] > 2
    assert found["output"]["state"] == "equal"  # llama.cpp's sums are the same at any thread count
    read = [notice for notice in found["notices"] if notice["code"].startswith("llama-")]
    assert "llama-impossible" in {notice["code"] for notice in read}
    assert all(notice["message"].startswith("as it is, llama.cpp's summary: ") for notice in read)
    assert found["ok"]  # it is the other arm that is ill
