"""One thread count of one task while it is measured."""

from __future__ import annotations

import statistics

from .noise import Verdict
from .records import Point, Sample, Task


class Cell:
    """What was measured of one count; those above the usable cores are a ``burst``."""

    def __init__(self, task: Task, threads: int, burst: bool) -> None:
        self.task = task
        self.threads = threads
        self.burst = burst
        self.warm: Sample | None = None
        self.clean: list[tuple[Sample, Verdict]] = []
        self.spoilt: list[tuple[Sample, Verdict]] = []
        self.call_s: float | None = None
        self.hopeless = False

    @property
    def kept(self) -> list[tuple[Sample, Verdict]]:
        """The rounds that count: disturbed ones, and the first call, only where there is nothing else."""
        first = [] if self.warm is None else [(self.warm, Verdict(judged=False))]
        return self.clean or self.spoilt or first

    @property
    def stuck(self) -> bool:
        """Whether calls were given up, and none has ended."""
        samples = [sample for sample, _ in self.clean + self.spoilt] + ([self.warm] if self.warm else [])
        return bool(samples) and all(sample.stuck for sample in samples)

    @property
    def contends(self) -> bool:
        """Whether this count may be recommended."""
        return not self.burst and not self.hopeless and not self.stuck

    def add(self, sample: Sample, verdict: Verdict) -> None:
        (self.clean if verdict.cause is None else self.spoilt).append((sample, verdict))

    def point(self) -> Point:
        samples = [sample for sample, _ in self.kept]
        verdicts = [verdict for _, verdict in self.kept]
        periods = sum(verdict.periods for verdict in verdicts)
        return Point(
            threads=self.threads,
            rates=tuple(sample.units / sample.seconds for sample in samples),
            calls=tuple(statistics.median(sample.calls or (sample.seconds,)) for sample in samples),
            burst=self.burst,
            spoilt=len(self.spoilt) if self.clean else 0,
            throttled=sum(verdict.throttled for verdict in verdicts) / periods if periods else None,
            quick=tuple(sorted(sample.calls)[len(sample.calls) // 4] for sample in samples if sample.calls),
        )
