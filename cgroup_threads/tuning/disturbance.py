"""What is said of disturbed measurements. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..notices import Notice
from .noise import Verdict
from .records import Recommendation, Task

ENOUGH_CLEAN: Final = 3  # undisturbed rounds of a count; its figures rest on fewer only with a warning
DOUBTFUL: Final = 0.5  # the confidence is at most that then
_QUIET: Final = 0.2  # of the measurements before others began: as many may be disturbed by chance
_BUSY: Final = 0.5  # and at least so many after it
_AGAIN: Final = "run it again when the machine is quiet"


class Round(NamedTuple):
    """One measurement in the order of time, in the round ``number`` from 0."""

    number: int
    verdict: Verdict


def is_doubtful(clean: int, contends: bool) -> bool:
    """Whether a count that may be recommended has too few undisturbed rounds."""
    return contends and clean < ENOUGH_CLEAN


def temper(recommendation: Recommendation, doubtful: bool) -> Recommendation:
    """The recommendation, without more confidence than doubtful figures can give."""
    if not doubtful:
        return recommendation
    return recommendation._replace(confidence=min(recommendation.confidence, DOUBTFUL))


def describe(history: Sequence[Round], doubtful: Mapping[Task, Sequence[int]]) -> tuple[Notice, ...]:
    """Notices about the measurements of a sweep. ``doubtful`` names counts whose figures rest on fewer than
    ENOUGH_CLEAN undisturbed rounds."""
    spoilt = [entry.verdict for entry in history if entry.verdict.cause is not None]
    notices = []
    if any(not entry.verdict.judged for entry in history):
        message = "whether other processes disturbed the measurement cannot be told here"
        notices.append(Notice("tune-unwatched", message, "info", "/proc/stat and run delays are needed to know"))
    if not spoilt:
        return tuple(notices)
    where = "; ".join(f"{task.name} at {', '.join(map(str, counts))}" for task, counts in doubtful.items() if counts)
    rests = f"fewer than {ENOUGH_CLEAN} undisturbed rounds for {where} threads: do not rely on the recommendation"
    start = find_start(history)
    message = f"{len(spoilt)} of {len(history)} measurements were disturbed: {_say_causes(spoilt)}; "
    if start is not None or not where:
        notices.append(Notice("tune-noisy", message + "they were left out and repeated, as far as the time allowed"))
    else:
        notices.append(Notice("tune-noisy", message + rests, "warning", _AGAIN))
    if start is not None:
        after = [entry.verdict for entry in history[start:] if entry.verdict.cause == "neighbours"]
        message = (
            f"other processes began to take {_say_cores(after)} in round {history[start].number + 1} of "
            f"{history[-1].number + 1}{_say_names(after)}; "
        )
        message += rests if where else "the figures are those of undisturbed rounds"
        notices.append(Notice("tune-neighbour", message, "warning", _AGAIN))
    return tuple(notices)


def find_start(history: Sequence[Round]) -> int | None:
    """Where in ``history`` neighbours began; None if they were there from the first round on, or hardly ever.

    It is where the shares of disturbed measurements before and after differ most.
    """
    disturbed = [entry.verdict.cause == "neighbours" for entry in history]
    first = sum(entry.number == 0 for entry in history)
    total, before = sum(disturbed), sum(disturbed[:first])
    best, start = 0.0, None
    for index in range(first, len(history)):
        share, rest = before / index if index else 1.0, (total - before) / (len(history) - index)
        if disturbed[index] and share <= _QUIET and rest >= _BUSY and rest - share > best:
            best, start = rest - share, index
        before += disturbed[index]
    return start


def _say_causes(spoilt: Sequence[Verdict]) -> str:
    by_cause = Counter(verdict.cause for verdict in spoilt)
    parts = []
    for cause, number in by_cause.most_common():
        verdicts = [verdict for verdict in spoilt if verdict.cause == cause]
        if cause == "neighbours":
            parts.append(f"{number} by other processes that took {_say_cores(verdicts)}{_say_names(verdicts)}")
        elif cause == "steal":
            parts.append(f"{number} by the hypervisor that took {_say_cores(verdicts)}")
        else:
            parts.append(f"{number} by the quota, which others in it used up ({_say_cores(verdicts)} stood still)")
    return ", ".join(parts)


def _say_cores(verdicts: Sequence[Verdict]) -> str:
    return f"{statistics.median(verdict.cores for verdict in verdicts):.1f} cores"


def _say_names(verdicts: Sequence[Verdict]) -> str:
    names = Counter(verdict.neighbour for verdict in verdicts if verdict.neighbour).most_common(1)
    return f" (most of it: {names[0][0]})" if names else ""
