"""``run``: a function in a worker thread, once there are cores for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from ..pools.ledger import Lease, current
from ..state import process
from .limiting import ThreadLimit, find_outer, give, innermost
from .waiting import in_trio_task
from .workers import Workers

P = ParamSpec("P")
R = TypeVar("R")


async def run(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``function(*args, **kwargs)`` in a worker thread under ``limit_threads()``, once there are cores for it.

    The event loop runs on while it waits, and the thread begins when cores are granted, not before. The context is
    copied into the thread. If the waiting task is cancelled, a function that has begun runs on to its end, and keeps
    its cores until then.
    """
    wait: Callable[[Future[R]], Awaitable[R]] = asyncio.wrap_future
    if in_trio_task():
        from .trio_waiting import check_cancelled, end_of

        await check_cancelled()  # a function that has begun could no longer be stopped
        wait = end_of
    lease = Lease(1, None, find_outer())
    context = copy_context()
    future: Future[R] = Future()
    refused: list[BaseException] = []
    calls = [lambda: context.run(_run_limited, lease, lambda: function(*args, **kwargs))]

    def start() -> None:
        try:
            call = calls.pop()
        except IndexError:  # begun already: the granting thread and this task may both come here
            return
        try:
            _workers().submit(future, call)
        except BaseException as error:  # noqa: BLE001 - no thread could be made: that is for the caller to know
            if future.cancel():
                give(lease)
            refused.append(error)

    try:
        budget, top, patience = ThreadLimit()._claim(lease)
        await budget.claim_async(lease, top, patience, start)
        start()
        try:
            return await wait(future)
        except (asyncio.CancelledError, CancelledError):
            if refused:
                raise refused[0] from None
            raise
    except BaseException:
        if future.cancel():  # before it began; else the thread gives the cores back at its end
            give(lease)
        raise


def _run_limited(lease: Lease, call: Callable[[], R]) -> R:
    """``call`` under a lease that was granted elsewhere."""
    ledger = process.ledger or current()
    try:
        ledger.enter(lease)
        innermost.set(lease)
        return call()
    finally:
        ledger.abandon(lease, doubt=False)
        give(lease)


def _workers() -> Workers:
    found = process.workers
    if isinstance(found, Workers):
        return found
    with process.lock:
        if not isinstance(process.workers, Workers):
            process.workers = Workers()
        made = process.workers
    assert isinstance(made, Workers)
    return made
