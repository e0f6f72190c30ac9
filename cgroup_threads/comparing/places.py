"""The places of one line that are not the same in all runs, and what all of them together say. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from .numbers import Line, furthest, largest_error, scales, take_apart
from .records import Difference, OutputVerdict

MAX_DIFFERENCES: Final = 3
MAX_LINE: Final = 8 << 20  # characters of one line in all runs together; each number takes a hundred bytes
SHOWN: Final = 60  # characters of one line in an example


class _Example(NamedTuple):
    """A difference to show; those of the highest ``rank`` are."""

    rank: float
    difference: Difference


class Tally:
    """What the places say that were looked at so far; of a million of them no more than that is kept.

    A place ``varies`` 0: it is the same within each arm, else 1: in neither, 2: not as it is, 3: not governed.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._error = 0.0
        self._varying = [0, 0, 0, 0]
        self._apart: list[_Example] = []
        self._varied: list[_Example] = []

    def look(self, place: str, plain: Sequence[str], governed: Sequence[str]) -> None:
        """Look at one line, as the runs of both arms wrote it."""
        if sum(map(len, (*plain, *governed))) > MAX_LINE:
            self._add_text(f"{place}, too long to be looked into", plain, governed, plain, governed)
            return
        ours, theirs = ([take_apart(text) for text in arm] for arm in (plain, governed))
        if len({line.words for line in (*ours, *theirs)}) > 1:
            self._add_text(place, plain, governed, [line.words for line in ours], [line.words for line in theirs])
        else:
            self._look_at_numbers(place, ours, theirs)

    def conclude(self) -> OutputVerdict:
        """The verdict on all places that are not the same everywhere."""
        _, both, plain, governed = self._varying
        varying = (both, plain, governed)
        if self._apart:
            return OutputVerdict("differ", "", 0, self._error, varying, _show(self._apart))
        if any(varying):
            return OutputVerdict("varies", "", 0, self._error, varying, _show(self._varied))
        return OutputVerdict("close", "", 0, self._error)  # 0.0 where only the padding of columns differs

    def _add_text(
        self,
        place: str,
        plain: Sequence[str],
        governed: Sequence[str],
        ours: Sequence[object],
        theirs: Sequence[object],
    ) -> None:
        """A line whose words differ: ``ours`` and ``theirs`` are what counts of ``plain`` and ``governed``."""
        varies = find_varying([len(set(arm)) > 1 for arm in (ours, theirs)])
        pairs = ((a, b) for a, one in enumerate(ours) for b, other in enumerate(theirs) if one != other)
        first, second = next(pairs)
        self._add(math.inf, varies, lambda: Difference(place, *_cut_to_difference(plain[first], governed[second])))

    def _look_at_numbers(self, place: str, ours: Sequence[Line], theirs: Sequence[Line]) -> None:
        sizes = [*map(max, *(scales(arm[0].numbers, arm[0].vectors) for arm in (ours, theirs)))]
        left, right = ([*zip(*(line.numbers for line in arm), strict=True)] for arm in (ours, theirs))
        for index, (one, other, scale) in enumerate(zip(left, right, sizes, strict=True)):
            if len({*one, *other}) > 1:
                varies = find_varying([self._differ(arm, scale) for arm in (one, other)])
                make = partial(
                    _show_number, place if len(sizes) == 1 else f"{place}, number {index + 1}", one, other, scale
                )
                self._add(largest_error(one, other, scale), varies, make)

    def _differ(self, numbers: Sequence[str], scale: float) -> bool:
        return len(set(numbers)) > 1 and largest_error(numbers, numbers, scale) > self._tolerance

    def _add(self, error: float, varies: int, make: Callable[[], Difference]) -> None:
        self._varying[varies] += 1
        if varies:
            _keep(self._varied, varies, make)
            return
        self._error = max(self._error, error)
        if error > self._tolerance:
            _keep(self._apart, error, make)


def _keep(examples: list[_Example], rank: float, make: Callable[[], Difference]) -> None:
    """Add an example if it is among the highest; of equal ones the first are kept."""
    if len(examples) == MAX_DIFFERENCES and rank <= examples[-1].rank:
        return
    examples.append(_Example(rank, make()))
    examples.sort(key=lambda example: -example.rank)
    del examples[MAX_DIFFERENCES:]


def _show_number(place: str, plain: Sequence[str], governed: Sequence[str], scale: float) -> Difference:
    return Difference(place, *furthest(plain, governed, scale)[1:])


def _show(examples: Sequence[_Example]) -> tuple[Difference, ...]:
    return tuple(example.difference for example in examples)


def find_varying(several: Sequence[bool]) -> int:
    """0: neither arm varies by itself, 1: both do, 2: only as it is, 3: only governed."""
    return 1 if all(several) else 2 if several[0] else 3 if several[1] else 0


def _cut_to_difference(one: str, other: str) -> tuple[str, str]:
    """Two lines, cut to where they begin to differ."""
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    start = max(0, start - SHOWN // 2)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    part = text[start : start + SHOWN]
    return ("..." if start else "") + part + ("..." if start + SHOWN < len(text) else "")
