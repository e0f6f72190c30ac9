"""Text taken apart into words and numbers, and how far two numbers are apart. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Not inside a word or a dotted version, but a unit may follow: "layer2" and "1.2.3" are words, "0.5s" is a number.
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?!\d)(?!\.?\w*\d)(?!\.\w)"
    r"|(?:nan|inf|infinity|NaN|Inf|Infinity)(?!\w))"
)
_BETWEEN: Final = re.compile(r"[\s,;\[\](){}]*")  # what may stand between the numbers of one vector
_OFTEN: Final = frozenset((" ", ", ", ","))


class Line(NamedTuple):
    """A line: the text around its numbers, the numbers as they are written, and which vector each belongs to."""

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    vectors: tuple[int, ...]


def take_apart(text: str) -> Line:
    """Numbers with nothing but brackets, commas and blanks between them are one vector."""
    words: list[str] = []
    numbers: list[str] = []
    vectors: list[int] = []
    end = vector = 0
    for found in _NUMBER.finditer(text):
        between = text[end : found.start()]
        if numbers and between not in _OFTEN and not _BETWEEN.fullmatch(between):
            vector += 1
        words.append(between)
        numbers.append(found.group())
        vectors.append(vector)
        end = found.end()
    words.append(text[end:])
    if numbers:  # columns are padded, and a sign or a digit more takes a blank less
        words = [words[0].rstrip(" "), *(word.strip(" ") for word in words[1:-1]), words[-1].lstrip(" ")]
    return Line(tuple(words), tuple(numbers), tuple(vectors))


def scales(numbers: Sequence[str], vectors: Sequence[int]) -> list[float]:
    """For each number the root mean square of its vector, 0.0 for a number by itself.

    A small component of a large vector holds the rounding of the whole sum: it is measured by the vector. Whole
    numbers are counts and names, and measured by themselves.
    """
    whole = [*map(_is_whole, numbers)]
    found: dict[int, list[float]] = {}
    for number, vector, is_whole in zip(numbers, vectors, whole, strict=True):
        if not is_whole:
            value = float(number)
            if math.isfinite(value):
                found.setdefault(vector, []).append(value)
    sizes = {vector: root_mean_square(values) for vector, values in found.items() if len(values) > 1}
    return [0.0 if is_whole else sizes.get(vector, 0.0) for vector, is_whole in zip(vectors, whole, strict=True)]


def root_mean_square(values: Sequence[float]) -> float:
    """Without overflow for large values."""
    largest = max(map(abs, values), default=0.0)
    if largest == 0.0:
        return 0.0
    return largest * math.sqrt(math.fsum((value / largest) ** 2 for value in values) / len(values))


def relative_error(one: float, other: float, scale: float) -> float:
    """The difference in relation to the larger of both, or to ``scale`` if that is larger still; inf beside nan."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    largest = max(abs(one), abs(other), scale)
    return abs(one / largest - other / largest)


def largest_error(ones: Sequence[str], others: Sequence[str], scale: float) -> float:
    """The error that ``furthest`` finds; quick for finite numbers, of which there may be millions."""
    if len(ones) == len(others) == 1:
        return _error(ones[0], others[0], scale)
    left, right = [*map(float, ones)], [*map(float, others)]
    if not math.isfinite(sum(left) + sum(right)):
        return furthest(ones, others, scale)[0]
    ends = (min(right), max(right))
    return max(relative_error(one, other, scale) for one in (min(left), max(left)) for other in ends)


def furthest(ones: Iterable[str], others: Iterable[str], scale: float) -> tuple[float, str, str]:
    """The largest relative error between one of ``ones`` and one of ``others``, as they are written, and the two."""
    pairs = [(one, other) for one in _extremes(ones) for other in _extremes(others)]
    return max(((_error(one, other, scale), one, other) for one, other in pairs), key=lambda found: found[0])


def _extremes(numbers: Iterable[str]) -> list[str]:
    """Smallest and largest, and one of each kind that is not finite."""
    finite = sorted((n for n in numbers if math.isfinite(float(n))), key=float)
    odd = {repr(float(n)): n for n in numbers if not math.isfinite(float(n))}
    return [*finite[:1], *finite[1:][-1:], *odd.values()]


def _error(one: str, other: str, scale: float) -> float:
    first, second = float(one), float(other)
    if one != other and math.isinf(first) and first == second and "i" not in one.lower():
        return math.inf  # both too large for a float, and not the same
    return relative_error(first, second, scale)


def _is_whole(number: str) -> bool:
    return number.lstrip("+-").isdigit()
