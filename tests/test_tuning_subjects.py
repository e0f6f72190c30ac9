"""Which subject measures what, and the children that do: environments, failures, hangs, their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.errors import InvalidArgumentError
from cgroup_threads.measuring.child import worker_environment
from cgroup_threads.state import process
from cgroup_threads.tuning import child_subject
from cgroup_threads.tuning.child_subject import ChildSubject, Spec
from cgroup_threads.tuning.command_subject import CommandSubject
from cgroup_threads.tuning.errors import TuneError
from cgroup_threads.tuning.function import FunctionSubject
from cgroup_threads.tuning.module_subject import CALL
from cgroup_threads.tuning.records import Subject
from cgroup_threads.tuning.subjects import make_subject
from cgroup_threads.tuning.worker import fit_size, repeat
from tests.lab.commands import clean_environ
from tests.lab.waiting import DEADLINE, has_ended, wait_until

MODULE = """
import json, os, signal, sys, threading

def note(threads):
    with open(f"seen-{threads}", "w") as file:
        json.dump({"argument": threads, "pid": os.getpid(), "environ": dict(os.environ)}, file)

class Nested:
    @staticmethod
    def call(threads): return threads

def count(threads):
    with open("count", "a") as file: file.write("x")

def noisy(threads):
    print("to standard output"); os.write(1, b"raw\\n"); assert input_is_empty()
def input_is_empty(): return sys.stdin.read() == ""

loaded = []
def loads(threads):
    if not loaded:
        threading.Event().wait(1.0)
        loaded.append(threads)
        with open("loaded", "a") as file: file.write("x")

def stuck(threads):
    if threads > 1:
        with open("stuck", "w") as file: file.write(str(os.getpid()))
        threading.Event().wait()

def keeps(threads):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"])
    with open("kept", "w") as file: file.write(f"{os.getpid()} {child.pid}\\n")
    child.wait()

def fails(threads): raise ValueError("first line\\nsecond")
def leaves(threads): sys.exit(3)
def ends(threads):
    print("its last words", file=sys.stderr, flush=True)
    os._exit(3)
def crashes(threads): os.kill(os.getpid(), signal.SIGSEGV)
def eats(threads): os.kill(os.getpid(), signal.SIGKILL)
def starts(threads):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp if threads == 2 else None)
    with open("started", "w") as file: file.write(str(child.pid))
    os._exit(0)
