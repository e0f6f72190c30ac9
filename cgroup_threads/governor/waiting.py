"""Who waits in a budget's queue: a thread, or a task of an event loop. Each can be woken from any thread, at any time.

Asked for a task's kind, it looks for trio only where that was imported already (see ``trio_waiting``).
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop  # a low-level function of its API: None outside of a loop, never raises
from collections.abc import Callable
from sys import modules

from ..pools.ledger import Lease


class Waiter:
    """A lease that waits. All fields are the budget's, under its lock.

    ``since_s`` and ``deadline_s`` are on the monotonic clock; ``patient`` says that the caller set the deadline: until
    then it waits. ``done`` says that the lease was granted, ``first`` that the waiter was told to be the first of
    the queue.
    """

    __slots__ = ("deadline_s", "done", "first", "lease", "patient", "since_s", "start", "top")

    def __init__(
        self,
        lease: Lease,
        top: int,
        since_s: float,
        deadline_s: float,
        patient: bool = False,
        start: Callable[[], None] | None = None,
    ) -> None:
        self.lease = lease
        self.top = top
        self.since_s = since_s
        self.deadline_s = deadline_s
        self.patient = patient
        self.start = start
        """Called once the lease is granted, by whoever granted it: no core lies idle until an event loop comes."""
        self.done = False
        self.first = False
        self._prepare()

    def _prepare(self) -> None:
        """Make what this kind waits with."""
        raise NotImplementedError

    def wake(self) -> bool:
        """End the present wait, or the next one. False if there is nobody to wake any more."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread at a gate: a lock that is taken once more than it was released."""

    __slots__ = ("_gate",)

    def _prepare(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> bool:
        try:
            self._gate.release()
        except RuntimeError:  # open already
            pass
        return True

    def wait(self, seconds: float) -> None:
        """Wait until woken, at most ``seconds``. An interrupt (KeyboardInterrupt) comes through."""
        self._gate.acquire(timeout=max(0.0, seconds))


class TaskWaiter(Waiter):
    """A task of an event loop, which must not be blocked."""

    __slots__ = ("_woken",)

    def _prepare(self) -> None:
        self._woken = False

    def _soon(self, call: Callable[[], object]) -> None:
        """Have the loop call something, from any thread. Raises RuntimeError once the loop has ended."""
        raise NotImplementedError

    def wake(self) -> bool:
        try:
            self._soon(self._end)
        except RuntimeError:
            return False
        return True

    def _end(self) -> None:
        """End the wait; in the loop's thread."""
        self._woken = True

    async def wait(self, pause: Callable[[], float], fd: int | None, look: Callable[[], None]) -> None:
        """Wait until woken or done. ``look`` is called after ``pause()`` seconds, and when ``fd`` can be read; the wait
        may end then, too."""
        raise NotImplementedError


class AsyncioWaiter(TaskWaiter):
    """A task of an asyncio event loop."""

    __slots__ = ("_future", "_loop", "_timer")

    def _prepare(self) -> None:
        super()._prepare()
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _soon(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    def _end(self) -> None:
        super()._end()
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, pause: Callable[[], float], fd: int | None, look: Callable[[], None]) -> None:
        """``look`` is called before the task's turn comes in the event loop, where others may be in front of it."""
        if self._woken:
            self._woken = False
            return
        self._future = future = self._loop.create_future()
        self._rest(pause, look)
        if fd is not None:
            self._loop.add_reader(fd, self._listen, look)
        try:
            await future
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if fd is not None:
                self._loop.remove_reader(fd)
            self._future = self._timer = None
            self._woken = False

    def _rest(self, pause: Callable[[], float], look: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(max(0.0, pause()), self._wake_up, pause, look)

    def _wake_up(self, pause: Callable[[], float], look: Callable[[], None]) -> None:
        self._listen(look)
        if not self.done:
            self._rest(pause, look)

    def _listen(self, look: Callable[[], None]) -> None:
        if not self.done:
            look()
        if self.done:
            self._end()


def kind_of_task() -> Callable[..., TaskWaiter]:
    """The waiter for the task that asks."""
    if in_trio_task():
        from .trio_waiting import TrioWaiter

        return TrioWaiter
    return AsyncioWaiter


def in_trio_task() -> bool:
    """Whether the caller is a task of trio, and not of asyncio; trio itself may be the guest of an asyncio loop."""
    if not ask_trio("in_trio_task"):
        return False
    return _get_running_loop() is None or asyncio.current_task() is None


def ask_trio(question: str) -> bool:
    """The answer of a function of ``trio.lowlevel``; False as long as trio was not imported to its end."""
    answer = getattr(modules.get("trio.lowlevel"), question, None)
    return answer is not None and bool(answer())
