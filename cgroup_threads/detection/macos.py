"""What macOS says. It has neither masks nor quotas; Apple silicon mixes performance and efficiency cores.

Sources: ``sysctl hw.logicalcpu``, ``hw.physicalcpu`` and ``hw.perflevel0.*`` (performance cores), see sysctl(3).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..notices import Notice
from .records import Observation, Topology

Sysctl = Callable[[str], int | None]


def observe(sysctl: Sysctl | None = None, cpu_count: Callable[[], int | None] = os.cpu_count) -> Observation:
    """Count CPUs and cores; never raises. ``sysctl`` gives the value of a name or None, and stands in for the system's.

    Compute pools are best held to the performance cores (a parallel region waits for its slowest thread), so these
    are the physical cores told; all logical CPUs remain usable.
    """
    ask = sysctl or _sysctl
    logical = ask("hw.logicalcpu") or cpu_count() or 1
    fast = ask("hw.perflevel0.logicalcpu")
    fast_cores = ask("hw.perflevel0.physicalcpu") or fast
    physical = ask("hw.physicalcpu") or logical
    cpus = frozenset(range(max(1, logical)))
    mixed = fast is not None and fast_cores is not None and 0 < fast < logical
    notices: tuple[Notice, ...] = ()
    if mixed:
        message = f"{fast} of {logical} CPUs are performance cores: compute pools get {fast_cores} threads at most"
        notices = (Notice("hybrid-cpu", message, "info", "set CGROUP_THREADS_SMT=1 to use all CPUs"),)
    topology = Topology(
        physical_cores=max(1, min(fast_cores if mixed and fast_cores else physical, logical)),
        # macOS does not number CPUs for programs; the fast ones are given the lowest numbers.
        performance_cpus=frozenset(range(fast)) if mixed and fast else frozenset(),
        performance_cores=fast_cores if mixed and fast_cores else 0,
        online=cpus,
        mask=cpus,
    )
    return Observation(cpus, "sysctl hw.logicalcpu", len(cpus), topology, status="unlimited", notices=notices)


def _sysctl(name: str) -> int | None:
    """The integer of a sysctl name, or None where there is none (or no sysctl)."""
    import ctypes

    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError, TypeError):  # not macOS
        return None
    value = ctypes.c_int64(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    # A 32-bit value fills the low half of the zeroed variable: all Macs are little-endian.
    if call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return value.value if value.value > 0 else None
