"""Gather what a report is made from. Reads the process and /proc; changes nothing, loads no library, starts no pool."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from .. import __version__
from ..detection import detect
from ..detection.records import CpuLimits
from ..environment import Applied, ours_and_users
from ..errors import first_line
from ..notices import Notice
from ..planning import ThreadPlan, plan
from ..pools import describe, forking
from ..pools.maps import NATIVE_MODULES
from ..pools.records import PoolState
from ..precedence import Decision, KeptVariable, settle
from ..state import process
from ..variables import VARIABLES
from .counters import Throttling, binding_level, read_pressure, read_threads, read_throttling, throttling_between
from .judge import POOL_VARIABLES, pool_kind
from .records import CounterSample, Evidence, Origin, VariableState
from .since import read_counters

if TYPE_CHECKING:
    from ..governor.hidden import HiddenLimit
    from ..governor.statistics import Statistics

T = TypeVar("T")
MAX_INTERVAL: Final = 3600.0


class _Guard:
    """Turns whatever fails while collecting into a notice: a report never raises."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def __call__(self, what: str, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except Exception as error:  # noqa: BLE001  # a library's own readback may raise anything
            message = f"{what} could not be read: {type(error).__name__}: {first_line(error)}"
            self.notices.append(Notice("report-incomplete", message, "warning"))
            return default


def collect(interval: float = 0.0) -> Evidence:
    """Collect the evidence; with ``interval`` the throttling counters are those of the next ``interval`` seconds."""
    guard = _Guard()
    limits = detect()
    # What was applied at import may be older than a resize: the report tells today's plan.
    today = plan(limits)
    applied = process.applied
    ours, user = ours_and_users()
    nothing = Decision({}, (), ())
    no_pools: tuple[PoolState, ...] = ()
    decision = guard("variables", lambda: _decide(today, user, limits), nothing)
    throttling = guard("throttling", lambda: _sample(limits, interval), None)
    no_budget: tuple[Statistics | None, HiddenLimit | None, int | None] = (None, None, None)
    budget, hidden, cap = guard("core budget", _budget, no_budget)
    no_counters: CounterSample | None = None
    return Evidence(
        version=__version__,
        pid=os.getpid(),
        python=platform.python_version(),
        limits=limits,
        plan=today,
        settings=process.settings,
        variables=guard("variables", lambda: _variables(ours, user, decision.kept, applied), ()),
        pools=guard("pools", describe, no_pools),
        threads=guard("threads", read_threads, ()),
        python_threads=threading.active_count(),
        throttling=throttling,
        interval=interval,
        pressure=guard("CPU pressure", lambda: read_pressure(limits.levels[0] if limits.levels else None), None),
        address_space=guard("RLIMIT_AS", _address_space, None),
        start_method=guard("start method", _start_method, ""),
        fork_guarded=forking.registered(),
        modules=tuple(name for name in NATIVE_MODULES if sys.modules.get(name) is not None),
        other_counts=guard("joblib", _other_counts, ()),
        budget=budget,
        hidden=hidden,
        hidden_cap=cap,
        counters=guard("counters", lambda: read_counters(limits), no_counters),
        notices=(*limits.notices, *today.notices, *decision.notices, *process.notices, *guard.notices),
    )


def _decide(today: ThreadPlan, user: dict[str, str], limits: CpuLimits) -> Decision:
    return settle(today, user, process.settings, host_cpus=limits.host_cpus, affinity=limits.affinity)


def _sample(limits: CpuLimits, interval: float) -> Throttling | None:
    level = binding_level(limits.levels)
    before = None if level is None else read_throttling(level.path)
    if level is None or before is None or interval <= 0:
        return before
    time.sleep(min(interval, MAX_INTERVAL))
    return throttling_between(before, read_throttling(level.path))


def _variables(
    held: dict[str, str], user: dict[str, str], kept: tuple[KeptVariable, ...], applied: Applied | None
) -> tuple[VariableState, ...]:
    records = {record.name: record for record in kept}
    late = _late_variables(applied)
    states = []
    for variable in VARIABLES:
        name = variable.name
        asked, now = user.get(name), os.environ.get(name)
        if asked is None and now is None:
            continue
        ours = name in held
        origin: Origin = "computed" if ours else "user" if now is not None else "unset"
        effective = now
        record = records.get(name)
        if record is not None and not ours and now == asked:
            effective = None if record.state == "malformed" else now
            if record.threads is not None:
                effective = str(record.threads)
        states.append(VariableState(name, asked, effective, origin, ours and name in late))
    return tuple(states)


def _late_variables(applied: Applied | None) -> set[str]:
    """Variables that a library loaded before us had read already."""
    if applied is None:
        return set()
    return {name for library in applied.late for name in POOL_VARIABLES.get(pool_kind(library), ())}


def _address_space() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _start_method() -> str:
    """multiprocessing's start method; asking must neither import it nor fix it."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return ""
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen is None:
        forks = sys.platform.startswith("linux") and sys.version_info < (3, 14)
        chosen = "fork" if forks else ""
    return str(chosen)


def _budget() -> tuple[Statistics | None, HiddenLimit | None, int | None]:
    """The core budget; what its leases got, if less than they stand for, and the cap that follows it.

    A report makes no budget, and where there is none it need not load what one needs.
    """
    if process.budget is None:
        return None, None, None
    from ..governor.core_budget import core_budget

    core = core_budget()
    core.sampler.sample(time.monotonic(), core)
    return core.statistics(), core.sampler.found, core.sampler.following.cap


def _other_counts() -> tuple[tuple[str, int], ...]:
    """What joblib, if it is imported, takes the machine for."""
    joblib = sys.modules.get("joblib")
    return () if joblib is None else (("joblib", int(joblib.cpu_count())),)
