"""``compare`` where signals come at odd moments or were ignored by whoever started it: nothing is left, nothing is said
that is not so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cgroup_threads import detect
from cgroup_threads.comparing import ignoring
from cgroup_threads.measuring.quota import create_group
from cgroup_threads.measuring.sessions import Guard
from tests.lab.commands import COMMAND, clean_environ, quota_group
from tests.lab.waiting import has_ended, wait_until

ONCE = ("compare", "--runs", "1", "--warmup", "0")
# A signal at one moment of a run, in this process; the command's number is printed by who starts it.
AT = """
import os, signal, sys
from cgroup_threads.comparing import running
from cgroup_threads.measuring import sessions
from cgroup_threads.cli import main
moment, arguments = sys.argv[1], sys.argv[2:]
start, watch = running._start, sessions.Guard.watch
def hit(): os.kill(os.getpid(), signal.SIGINT)
def started(*given):
    process = start(*given)
    print(process.pid, flush=True)
    if moment == "started": hit()
    return process
def watched(guard, leader):
    watch(guard, leader)
    if moment == "watched": hit()
running._start, sessions.Guard.watch = started, watched
sys.exit(main(arguments))
"""


@pytest.mark.parametrize("moment", ["started", "watched"])
def test_an_interrupt_between_the_start_and_the_first_look(moment: str) -> None:
    command = [sys.executable, "-c", AT, moment, *ONCE, "--", "sleep", "1000"]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    wait_until(lambda: has_ended(int(done.stdout)))


def start(*arguments: str, ignored: signal.Signals | None = None) -> subprocess.Popen[str]:
    def ignore() -> None:
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=clean_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ignore,
    )


def test_a_hangup_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As nohup(1) wants it."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    script = f"echo $$ > {pids}; read line < {pids}"
    process = start(*ONCE, "--", "sh", "-c", script, ignored=signal.SIGHUP)
    for _ in range(2):
        pids.read_text()
        process.send_signal(signal.SIGHUP)
        pids.write_text("\n")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "output: equal" in out


def test_children_that_nobody_wants_to_hear_of() -> None:
    process = start(*ONCE, "--json", "--", "true", ignored=signal.SIGCHLD)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [run["exit_code"] for arm in json.loads(out)["arms"] for run in arm["runs"]] == [0, 0]


def test_a_pattern_without_end_where_alarms_are_ignored() -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        with pytest.raises(TimeoutError, match=r"\(a\+\)\+\$"):
            ignoring.find_ignored("a" * 40 + "b", ["(a+)+$"], 0.2)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.signal(signal.SIGALRM, before)


def test_a_run_in_which_we_were_stopped_is_repeated(tmp_path: Path) -> None:
    """As by Ctrl-Z: the command, in a session of its own, ran on meanwhile."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    script = f"echo $$ > {pids}; read line < {pids}"
    process = start(*ONCE, "--json", "--", "sh", "-c", script)
    seen = []
    for number in range(3):
        seen.append(pids.read_text())
        if number == 0:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        pids.write_text("\n")
        if number == 0:
            wait_until(lambda: has_ended(int(seen[0])))
            process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [len(arm["runs"]) for arm in json.loads(out)["arms"]] == [1, 1]
    assert len(set(seen)) == 3


def test_the_group_of_one_that_was_killed_is_no_obstacle() -> None:
    """In containers the next one has the same number."""
    with quota_group(1.0) as group:
        again = create_group(detect(), 1.0)
        assert again == group


def test_a_guard_that_another_thread_closes_takes_no_more_numbers() -> None:
    """A measurement that is ended from outside tells it of its child's end."""
    guard = Guard()
    process = guard._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    guard.forget(1)
    guard.close()
    assert process.returncode == 0
