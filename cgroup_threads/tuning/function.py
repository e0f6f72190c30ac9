"""A function of the thread count, measured in this process."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..errors import InvalidArgumentError
from ..governor.core_budget import statistics
from ..governor.limiting import find_outer
from ..measuring.serving import describe
from ..pools.ledger import Lease, current
from ..profiles.identity import present_identity
from ..state import process
from .errors import TuneError
from .records import Identity, Sample, Task
from .worker import repeat

_EXPECTED: Final = "a plain function that takes the thread count: fn(threads)"


class FunctionSubject:
    """Calls ``function(threads)`` back to back. A call is never interrupted: it ends by itself.

    Up to the budget native pools are limited to ``threads`` meanwhile, so that they follow without its help; no cores
    are leased, since a lease may be of fewer. Counts above the budget run without a limit: a function that starts no
    threads of its own then runs with as many as its pools have anyway.
    """

    def __init__(self, function: Callable[[int], object], title: str | None = None) -> None:
        check_function(function)
        self._function = function
        self.title: str = title or name_function(function)
        self.tasks: tuple[Task, ...] = (Task("call", "calls"),)

    @property
    def pids(self) -> tuple[int, ...]:
        """This process: it is the one that computes."""
        return (os.getpid(),)

    @property
    def identity(self) -> Identity:
        """What a measurement made now belongs to: no weights."""
        return present_identity("", "")

    def measure(self, task: Task, threads: int, seconds: float) -> Sample:
        """Call for about ``seconds``, at least once.

        Raises TuneError from what the function raises, and inside a lease, whose threads nothing can widen.
        """
        if find_outer() is not None:
            raise TuneError(self.title, "call tune() outside of limit_threads(): nothing inside gets more threads")
        try:
            with limited(threads):
                found = repeat(lambda: self._function(threads), 1.0, seconds)
        except Exception as error:
            raise TuneError(self.title, f"at {threads} threads: {describe(error)}") from error
        return Sample(found.units, found.seconds, tuple(found.calls))

    def close(self) -> None:
        """Nothing was started."""


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Native pools with ``threads`` threads at most in this block, as far as the budget goes."""
    if threads > statistics().cores:
        yield
        return
    ledger = process.ledger or current()
    lease = Lease(threads)
    try:
        ledger.enter(lease)
        yield
    finally:
        ledger.leave(lease)


def check_function(function: Any) -> None:
    """Raise InvalidArgumentError for what cannot be called with a thread count alone, or only returns an awaitable."""
    bound = getattr(function, "__call__", None)  # noqa: B004  # an object's method may be the coroutine function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(bound):
        raise InvalidArgumentError("target", function, f"{_EXPECTED}, not a coroutine function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions without one
        return
    try:
        signature.bind(1)
    except TypeError:
        raise InvalidArgumentError("target", function, _EXPECTED) from None


def name_function(function: Callable[..., object]) -> str:
    """The function's name for people; of a partial or an object its class."""
    name = getattr(function, "__qualname__", "") or type(function).__name__
    module = getattr(function, "__module__", "")
    return f"{module}.{name}" if module and module != "__main__" else name
