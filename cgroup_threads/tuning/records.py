"""What a sweep over thread counts measured, and what follows from it."""

from __future__ import annotations

import statistics
from typing import Literal, NamedTuple, Protocol

from ..notices import Notice
from ..profiles.records import Identity

__all__ = [
    "Bandwidth",
    "Curve",
    "Fit",
    "Identity",
    "Point",
    "ProcessUse",
    "Recommendation",
    "Sample",
    "Subject",
    "Task",
    "TuneResult",
]


class Task(NamedTuple):
    """One kind of work whose thread count is sought.

    ``name`` is "decode", "prefill", "encode", "call" or "command"; ``unit`` what is counted a second ("tokens",
    "sentences", "calls", "runs"); ``argument`` the name under which the count is passed ("n_threads",
    "n_threads_batch", "threads").
    """

    name: str
    unit: str
    argument: str = "threads"


class Sample(NamedTuple):
    """One round of one task: ``units`` of work in ``seconds``, and the seconds of each call in it.

    ``stuck`` is true where no call had ended when it was given up: the true rate is lower.
    """

    units: float
    seconds: float
    calls: tuple[float, ...] = ()
    stuck: bool = False


class Subject(Protocol):
    """What is measured. ``measure`` is called from one thread; ``close`` ends every child."""

    @property
    def title(self) -> str:
        """One line for people: "gemma-3-270m.gguf, llama-cpp-python 0.3.36"."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The kinds of work, at least one."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that computed in the last ``measure``, while they live (for CPU time and run delay)."""

    def measure(self, task: Task, threads: int, seconds: float) -> Sample:
        """Work with ``threads`` threads for about ``seconds``, at least one call. Raises TuneError where it fails."""

    def close(self) -> None:
        """End what was started."""


class Point(NamedTuple):
    """All rounds at one thread count.

    ``rates`` are units a second, one a kept round; ``calls`` the median seconds of a single call in each of them.
    ``burst`` marks counts above the usable cores, which are never recommended. ``spoilt`` rounds were thrown away,
    since neighbours or the quota disturbed them; ``throttled`` is the share of quota periods throttled (None without
    a quota). ``quick`` are the seconds of a call that a quarter of the calls of each round do not take: what a call is
    like that the quota does not stop.
    """

    threads: int
    rates: tuple[float, ...]
    calls: tuple[float, ...]
    burst: bool = False
    spoilt: int = 0
    throttled: float | None = None
    quick: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The median rate, in units a second; 0.0 without rounds."""
        return statistics.median(self.rates) if self.rates else 0.0


class Fit(NamedTuple):
    """A scalability law fitted to a curve: rate(n) = rate * n / (1 + serial * (n - 1) + crosstalk * n * (n - 1)).

    Amdahl's law has ``crosstalk`` 0; the universal scalability law (Gunther) has both. ``rate`` is units a second of
    one thread. ``limit`` is the highest rate it predicts (infinite for serial = crosstalk = 0) and ``peak`` the thread
    count where the universal law has it (None: it never falls). ``r_squared`` is the goodness of fit, 1 for perfect.
    """

    law: Literal["amdahl", "universal"]
    rate: float
    serial: float
    crosstalk: float
    limit: float
    peak: float | None
    r_squared: float

    def predict(self, threads: float) -> float:
        """Units a second at ``threads`` threads."""
        return self.rate * threads / (1 + self.serial * (threads - 1) + self.crosstalk * threads * (threads - 1))


class Recommendation(NamedTuple):
    """The smallest count within 3 % (less the noise of the medians) of the best median, up to the usable cores.

    ``confidence`` is the share of resamples of the rounds (bootstrap) that choose the same, ``low`` and ``high`` bound
    90 % of their choices; ``best`` is the count of the best median and ``within`` the recommended count's share of it.
    """

    threads: int
    confidence: float
    low: int
    high: int
    best: int
    within: float


class Curve(NamedTuple):
    """One task's measurement. Fits are None where there are too few counts to fit."""

    task: Task
    points: tuple[Point, ...]
    amdahl: Fit | None
    universal: Fit | None
    recommendation: Recommendation


class Bandwidth(NamedTuple):
    """How much of the machine's memory bandwidth decoding uses: bytes a second.

    ``weights`` bytes are read for each token; ``used`` is weights times the tokens a second at the recommended count;
    ``machine`` is the read bandwidth measured here with as many threads as gave most.
    """

    weights: int
    used: float
    machine: float


class ProcessUse(NamedTuple):
    """What a command's processes used with ``threads`` threads: medians of CPU seconds, and the most memory in bytes of
    any run. None where the system does not tell."""

    threads: int
    cpu_seconds: float | None
    max_resident: int | None


class TuneResult(NamedTuple):
    """What ``tune`` found; ``str()`` is the table, ``to_json()`` the data.

    ``curves`` has one entry a task, the most important first (decode before prefill); ``elapsed`` in seconds.
    ``notices`` tell of noise, of throttling and of counts that only looked faster; ``processes`` of what the runs of a
    command used.
    """

    title: str
    curves: tuple[Curve, ...]
    identity: Identity
    cpus: int
    elapsed: float
    notices: tuple[Notice, ...] = ()
    bandwidth: Bandwidth | None = None
    processes: tuple[ProcessUse, ...] = ()

    @property
    def threads(self) -> int:
        """The recommended count of the first task."""
        return self.curves[0].recommendation.threads

    @property
    def points(self) -> tuple[Point, ...]:
        """The measured points of the first task."""
        return self.curves[0].points

    @property
    def serial_fraction(self) -> float | None:
        """The serial share of the first task's work by Amdahl's law, 0 to 1; None where it could not be fitted."""
        fit = self.curves[0].amdahl
        return None if fit is None else fit.serial

    @property
    def confidence(self) -> float:
        """How sure the first task's recommendation is: the share of resamples that agree, 0 to 1."""
        return self.curves[0].recommendation.confidence

    def to_json(self) -> str:
        """The result as one JSON object, with schema version."""
        from .render import to_json

        return to_json(self)

    def __str__(self) -> str:
        from .render import render

        return render(self)
