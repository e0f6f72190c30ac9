"""An inspection as text, the verdict first, and as JSON-ready values. Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any, Final

from ...detection.cpulist import format_cpulist
from ...notices import shown
from .records import Sample, Verdict

SCHEMA: Final = 1  # raised when a key changes its meaning or goes away; new keys do not raise it
WIDTH: Final = 100
MAX_THREADS: Final = 256  # listed in JSON, the busiest
MAX_ITEMS: Final = 8
_INDENT: Final = " " * 15


def render(sample: Sample, verdict: Verdict) -> str:
    """The text of an inspection; its first line is the verdict."""
    throttling = sample.throttling
    stopped = "no quota seen" if sample.limits.quota is None else "not counted in this interval"
    if throttling is not None and throttling.periods:
        stopped = f"{100 * throttling.share:.0f} % of {throttling.periods} periods, {throttling.seconds:.1f} s stopped"
    rows = [
        ("usable cores", _cores(sample)),
        ("load", f"{sample.cpu:.2f} cores busy, {sample.runnable:.1f} threads runnable ({sample.factor:.3g} a core)"),
        ("switches", f"{sample.voluntary:.0f} voluntary, {sample.involuntary:.0f} involuntary a second"),
        ("throttled", stopped),
        ("threads", f"{sample.total}: {_owners(sample)}; {len(sample.busy)} busy"),
        ("asked", ", ".join(f"{name}={shown(text)[1:-1]}" for name, text in sample.variables) or "no thread variable"),
        ("libraries", _libraries(sample)),
        ("not read", "; ".join(sample.unread)),
    ]
    lines = [f"process {sample.pid}: {verdict.line}", f"{sample.command[:WIDTH]} ({_interval(sample)})", ""]
    for name, text in rows:
        if text:
            lines += textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<13}", subsequent_indent=_INDENT)
    lines += [f"  - {note}" for note in verdict.notes]
    return "\n".join(lines)


def _interval(sample: Sample) -> str:
    return f"watched for {sample.seconds:.1f} s, {sample.looks} looks"


def _cores(sample: Sample) -> str:
    limits = sample.limits
    rounded = f" (CGROUP_THREADS_ROUNDING={sample.rounding})" if sample.rounding != "floor" else ""
    quota = {
        "limited": f"quota {limits.quota:g}{rounded}" if limits.quota is not None else "",
        "unlimited": "no quota",
        "unknown": "quota unknown, so it may be less",
    }[limits.status]
    source = f"guessed from {sample.guessed}" if sample.guessed else limits.affinity_source
    cpus = f"CPUs {format_cpulist(limits.affinity)} ({source})"
    return f"{sample.usable}, bound by {limits.bound_by}: {quota}, {cpus}"


def _owners(sample: Sample) -> str:
    counts = Counter(thread.owner for thread in sample.threads).most_common()
    text = ", ".join(f"{owner} {count}" for owner, count in counts[:MAX_ITEMS])
    return text + (f" and {len(counts) - MAX_ITEMS} more names" if len(counts) > MAX_ITEMS else "")


def _libraries(sample: Sample) -> str:
    counts = Counter(library.kind for library in sample.libraries)
    return ", ".join(f"{kind} x {count}" if count > 1 else kind for kind, count in sorted(counts.items()))


def to_dict(sample: Sample, verdict: Verdict) -> dict[str, Any]:
    """JSON-ready values."""
    limits, throttling = sample.limits, sample.throttling
    busiest = sorted(sample.threads, key=lambda thread: (-thread.runnable, -thread.cpu, thread.tid))
    return {
        "schema": SCHEMA,
        "pid": sample.pid,
        "command": sample.command,
        "verdict": {
            "code": verdict.code,
            "level": verdict.level,
            "line": verdict.line,
            "message": verdict.message,
            "fix": verdict.fix,
            "notes": list(verdict.notes),
        },
        "seconds": round(sample.seconds, 3),
        "looks": sample.looks,
        "usable_cores": sample.usable,
        "bound_by": limits.bound_by,
        "quota": limits.quota,
        "rounding": sample.rounding,
        "status": limits.status,
        "affinity": format_cpulist(limits.affinity),
        "affinity_source": limits.affinity_source,
        "affinity_guessed": bool(sample.guessed),
        "cpuset": None if limits.cpuset is None else format_cpulist(limits.cpuset),
        "cores_busy": round(sample.cpu, 3),
        "runnable": round(sample.runnable, 2),
        "oversubscription": round(sample.factor, 2),
        "voluntary_switches": round(sample.voluntary, 1),
        "involuntary_switches": round(sample.involuntary, 1),
        "throttled": None if throttling is None else {**throttling._asdict(), "share": round(throttling.share, 4)},
        "variables": dict(sample.variables),
        "binding": sample.binding,
        "libraries": [library._asdict() for library in sample.libraries],
        "threads_total": sample.total,
        "owners": dict(Counter(thread.owner for thread in sample.threads).most_common()),
        "threads": [
            {
                **thread._asdict(),
                "cpu": round(thread.cpu, 3),
                "runnable": round(thread.runnable, 3),
                "voluntary": round(thread.voluntary, 1),
                "involuntary": round(thread.involuntary, 1),
                "affinity": None if thread.affinity is None else format_cpulist(thread.affinity),
            }
            for thread in busiest[:MAX_THREADS]
        ],
        "children": [{**child._asdict(), "cpu": round(child.cpu, 3)} for child in sample.children[:MAX_THREADS]],
        "unread": list(sample.unread),
    }
