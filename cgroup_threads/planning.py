"""From limits and settings to thread counts. Pure, but for ``plan`` which detects the limits it was not given."""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from typing import NamedTuple

from .detection.records import CpuLimits
from .errors import check_threads
from .notices import Notice
from .settings import MAX_COUNT, Settings
from .state import process
from .variables import Counts, clean_environment


class ThreadPlan(NamedTuple):
    """The thread counts decided.

    ``threads`` is the count for compute pools of this process (a call's share if ``concurrency`` was given),
    ``interop`` for pools that run whole operators side by side, ``usable`` the cores the container may keep busy,
    ``workers`` the processes that share them, ``bound_by`` the constraint that won ("quota", "affinity", ...,
    "physical cores", "workers", "concurrency", "pids.max", "RLIMIT_NPROC", "RLIMIT_AS"). ``quota_binds`` says that a
    quota is below what libraries see. ``environment`` are the variables that express the plan. ``ceiling`` is the most
    threads of a pool that the last three limits have room for, None without them.
    """

    threads: int
    interop: int
    usable: int
    workers: int
    concurrency: int
    bound_by: str
    quota_binds: bool
    environment: dict[str, str]
    notices: tuple[Notice, ...] = ()
    ceiling: int | None = None


def plan(limits: CpuLimits | None = None, *, workers: int | None = None, concurrency: int | None = None) -> ThreadPlan:
    """The thread counts for ``limits`` (default: those of this process) under the CGROUP_THREADS_* settings.

    ``workers`` processes share the cores (default: the setting, LOCAL_WORLD_SIZE or WEB_CONCURRENCY), and in each of
    them ``concurrency`` calls do: every count is divided and stays at least 1. ``environment`` holds the variables
    as they would be set where the user set none. Raises InvalidThreadsError for ``workers`` or ``concurrency`` below 1.
    """
    if limits is None:
        from .detection import detect

        limits = detect()
    settings = process.settings
    return with_environment(decide(limits, settings, workers, concurrency), settings)


def current_plan() -> ThreadPlan:
    """The applied plan, else (``CGROUP_THREADS_AUTO=0``, or after ``undo()``) what would be applied now."""
    applied = process.applied
    if applied is not None:
        return applied.plan
    if process.plan is None:
        process.plan = plan()
    return process.plan


def share_plan(plan: ThreadPlan, workers: int) -> ThreadPlan:
    """The plan of each of ``workers`` child processes that share this process's part; its environment is empty."""
    threads = max(1, plan.threads // workers)
    bound_by = "workers" if threads < plan.threads else plan.bound_by
    return plan._replace(threads=threads, workers=plan.workers * workers, bound_by=bound_by, environment={})


def count(plan: ThreadPlan, settings: Settings) -> Counts:
    """The numbers of the variables for one worker process under ``plan``.

    Pools that cannot grow later are sized for CGROUP_THREADS_MAX_CORES, of which each worker gets its share. No pool
    gets more threads than there is room for.
    """
    most = MAX_COUNT if plan.ceiling is None else plan.ceiling
    cores = min(most, max(1, plan.usable // plan.workers))
    ceiling = min(most, (settings.max_cores or 1) // plan.workers)
    return Counts(
        threads=plan.threads,
        interop=plan.interop,
        cores=cores,
        thread_ceiling=max(plan.threads, ceiling),
        core_ceiling=max(cores, ceiling),
        spin=plan.quota_binds,
        limit=max(plan.usable, settings.max_cores or 1) if settings.omp_limit else None,
    )


def with_environment(plan: ThreadPlan, settings: Settings) -> ThreadPlan:
    """``plan`` with its ``environment`` filled."""
    return plan._replace(environment=clean_environment(count(plan, settings)))


def decide(
    limits: CpuLimits, settings: Settings, workers: int | None = None, concurrency: int | None = None
) -> ThreadPlan:
    """Decide the plan without its environment (see ``plan`` for the whole).

    The cap at physical cores follows the mask, never the quota: a quota is CPU time, and halving it for SMT would
    waste it. Raises InvalidThreadsError for ``workers`` or ``concurrency`` below 1.
    """
    shares = check_threads(workers, "workers") if workers is not None else settings.workers or 1
    calls = check_threads(concurrency, "concurrency") if concurrency is not None else 1
    usable = limits.usable(settings.rounding)
    threads, bound_by = usable, str(limits.bound_by)
    if limits.override is None and not settings.smt and limits.physical_cores < threads:
        threads, bound_by = limits.physical_cores, "physical cores"
    for divisor, name in ((shares, "workers"), (calls, "concurrency")):
        if divisor > 1 and threads > 1:
            threads, bound_by = max(1, threads // divisor), name
    notices, ceiling = _notices(limits, settings, usable), None
    if limits.tasks or limits.address_space is not None:
        from .rooms import find_rooms, judge_rooms

        rooms = find_rooms(limits, shares)
        notices += judge_rooms(rooms, threads)
        ceiling = rooms[0].threads
        if ceiling < threads:
            threads, bound_by = ceiling, rooms[0].bound_by
    return ThreadPlan(
        threads=threads,
        interop=1,
        usable=usable,
        workers=shares,
        concurrency=calls,
        bound_by=bound_by,
        quota_binds=limits.quota is not None and limits.quota < limits.width,
        environment={},
        notices=notices,
        ceiling=ceiling,
    )


def _notices(limits: CpuLimits, settings: Settings, usable: int) -> tuple[Notice, ...]:
    found: list[Notice] = []
    if limits.override is not None and limits.quota is not None and limits.override > limits.quota:
        found.append(
            Notice(
                "override-above-quota",
                f"CGROUP_THREADS_CORES={limits.override:g} is above the quota of {limits.quota:g} cores",
                "warning",
                "lower or unset CGROUP_THREADS_CORES: threads above the quota are throttled",
            )
        )
    if settings.max_cores is not None and settings.max_cores < usable:
        found.append(
            Notice(
                "max-cores-below-usable",
                f"CGROUP_THREADS_MAX_CORES={settings.max_cores} is below the {usable} usable cores and has no effect",
                "warning",
                "raise or unset CGROUP_THREADS_MAX_CORES",
            )
        )
    return tuple(found)
