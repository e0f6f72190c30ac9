"""What waits under trio. Imported only where a trio task asks, so that trio is in nobody else's way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import trio

from .waiting import TaskWaiter

R = TypeVar("R")


class TrioWaiter(TaskWaiter):
    """A trio task inside a cancel scope of its own: whoever wakes it cancels that."""

    __slots__ = ("_scope", "_token")

    def _prepare(self) -> None:
        super()._prepare()
        self._token = trio.lowlevel.current_trio_token()
        self._scope: trio.CancelScope | None = None

    def _soon(self, call: Callable[[], object]) -> None:
        self._token.run_sync_soon(call)

    def _end(self) -> None:
        super()._end()
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, pause: Callable[[], float], fd: int | None, look: Callable[[], None]) -> None:
        if self._woken:
            self._woken = False
            return
        try:
            with trio.move_on_after(max(0.0, pause())) as self._scope:
                await _readable(fd)
        finally:
            self._scope = None
            woken, self._woken = self._woken, False
        if not woken and not self.done:
            look()


async def _readable(fd: int | None) -> None:
    """Wait until ``fd`` can be read, if it is one."""
    if fd is not None:
        try:
            await trio.lowlevel.wait_readable(fd)
        except trio.BusyResourceError:  # the task in front was woken by another thread, but has not had its turn yet
            pass
        else:
            return
    await trio.sleep_forever()


async def end_of(future: Future[R]) -> R:
    """The result of ``future``, which some thread sets. Cancelling ends the wait, and no more."""
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def tell(future: Future[R]) -> None:
        try:
            token.run_sync_soon(ended.set)
        except trio.RunFinishedError:  # the wait was cancelled, and trio ended before the thread did
            pass

    future.add_done_callback(tell)
    await ended.wait()
    return future.result()


async def check_cancelled() -> None:
    """Raise here if the task is in a cancelled scope."""
    await trio.lowlevel.checkpoint_if_cancelled()
