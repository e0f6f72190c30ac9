"""Made-up results of a tuning, for what shows them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from cgroup_threads.notices import Notice
from cgroup_threads.tuning.fit import fit_amdahl, fit_universal
from cgroup_threads.tuning.records import Bandwidth, Curve, Identity, Point, Recommendation, Task, TuneResult

DECODE = Task("decode", "tokens", "n_threads")
PREFILL = Task("prefill", "tokens", "n_threads_batch")


def make_curve(
    task: Task, medians: Mapping[int, float], *, usable: int, knee: int, rounds: int = 15, noise: float = 0.01
) -> Curve:
    """``medians`` by count, with seeded noise around them; ``knee`` is what is recommended."""
    source = random.Random(1)
    points = []
    for threads, median in medians.items():
        half = [abs(source.gauss(0, noise)) for _ in range(rounds // 2)]
        shares = [1.0] * (rounds % 2) + [1 + share for share in half] + [1 - share for share in half]
        rates = tuple(median * share for share in shares)
        points.append(Point(threads, rates, tuple(1 / rate for rate in rates), burst=threads > usable))
    within = {threads: median for threads, median in medians.items() if threads <= usable}
    best = max(within, key=lambda threads: within[threads])
    found = Recommendation(knee, 0.97, knee, best, best, within[knee] / within[best])
    return Curve(task, tuple(points), fit_amdahl(points), fit_universal(points), found)


def make_result(curves: Sequence[Curve] = (), *, usable: int = 2, **changes: Any) -> TuneResult:
    """Two tasks of a model on 2 usable cores of 4 CPUs, unless told otherwise."""
    found = tuple(curves) or (
        make_curve(DECODE, {1: 180.0, 2: 182.0, 3: 90.0, 4: 61.0}, usable=2, knee=1),
        make_curve(PREFILL, {1: 900.0, 2: 1710.0, 3: 1200.0, 4: 700.0}, usable=2, knee=2),
    )
    identity = Identity("sha256:0123", "llama-cpp-python 0.3.36", "Some CPU @ 2.1GHz", usable, None)
    result = TuneResult("model.gguf, llama-cpp-python 0.3.36", found, identity, 4, 48.3, (), None)
    return result._replace(**changes)


NOTICE = Notice("noisy", "1 of 15 rounds was disturbed", "warning", "stop what else runs")
BANDWIDTH = Bandwidth(253_000_000, 45.5e9, 52e9)


def make_wide_result() -> TuneResult:
    """64 usable cores of 66: decode reaches a wall at 8 and falls, prefill goes on for long."""
    counts = [*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 66]
    decode = {n: 20 * n / (1 + 0.08 * (n - 1) + 0.0015 * n * (n - 1)) for n in counts}
    prefill = {n: 60 * n / (1 + 0.006 * (n - 1)) for n in counts}
    for medians in (decode, prefill):
        medians[66] *= 0.6
    knee = min(n for n in counts if decode[n] >= 0.97 * max(decode.values()))
    top = min(n for n in counts if n <= 64 and prefill[n] >= 0.97 * prefill[64])
    curves = (
        make_curve(DECODE, decode, usable=64, knee=knee, noise=0.04),
        make_curve(PREFILL, prefill, usable=64, knee=top, noise=0.03),
    )
    return make_result(curves, usable=64, cpus=66)
