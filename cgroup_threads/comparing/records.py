"""What a comparison is asked to do and what it found."""

from __future__ import annotations

import statistics
from typing import Final, Literal, NamedTuple

from ..errors import CgroupThreadsError
from ..notices import Notice

NOTHING: Final = "nothing was written"
State = Literal["equal", "close", "varies", "differ", "unknown"]


class CompareError(CgroupThreadsError, RuntimeError):
    """The command could not be compared; the message is one line."""


class Arm(NamedTuple):
    """One side: the command and its whole environment. ``detail`` says in one line what is set."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    detail: str = ""


class Terms(NamedTuple):
    """How often and how long the arms run, and what of them is compared.

    ``output`` is a file the command writes, None for its standard output; ``given`` a file it reads as standard input.
    ``ignored`` are regular expressions of lines that are not compared. ``counters`` is the cgroup whose throttling is
    counted, "" for none.
    """

    rounds: int = 5
    warmup: int = 1
    limit: float = 60.0
    tolerance: float = 1e-5
    output: str | None = None
    given: str | None = None
    ignored: tuple[str, ...] = ()
    counters: str = ""
    go_on: bool = False


class Output(NamedTuple):
    """What a run wrote. ``data`` is None where it is too much to be kept: then the digest is all there is."""

    digest: str
    size: int
    data: bytes | None


class Run(NamedTuple):
    """One run: wall and CPU seconds, the exit code (negative: the signal), and the end of its standard error.

    ``periods`` are quota periods in which the group wanted to run, ``throttled`` those that ended with it stopped.
    ``limited`` is True for a run that was ended at the time limit: its seconds are less than it would have needed.
    """

    seconds: float
    cpu: float
    code: int
    output: Output | None
    log: str
    periods: int = 0
    throttled: int = 0
    limited: bool = False


class ArmResult(NamedTuple):
    """The measured runs of one arm, in order; ``gave_up`` once one of its runs met the time limit."""

    arm: Arm
    runs: tuple[Run, ...]
    gave_up: bool = False

    @property
    def ended(self) -> tuple[Run, ...]:
        """The runs that ended by themselves."""
        return tuple(run for run in self.runs if not run.limited)

    @property
    def failed(self) -> tuple[Run, ...]:
        """The runs that ended with another code than 0."""
        return tuple(run for run in self.ended if run.code != 0)

    @property
    def median(self) -> float | None:
        """The median of the wall seconds; None where no run ended, or one was ended at the limit."""
        ended = [run.seconds for run in self.ended]
        return statistics.median(ended) if ended and not self.gave_up else None


class Ratio(NamedTuple):
    """How many times faster the governed arm is: seconds as it is over seconds governed.

    ``value`` is the ratio of the medians, ``rounds`` the ratio in each round and ``spread`` their standard deviation;
    ``low`` and ``high`` bound the ratio with 95 % confidence (None: too few rounds to tell). ``bound`` says that one
    arm met the time limit: "at least" the value, or "at most".
    """

    value: float
    rounds: tuple[float, ...] = ()
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    bound: Literal["", "at least", "at most"] = ""


class Difference(NamedTuple):
    """A place where the outputs differ, and what stands there in either arm, shortened."""

    place: str
    plain: str
    governed: str


class OutputVerdict(NamedTuple):
    """Whether the outputs of both arms are the same.

    ``state``: "equal" byte for byte; "close" within the tolerance; "varies" where what differs also differs between
    runs of one arm; "differ"; "unknown" where they could not be compared (``reason``). ``error`` is the largest
    relative error among numbers that were compared. ``varying`` counts places that vary from run to run in both arms,
    only as it is, and only governed. ``differences`` are examples, of what varies in state "varies".
    """

    state: State
    reason: str = ""
    runs: int = 0
    error: float = 0.0
    varying: tuple[int, int, int] = (0, 0, 0)
    differences: tuple[Difference, ...] = ()


class Comparison(NamedTuple):
    """Both arms, the ratio of their times (None: an arm has no time) and the verdict on their outputs."""

    terms: Terms
    plain: ArmResult
    governed: ArmResult
    ratio: Ratio | None
    output: OutputVerdict
    notices: tuple[Notice, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether a check fails: one of the notices is a problem."""
        return any(notice.level == "problem" for notice in self.notices)
