"""Are the outputs of both arms the same? First by digest, then number by number. Pure.

What differs between runs of one arm (times, dates, process ids) cannot be blamed on the other arm's threads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from .arrays import compare_arrays, is_array
from .numbers import Line, furthest, scales, take_apart
from .records import NOTHING, Difference, Output, OutputVerdict

MAX_DIFFERENCES: Final = 3
MAX_TEXT: Final = 4 << 20
SHOWN: Final = 60  # characters of one line in an example


class _Place(NamedTuple):
    """One place of the outputs that is not the same in all runs.

    ``varies`` is 0 for a place that is the same within each arm, else 1 in both arms, 2 only as it is, 3 only governed.
    """

    error: float
    varies: int
    difference: Difference


def compare_outputs(
    plain: Sequence[Output], governed: Sequence[Output], *, tolerance: float = 1e-5, ignored: Sequence[str] = ()
) -> OutputVerdict:
    """Compare what the runs of both arms wrote.

    Numbers count as the same within ``tolerance`` relative to themselves or to the vector they stand in; text must be
    the same. Lines in which one of the regular expressions in ``ignored`` is found are left out.
    """
    runs = len(plain) + len(governed)
    if not plain or not governed:
        return OutputVerdict("unknown", "an arm has no output to compare", runs)
    kinds = [_distinct(outputs) for outputs in (plain, governed)]
    if len(kinds[0] | kinds[1]) == 1:
        return OutputVerdict("equal", "" if plain[0].size else NOTHING, runs)
    contents = [[output.data for output in kind.values() if output.data is not None] for kind in kinds]
    if sum(map(len, contents)) < sum(map(len, kinds)):
        return _compare_digests(kinds, runs, "too large to be looked into")
    return _compare_contents(contents[0], contents[1], kinds, tolerance, ignored)._replace(runs=runs)


def _compare_contents(
    ours: list[bytes], theirs: list[bytes], kinds: Sequence[dict[str, Output]], tolerance: float, ignored: Sequence[str]
) -> OutputVerdict:
    if all(map(is_array, (*ours, *theirs))):
        verdict = compare_arrays(ours, theirs, tolerance)
        if verdict is not None:
            return verdict
    if max(map(len, (*ours, *theirs))) > MAX_TEXT:
        return _compare_digests(kinds, 0, "too large to be looked into")
    texts = [[_decode(data) for data in kind] for kind in (ours, theirs)]
    if any(text is None for kind in texts for text in kind):
        return _compare_digests(kinds, 0, "not text")
    patterns = [re.compile(pattern) for pattern in ignored]
    lines = [[_Lines(text, patterns) for text in kind if text is not None] for kind in texts]
    return _compare_lines(lines[0], lines[1], tolerance)


def _distinct(outputs: Sequence[Output]) -> dict[str, Output]:
    return {output.digest: output for output in outputs}


def _compare_digests(kinds: Sequence[dict[str, Output]], runs: int, why: str) -> OutputVerdict:
    """For what cannot be looked into."""
    several = [len(kind) > 1 for kind in kinds]
    if any(several):
        return OutputVerdict("varies", f"{why}: it differs from run to run by itself", runs, varying=_count(several))
    return OutputVerdict("differ", why, runs)


def _count(several: Sequence[bool]) -> tuple[int, int, int]:
    kind = _find_varying(several)
    return int(kind == 1), int(kind == 2), int(kind == 3)


def _decode(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class _Lines:
    """The lines of a text that count, with their numbers; one by one: in a list each takes a hundred bytes."""

    def __init__(self, text: str, ignored: Sequence[re.Pattern[str]]) -> None:
        self._text = text
        self._ignored = ignored

    def __iter__(self) -> Iterator[tuple[int, str]]:
        start = number = 0
        while start <= len(self._text):
            end = self._text.find("\n", start)
            end = len(self._text) if end < 0 else end
            number += 1
            line = self._text[start:end]
            if not any(pattern.search(line) for pattern in self._ignored):
                yield number, line
            start = end + 1

    def __len__(self) -> int:
        return sum(1 for _ in self) if self._ignored else self._text.count("\n") + 1


def _compare_lines(plain: Sequence[_Lines], governed: Sequence[_Lines], tolerance: float) -> OutputVerdict:
    lengths = [{len(lines) for lines in kind} for kind in (plain, governed)]
    several = [len(length) > 1 for length in lengths]
    if any(several):
        reason = "the number of lines differs from run to run by itself"
        return OutputVerdict("varies", reason, varying=_count(several))
    if lengths[0] != lengths[1]:
        return OutputVerdict("differ", f"{lengths[0].pop()} lines as it is, {lengths[1].pop()} governed")
    if lengths[0] == {0}:
        return OutputVerdict("unknown", "no line is left to compare (--ignore leaves out all)")
    places: list[_Place] = []
    same = True
    for entries in zip(*plain, *governed, strict=True):
        rows = [text for _, text in entries]
        if len(set(rows)) > 1:
            same = False
            places += _look(f"line {entries[0][0]}", rows[: len(plain)], rows[len(plain) :], tolerance)
    return OutputVerdict("equal", "apart from the lines left out") if same else _conclude(places, tolerance)


def _look(place: str, plain: Sequence[str], governed: Sequence[str], tolerance: float) -> list[_Place]:
    """The places of one line that are not the same everywhere."""
    parts = [take_apart(text) for text in (*plain, *governed)]
    ours, theirs = parts[: len(plain)], parts[len(plain) :]
    if len({line.words for line in parts}) > 1:
        varies = _find_varying([len({line.words for line in arm}) > 1 for arm in (ours, theirs)])
        example = _differing_words(ours, theirs, plain, governed)
        return [_Place(math.inf, varies, Difference(place, *example))]
    found = []
    sizes = [
        max(pair) for pair in zip(*(scales(arm[0].numbers, arm[0].vectors) for arm in (ours, theirs)), strict=True)
    ]
    for index, scale in enumerate(sizes):
        left, right = ({line.numbers[index] for line in arm} for arm in (ours, theirs))
        if len(left | right) == 1:
            continue
        varies = _find_varying([furthest(side, side, scale)[0] > tolerance for side in (left, right)])
        where = place if len(sizes) == 1 else f"{place}, number {index + 1}"
        error, one, other = furthest(left, right, scale)
        found.append(_Place(error, varies, Difference(where, one, other)))
    return found


def _find_varying(several: Sequence[bool]) -> int:
    """0: neither arm varies by itself, 1: both do, 2: only as it is, 3: only governed."""
    return 1 if all(several) else 2 if several[0] else 3 if several[1] else 0


def _differing_words(
    ours: Sequence[Line], theirs: Sequence[Line], plain: Sequence[str], governed: Sequence[str]
) -> tuple[str, str]:
    """Two lines whose words differ, one of either arm where that can be, cut to where they do."""
    pairs = [(a, b) for a, line in enumerate(ours) for b, other in enumerate(theirs) if line.words != other.words]
    first, second = pairs[0]
    one, other = plain[first], governed[second]
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    start = max(0, start - SHOWN // 2)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    part = text[start : start + SHOWN]
    return ("..." if start else "") + part + ("..." if start + SHOWN < len(text) else "")


def _conclude(places: Sequence[_Place], tolerance: float) -> OutputVerdict:
    """The verdict on all places that are not the same everywhere."""
    steady = [place for place in places if not place.varies]
    varying = [sum(place.varies == kind for place in places) for kind in (1, 2, 3)]
    error = max((place.error for place in steady), default=0.0)
    apart = [place for place in steady if place.error > tolerance]
    counted = (varying[0], varying[1], varying[2])
    if apart:
        return OutputVerdict("differ", "", 0, error, counted, _examples(apart, lambda place: -place.error))
    if any(varying):
        found = [place for place in places if place.varies]
        return OutputVerdict("varies", "", 0, error, counted, _examples(found, lambda place: -place.varies))
    return OutputVerdict("close", "", 0, error)  # 0.0 where only the padding of columns differs


def _examples(places: Sequence[_Place], key: Callable[[_Place], float]) -> tuple[Difference, ...]:
    return tuple(place.difference for place in sorted(places, key=key)[:MAX_DIFFERENCES])
