"""Worker threads for ``run``: the one that was busy last is taken first.

libgomp keeps a team of native threads for each Python thread that computed, and stops spinning at barriers once all of
them together are more than the CPUs. So few threads, used again and again, are faster than the event loop's default
executor, which takes them in turn (measured: 1.9 instead of 1.3 cores busy in a call of two threads). That executor
would also let a call that holds cores wait behind calls that do not compute.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

IDLE_S: Final = 60.0
"""A thread without work for so long ends, and its native team with it."""


class _Worker:
    """One thread. ``gate`` is held while there is nothing to do."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._gate = threading.Lock()
        self._gate.acquire()
        self._job: tuple[Future[Any], Callable[[], Any]] | None = None
        self.thread = threading.Thread(target=self._run, name="cgroup_threads-run", daemon=True)

    def give(self, job: tuple[Future[Any], Callable[[], Any]] | None) -> None:
        """Have ``job`` done, or end for None."""
        self._job = job
        self._gate.release()

    def _run(self) -> None:
        while True:
            if not self._gate.acquire(timeout=IDLE_S):
                if self._pool.retire(self):
                    return
                self._gate.acquire()  # somebody took this one just now: the call is coming
            job, self._job = self._job, None
            if job is None:
                return
            self._do(*job)
            del job  # an idle thread keeps nobody's result alive

    def _do(self, future: Future[Any], call: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            self._pool.rest(self)
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self._pool.rest(self)
            if isinstance(error, StopIteration):  # asyncio's futures refuse it, and nobody would ever be told
                stopped = RuntimeError("the function raised StopIteration")
                stopped.__cause__ = error
                error = stopped
            future.set_exception(error)
        else:
            self._pool.rest(self)  # first: the next call can have this thread
            future.set_result(result)


class Workers:
    """As many threads as calls run at once; whoever submits has been admitted by a budget."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """Re-entrant: a finalizer that runs inside ``submit`` may end a lease, and so start another call."""
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._ended = False
        self._pid = os.getpid()
        atexit.register(self.end)

    def submit(self, future: Future[Any], call: Callable[[], Any]) -> None:
        """Run ``call`` in a thread now, with its result in ``future``, which can be cancelled until it has begun."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                worker = _Worker(self)
                worker.thread.start()
                self._all.add(worker)
        worker.give((future, call))

    def rest(self, worker: _Worker) -> None:
        """``worker`` has nothing to do."""
        with self._lock:
            if not self._ended:
                self._idle.append(worker)
                return
        worker.give(None)

    def retire(self, worker: _Worker) -> bool:
        """Whether ``worker`` may end: it was idle, and nobody has just given it a call."""
        with self._lock:
            if worker not in self._idle:
                return False
            self._idle.remove(worker)
            self._all.discard(worker)
            return True

    def end(self) -> None:
        """At the interpreter's end: native code must not run on while libraries are torn down."""
        if os.getpid() != self._pid:
            return  # a forked child: these threads are its parent's
        with self._lock:
            self._ended = True
            idle, self._idle = self._idle, []
            threads = [worker.thread for worker in self._all]
        for worker in idle:
            worker.give(None)
        for thread in threads:
            thread.join()
