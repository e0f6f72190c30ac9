"""The threads of ``run``: few, the last one first, and none left at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from cgroup_threads.governor import workers as workers_module
from cgroup_threads.governor.workers import Workers as Threads
from tests.lab.commands import run_python


class Workers(Threads):
    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = workers_module.Future()
        self.submit(future, call)
        return future


def test_calls_one_after_another_have_one_thread() -> None:
    workers = Workers()
    seen = {workers.begin(threading.get_ident).result(20) for _ in range(50)}
    assert len(seen) == 1
    workers.end()


def test_the_thread_that_was_busy_last_is_taken_first() -> None:
    workers, both = Workers(), threading.Barrier(2)
    first, second = (workers.begin(lambda: (both.wait(20), threading.get_ident())[1]) for _ in range(2))
    assert first.result(20) != second.result(20)
    again = {workers.begin(threading.get_ident).result(20) for _ in range(20)}
    assert len(again) == 1
    workers.end()


def test_an_exception_is_the_callers_and_the_thread_goes_on() -> None:
    workers = Workers()
    with pytest.raises(SystemExit):
        workers.begin(lambda: exit(3)).result(20)
    assert workers.begin(lambda: 5).result(20) == 5
    workers.end()


def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "IDLE_S", 0.02)
    workers = Workers()
    ended = workers.begin(threading.current_thread).result(20)
    ended.join(20)
    assert not ended.is_alive()
    assert workers.begin(threading.current_thread).result(20) is not ended
    workers.end()


def test_a_call_that_comes_as_its_thread_gives_up_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "IDLE_S", 0.0005)
    workers = Workers()
    for number in range(500):
        assert workers.begin(lambda number=number: number).result(20) == number  # type: ignore[misc]
        time.sleep(0.0005)  # about when the thread ends
    workers.end()


def test_a_cancelled_call_does_not_begin() -> None:
    """The thread is held up before it looks at the call, so that the cancelling comes first."""
    workers, begun, looked = Workers(), [], threading.Event()

    class Slow(Future[None]):
        def set_running_or_notify_cancel(self) -> bool:
            assert looked.wait(20)
            return super().set_running_or_notify_cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_module, "Future", Slow)
        future = workers.begin(lambda: begun.append(1))
    assert future.cancel()
    looked.set()
    with pytest.raises(CancelledError):
        future.result(20)
    assert workers.begin(lambda: 1).result(20) == 1
    assert begun == []
    workers.end()


def test_the_interpreter_waits_for_a_call_and_ends() -> None:
    script = """
import asyncio, threading, time
import cgroup_threads as ct
begun = threading.Event()
def work():
    begun.set()
    time.sleep(0.2)
    print("done", flush=True)
async def main():
    task = asyncio.create_task(ct.run(work))
    while not begun.is_set(): await asyncio.sleep(0.001)
    task.cancel()
asyncio.run(main())
"""
    assert run_python(script, CGROUP_THREADS_CORES="2").stdout == "done\n"
