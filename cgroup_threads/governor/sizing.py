"""How large the core budget is, and who shares it."""

from __future__ import annotations

import os
from typing import Final, Literal, NamedTuple

from ..detection.records import CpuLimits
from ..planning import ThreadPlan, decide
from ..settings import Settings

WORTH: Final = 0.2
"""A quota's fraction of a core above the whole ones is used if it adds at least this share to them."""


class Size(NamedTuple):
    """``cores`` to share in ``scope``; ``directory`` is the cgroup whose processes share them ("container" only).

    ``extra`` is 1 where a quota's fraction of a core is worth one more call of one thread: at 1.5 cores, calls one
    after the other would leave a third of the quota unused.
    """

    cores: int
    scope: Literal["process", "container"]
    bound_by: str
    directory: str | None = None
    extra: int = 0


def size(limits: CpuLimits, settings: Settings) -> Size:
    """The budget under ``limits``. Pure.

    Scope ``auto`` is "container" where the cgroup has a quota or a cpuset that binds: all its processes have the same
    cores. An affinity mask is a process's own. Workers that share slots divide nothing; else each gets its part.
    """
    whole: ThreadPlan = decide(limits, settings, workers=1)
    directory = binding_directory(limits)
    asked = settings.scope
    limited = limits.status == "limited" or limits.bound_by == "cpuset"
    if directory is not None and (asked == "container" or (asked == "auto" and limited)):
        return Size(whole.threads, "container", whole.bound_by, directory, extra_cores(limits, whole))
    return process_size(limits, settings)


def process_size(limits: CpuLimits, settings: Settings) -> Size:
    """The budget of this process alone."""
    mine = decide(limits, settings)
    return Size(mine.threads, "process", mine.bound_by, extra=extra_cores(limits, mine))


def extra_cores(limits: CpuLimits, plan: ThreadPlan) -> int:
    """How many calls of one thread a quota has room for beside the whole cores of ``plan``: 1 or 0."""
    cores = limits.quota if limits.override is None else limits.override
    if cores is None or plan.bound_by not in ("quota", "override"):
        return 0
    return int(cores - plan.threads >= WORTH * plan.threads)


def binding_directory(limits: CpuLimits) -> str | None:
    """The cgroup directory with the smallest quota, else that of the cpuset if it binds, else the process's own; None
    where no cgroup is visible.

    In cgroup v1 jobs with a cpuset each may all be in the same group of the cpu controller.
    """
    levels = [level for level in limits.levels if os.path.isabs(level.path)]
    limiting = [level for level in levels if level.quota is not None]
    if limiting:
        return min(limiting, key=lambda level: level.quota or 0.0).path
    if limits.bound_by == "cpuset" and limits.cpuset_directory is not None:
        return limits.cpuset_directory
    return levels[0].path if levels else None
