"""Does something limit our CPU time that no file here shows? Pure: counters in, an estimate out.

A quota above our namespace stands in no file we can read, and our own cpu.stat does not count its stops. What shows is
that threads wait for a CPU while leases are held and the visible limits have room. A busy neighbour does that too.
They differ in one thing: the kernel leaves no CPU idle while a thread that may run there waits, unless a quota stops
that thread. So the idle time a neighbour can leave is bounded by the time in which none of our threads waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from ..detection.throttling import Throttling, throttling_between
from ..notices import Notice

Kind = Literal["hidden limit", "busy neighbour", "unclear"]

MIN_LEASED: Final = 0.5  # leased cores on average; below it the window says nothing about leases
MIN_SHARE: Final = 0.25  # of the time in which threads were runnable, spent waiting
ENOUGH: Final = 0.9  # of what leases may use: whoever got that has no cause to complain
MIN_SHORT: Final = 0.1  # cores
MAX_THROTTLED: Final = 0.02  # of periods: above it, the visible quota explains the waiting
CONSECUTIVE: Final = 3
WINDOW: Final = 10  # samples an estimate is made from
LONG_WAIT_S: Final = 0.02  # longer than time slices; a quota's stop lasts to the end of its period
BUSY_THREAD: Final = 0.02  # of the time runnable; a thread below it competes with nobody
OVERSUBSCRIBED: Final = 1.2
_HUGE: Final = 1e15
_MAX_SHARE: Final = 0.999


class ThreadTimes(NamedTuple):
    """A thread's schedstat: seconds it ran and waited for a CPU, and how often it was put on one."""

    run_s: float
    delay_s: float
    waits: int


class Look(NamedTuple):
    """Counters at one moment. ``idle_s`` is None where it cannot be known; ``leased_s`` are core seconds."""

    at_s: float
    cpu_s: float
    threads: Mapping[int, ThreadTimes]
    idle_s: float | None
    cpus: frozenset[int]
    throttling: tuple[Throttling, ...]
    leased_s: float
    budget: int


class Sample(NamedTuple):
    """What happened between two looks, ``wall_s`` apart. Seconds are sums over threads or CPUs.

    ``cpu_s`` is the whole process's; ``run_s`` and ``delay_s`` those of the threads that were there at the end.
    ``longest_s`` is what the thread ``longest`` waited, more than any other, in ``waits`` waits. ``threads`` were
    runnable for more than a moment. ``width`` are the CPUs we may use, ``idle_s`` what was idle of them. ``throttled``
    is the share of periods in which a visible quota stopped us.
    """

    at_s: float
    wall_s: float
    cpu_s: float
    run_s: float
    delay_s: float
    longest_s: float
    longest: int
    waits: int
    threads: int
    idle_s: float | None
    width: int
    budget: int
    leased_s: float
    throttled: float = 0.0


class HiddenLimit(NamedTuple):
    """The process got less CPU time than its leases may use, and no visible limit says why.

    ``cores`` is what it got and ``wanted`` what it would have used, of a ``budget``; ``delay_share`` the part of the
    time it wanted to run that it waited. ``kind`` is the cause, "unclear" where it cannot be told. ``why`` has the
    numbers in one line.
    """

    cores: float
    wanted: float
    budget: int
    delay_share: float
    kind: Kind
    why: str


def difference(before: Look, after: Look) -> Sample | None:
    """What happened between two looks; None if no time did. Threads that have ended are left out, but for their CPU
    time; a thread id that counts less than before is a new thread."""
    wall = after.at_s - before.at_s
    if not 0 < wall < _HUGE:
        return None
    run = delay = longest_s = 0.0
    longest = waits = busy = 0
    nothing = ThreadTimes(0.0, 0.0, 0)
    for tid, now in after.threads.items():
        then = before.threads.get(tid, nothing)
        if now.run_s < then.run_s or now.delay_s < then.delay_s:
            then = nothing
        ran, waited = now.run_s - then.run_s, now.delay_s - then.delay_s
        run += ran
        delay += waited
        busy += ran + waited > BUSY_THREAD * wall
        if waited > longest_s:
            longest_s, longest, waits = waited, tid, now.waits - then.waits
    idle = None
    if before.idle_s is not None and after.idle_s is not None and before.cpus == after.cpus:
        idle = max(0.0, after.idle_s - before.idle_s)
    return Sample(
        at_s=after.at_s,
        wall_s=wall,
        cpu_s=max(0.0, after.cpu_s - before.cpu_s),
        run_s=run,
        delay_s=delay,
        longest_s=longest_s,
        longest=longest,
        waits=waits,
        threads=busy,
        idle_s=idle,
        width=len(after.cpus),
        budget=after.budget,
        leased_s=max(0.0, after.leased_s - before.leased_s),
        throttled=_throttled(before.throttling, after.throttling),
    )


def _throttled(before: Sequence[Throttling], after: Sequence[Throttling]) -> float:
    files = {counters.file: counters for counters in before}
    pairs = (throttling_between(files.get(counters.file), counters) for counters in after)
    return max((pair.share for pair in pairs if pair is not None), default=0.0)


