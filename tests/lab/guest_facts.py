"""What is asked in every group of a guest."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .guest_inside import until, workers
else:  # a driver is a script of its own in the guest
    from guest_inside import until, workers

Enter = Callable[[], None]


def facts(directory: Path | None, enter: Enter | None = None) -> dict[str, Any]:
    """What two processes find and share in a group: the second asks while the first holds what it got."""
    cells = mmap.mmap(-1, 4)
    with workers(2, directory, enter, shared=cells) as (first, second):
        found: dict[str, Any] = {"limits": first("limits()"), "plan": first("planned()")}
        first("load_pools()")
        found["counts"] = first("limited()")
        found["scope"] = first("ct.statistics().scope")
        cores = found["cores"] = first("core_budget().budget.cores")
        found["first"] = first("enter()")
        second("thread = wait()")
        if found["scope"] == "container" and found["first"] == cores:
            until(lambda: second("now()") == [0, 0, 1])
        else:
            until(lambda: second("thread.threads"))
        found["second"] = second("thread.threads")
        first("leave()")
        found["then"] = until(lambda: second("thread.threads"))
        second("thread.left.set()")
        until(lambda: second("now()") == [0, 0, 0])
        for index, worker in enumerate((first, second)):
            worker.send(f"contend({index}, {1 - index}, 10, {cores})")
        found["contended"] = [first.answer(), second.answer()]
        found["report"] = second("reported()")
    return found
