"""A report as text: one screen, the answer first. Pure."""

from __future__ import annotations

import os.path
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from ..detection.cpulist import format_cpulist
from ..detection.records import CgroupLevel, CpuLimits
from ..errors import first_line
from ..notices import Level, Notice, shown
from ..pools.records import PoolState
from .counters import Throttling
from .records import Evidence, VariableState

WIDTH: Final = 100
MAX_LEVELS: Final = 6
MAX_GROUPS: Final = 6
MAX_NOTICES: Final = 12
MAX_TEXT: Final = 500  # characters of a foreign path or message
MAX_VALUE: Final = 24
_ROUNDED: Final = {"floor": ", rounded down", "ceil": ", rounded up", "round": ", rounded to the nearest"}
_ORIGINS: Final = {"user": "kept", "computed": "set", "unset": "unset"}


def render(evidence: Evidence, findings: Sequence[Notice]) -> str:
    """The text of a report. A section that fails says so, and the others stand."""
    levels: tuple[tuple[str, Level], ...] = (("Problems", "problem"), ("Warnings", "warning"), ("Notes", "info"))
    sections = [
        _section("Answer", lambda: _answer(evidence)),
        _section("Constraints", lambda: _constraints(evidence)),
        _section("Variables", lambda: _variables(evidence.variables)),
        _section("Pools", lambda: _pools(evidence)),
        *(_findings(title, [notice for notice in findings if notice.level == level]) for title, level in levels),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _section(title: str, make: Callable[[], list[str]]) -> list[str]:
    try:
        return make()
    except Exception as error:  # noqa: BLE001  # evidence comes from libraries and may be anything
        return [title, *_wrap(f"could not be shown: {type(error).__name__}: {first_line(error)}", "  ")]


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _answer(evidence: Evidence) -> list[str]:
    limits, plan = evidence.limits, evidence.plan
    line = f"{_plural(plan.usable, 'usable core')}, bound by {limits.bound_by}{_why(evidence)}"
    threads = f"{_plural(plan.threads, 'thread')} a pool"
    if plan.bound_by != limits.bound_by:
        threads += f", bound by {plan.bound_by}"
    if plan.workers > 1:
        threads += f" ({_plural(plan.workers, 'worker')}, {evidence.settings.workers_source or 'as asked'})"
    about = f"cgroup_threads {evidence.version}, Python {evidence.python}, process {evidence.pid}"
    return [line, threads, about]


def _why(evidence: Evidence) -> str:
    """The numbers behind the winner, so that one line answers "why not more?"."""
    limits = evidence.limits
    if limits.bound_by == "override":
        return f" (CGROUP_THREADS_CORES={limits.override:g})"
    if limits.bound_by == "quota" and limits.quota is not None:
        rounded = _ROUNDED[evidence.settings.rounding] if limits.quota % 1 else ""
        return f" ({_cores(limits.quota)}{rounded})"
    if limits.bound_by in ("affinity", "cpuset"):
        return f" ({limits.width} of {_plural(limits.host_cpus, 'host CPU')})"
    if limits.bound_by == "host":
        rest = "the quota is unknown" if limits.status == "unknown" else "no smaller limit"
        return f" ({_plural(limits.host_cpus, 'CPU')}, {rest})"
    if limits.bound_by == "scheduler" and limits.scheduler is not None:
        return f" ({limits.scheduler.scheduler})"
    return ""


def _cores(quota: float | None) -> str:
    return "no limit" if quota is None else "1 core" if quota == 1 else f"{quota:g} cores"


def _constraints(evidence: Evidence) -> list[str]:
    limits = evidence.limits
    rows: list[tuple[str, str, str]] = [*_quota_rows(limits)]
    rows.append(("affinity", _plural(len(limits.affinity), "CPU"), _cpus(limits.affinity, limits.affinity_source)))
    if limits.cpuset is not None:
        rows.append(("cpuset", _plural(len(limits.cpuset), "CPU"), _cpus(limits.cpuset, "cpuset cgroup")))
    if limits.scheduler is not None:
        grant = limits.scheduler
        rows.append(("scheduler", _cores(grant.cores), f"{grant.scheduler}, {grant.variable}={shown(grant.raw)}"))
    if limits.override is not None:
        rows.append(("override", _cores(limits.override), "CGROUP_THREADS_CORES"))
    physical = f"{_plural(limits.physical_cores, 'physical core')} in the affinity mask"
    rows += [("tasks", f"{task.limit} {task.name}", f"{task.used} used ({_path(task.file)})") for task in limits.tasks]
    rows.append(("host", _plural(limits.host_cpus, "CPU"), physical))
    if evidence.throttling is not None and evidence.limits.status == "limited":
        rows.append(("throttled", *_throttling(evidence.throttling, evidence.interval)))
    if evidence.budget is not None:
        rows.append(("budget", _cores(evidence.budget.cores), str(evidence.budget)))
    return ["Constraints", *_columns(rows)]


def _quota_rows(limits: CpuLimits) -> list[tuple[str, str, str]]:
    if not limits.levels:
        return [("quota", "unknown" if limits.status == "unknown" else "no limit", "no cgroup is visible")]
    kept = list(limits.levels)
    left_out = len(kept) - MAX_LEVELS
    if left_out > 0:  # the own group, every level that limits, and the nearest others
        order = sorted(range(len(kept)), key=lambda i: (i != 0, kept[i].quota is None, i))[:MAX_LEVELS]
        kept = [kept[i] for i in sorted(order)]
    rows = []
    for index, level in enumerate(kept):
        amount = "unknown" if level.quota is None and limits.status == "unknown" else _cores(level.quota)
        rows.append(("quota" if index == 0 else "", amount, _level(level)))
    if left_out > 0:
        rows.append(("", "", f"and {_plural(left_out, 'more level')} without a smaller quota"))
    return rows


def _level(level: CgroupLevel) -> str:
    raw = "is not there" if level.raw is None else f"is {shown(level.raw)}"
    if level.version == 1 and level.raw is not None and " " in level.raw:
        quota, _, period = level.raw.partition(" ")  # v1 has a file for each
        raw = f"is {shown(quota)}, period {shown(period)}"
    return f"cgroup v{level.version} {_path(level.file)} {raw}"


def _path(path: str) -> str:
    """A path on one line; foreign names may hold anything."""
    return path if _plain(path) and len(path) <= MAX_TEXT else shown(path, MAX_TEXT)


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _cpus(cpus: Iterable[int], source: str) -> str:
    return f"{shown(format_cpulist(cpus), 80)[1:-1]} ({source})"


def _throttling(throttling: Throttling, interval: float) -> tuple[str, str]:
    window = f"in {interval:g} s" if interval else "so far"
    counted = f"of {throttling.periods} periods {window}, {throttling.seconds:.1f} s stopped"
    return f"{100 * throttling.share:.0f} %", f"{counted}; {_path(throttling.file)}"


def _columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows with all but the last cell padded to the widest of their column."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append((indent + "  ".join([*cells, row[-1]])).rstrip())
    return lines


def _variables(variables: Sequence[VariableState]) -> list[str]:
    """Variables with equal values on one line: their names are longer than their story."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for state in variables:
        if state.asked is None and state.effective is None:
            continue
        asked = "-" if state.asked is None else _value(state.asked)
        nothing = "invalid" if state.origin == "user" else "-"
        effective = nothing if state.effective is None else _value(state.effective)
        origin = _ORIGINS[state.origin]
        groups.setdefault((asked, effective, f"{origin}, late" if state.late else origin), []).append(state.name)
    if not groups:
        return ["Variables", "  no thread variable is set"]
    head = ("asked", "effective", "")
    widths = [max(len(row[column]) for row in (head, *groups)) for column in range(3)]
    lines = [
        "Variables",
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)).rstrip(),
    ]
    for group, names in groups.items():
        prefix = "  " + "  ".join(cell.ljust(width) for cell, width in zip(group, widths, strict=True)) + "  "
        lines += textwrap.wrap(
            ", ".join(names),
            WIDTH,
            initial_indent=prefix,
            subsequent_indent=" " * len(prefix),
            break_long_words=False,
        )
    return lines


def _value(text: str) -> str:
    """A variable's text; in quotes where it is not a plain word."""
    return text if text and _plain(text) and " " not in text and len(text) <= MAX_VALUE else shown(text, MAX_VALUE)


def _pools(evidence: Evidence) -> list[str]:
    rows: list[tuple[str, str, str, str]] = []
    for pool in evidence.pools:
        threads = "unknown" if pool.threads is None else str(pool.threads)
        rows.append((_pool_name(pool), threads, _scope(pool), _pool_detail(pool)))
    lines = ["Pools"]
    if rows:
        lines += _columns([("", "threads", "scope", ""), *rows])
    elif any(notice.code == "pools-unseen" for notice in evidence.notices):
        lines.append("  unknown: which libraries are loaded could not be read")
    else:
        lines.append("  no native library with a thread pool is loaded in this process")
        lines.append("  (in yours, print(cgroup_threads.report()) shows them)")
    if evidence.threads:
        total = sum(group.threads for group in evidence.threads)
        running = sum(group.running for group in evidence.threads)
        names = [f"{shown(group.name, 20)[1:-1]} x {group.threads}" for group in evidence.threads[:MAX_GROUPS]]
        if len(evidence.threads) > MAX_GROUPS:
            names.append(f"{len(evidence.threads) - MAX_GROUPS} other names")
        about = f"{evidence.python_threads} run Python, {running} runnable now"
        lines.append(f"  {_plural(total, 'native thread')} ({about}): {', '.join(names)}")
    return lines


def _pool_name(pool: PoolState) -> str:
    return " ".join(shown(part, 40)[1:-1] for part in (pool.name, pool.version) if part)


def _scope(pool: PoolState) -> str:
    return "process, shared pool" if pool.scope == "process" else "calling thread"


def _pool_detail(pool: PoolState) -> str:
    """The library's file (of a Python module its name says enough) and the detail, without what the scope says."""
    file = "" if pool.path.endswith(".py") else os.path.basename(pool.path)
    parts = [part.strip() for part in pool.detail.split(";")]
    parts = [
        part for part in parts if not re.search(r"\b(for the process|has its own count|of the calling thread)$", part)
    ]
    return ", ".join(shown(part, 60)[1:-1] for part in (file, *parts) if part)


def _findings(title: str, notices: Sequence[Notice]) -> list[str]:
    if not notices:
        return []
    lines = [title]
    for fix, group in groupby(notices[:MAX_NOTICES], key=lambda notice: notice.fix):
        messages = [notice.message for notice in group]
        for message in messages:
            lines += _wrap(message, "  - ")
        if fix:
            lines += _wrap(fix, "    fix: " if len(messages) == 1 else f"    fix for these {len(messages)}: ")
    if len(notices) > MAX_NOTICES:
        lines.append(f"  and {len(notices) - MAX_NOTICES} more (--json has all)")
    return lines


def _wrap(text: str, prefix: str) -> list[str]:
    line = text if _plain(text) and len(text) <= MAX_TEXT else shown(text, MAX_TEXT)[1:-1]
    return textwrap.wrap(line, WIDTH, initial_indent=prefix, subsequent_indent=" " * len(prefix)) or [prefix]
