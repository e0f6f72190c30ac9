"""Metrics for Prometheus: limits, throttling, CPU pressure, leases and oversubscription, read as they are scraped.

What cannot be read is left out: a 0 is a measured one. A scrape never raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from ..detection import detect
from ..detection.records import CpuLimits
from ..errors import MissingExtraError, first_line
from ..notices import Notice
from ..reporting.counters import binding_level, read_throttling
from ..reporting.since import read_pressure_counter
from ..state import process
from .prometheus_activity import RunnableThreads, read_activity
from .prometheus_workers import Total, add, share_counts

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.registry import Collector as _Collector
else:
    _Collector = object  # the library is optional, and asks for no base class

__all__ = ["CgroupThreadsCollector", "register"]

_REGISTRIES: Final = "prometheus-registries"
# The second spelling is the library's older one.
_DIRECTORIES: Final = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class Family(NamedTuple):
    """One metric: its name without the suffix of its kind, and what it says."""

    name: str
    kind: Literal["gauge", "counter", "info"]
    help: str
    labels: tuple[str, ...] = ()


_P: Final = "cgroup_threads_"
FAMILIES: Final = (
    Family(_P + "usable_cores", "gauge", "Cores that this container may keep busy."),
    Family(_P + "quota_cores", "gauge", "CPU quota of the cgroup in cores; absent without one."),
    Family(_P + "affinity_cpus", "gauge", "CPUs in the affinity mask."),
    Family(_P + "limits", "info", "Which constraint won, and whether a quota is known.", ("bound_by", "status")),
    Family(_P + "cgroup_periods", "counter", "Quota periods in which the limiting cgroup wanted to run."),
    Family(_P + "cgroup_throttled_periods", "counter", "Quota periods that ended with the cgroup stopped."),
    Family(_P + "cgroup_throttled_seconds", "counter", "Time that the quota stopped the cgroup, summed over CPUs."),
    Family(
        _P + "cpu_pressure_seconds",
        "counter",
        "Time in which some thread waited for a CPU (PSI), in the cgroup or on the machine.",
        ("source",),
    ),
    Family(_P + "budget_cores", "gauge", "Cores that leases share; absent before the first lease.", ("scope",)),
    Family(_P + "leases_active", "gauge", "Calls that hold a lease."),
    Family(_P + "leases_waiting", "gauge", "Calls that wait for a lease."),
    Family(_P + "leased_cores", "gauge", "Cores of all leases."),
    Family(_P + "leases", "counter", "Leases granted."),
    Family(_P + "lease_waits", "counter", "Leases that were granted after a wait."),
    Family(_P + "lease_wait_seconds", "counter", "Time that granted leases had waited."),
    Family(_P + "lease_overcommits", "counter", "Leases above the budget, out of expired patience."),
    Family(_P + "lease_core_seconds", "counter", "Cores times seconds of leases that have ended."),
    Family(_P + "runnable_threads", "gauge", "Threads that run or wait for a CPU."),
    Family(_P + "oversubscription_ratio", "gauge", "Runnable threads over usable cores; above 1 they take turns."),
    Family(_P + "processes", "gauge", "Processes whose leases and threads are counted here."),
)

# Name without prefix, values of the labels, value.
_Value = tuple[str, tuple[str, ...], float]


class CgroupThreadsCollector(_Collector):
    """A collector for a registry of prometheus_client.

    With PROMETHEUS_MULTIPROC_DIR set, what belongs to a process (leases, threads) is the sum over all processes that
    have made a collector; the rest belongs to the container, and any process can say it. Raises MissingExtraError
    without prometheus-client.
    """

    def __init__(self) -> None:
        _require()
        self._directory = _find_directory()
        self._runnable = RunnableThreads()
        if self._directory:
            share_counts(self._directory)

    def describe(self) -> Iterator[Metric]:
        """All metrics without values: a registry asks when the collector is added."""
        for family in FAMILIES:
            yield _make(family)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        limits = _guard("limits", detect)
        values: list[_Value] = []
        if limits is not None:
            values += _guard("limits", lambda: _limits(limits)) or ()
            values += _guard("throttling", lambda: _throttling(limits)) or ()
            values += _guard("CPU pressure", lambda: _pressure(limits)) or ()
        usable = next((value for name, _, value in values if name == "usable_cores"), None)
        total = _guard("leases", self._total)
        if total is not None:
            values += _activity(total, usable)
        for family in FAMILIES:
            found = [(labels, value) for name, labels, value in values if _P + name == family.name]
            if found:
                yield _make(family, found)

    def _total(self) -> Total | None:
        if not self._directory:
            return add([(read_activity(self._runnable.count()), True)])
        return share_counts(self._directory).total()


def register(registry: CollectorRegistry | None = None) -> CgroupThreadsCollector:
    """Add the metrics to ``registry`` (default: prometheus_client's own) and return their collector.

    A second call for the same registry changes nothing. In worker processes call it as the application is loaded, with
    or without PROMETHEUS_MULTIPROC_DIR: not only where the metrics are asked for. Raises MissingExtraError without
    prometheus-client, and ValueError where another collector has metrics of these names.
    """
    _require()
    from prometheus_client import REGISTRY

    target = REGISTRY if registry is None else registry
    with process.lock:
        known: WeakKeyDictionary[CollectorRegistry, CgroupThreadsCollector]
        known = process.hooks.setdefault(_REGISTRIES, WeakKeyDictionary())  # type: ignore[assignment]
        before = known.get(target)
        collector = CgroupThreadsCollector() if before is None else before
        try:
            target.register(collector)
        except ValueError:
            if before is None:
                raise
            return before  # it is there; had it been taken out, it would be back now
        known[target] = collector
    return collector


def _find_directory() -> str:
    """Where processes share their numbers, "" for nowhere; absolute, as the working directory may change later."""
    directory = next((os.environ[name] for name in _DIRECTORIES if os.environ.get(name)), "")
    try:
        return os.path.abspath(directory) if directory else ""
    except OSError:  # the working directory was deleted
        return directory


def _require() -> None:
    try:
        import prometheus_client  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise MissingExtraError("prometheus-client", "prometheus") from error


def _guard(what: str, read: Callable[[], Any]) -> Any:
    """What ``read`` returns; None, and a notice in the report, if it fails: a scrape has all the rest."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a scrape must not fail for one of its parts
        message = f"metrics: {what} could not be read: {type(error).__name__}: {first_line(error)}"
        process.note(Notice("report-incomplete", message, "warning"))
        return None


def _make(family: Family, found: list[tuple[tuple[str, ...], float]] | None = None) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    if family.kind == "info":
        info = InfoMetricFamily(family.name, family.help)
        for labels, _ in found or ():
            info.add_metric((), dict(zip(family.labels, labels, strict=True)))
        return info
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.kind == "counter":
        metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    else:
        metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in found or ():
        metric.add_metric(labels, value)
    return metric


def _limits(limits: CpuLimits) -> list[_Value]:
    values: list[_Value] = [
        ("usable_cores", (), limits.usable(process.settings.rounding)),
        ("affinity_cpus", (), len(limits.affinity)),
        ("limits", (limits.bound_by, limits.status), 1.0),
    ]
    if limits.quota is not None:
        values.append(("quota_cores", (), limits.quota))
    return values


def _throttling(limits: CpuLimits) -> list[_Value]:
    level = binding_level(limits.levels)
    found = None if level is None else read_throttling(level.path)
    if found is None:
        return []
    return [
        ("cgroup_periods", (), found.periods),
        ("cgroup_throttled_periods", (), found.throttled),
        ("cgroup_throttled_seconds", (), found.seconds),
    ]


def _pressure(limits: CpuLimits) -> list[_Value]:
    found = read_pressure_counter(limits.levels)
    if found is None:
        return []
    return [("cpu_pressure_seconds", ("machine" if found.file.startswith("/proc/") else "cgroup",), found.seconds)]


def _activity(total: Total, usable: float | None) -> list[_Value]:
    sums = total.sums
    values: list[_Value] = [
        ("leases_active", (), sums.active),
        ("leases_waiting", (), sums.waiting),
        ("leased_cores", (), sums.leased),
        ("leases", (), sums.granted),
        ("lease_waits", (), sums.waits),
        ("lease_wait_seconds", (), sums.wait_s),
        ("lease_overcommits", (), sums.overcommitted),
        ("lease_core_seconds", (), sums.core_seconds),
        ("processes", (), total.alive),
    ]
    values += [("budget_cores", (scope,), cores) for scope, cores in total.budgets.items()]
    if sums.runnable is not None:
        values.append(("runnable_threads", (), sums.runnable))
        if usable:
            values.append(("oversubscription_ratio", (), sums.runnable / usable))
    return values
