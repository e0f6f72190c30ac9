"""What a report is made from: one frozen record of everything that was looked at."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ..detection.records import CpuLimits
from ..governor.hidden import HiddenLimit
from ..governor.statistics import Statistics
from ..notices import Notice
from ..planning import ThreadPlan
from ..pools.records import PoolState
from ..settings import Settings
from .counters import Pressure, ThreadGroup, Throttling

Origin = Literal["user", "computed", "unset"]


class VariableState(NamedTuple):
    """One thread variable: ``asked`` is the user's text (None if unset), ``effective`` what libraries make of it.

    For a list the effective text is its first number, under OMP_THREAD_LIMIT the smaller one, and None where no
    library can read it. ``origin`` says who decided: "user", "computed" or "unset" (removed since). ``late`` says that
    a library had read the variable before it was set.
    """

    name: str
    asked: str | None
    effective: str | None
    origin: Origin
    late: bool = False


class PressureCounter(NamedTuple):
    """For how many seconds some thread has waited for a CPU, as counted in ``file``.

    ``cgroup`` is device and inode of the group, empty for the whole machine.
    """

    file: str
    cgroup: str
    seconds: float


class CounterSample(NamedTuple):
    """Raw counters at one moment and whose they are, so that a later look can tell what came in between.

    ``boot`` is the kernel's boot id, ``uptime_s`` its clock, ``cgroup`` device and inode of the group whose quota
    binds: the one that ``throttling`` is of.
    """

    boot: str
    uptime_s: float
    cgroup: str
    throttling: Throttling | None
    pressure: PressureCounter | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        throttling = None if self.throttling is None else self.throttling._asdict()
        pressure = None if self.pressure is None else self.pressure._asdict()
        return {**self._asdict(), "throttling": throttling, "pressure": pressure}


class Evidence(NamedTuple):
    """Everything a report says something about. Nothing in it changes after it was collected.

    ``throttling`` covers ``interval`` seconds, or the whole life of the cgroup where that is 0. ``address_space`` is
    RLIMIT_AS in bytes, None without a limit. ``start_method`` is multiprocessing's, "" where it was not imported.
    ``fork_guarded`` says that pools are paused before each fork. ``modules`` are the native libraries imported so
    far; ``python_threads`` the threads that run Python. ``other_counts`` are cores as other libraries count them.
    ``budget`` is the core budget, None where nothing has leased from it.
    ``counters`` are those of the kernel when all was looked at.
    ``hidden`` says what leases got where that is less than they stand for; ``hidden_cap`` is the budget following it.
    """

    version: str
    pid: int
    python: str
    limits: CpuLimits
    plan: ThreadPlan
    settings: Settings
    variables: tuple[VariableState, ...] = ()
    pools: tuple[PoolState, ...] = ()
    threads: tuple[ThreadGroup, ...] = ()
    python_threads: int = 0
    throttling: Throttling | None = None
    interval: float = 0.0
    pressure: Pressure | None = None
    address_space: int | None = None
    start_method: str = ""
    fork_guarded: bool = False
    modules: tuple[str, ...] = ()
    other_counts: tuple[tuple[str, int], ...] = ()
    budget: Statistics | None = None
    hidden: HiddenLimit | None = None
    hidden_cap: int | None = None
    counters: CounterSample | None = None
    notices: tuple[Notice, ...] = ()
