"""The demo: one inference workload, as the libraries choose and governed, with one caller and with several.

Each arm is a process of its own; both run in the same real quota, and their rounds take turns, so that a busy
neighbour meets both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from ..detection import detect
from ..detection.records import CpuLimits
from ..errors import InvalidArgumentError
from ..measuring.quota import QuotaGroup, Refusal, create_group, remove_group
from ..measuring.sessions import Guard
from ..reporting.counters import Throttling, binding_level, read_throttling, throttling_between
from .process import Answer, ArmProcess, DemoError
from .workloads import Workload

DEFAULT_QUOTA: Final = 1.0
LOAD_LIMIT: Final = 600.0  # a large file from a cold disk
FIRST_CALL_LIMIT: Final = 60.0
ARMS: Final = (("as the libraries choose", False), ("governed", True))
Tick = Callable[[int, int, str], None]


class Terms(NamedTuple):
    """What both arms are asked to do."""

    workload: Workload
    callers: int
    seconds: float
    rounds: int


class Round(NamedTuple):
    """One round of one arm. ``latencies`` in seconds, one a call; ``periods`` and ``throttled`` are quota periods."""

    latencies: tuple[float, ...]
    elapsed: float
    threads: int
    periods: int
    throttled: int


class ArmResult(NamedTuple):
    """All rounds of one arm; ``gave_up_after`` is set (seconds) once a round never ended and the arm was killed."""

    name: str
    detail: str
    rounds: tuple[Round, ...]
    gave_up_after: float | None = None


class Comparison(NamedTuple):
    """Both arms with so many ``callers`` at once."""

    callers: int
    arms: tuple[ArmResult, ...]


class DemoResult(NamedTuple):
    """What was measured and under which conditions; ``quota`` in cores, None where none was in force."""

    workload: Workload
    seconds: float
    comparisons: tuple[Comparison, ...]
    quota: float | None
    quota_directory: str
    quota_refused: str
    cpus: int
    user_variables: tuple[str, ...]


def run_demo(
    workload: Workload,
    *,
    callers: int = 4,
    seconds: float = 3.0,
    rounds: int = 3,
    quota: float | None = None,
    tick: Tick | None = None,
) -> DemoResult:
    """Measure both arms with one caller, then with ``callers`` at once.

    Blocks for about ``4 * rounds * seconds`` and the loading of two models.

    ``quota`` in cores: None keeps the one in force, or makes a group of 1.0 where there is none. A group that was
    made is removed on every way out. ``tick(done, total, what)`` is called several times a second. Raises
    InvalidArgumentError for numbers that cannot be, DemoError when an arm fails.
    """
    if sys.platform == "win32":
        raise DemoError("", "it needs Linux or macOS")  # pipes cannot be waited for with a time limit there
    for name, value in (("callers", callers), ("rounds", rounds), ("seconds", seconds)):
        if not value > 0:
            raise InvalidArgumentError(name, value, "above 0")
    if quota is not None and not 0 < quota <= 4096:
        raise InvalidArgumentError("quota", quota, "a number of cores above 0")
    limits = detect()
    group, refused = find_group(limits, quota)
    try:
        terms = Terms(workload, callers, seconds, rounds)
        comparisons = _measure(terms, group, tick or (lambda done, total, what: None))
    finally:
        if group is not None:
            remove_group(group)
    return DemoResult(
        workload=workload,
        seconds=seconds,
        comparisons=comparisons,
        quota=None if group is None else group.cores,
        quota_directory="" if group is None else group.directory,
        quota_refused=refused,
        cpus=limits.width,
        user_variables=_user_variables(),
    )


def find_group(limits: CpuLimits, quota: float | None) -> tuple[QuotaGroup | None, str]:
    """The quota the arms run in: the one in force unless a smaller one is asked for, and why there is none."""
    level = binding_level(limits.levels)
    if limits.quota is not None and level is not None and (quota is None or quota >= limits.quota):
        return QuotaGroup(level.path, level.version, limits.quota), ""
    made = create_group(limits, DEFAULT_QUOTA if quota is None else quota)
    if isinstance(made, Refusal):
        if limits.quota is not None and level is not None:
            return QuotaGroup(level.path, level.version, limits.quota), made.reason
        return None, made.reason
    return made, ""


def _user_variables() -> tuple[str, ...]:
    """Thread variables the user set: both arms keep them, which changes what "as the libraries choose" means."""
    from ..state import process
    from ..variables import VARIABLES

    environ = process.user_environ()
    return tuple(f"{entry.name}={environ[entry.name]}" for entry in VARIABLES if environ.get(entry.name, "").strip())


def _measure(terms: Terms, group: QuotaGroup | None, tick: Tick) -> tuple[Comparison, ...]:
    counts = sorted({1, terms.callers})
    total = len(ARMS) * (1 + len(counts) * terms.rounds)
    done = 0
    arms: list[_Arm] = []
    guard = Guard()

    def show(what: str) -> Callable[[], None]:
        return lambda: tick(done, total, what)

    try:
        for name, governed in ARMS:
            arms.append(_Arm(name, ArmProcess(name, terms.workload, terms.callers, governed, group, guard)))
            arms[-1].begin(show)
            done += 1
        comparisons = []
        for callers in counts:
            for number in range(terms.rounds):
                # Every second round runs backwards: whoever came first in one comes last in the next.
                for arm in arms[:: -1 if number % 2 else 1]:
                    arm.run(callers, terms.seconds, group, show(f"{arm.name}, {say_callers(callers)}"))
                    done += 1
            comparisons.append(Comparison(callers, tuple(arm.take() for arm in arms)))
    finally:
        for arm in arms:
            arm.process.close()
        guard.close()
    return tuple(comparisons)


def say_callers(callers: int) -> str:
    """``callers`` in words."""
    return "1 caller" if callers == 1 else f"{callers} callers at once"


class _Arm:
    """An arm that is measured: its process, and the rounds since the last ``take``."""

    def __init__(self, name: str, process: ArmProcess) -> None:
        self.name = name
        self.process = process
        self.detail = ""
        self.rounds: list[Round] = []
        self.gave_up: float | None = None

    def begin(self, show: Callable[[str], Callable[[], None]]) -> None:
        """Wait until the model is loaded and the first call has ended."""
        if self.process.wait(LOAD_LIMIT, show(f"loading, {self.name}")).data is None:
            raise DemoError(self.name, f"loading did not end within {LOAD_LIMIT:g} s")
        answer = self.process.wait(FIRST_CALL_LIMIT, show(f"first call, {self.name}"))
        if answer.data is None:
            self._give_up(FIRST_CALL_LIMIT)
        else:
            self.detail = answer.data["ready"]

    def run(self, callers: int, seconds: float, group: QuotaGroup | None, tick: Callable[[], None]) -> None:
        """One round; nothing, once the arm was given up."""
        if self.gave_up is not None:
            return
        limit = max(10.0, 4 * seconds)
        before = None if group is None else read_throttling(group.directory)
        answer = self.process.ask(callers, seconds, limit, tick)
        if answer.data is None:
            self._give_up(seconds + limit)
            return
        after = None if group is None else read_throttling(group.directory)
        self.rounds.append(_round(answer, throttling_between(before, after)))

    def take(self) -> ArmResult:
        """What was measured since the last time."""
        rounds, self.rounds = self.rounds, []
        return ArmResult(self.name, self.detail, tuple(rounds), self.gave_up)

    def _give_up(self, seconds: float) -> None:
        self.gave_up = seconds
        self.process.close()


def _round(answer: Answer, throttling: Throttling | None) -> Round:
    assert answer.data is not None
    periods, throttled = (0, 0) if throttling is None else (throttling.periods, throttling.throttled)
    return Round(tuple(answer.data["latencies"]), answer.data["elapsed"], answer.threads, periods, throttled)
