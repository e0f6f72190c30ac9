"""How large the core budget is, and who shares it."""

from __future__ import annotations

import os
from math import inf
from typing import Final, Literal, NamedTuple

from ..detection.records import EPSILON, CpuLimits
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
    directory = binding_directory(limits)
    asked = settings.scope
    limited = limits.bound_by != "affinity" and (limits.status == "limited" or limits.bound_by == "cpuset")
    if directory is not None and (asked == "container" or (asked == "auto" and limited)):
        return shared_size(limits, settings)._replace(directory=directory)
    return process_size(limits, settings)


def shared_size(limits: CpuLimits, settings: Settings) -> Size:
    """The budget of all processes of the container."""
    whole: ThreadPlan = decide(_cores_alone(limits), settings, workers=1)
    return Size(whole.threads, "container", whole.bound_by, extra=extra_cores(limits, whole))


def process_size(limits: CpuLimits, settings: Settings) -> Size:
    """The budget of this process alone."""
    mine = decide(_cores_alone(limits), settings)
    return Size(mine.threads, "process", mine.bound_by, extra=extra_cores(limits, mine))


def _cores_alone(limits: CpuLimits) -> CpuLimits:
    """``limits`` without those on threads: cores that one call may not use with threads of its own, several may."""
    return limits._replace(tasks=(), address_space=None)


def keep_known(before: Size, after: Size, limits: CpuLimits) -> Size:
    """``after``, but no more than a quota gave ``before`` while it cannot be read whether that still holds.

    A process that is out of file descriptors, or was moved out of its namespace, is as limited as it was. Pure.
    """
    unsure = limits.status == "unknown" and limits.override is None
    if unsure and before.bound_by == "quota" and after.cores >= before.cores:
        return after._replace(cores=before.cores, extra=before.extra, bound_by=before.bound_by)
    return after


def extra_cores(limits: CpuLimits, plan: ThreadPlan) -> int:
    """How many calls of one thread a quota has room for beside the whole cores of ``plan``: 1 or 0."""
    cores = limits.quota if limits.override is None else limits.override
    if cores is None or plan.workers > 1 or plan.bound_by not in ("quota", "override"):
        return 0
    return int(cores - plan.threads + EPSILON >= WORTH * plan.threads)


def binding_directory(limits: CpuLimits) -> str | None:
    """The cgroup directory whose processes have their cores in common; None where no cgroup is visible.

    That is where the smallest quota is set or, if that is smaller, the cpuset. Affinity masks have no say: they are
    each process's own, and all must come to the same directory. In cgroup v1 jobs with a cpuset each may all be in the
    same group of the cpu controller.
    """
    levels = [level for level in limits.levels if os.path.isabs(level.path)]
    quotas = [(level.quota, level.path) for level in levels if level.quota is not None]
    width = len(limits.cpuset or ())
    if limits.cpuset_directory is not None and 0 < width < limits.host_cpus and width < min(quotas, default=(inf,))[0]:
        return limits.cpuset_directory
    if quotas:
        return min(reversed(quotas), key=lambda quota: quota[0])[1]  # of equals the outermost: siblings share it
    return levels[0].path if levels else None
