"""Processes that share cores: each may be fine, and all of them too much. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .records import Sample, Verdict
from .verdict import OVERSUBSCRIBED, count_cores, judge_oversubscription

ACTIVE: Final = 0.5  # runnable threads: less is a process that waits
_SINGLE: Final = 1.5  # runnable threads of a process that has about one


def judge_together(samples: Sequence[Sample]) -> list[Verdict]:
    """Verdicts on those among the processes that share cores, and fit them alone but not together."""
    shared: dict[tuple[str, frozenset[int]], list[Sample]] = {}
    for sample in samples:
        place = sample.group if sample.limits.quota is not None else ""
        shared.setdefault((place, sample.limits.affinity), []).append(sample)
    return [verdict for members in shared.values() if (verdict := _judge_members(members)) is not None]


def _judge_members(members: Sequence[Sample]) -> Verdict | None:
    active = [sample for sample in members if sample.runnable >= ACTIVE]
    heavy = [sample for sample in active if judge_oversubscription(sample) is not None]
    if len(heavy) == 1:  # it has a verdict of its own, which explains what it does to the others
        active.remove(heavy[0])
    usable = max(sample.usable for sample in members)
    runnable = sum(sample.runnable for sample in active)
    if len(active) < 2 or runnable < OVERSUBSCRIBED * usable or runnable < usable + 1.5:
        return None
    message = f"oversubscribed together: {runnable:.0f} runnable threads of {len(active)} processes"
    message += f" on {count_cores(usable)} ({runnable / usable:.3g}x)"
    if max(sample.runnable for sample in active) < _SINGLE:
        fix = f"they have about one thread each already, so run at most {usable} of them at once"
    else:
        each = max(1, usable // len(active))
        fix = f"{each} thread{'s' if each > 1 else ''} a process (CGROUP_THREADS_WORKERS={len(active)})"
        fix += ", or fewer workers" if len(active) <= usable else f", and at most {usable} workers"
    return Verdict("oversubscribed-together", "problem", message, fix)