async def later(threads): pass
def takes_nothing(): pass
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """``make_subject`` in a directory with a module "work"; what it made is closed in the end."""
    (tmp_path / "work.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    subjects: list[Subject] = []

    def make(target: object, **options: Any) -> Any:
        subjects.append(make_subject(target, **options))
        return subjects[-1]

    yield make
    for subject in subjects:
        subject.close()


def shared_child(name: str, limit: float | None = None) -> ChildSubject:
    """A function of the module "work" as a model is measured: one child for all counts."""
    options = {"work": "function", "module": "work", "function": name}
    environment = worker_environment()
    return ChildSubject(Spec(name, (CALL,), options, lambda _: environment, first_path=str(Path.cwd())), limit)


# What is what.


def function(threads: int) -> None:
    pass


def test_functions_and_commands(made: Callable[..., Any]) -> None:
    assert type(made(function)) is FunctionSubject
    assert type(made(["program", "{threads}"])) is CommandSubject
    assert type(made(("program", "--threads={threads}"))) is CommandSubject
    assert made("work:note").title == "work:note"


@pytest.mark.parametrize(
    "target",
    [
        None,
        7,
        b"path",
        int,
        {"a": 1},
        [],
        ["program"],
        [1, 2],
        "",
        "word",
        "two words:f",
        "a:b:c",
        ":f",
        "work:",
        "work.:f",
        "missing.gguf",
        "missing.onnx",
        "/nowhere/at/all",
        "some/hub-model",
    ],
)
def test_what_cannot_be_measured(target: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^target must be "):
        make_subject(target)


def test_the_message_names_what_is_accepted() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_subject(7)
    for word in (
        "function",
        "Llama",
        "SentenceTransformer",
        "InferenceSession",
        ".gguf",
        "module:function",
        "{threads}",
    ):
        assert word in str(caught.value)


def test_files_and_directories_without_a_model(tmp_path: Path) -> None:
    junk = tmp_path / "model.gguf"
    junk.write_bytes(b"junk")
    for target in (junk, tmp_path):
        with pytest.raises(InvalidArgumentError, match="target must be a"):
            make_subject(target)


class Module:
    """Looks like a model of torch, which can be called, but not with a thread count."""

    __module__ = "torch.nn"

    def __call__(self, threads: int) -> None: ...


def test_a_model_that_can_be_called_is_no_function() -> None:
    with pytest.raises(InvalidArgumentError, match="of other models a function that calls them"):
        make_subject(Module())


# Functions of a module.


def test_each_count_has_a_child_with_all_variables_at_it(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    user = {**process.user_environ(), "OWN": "kept", "OMP_NUM_THREADS": "7", "CGROUP_THREADS_APPLIED": "1;-;-;"}
    monkeypatch.setattr(process, "environ_before", user)
    subject = made("work:note")
    for threads in (1, 3):
        sample = subject.measure(subject.tasks[0], threads, 0.0)
        assert (sample.units, len(sample.calls)) == (1, 1)
    seen = {threads: json.loads(Path(f"seen-{threads}").read_text()) for threads in (1, 3)}
    assert seen[1]["pid"] != seen[3]["pid"]
    assert subject.pids == (seen[3]["pid"],)
    for threads, found in seen.items():
        assert found["argument"] == threads
        environ = found["environ"]
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
            assert environ[name] == str(threads)
        assert environ["OWN"] == "kept"
        assert environ["CGROUP_THREADS_AUTO"] == "0"
        assert "CGROUP_THREADS_APPLIED" not in environ
        assert "GOMP_SPINCOUNT" not in environ or "GOMP_SPINCOUNT" in user


def test_a_given_environment_stands_in_for_the_users(made: Callable[..., Any]) -> None:
    subject = made("work:note", environment={"PATH": os.environ["PATH"], "ONLY": "this"})
    subject.measure(CALL, 2, 0.0)
    environ = json.loads(Path("seen-2").read_text())["environ"]
    assert environ["ONLY"] == "this"
    assert "HOME" not in environ


def test_calls_are_repeated_after_one_to_warm_up(made: Callable[..., Any]) -> None:
    subject = made("work:count")
    first = subject.measure(CALL, 1, 0.05)
    assert len(Path("count").read_text()) == first.units + 1
    assert first.seconds >= 0.05
    second = subject.measure(CALL, 1, 0.0)
    assert len(Path("count").read_text()) == first.units + second.units + 1


def test_a_nested_function_that_prints_and_reads(made: Callable[..., Any]) -> None:
    assert made("work:Nested.call").measure(CALL, 1, 0.0).units == 1
    assert made("work:noisy").measure(CALL, 1, 0.0).units == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fails", "with 2 threads: ValueError: first line"),
        ("leaves", "with 2 threads: SystemExit: 3"),
        ("ends", "it ended with code 3: its last words"),
        ("crashes", "it was ended by SIGSEGV"),
        ("eats", "it was ended by SIGKILL (out of memory?)"),
        ("missing", "AttributeError: module 'work' has no attribute 'missing'"),
        ("later", "InvalidArgumentError: target must be a plain function"),
        ("takes_nothing", "InvalidArgumentError: target must be a plain function"),
    ],
)
def test_failures_say_why(made: Callable[..., Any], name: str, expected: str) -> None:
    subject = made(f"work:{name}")
    for _ in range(2):  # the second time in a new child
        with pytest.raises(TuneError) as caught:
            subject.measure(CALL, 2, 0.0)
        assert str(caught.value).startswith(f"tune, work:{name}: {expected}")
        assert len(str(caught.value).splitlines()) == 1
        assert subject.pids == ()


def test_a_module_that_does_not_exist(made: Callable[..., Any]) -> None:
    with pytest.raises(TuneError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        made("no_such_module:f").measure(CALL, 1, 0.0)


# Hangs, and the end of children.


def test_a_hang_is_given_up_and_the_next_measurement_works(made: Callable[..., Any]) -> None:
    with closing(shared_child("stuck", limit=4.0)) as subject:
        subject.measure(CALL, 1, 0.0)
        (first,) = subject.pids
        sample = subject.measure(CALL, 2, 0.25)
        assert (sample.units, sample.calls) == (1, (4.25,))
        assert subject.given_up == (("call", 2),)
        assert subject.pids == ()
        assert has_ended(first)
        assert subject.measure(CALL, 1, 0.0).units == 1
        (second,) = subject.pids
        assert second != first


def test_patience_is_what_one_thread_would_need_several_times(made: Callable[..., Any]) -> None:
    with closing(shared_child("stuck")) as subject:
        assert subject._patience("call") == child_subject.FIRST_LIMIT
        subject.measure(CALL, 1, 0.0)
        assert subject._patience("call") == child_subject.LEAST_LIMIT
        subject._bounds["call"] = 5.0
        assert subject._patience("call") == 5.0 * child_subject.PATIENCE
        subject._learn("call", 6.0)
        assert subject._bounds["call"] == 5.0


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_child_has_started_ends_with_it(made: Callable[..., Any], threads: int) -> None:
    """Also where the child ended by itself, or was killed at the time limit; with two in a process group of its own."""
    subject = made("work:starts")
    with pytest.raises(TuneError, match="it ended with code 0"):
        subject.measure(CALL, threads, 0.0)
    wait_until(lambda: has_ended(int(Path("started").read_text())))


def test_a_first_call_that_loads_is_not_given_up(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count has a child of its own, whose first call loads again what the first one of all has loaded."""
    monkeypatch.setattr(child_subject, "LEAST_LIMIT", 0.2)
    subject = made("work:loads")
    for threads in (2, 1):
        assert subject.measure(CALL, threads, 0.0).seconds < 1.0, "loading counts"
    assert subject.given_up == ()
    assert Path("loaded").read_text() == "xx"
    assert subject._patience_to_load(1) == 0.0, "it has loaded"
    assert subject._patience_to_load(3) >= child_subject.PATIENCE


def test_closing_from_another_thread_ends_the_measurement(made: Callable[..., Any]) -> None:
    subject = made("work:stuck")
    errors: list[str] = []

    def measure() -> None:
        try:
            subject.measure(CALL, 2, 0.0)
        except TuneError as error:
            errors.append(str(error))

    thread = threading.Thread(target=measure)
    thread.start()
    wait_until(lambda: Path("stuck").exists() and bool(Path("stuck").read_text()))
    subject.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert has_ended(int(Path("stuck").read_text()))
    with pytest.raises(TuneError, match="it was closed"):
        subject.measure(CALL, 1, 0.0)


def test_closing_ends_all_children(made: Callable[..., Any]) -> None:
    subject = made("work:note")
    for threads in (1, 2, 3):
        subject.measure(CALL, threads, 0.0)
    pids = [json.loads(Path(f"seen-{threads}").read_text())["pid"] for threads in (1, 2, 3)]
    assert not any(map(has_ended, pids))
    subject.close()
    assert all(map(has_ended, pids))
    subject.close()


def test_where_memory_is_scarce_one_child_is_kept(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_subject, "find_free_memory", lambda: 1)
    subject = made("work:note")
    subject.measure(CALL, 1, 0.0)
    (first,) = subject.pids
    subject.measure(CALL, 2, 0.0)
    assert has_ended(first)
    assert not has_ended(*subject.pids)


def test_the_child_ends_with_its_parent_even_in_the_middle_of_a_call(made: Callable[..., Any], tmp_path: Path) -> None:
    script = "from cgroup_threads.tuning.subjects import make_subject as make\n"
    script += "subject = make('work:stuck'); subject.measure(subject.tasks[0], 2, 0.0)"
    parent = subprocess.Popen([sys.executable, "-c", script], env=clean_environ(), cwd=tmp_path)
    try:
        wait_until(lambda: Path("stuck").exists() and bool(Path("stuck").read_text()))
    finally:
        parent.kill()
        assert parent.wait(DEADLINE) == -signal.SIGKILL
    wait_until(lambda: has_ended(int(Path("stuck").read_text())))


@pytest.mark.parametrize(
    "target", ["work:keeps", ["/bin/sh", "-c", "sleep 1000 & echo $$ $! > kept; wait", "{threads}"]]
)
def test_what_runs_ends_with_a_parent_that_is_killed(made: Callable[..., Any], tmp_path: Path, target: object) -> None:
    """Also what it has started, and a command that knows nothing of us."""
    script = """
from cgroup_threads.measuring.sessions import Guard
from cgroup_threads.tuning.subjects import make_subject
watch = Guard.watch
Guard.watch = lambda guard, leader: print(watch(guard, leader), flush=True)
"""
    script += f"subject = make_subject({target!r}); subject.measure(subject.tasks[0], 2, 0.0)"
    with subprocess.Popen([sys.executable, "-c", script], env=clean_environ(), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the guard knows of it
        wait_until(lambda: Path("kept").exists() and Path("kept").read_text().endswith("\n"))
        parent.kill()
    pids = [*map(int, Path("kept").read_text().split())]
    assert len(pids) == 2
    wait_until(lambda: all(map(has_ended, pids)))


def test_every_count_keeps_its_child(made: Callable[..., Any]) -> None:
    subject = made("work:note")
    counts = range(1, 11)
    seen = []
    for _ in range(2):
        for threads in counts:
            subject.measure(CALL, threads, 0.0)
        seen.append([json.loads(Path(f"seen-{threads}").read_text())["pid"] for threads in counts])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(counts)


def test_an_identity_without_a_model(made: Callable[..., Any]) -> None:
    for target in ("work:note", ["program", "{threads}"]):
        identity = made(target).identity
        assert (identity.model, identity.library) == ("", "")
        assert identity.usable >= 1


# The worker's arithmetic.


def test_short_calls_are_timed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("cgroup_threads.tuning.worker.time.perf_counter", lambda: len(calls) * 1e-5)
    found = repeat(lambda: calls.append(1), 2.0, 0.05)
    assert found.units == 2 * len(calls)
    assert 0.05 <= found.seconds < 0.0525
    assert found.calls == pytest.approx([1e-5] * len(found.calls))
    assert len(calls) >= 5000 > 50 * len(found.calls)


def test_a_size_is_fitted_to_the_time_of_one_thread() -> None:
    asked: list[int] = []

    def calibrate(size: int) -> float:
        asked.append(size)
        return 0.001 * size

    assert fit_size(calibrate, 32, 512, 0.3) == (256, pytest.approx(0.256))
    assert asked == [32, 32, 32, 32]
    assert fit_size(calibrate, 32, 100, 9.0)[0] == 64
    assert fit_size(calibrate, 32, 20, 9.0)[0] == 20
    assert fit_size(calibrate, 1, 32, 0.0001)[0] == 1
