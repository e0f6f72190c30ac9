"""Measures every thread count in turn, round after round, until enough is known or the time is over.

Pure orchestration: what is measured, who watches over disturbances and the clock are passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from ..notices import Level, Notice
from .cell import Cell
from .disturbance import Round, describe, is_doubtful
from .errors import TuneError
from .noise import Verdict
from .recommend import needs_more
from .records import Point, Sample, Subject, Task

MIN_ROUNDS: Final = 3  # fewer say nothing about their spread
REPEATS: Final = 2  # times the rounds, where they were disturbed
HOPELESS: Final = 4.0  # times slower than the best: such a count is measured no more
TOLERANCE: Final = 0.03
Tick = Callable[[int, int, str], None]


class Terms(NamedTuple):
    """How to measure: times in seconds. No measurement is planned for less than ``least`` or more than ``seconds``."""

    rounds: int = 15
    seconds: float = 1.0
    time_limit: float = 300.0
    confidence: float = 0.95
    least: float = 0.3


class Watch(Protocol):
    """Tells whether a measurement was disturbed (``noise.Meter``)."""

    def begin(self, pids: Sequence[int]) -> None:
        """A measurement begins."""

    def end(self, pids: Sequence[int], threads: int) -> Verdict:
        """It has ended."""


class Measured(NamedTuple):
    """Points of each task that could be measured.

    ``contenders`` are those that may be recommended; the others are bursts, or so slow that they were measured but
    once. ``doubtful`` says whose figures rest on too few undisturbed rounds, or on disturbed ones.
    """

    tasks: tuple[Task, ...]
    points: tuple[tuple[Point, ...], ...]
    contenders: tuple[tuple[Point, ...], ...]
    doubtful: tuple[bool, ...]
    notices: tuple[Notice, ...]


def sweep(
    subject: Subject,
    counts: Sequence[int],
    usable: int,
    terms: Terms,
    meter: Watch,
    tick: Tick,
    clock: Callable[[], float] = time.monotonic,
    tasks: Sequence[Task] | None = None,
    began: float | None = None,
) -> Measured:
    """Measure all ``counts`` for all ``tasks`` of ``subject`` (None: all it has); those above ``usable`` as bursts.

    Each is warmed up by one call, then rounds go through all of them, each with another one first. Disturbed
    measurements are repeated. It ends when the recommendation has the confidence asked for, after ``terms.rounds``
    undisturbed rounds (twice as many in all), or at the time limit, which counts from ``began`` (None: now).
    ``tick(done, total, what)`` is called before each measurement. Raises TuneError where the subject fails or the time
    is over before anything is known.
    """
    run = _Run(subject, subject.tasks if tasks is None else tasks, counts, usable, terms, meter, tick, clock)
    if began is not None:
        run.deadline = began + terms.time_limit
    run.warm_up()
    for number in range(REPEATS * terms.rounds):
        if not run.go_round(number):
            break
    return run.conclude()


class _Run:
    """The state of a sweep."""

    def __init__(
        self,
        subject: Subject,
        tasks: Sequence[Task],
        counts: Sequence[int],
        usable: int,
        terms: Terms,
        meter: Watch,
        tick: Tick,
        clock: Callable[[], float],
    ) -> None:
        self.subject = subject
        self.tasks = tasks
        self.terms = terms
        self.meter = meter
        self.tick = tick
        self.clock = clock
        self.deadline = clock() + terms.time_limit
        self.cells = [Cell(task, threads, threads > usable) for task in tasks for threads in counts]
        self.history: list[Round] = []
        self.settled: set[Task] = set()
        self.cut = False
        self.done = 0
        self.left = len(self.cells) * (1 + terms.rounds)

    def warm_up(self) -> None:
        """One call of each: the count that should be best first, then fewer, which tells how long a call may take at
        most. Bursts come last, since threads that get in each other's way can make a call last for minutes."""
        order = sorted(self.cells, key=lambda cell: (cell.burst, cell.threads if cell.burst else -cell.threads))
        for cell in order:
            self.left -= 1
            if cell.burst and not self._has_ended(cell.task):
                continue
            # Where the time is short, a round is worth more than a warm-up.
            if 2 * len(self.cells) * self._expect(cell) <= self.deadline - self.clock():
                cell.warm = self._measure(cell, 0.0)

    def go_round(self, number: int) -> bool:
        """One round through all counts that need it; False when there is nothing to do any more."""
        due = [cell for cell in self.cells if self._is_due(cell)]
        shift = (number + number % 2) % max(1, len(due))
        order = due[shift:] + due[:shift]
        seconds = self._plan(due, number)
        measured = 0
        self.left = max(1, self.terms.rounds - number) * len(due)
        for cell in reversed(order) if number % 2 else order:
            self.left -= 1
            measured += self._measure_round(cell, number, seconds)
        self._give_up_hopeless()
        if number + 1 >= MIN_ROUNDS:
            for task in self.tasks:
                if task not in self.settled and self._is_settled(task):
                    self.settled.add(task)
        return measured > 0

    def conclude(self) -> Measured:
        """What was measured, and what is to be said of it. Raises TuneError where that is nothing."""
        tasks = [task for task in self.tasks if self._has_ended(task)]
        if not tasks:
            untried = ", ".join(str(cell.threads) for cell in self.cells if cell.call_s is None and not cell.burst)
            rest = f"; not tried for want of time: {untried} threads (--time-limit)" if untried else ""
            raise TuneError(self.subject.title, f"no call ended within {self._longest_wait():g} s{rest}")
        missing = [f"{cell.task.name} at {cell.threads}" for cell in self.cells if not cell.kept]
        doubtful = {
            task: [
                cell.threads
                for cell in self._of(task)
                if is_doubtful(len(cell.clean), bool(cell.contends and cell.kept))
            ]
            for task in tasks
        }
        notices = describe(self.history, doubtful)
        if self.cut:
            notices = (*notices, self._say_cut(missing))
        return Measured(
            tasks=tuple(tasks),
            points=tuple(self._points(task) for task in tasks),
            contenders=tuple(self._contenders(task) for task in tasks),
            doubtful=tuple(bool(doubtful[task]) for task in tasks),
            notices=notices,
        )

    def _longest_wait(self) -> float:
        """Seconds that were waited for a call in vain: until it was given up, or to the time limit."""
        waited = [cell.call_s for cell in self.cells if cell.stuck and cell.call_s is not None]
        return max(waited, default=self.terms.time_limit)

    def _has_ended(self, task: Task) -> bool:
        """Whether a call has ended with a count that may be recommended."""
        return any(cell.kept and not cell.stuck for cell in self._of(task) if not cell.burst)

    def _of(self, task: Task) -> list[Cell]:
        return [cell for cell in self.cells if cell.task == task]

    def _points(self, task: Task) -> tuple[Point, ...]:
        return tuple(cell.point() for cell in self._of(task) if cell.kept)

    def _contenders(self, task: Task) -> tuple[Point, ...]:
        return tuple(cell.point() for cell in self._of(task) if cell.kept and cell.contends)

    def _is_due(self, cell: Cell) -> bool:
        if cell.hopeless or cell.stuck or (cell.burst and not self._has_ended(cell.task)):
            return False
        return cell.task not in self.settled and len(cell.clean) < self.terms.rounds

    def _is_settled(self, task: Task) -> bool:
        if any(cell.contends and len(cell.clean) < MIN_ROUNDS for cell in self._of(task)):
            return False
        return not needs_more(self._contenders(task), self.terms.confidence, TOLERANCE)

    def _expect(self, cell: Cell) -> float:
        """Seconds that one call will take at most, as far as that is known: n threads help n times at best."""
        if cell.call_s is not None:
            return cell.call_s
        known = [(other.call_s, other.threads) for other in self._of(cell.task) if other.call_s is not None]
        return min((call_s * max(1.0, threads / cell.threads) for call_s, threads in known), default=0.0)

    def _plan(self, due: Sequence[Cell], number: int) -> float:
        """Seconds for each measurement, so that the rounds that are left fit."""
        rounds = max(MIN_ROUNDS, self.terms.rounds - number)
        slow = [call_s for call_s in map(self._expect, due) if call_s > self.terms.seconds]
        share = (self.deadline - self.clock()) / rounds - sum(slow)
        return min(self.terms.seconds, max(self.terms.least, share / max(1, len(due) - len(slow))))

    def _measure_round(self, cell: Cell, number: int, seconds: float) -> bool:
        self.meter.begin(self.subject.pids)
        sample = self._measure(cell, seconds)
        if sample is None:
            return False
        verdict = self.meter.end(self.subject.pids, cell.threads)
        cell.add(sample, verdict)
        self.history.append(Round(number, verdict))
        return True

    def _measure(self, cell: Cell, seconds: float) -> Sample | None:
        """None where the time is over, or would be by the end."""
        time_left = self.deadline - self.clock()
        if time_left <= max(min(seconds, self.terms.least), self._expect(cell)):
            self.cut = True
            return None
        self.tick(self.done, self.done + self.left + 1, f"{cell.task.name}, {say_threads(cell.threads)}")
        try:
            sample = self.subject.measure(cell.task, cell.threads, min(seconds, time_left))
        except TuneError:
            if self.clock() < self.deadline:
                raise
            self.cut = True  # whoever watches over the time limit has ended the subject
            return None
        if not (sample.units > 0 and sample.seconds > 0):
            raise TuneError(self.subject.title, f"{cell.task.name}: {sample.units:g} units in {sample.seconds:g} s")
        self.done += 1
        cell.call_s = max(sample.calls, default=sample.seconds)
        return sample

    def _give_up_hopeless(self) -> None:
        for task in self.tasks:
            cells = [cell for cell in self._of(task) if cell.clean]
            best = max((cell.point().median for cell in cells), default=0.0)
            for cell in cells:
                cell.hopeless = cell.hopeless or HOPELESS * cell.point().median < best

    def _say_cut(self, missing: Sequence[str]) -> Notice:
        fewest = min((len(cell.clean) + len(cell.spoilt) for cell in self.cells if not cell.hopeless), default=0)
        message = f"the time limit of {self.terms.time_limit:g} s ended the measurement: {fewest} of "
        message += f"{self.terms.rounds} rounds at least"
        if missing:
            message += f"; not measured: {', '.join(missing)}"
        level: Level = "warning" if missing or fewest < MIN_ROUNDS else "info"
        return Notice("tune-time-limit", message, level, "give it more time, or less work in one call")


def say_threads(threads: int) -> str:
    """``threads`` in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"
