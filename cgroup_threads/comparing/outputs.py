"""Are the outputs of both arms the same? First by digest, then number by number.

What differs between runs of one arm (times, dates, process ids) cannot be blamed on the other arm's threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..notices import shown
from .arrays import compare_arrays, is_array
from .ignoring import LEFT_OUT, find_ignored
from .places import Tally, find_varying
from .records import NOTHING, CompareError, Output, OutputVerdict

MAX_TEXT: Final = 4 << 20
IGNORE_SECONDS: Final = 30.0  # for one text; searches that need not try everything twice take one of them


def compare_outputs(
    plain: Sequence[Output], governed: Sequence[Output], *, tolerance: float = 1e-5, ignored: Sequence[str] = ()
) -> OutputVerdict:
    """Compare what the runs of both arms wrote.

    Numbers count as the same within ``tolerance`` relative to themselves or to the vector they stand in; text must be
    the same. Lines in which one of the regular expressions in ``ignored`` is found are left out. Raises CompareError
    for an expression whose search does not end.
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
    lines = [[_Lines(text, ignored) for text in kind if text is not None] for kind in texts]
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
    kind = find_varying(several)
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

    def __init__(self, text: str, ignored: Sequence[str]) -> None:
        self._text = text
        self._left_out = _leave_out(text, ignored) if ignored else b""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        start = number = 0
        while start <= len(self._text):
            end = self._text.find("\n", start)
            end = len(self._text) if end < 0 else end
            number += 1
            if not self._left_out or self._left_out[number - 1 : number] != LEFT_OUT:
                yield number, self._text[start:end]
            start = end + 1

    def __len__(self) -> int:
        return self._text.count("\n") + 1 - self._left_out.count(LEFT_OUT)


def _leave_out(text: str, ignored: Sequence[str]) -> bytes:
    try:
        return find_ignored(text, ignored, IGNORE_SECONDS)
    except TimeoutError as error:
        pattern = shown(str(error), 200)
        message = f"compare: --ignore {pattern}: the search did not end within {IGNORE_SECONDS:g} s"
        raise CompareError(message) from None
    except ChildProcessError as error:
        raise CompareError(f"compare: --ignore: the search failed: {error}") from None


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
    tally = Tally(tolerance)
    same = True
    for entries in zip(*plain, *governed, strict=True):
        rows = [text for _, text in entries]
        if len(set(rows)) > 1:
            same = False
            tally.look(f"line {entries[0][0]}", rows[: len(plain)], rows[len(plain) :])
    return OutputVerdict("equal", "apart from the lines left out") if same else tally.conclude()
