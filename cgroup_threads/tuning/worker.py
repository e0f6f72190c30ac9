"""The fresh child's side: loads the work, then measures what it is asked to.

It answers ``{"sizes": {task: units of a call}, "seconds": {task: of a call with one thread}}`` once it has loaded, then
each ``{"task", "threads", "seconds"}`` with ``{"units", "seconds", "calls": [seconds of each]}``; ``{"error": text}``
where something failed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from ..measuring.serving import Channel, describe

_WORKS: Final = {
    "llama": "llama_work",
    "encoder": "encoder_work",
    "session": "session_work",
    "function": "function_work",
}
BLOCK_SECONDS: Final = 1e-3  # calls shorter than that are timed together


class Round(NamedTuple):
    """What was done: ``units`` of work, and the seconds of each call (or the mean of a block of short ones)."""

    units: float
    seconds: float
    calls: list[float]


class Work(Protocol):
    """What a child measures. Made from the options that its subject sent.

    ``sizes`` are the units of one call of each task, which a child that takes its place must keep; ``seconds`` what
    one thread needed for a call, as far as that was measured while loading.
    """

    sizes: dict[str, float]
    seconds: dict[str, float]

    def prepare(self, task: str, threads: int) -> None:
        """Set the count, and work a little with it: pools are made anew at the first call."""

    def measure(self, task: str, seconds: float) -> Round:
        """Work for about ``seconds``, at least one call."""


def repeat(call: Callable[[], object], units: float, seconds: float) -> Round:
    """Call back to back for about ``seconds``, at least once; each call is ``units`` of work."""
    calls: list[float] = []
    total, count, block = 0.0, 0, 1
    while not calls or total < seconds:
        begin = time.perf_counter()
        for _ in range(block):
            call()
        elapsed = time.perf_counter() - begin
        calls.append(elapsed / block)
        total += elapsed
        count += block
        if elapsed < BLOCK_SECONDS:
            block = min(2 * block, math.ceil(block * BLOCK_SECONDS / max(elapsed, 1e-9)))
    return Round(units * count, total, calls)


def fit_size(calibrate: Callable[[int], float], start: int, top: int, target: float) -> tuple[int, float]:
    """The largest size (``start`` times a power of two, at most ``top``) whose call takes about ``target`` seconds.

    ``calibrate(size)`` gives the seconds of a call. Also returns the seconds expected of a call of that size.
    """
    size = min(start, top)
    calibrate(size)  # the first call reads the weights from disk
    seconds = min(calibrate(size) for _ in range(3))
    fitting = size
    while 2 * fitting <= top and seconds * 2 * fitting / size <= target:
        fitting *= 2
    return fitting, seconds * fitting / size


def main(options: dict[str, Any]) -> None:
    """Serve one parent; ``options["work"]`` names the kind of work, the rest is the work's own."""
    channel = Channel()
    try:
        work: Work = import_module(f"{__package__}.{_WORKS[options['work']]}").load(options)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a library raises ends the tuning with its text
        channel.give_up(error)
    channel.answer(sizes=work.sizes, seconds=work.seconds)
    present = None
    while True:
        request = channel.next_request()
        asked = (str(request["task"]), int(request["threads"]))
        try:
            if asked != present:
                present = None
                work.prepare(*asked)
                present = asked
            found = work.measure(asked[0], float(request["seconds"]))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # handed to the parent
            channel.answer(error=f"with {asked[1]} thread{'s' if asked[1] > 1 else ''}: {describe(error)}")
        else:
            channel.answer(**found._asdict())