def says_something(sample: Sample) -> bool:
    """Whether leases were held most of the time; otherwise the sample says nothing about what they get."""
    times = (sample.cpu_s, sample.run_s, sample.delay_s, sample.longest_s, sample.leased_s)
    counts = (sample.waits, sample.threads, sample.width, sample.budget)
    sane = 0 < sample.wall_s < _HUGE and all(0 <= value < _HUGE for value in (*times, *counts))
    return sane and sample.leased_s >= MIN_LEASED * sample.wall_s


def estimate(samples: Sequence[Sample]) -> HiddenLimit | None:
    """What the latest samples under leases say; None if the process gets what its leases may use, or nobody knows.

    It takes CONSECUTIVE samples that all fall short. Never raises.
    """
    short: list[Sample] = []
    for sample in reversed(samples):
        if not says_something(sample):
            continue
        if len(short) == WINDOW or not _falls_short(sample):
            break
        short.append(sample)
    if len(short) < CONSECUTIVE:
        return None
    wall = sum(sample.wall_s for sample in short)
    got, wanted, share = _demand(short)
    budget = min(sample.budget for sample in short)
    kind, cause = _find_cause(short)
    why = (
        f"in {wall:.0f} s under leases the process got {got:.2f} of {min(wanted, budget):.2f} cores; its threads "
        f"waited {100 * share:.0f} % of the time they could have run; {cause}"
    )
    return HiddenLimit(got, wanted, budget, share, kind, why)


def _demand(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Cores got, cores wanted, and the share of waiting in the time threads could have run.

    The share is that of the threads seen, so that those that ended in between do not change it.
    """
    wall = sum(sample.wall_s for sample in samples)
    delay = sum(sample.delay_s for sample in samples)
    runnable = delay + sum(sample.run_s for sample in samples)
    share = min(delay / runnable, _MAX_SHARE) if runnable > 0 else 0.0
    got = sum(sample.cpu_s for sample in samples) / wall
    return got, got / (1 - share), share


def _falls_short(sample: Sample) -> bool:
    got, wanted, share = _demand((sample,))
    due = min(wanted, sample.budget)
    return (
        share > MIN_SHARE and got < ENOUGH * due and due - got >= MIN_SHORT and 0 <= sample.throttled <= MAX_THROTTLED
    )


def _find_cause(samples: Sequence[Sample]) -> tuple[Kind, str]:
    wall = sum(sample.wall_s for sample in samples)
    width = max(sample.width for sample in samples)
    waits = sum(sample.waits for sample in samples)
    wait_ms = 1000 * sum(sample.longest_s for sample in samples) / max(1, waits)
    times = [sample.idle_s for sample in samples if sample.idle_s is not None and 0 <= sample.idle_s < _HUGE]
    if len(times) < len(samples):
        return "unclear", f"how idle the CPUs were cannot be told; one wait took {wait_ms:.0f} ms"
    idle = sum(times) / wall
    cause = f"{idle:.2f} of {width} CPUs were idle meanwhile; one wait took {wait_ms:.0f} ms"
    if idle > _neighbours_idle(samples) / wall + max(0.1, 0.05 * width):
        return "hidden limit", cause
    full = idle < max(0.1, 0.05 * width)
    return ("busy neighbour" if full and wait_ms < 1000 * LONG_WAIT_S else "unclear"), cause


def _neighbours_idle(samples: Sequence[Sample]) -> float:
    """The most seconds that CPUs can have been idle if neighbours alone made our threads wait.

    While one of our threads waits, every CPU it may use is busy. For how long one of them did is at least what one
    thread waited, and at least the sum over as many as can have been runnable at once.
    """
    wall = sum(sample.wall_s for sample in samples)
    width = max(sample.width for sample in samples)
    _, wanted, _ = _demand(samples)
    threads = max(1, *(sample.threads for sample in samples))
    budget = max(1, *(sample.budget for sample in samples))
    together = threads if wanted > OVERSUBSCRIBED * budget else min(threads, budget)
    waited = max(sum(sample.longest_s for sample in samples), sum(sample.delay_s for sample in samples) / together)
    waited = min(waited, wall)
    cpu = sum(sample.cpu_s for sample in samples)
    inside = min(cpu, waited * min(width, threads - 1))
    return max(0.0, (wall - waited) * width - (cpu - inside))


def complain(found: HiddenLimit, cap: int | None = None) -> Notice:
    """The estimate as a finding of the report. ``cap`` is the budget that follows it, if it does."""
    cores = max(1, int(found.cores + 0.05))
    follows = "" if cap is None else f"; the budget follows: {cap}"
    if found.kind == "hidden limit":
        message = f"a CPU limit that no file here shows: about {found.cores:.1f} cores{follows} ({found.why})"
        fix = f"set CGROUP_THREADS_CORES={cores}, or ask for the quota of the group above this container"
        return Notice("hidden-limit", message, "warning", fix)
    if found.kind == "busy neighbour":
        message = (
            f"other processes keep the CPUs busy: about {found.cores:.1f} cores are left; whether a hidden limit acts "
            f"besides cannot be told ({found.why})"
        )
        fix = f"run it where CPUs are free, or set CGROUP_THREADS_CORES={cores}"
        return Notice("busy-neighbour", message, "info", fix)
    message = (
        f"calls get about {found.cores:.1f} cores; whether a hidden limit or a busy neighbour takes the rest cannot be "
        f"told ({found.why})"
    )
    fix = f"look at the host: its load, and the quota of the group above; or set CGROUP_THREADS_CORES={cores}"
    return Notice("cpu-shortfall", message, "info", fix)
