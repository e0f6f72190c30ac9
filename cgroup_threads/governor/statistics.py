"""What a budget has done so far: counters, and the record made from them."""

from __future__ import annotations

from bisect import bisect_left
from math import isinf
from typing import Any, Final, NamedTuple

# Upper bounds of the waits histogram, in seconds; the last bucket has none.
WAIT_BOUNDS_S: Final = (0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class Statistics(NamedTuple):
    """One core budget at one moment.

    ``cores`` is the budget and ``scope`` who shares it ("process" or "container"); ``bound_by`` names the limit it
    follows. ``active`` calls hold a lease now, ``leased`` cores in sum, ``waiting`` calls queue for one. Since the
    process began, ``granted`` leases were given, of which ``overcommitted`` came out of expired patience and had one
    thread above the budget. ``waits`` counts leases by how long they waited: pairs of an upper bound in seconds
    (infinity last) and a number. ``core_seconds`` is the sum of cores times seconds leased, ``waited_s`` what all
    leases had waited, in sum.
    """

    cores: int
    scope: str
    bound_by: str
    active: int
    leased: int
    waiting: int
    granted: int
    overcommitted: int
    waits: tuple[tuple[float, int], ...]
    core_seconds: float
    waited_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity: the last bound of ``waits`` is None."""
        waits = [[None if isinf(bound) else bound, number] for bound, number in self.waits]
        return {**self._asdict(), "waits": waits}

    def __str__(self) -> str:
        above = f", {self.overcommitted} above the budget" if self.overcommitted else ""
        calls = f"{self.active} calls hold {self.leased}, {self.waiting} wait"
        return f"{self.scope}: {calls}; {self.granted} leases so far{above}"


class Counters:
    """The sums behind ``Statistics``; changed under the budget's lock."""

    __slots__ = ("core_seconds", "granted", "overcommitted", "waited_s", "waits")

    def __init__(self) -> None:
        self.granted = 0
        self.overcommitted = 0
        self.core_seconds = 0.0
        self.waited_s = 0.0
        self.waits = [0] * (len(WAIT_BOUNDS_S) + 1)

    def waited(self, seconds: float) -> None:
        self.waits[bisect_left(WAIT_BOUNDS_S, seconds)] += 1
        self.waited_s += seconds

    def histogram(self) -> tuple[tuple[float, int], ...]:
        return tuple(zip((*WAIT_BOUNDS_S, float("inf")), self.waits, strict=True))
