"""From a sample to one verdict with its fix. Pure.

Thresholds leave room for what is healthy: a batch job has about as many runnable threads as cores, one more for a
moment costs little, and a pool twice as wide as the cores loses time at each of its barriers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from ...detection.cpulist import format_cpulist
from ...detection.throttling import is_brief
from ...notices import shown
from .mending import asked_too_much, has, mend_counts, waits_busily
from .owners import OPENMP_KINDS
from .records import Level, Sample, Thread, Verdict

OVERSUBSCRIBED: Final = 2.0  # runnable threads a core
CROWDED: Final = 1.5
THROTTLED_PROBLEM: Final = 0.25  # share of quota periods
THROTTLED_WARNING: Final = 0.1
MIN_PERIODS: Final = 10
IDLE_CPU: Final = 0.1  # cores
IDLE_CHILDREN: Final = 0.2  # cores of all child processes
_MAX_CHILDREN: Final = 4  # named
CONFINED: Final = 0.8  # share of the threads bound to one and the same CPU
SPIN_SWITCHES: Final = 100  # preemptions a second and core: a healthy thread sees a few
_BINDINGS: Final = "OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY and KMP_AFFINITY"
_STOPPED: Final = {"T": "stopped by a signal", "t": "stopped by a debugger"}


def judge(sample: Sample) -> Verdict:
    """The one thing to know about a process, worst first."""
    notes = tuple(_notes(sample))
    found = (
        _judge_stopped(sample)
        or _judge_binding(sample)
        or judge_oversubscription(sample)
        or _judge_throttling(sample)
        or _judge_health(sample)
    )
    return found._replace(notes=notes)


def count_cores(number: int) -> str:
    return "1 usable core" if number == 1 else f"{number} usable cores"


def _judge_stopped(sample: Sample) -> Verdict | None:
    why = _STOPPED.get(sample.state)
    if why is None:
        return None
    return Verdict("stopped", "warning", f"stopped: the process is {why}", f"kill -CONT {sample.pid}, then look again")


def find_confined(threads: Sequence[Thread]) -> tuple[int, int] | None:
    """The CPU that most of the threads are bound to, alone, and how many are; None if they are free."""
    single = Counter(min(t.affinity) for t in threads if t.affinity is not None and len(t.affinity) == 1)
    if len(threads) < 2 or not single:
        return None
    cpu, count = single.most_common(1)[0]
    return (cpu, count) if count >= CONFINED * len(threads) and count >= 2 else None


def _judge_binding(sample: Sample) -> Verdict | None:
    """Threads that share one CPU where the process has more."""
    busy = sample.busy
    threads = busy if len(busy) >= 2 else sample.threads
    confined = find_confined(threads)
    if confined is None:
        return None
    cpu, count = confined
    which = "busy threads" if threads is busy else "threads"
    start = f"bound to one CPU: {count} of {len(threads)} {which} may run on CPU {cpu} only"
    if sample.usable >= 2:
        if sample.binding is not None:
            value = next((text for name, text in sample.variables if name == sample.binding), "")
            cause = f"{sample.binding}={shown(value)[1:-1]}" if value else sample.binding
            fix = f"start it without {sample.binding} (new threads inherit the mask it gives the first one)"
            if sample.guessed:
                cause += f", or taskset: the other CPUs are guessed from {sample.guessed}"
                fix += "; if taskset or a parent narrowed it on purpose, all is well"
        else:
            cause = f"{_BINDINGS} are not among the variables it was started with"
            fix = "look for a binding set in its code (OMP_PROC_BIND, sched_setaffinity), and remove it"
        return Verdict("one-cpu", "problem", f"{start}, of {count_cores(sample.usable)} ({cause})", fix)
    outer = sample.limits.cpuset or sample.limits.topology.online
    if len(outer) < 2 or len(sample.limits.affinity) > 1 or not has(sample, OPENMP_KINDS):
        return None
    if sample.limits.quota is not None and sample.limits.quota < 2:  # one CPU is what it may use anyway
        return None
    level: Level = "problem" if sample.runnable >= CROWDED else "warning"
    fix = "if taskset was not meant, look for OMP_PROC_BIND set in its code, and remove it"
    return Verdict("one-cpu", level, f"{start}, its cpuset has {len(outer)} (CPUs {format_cpulist(outer)})", fix)


def _throttled_share(sample: Sample) -> float:
    """The share of quota periods in which the group was stopped for long enough to matter."""
    throttling = sample.throttling
    return 0.0 if throttling is None or is_brief(throttling, sample.limits.levels) else throttling.share


def judge_oversubscription(sample: Sample) -> Verdict | None:
    """More runnable threads than the process has cores."""
    usable, runnable = sample.usable, sample.runnable
    if sample.factor < CROWDED or runnable < usable + 0.75:
        return None
    share = _throttled_share(sample)
    many = sample.factor >= OVERSUBSCRIBED * 0.95 and runnable >= usable + 1.5
    level: Level = "problem" if many or share >= THROTTLED_PROBLEM else "warning"
    code, word = ("oversubscribed", "oversubscribed") if level == "problem" else ("crowded", "slightly oversubscribed")
    message = f"{word}: {runnable:.0f} runnable threads on {count_cores(usable)} ({sample.factor:.3g}x)"
    if share >= THROTTLED_WARNING:
        message += f", throttled in {100 * share:.0f} % of periods"
    return Verdict(code, level, message, mend_counts(sample))


def _judge_throttling(sample: Sample) -> Verdict | None:
    throttling = sample.throttling
    if throttling is None or throttling.periods < MIN_PERIODS or throttling.share < THROTTLED_WARNING:
        return None
    if is_brief(throttling, sample.limits.levels):
        return None
    quota = sample.limits.quota
    limit = f"its quota of {quota:g} cores" if quota is not None and quota != 1 else "its quota of 1 core"
    message = f"throttled: {limit} stopped the group in {100 * throttling.share:.0f} % of periods"
    message += f", {sample.runnable:.1f} threads of this process runnable"
    fix = "other processes share the quota (--all shows them): run fewer workers, or raise it"
    if sample.cpu >= 0.8 * (quota or 1.0):
        fix = "the work needs more than the quota: raise it, or do less at once"
    level: Level = "problem" if throttling.share >= THROTTLED_PROBLEM else "warning"
    return Verdict("throttled", level, message, fix)


def _judge_health(sample: Sample) -> Verdict:
    sure = "" if sample.limits.status != "unknown" else ", as far as limits could be read"
    threads = "1 thread" if sample.total == 1 else f"{sample.total} threads"
    if sample.cpu < IDLE_CPU and sample.runnable < 0.5:
        message = f"idle: {threads}, {sample.cpu:.2f} cores busy{sure}; "
        return Verdict("idle", "ok", message + (_point_to_children(sample) or "nothing to mend"))
    message = f"healthy: {sample.runnable:.1f} runnable threads on {count_cores(sample.usable)}"
    return Verdict("healthy", "ok", f"{message}, {sample.cpu:.1f} cores busy{sure}; nothing to mend")


def _point_to_children(sample: Sample) -> str:
    busy = sum(child.cpu for child in sample.children)
    if busy < IDLE_CHILDREN:
        return ""
    pids = " ".join(str(child.pid) for child in sample.children[:_MAX_CHILDREN])
    count = len(sample.children)
    who, they = ("the process", "it") if count == 1 else (f"the {count} processes", "them")
    more = " ..." if count > _MAX_CHILDREN else ""
    return f"{who} below it kept {busy:.1f} cores busy: inspect {they} ({pids}{more})"


def _notes(sample: Sample) -> Iterable[str]:
    """What is worth knowing beside the verdict."""
    for name, text in asked_too_much(sample):
        yield f"{name}={text} does not fit {count_cores(sample.usable)}"
    runtimes = [library for library in sample.libraries if library.kind in OPENMP_KINDS]
    kinds = sorted({library.kind for library in runtimes})
    if len(kinds) > 1:
        yield f"{len(kinds)} different OpenMP runtimes are mapped ({', '.join(kinds)}): each keeps threads of its own"
    elif len(runtimes) > 1:
        yield f"{len(runtimes)} copies of {kinds[0]} are mapped: each keeps threads of its own"
    busy, preempted = len(sample.busy), sample.involuntary
    if busy >= OVERSUBSCRIBED * sample.usable and preempted > max(
        SPIN_SWITCHES * max(1.0, sample.cpu), 3 * sample.voluntary
    ):
        why = "they spin at barriers" if waits_busily(sample) else "they never sleep"
        yield f"{busy} threads hold on to CPUs and are preempted {preempted:.0f} times a second: {why}"
    share = _throttled_share(sample)
    if sample.runnable >= 0.8 and sample.cpu < 0.5 * min(sample.runnable, sample.usable) and share < THROTTLED_WARNING:
        could = min(sample.runnable, sample.usable)
        yield f"it got {sample.cpu:.1f} of {could:.1f} cores it could have used: other processes have the CPUs (--all)"
    if sample.binding is not None:
        yield f"{sample.binding} binds threads to CPUs: threads and children started later inherit the first one's"
