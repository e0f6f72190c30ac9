"""The rounds: both arms in turns, so that a busy neighbour meets both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ..measuring.sessions import Guard
from .judging import find_notices
from .outputs import compare_outputs
from .ratio import find_ratio
from .records import Arm, ArmResult, CompareError, Comparison, Output, OutputVerdict, Run, Terms
from .running import run_once
from .wording import say_end

MAX_KEPT_ALL: Final = 128 << 20  # bytes of one arm's outputs, where each run writes another

Tick = Callable[[int, int, str], None]


def run_comparison(plain: Arm, governed: Arm, terms: Terms, tick: Tick | None = None) -> Comparison:
    """Run both arms ``terms.warmup`` times without and ``terms.rounds`` times with a watch.

    An arm that meets the time limit is not run again. ``tick(done, total, what)`` is called several times a second.
    Raises CompareError where nothing can be compared: the command cannot be started, or both arms fail, or meet the
    limit, in their first runs (``terms.go_on`` goes on after failures).
    """
    guard = Guard()
    try:
        one, other = _run_both(plain, governed, terms, tick or (lambda done, total, what: None), guard)
    finally:
        guard.close()
    ratio = find_ratio(one, other, terms.limit)
    outputs = _compare(one, other, terms)
    return Comparison(terms, one, other, ratio, outputs, find_notices(one, other, ratio, outputs, terms))


def _run_both(plain: Arm, governed: Arm, terms: Terms, show: Tick, guard: Guard) -> tuple[ArmResult, ArmResult]:
    sides = [_Side(plain, guard), _Side(governed, guard)]
    numbers = range(-terms.warmup, terms.rounds)
    total = len(sides) * len(numbers)
    for step, number in enumerate(numbers):
        # Every second round runs backwards: whoever came first in one comes last in the next.
        for place, side in enumerate(sides[:: -1 if step % 2 else 1]):
            side.run(terms, number >= 0, partial(show, len(sides) * step + place, total, side.arm.name))
        if step == 0:
            _check_first(sides, terms)
        if all(side.gave_up for side in sides):
            raise CompareError(f"compare: neither arm ended within {terms.limit:g} s (--time-limit)")
    one, other = (side.take() for side in sides)
    return one, other


def _check_first(sides: list[_Side], terms: Terms) -> None:
    """A command that fails in both arms is most likely mistyped: no use in running it ten times."""
    codes = [side.last.code for side in sides if side.last is not None and not side.last.limited]
    if terms.go_on or len(codes) < len(sides) or 0 in codes:
        return
    last = sides[0].last
    assert last is not None
    raise CompareError(f"compare: the command fails in both arms: {say_end(last)} (--ignore-failure goes on)")


def _compare(plain: ArmResult, governed: ArmResult, terms: Terms) -> OutputVerdict:
    kinds = []
    for result in (plain, governed):
        good = [run.output for run in result.ended if run.code == 0 or terms.go_on]
        kinds.append([output for output in good if output is not None])
    return compare_outputs(kinds[0], kinds[1], tolerance=terms.tolerance, ignored=terms.ignored)


class _Side:
    """An arm and its runs so far."""

    def __init__(self, arm: Arm, guard: Guard) -> None:
        self.arm = arm
        self._guard = guard
        self.runs: list[Run] = []
        self.last: Run | None = None
        self.gave_up = False
        self._outputs: dict[str, Output] = {}

    def run(self, terms: Terms, measured: bool, tick: Callable[[], None]) -> None:
        """One run, kept if it was ``measured`` or met the limit; nothing, once the arm was given up."""
        if self.gave_up:
            return
        run = run_once(self.arm, terms, tick, self._guard)
        if run.output is not None:  # equal outputs are kept once
            run = run._replace(output=self._keep(run.output))
        self.last, self.gave_up = run, run.limited
        if measured or run.limited:
            self.runs.append(run)

    def _keep(self, output: Output) -> Output:
        kept = sum(len(other.data or b"") for other in self._outputs.values())
        if kept + output.size > MAX_KEPT_ALL:
            output = output._replace(data=None)
        return self._outputs.setdefault(output.digest, output)

    def take(self) -> ArmResult:
        return ArmResult(self.arm, tuple(self.runs), self.gave_up)
