"""The child's side of ``module:function``: the function is called with the thread count."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from .function import check_function
from .worker import Round, repeat


def load(options: dict[str, Any]) -> FunctionWork:
    """Options: ``module`` and ``function``, which may be an attribute of an attribute."""
    found: Any = import_module(options["module"])
    for name in options["function"].split("."):
        found = getattr(found, name)
    check_function(found)
    return FunctionWork(found)


class FunctionWork:
    """An imported function; see ``worker.Work``."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._threads = 1
        self.sizes: dict[str, float] = {"call": 1.0}
        self.seconds: dict[str, float] = {}

    def prepare(self, task: str, threads: int) -> None:
        self._threads = threads
        self._function(threads)  # first use loads kernels and makes pools

    def measure(self, task: str, seconds: float) -> Round:
        return repeat(partial(self._function, self._threads), 1.0, seconds)
