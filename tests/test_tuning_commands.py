"""Commands with ``{threads}`` in them as subjects: real processes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cgroup_threads.errors import InvalidArgumentError
from cgroup_threads.state import process
from cgroup_threads.tuning.command_subject import COMMAND, CommandSubject
from cgroup_threads.tuning.errors import TuneError
from tests.lab.waiting import DEADLINE, has_ended, wait_until


@pytest.fixture
def made() -> Iterator[Callable[..., CommandSubject]]:
    subjects: list[CommandSubject] = []

    def make(*command: str, limit: float | None = None) -> CommandSubject:
        subjects.append(CommandSubject(command, limit=limit))
        return subjects[-1]

    yield make
    for subject in subjects:
        subject.close()


def test_the_count_is_put_in_everywhere(made: Callable[..., CommandSubject], tmp_path: Path) -> None:
    script = "import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))"
    subject = made(
        sys.executable, "-c", script, str(tmp_path / "seen"), "-t", "{threads}", "a={threads},{threads}", "{x}"
    )
    sample = subject.measure(COMMAND, 3, 0.0)
    assert json.loads((tmp_path / "seen").read_text()) == ["-t", "3", "a=3,3", "{x}"]
    assert sample.units == 1
    assert sample.calls == (sample.seconds,)
    (usage,) = subject.usages
    assert usage.threads == 3
    assert usage.seconds == sample.seconds
    assert usage.cpu_seconds is not None
    assert 0 < usage.cpu_seconds < 10
    assert usage.max_resident is not None
    assert usage.max_resident > 1 << 20


def test_cpu_seconds_are_those_of_all_its_processes(made: Callable[..., CommandSubject]) -> None:
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subject = made("/bin/sh", "-c", f'"{sys.executable}" -S -c "{burn}" & wait; exit 0', "{threads}")
    subject.measure(COMMAND, 1, 0.0)
    assert subject.usages[0].cpu_seconds is not None
    assert subject.usages[0].cpu_seconds >= 0.3


def test_runs_are_repeated_for_the_time_given(made: Callable[..., CommandSubject]) -> None:
    subject = made("/bin/sh", "-c", "exit 0", "{threads}")
    sample = subject.measure(COMMAND, 1, 0.3)
    assert sample.units == len(sample.calls) == len(subject.usages) > 1
    assert sample.seconds == pytest.approx(sum(sample.calls))
    assert subject.pids == ()


def test_it_gets_the_users_environment(
    made: Callable[..., CommandSubject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "environ_before", {**process.user_environ(), "OWN": "kept", "OMP_NUM_THREADS": "7"})
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    script = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    made(sys.executable, "-c", script, str(tmp_path / "seen"), "{threads}").measure(COMMAND, 2, 0.0)
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["OWN"] == "kept"
    assert seen["OMP_NUM_THREADS"] == "7"
    assert "CGROUP_THREADS_APPLIED" not in seen
    assert "CGROUP_THREADS_AUTO" not in seen


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo first >&2; echo the cause >&2; exit 3", "it ended with code 3: the cause"),
        ("kill -SEGV $$", "it was ended by SIGSEGV"),
        ("kill -ILL $$", "illegal instruction: a library was built for another CPU"),
    ],
)
def test_failures_say_why(made: Callable[..., CommandSubject], script: str, expected: str) -> None:
    subject = made("/bin/sh", "-c", script, "{threads}")
    with pytest.raises(TuneError) as caught:
        subject.measure(COMMAND, 2, 0.0)
    assert f"with 2 threads {expected}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.what == subject.title == f"/bin/sh -c {script} {{threads}}"


def test_a_script_of_several_lines_does_not_hide_the_cause(made: Callable[..., CommandSubject]) -> None:
    with pytest.raises(TuneError) as caught:
        made("/bin/sh", "-c", "echo the cause >&2\nexit {threads}").measure(COMMAND, 2, 0.0)
    expected = "tune, /bin/sh -c echo the cause >&2 exit {threads}: with 2 threads it ended with code 2: the cause"
    assert str(caught.value) == expected


def test_a_command_that_does_not_exist(made: Callable[..., CommandSubject]) -> None:
    with pytest.raises(TuneError, match="cannot be started: No such file"):
        made("/nowhere/program", "{threads}").measure(COMMAND, 1, 0.0)


def test_one_that_hangs_is_given_up_with_all_it_started(made: Callable[..., CommandSubject], tmp_path: Path) -> None:
    path = tmp_path / "pid"
    script = f'[ {{threads}} = 1 ] && exit 0; sleep 1000 & echo $! > "{path}"; wait'
    subject = made("/bin/sh", "-c", script, limit=4.0)
    subject.measure(COMMAND, 1, 0.0)
    sample = subject.measure(COMMAND, 2, 0.0)
    assert sample.units == 1
    assert sample.calls == (4.0,)
    assert subject.given_up == (("command", 2),)
    assert len(subject.usages) == 1
    wait_until(lambda: has_ended(int(path.read_text())))
    assert subject.measure(COMMAND, 1, 0.0).units == 1


def test_what_a_run_leaves_behind_is_ended(made: Callable[..., CommandSubject], tmp_path: Path) -> None:
    path = tmp_path / "pid"
    made("/bin/sh", "-c", f'sleep 1000 & echo $! > "{path}"', "{threads}").measure(COMMAND, 1, 0.0)
    wait_until(lambda: has_ended(int(path.read_text())))


def test_what_has_a_process_group_of_its_own_is_ended_too(made: Callable[..., CommandSubject], tmp_path: Path) -> None:
    """timeout(1) and shells with job control give their parts one."""
    path = tmp_path / "pid"
    script = f'set -m; sleep 1000 & echo $! > "{path}"; test {{threads}} = 1 || wait'
    subject = made("/bin/bash", "-c", script, limit=4.0)
    for threads in (1, 2):  # one that ends by itself, and one that is given up
        subject.measure(COMMAND, threads, 0.0)
        wait_until(lambda: has_ended(int(path.read_text())))
    assert subject.given_up == (("command", 2),)


def test_closing_from_another_thread_ends_the_run(made: Callable[..., CommandSubject], tmp_path: Path) -> None:
    path = tmp_path / "started"
    subject = made("/bin/sh", "-c", f'echo > "{path}"; sleep 1000', "{threads}")
    errors: list[str] = []

    def measure() -> None:
        try:
            subject.measure(COMMAND, 1, 0.0)
        except TuneError as error:
            errors.append(str(error))

    thread = threading.Thread(target=measure)
    thread.start()
    wait_until(path.exists)
    subject.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert errors[0].endswith(": it was closed")
    with pytest.raises(TuneError, match="it was closed"):
        subject.measure(COMMAND, 1, 0.0)


@pytest.mark.parametrize("command", [[], ["program"], ["{thread}"], ["program", 2, "{threads}"], ["a\0", "{threads}"]])
def test_commands_that_cannot_be_measured(command: list[str]) -> None:
    with pytest.raises(InvalidArgumentError):
        CommandSubject(command)


def test_patience_follows_what_one_thread_needs() -> None:
    with closing(CommandSubject(["/bin/sh", "-c", "sleep 0.01", "{threads}"])) as subject:
        assert subject._patience() == 3600
        subject.measure(COMMAND, 2, 0.0)
        assert subject._patience() == 30
