"""What Windows says: the affinity of the process and the CPU rate of its job object.

Sources: GetProcessAffinityMask, QueryInformationJobObject with JOBOBJECT_CPU_RATE_CONTROL_INFORMATION (containers and
CI runners limit CPU through a job).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ..notices import Notice
from .records import Observation, Topology

_RATE_CONTROL = 15  # JobObjectCpuRateControlInformation
_ENABLED, _WEIGHT, _HARD_CAP, _MIN_MAX = 0x1, 0x2, 0x4, 0x10  # JOB_OBJECT_CPU_RATE_CONTROL_*
_FULL_RATE = 10_000  # hundredths of a per cent of all processors


class Calls(NamedTuple):
    """The system calls used; tests give others. Each returns None where the system does not tell."""

    affinity_mask: Callable[[], int | None]
    cpu_rate: Callable[[], tuple[int, int] | None]
    """(flags, value) of the job's rate control; (0, 0) for a process in no job or a job without one."""
    cpu_count: Callable[[], int | None] = os.cpu_count


def observe(calls: Calls | None = None) -> Observation:
    """Read mask and job limit; never raises.

    The mask of a process that spans processor groups (more than 64 CPUs) is 0: all CPUs count then.
    """
    calls = calls or Calls(_affinity_mask, _cpu_rate)
    count = max(1, calls.cpu_count() or 1)
    mask = calls.affinity_mask()
    cpus = frozenset(cpu for cpu in range(64) if mask >> cpu & 1) if mask else frozenset(range(count))
    notices: list[Notice] = []
    rate = calls.cpu_rate()
    quota = None if rate is None else _as_cores(*rate, max(count, len(cpus)))
    if rate is None:
        message = "the job object was not read: CPU rate limits are not seen"
        notices.append(Notice("job-unread", message, "info", "set CGROUP_THREADS_CORES if the container is limited"))
    return Observation(
        affinity=cpus,
        affinity_source="GetProcessAffinityMask" if mask else "os.cpu_count",
        host_cpus=max(count, len(cpus)),
        topology=Topology(physical_cores=len(cpus), mask=cpus),
        quota=quota,
        status="unknown" if rate is None else "limited" if quota is not None else "unlimited",
        notices=tuple(notices),
    )


def _as_cores(flags: int, value: int, count: int) -> float | None:
    """Cores of a rate control: a hard cap, or the maximum (high half of ``value``) of a minimum-maximum pair."""
    if not flags & _ENABLED or flags & _WEIGHT or not flags & (_HARD_CAP | _MIN_MAX):
        return None
    rate = value >> 16 if flags & _MIN_MAX else value
    return rate / _FULL_RATE * count if 0 < rate < _FULL_RATE else None


def _kernel32() -> Any:
    """kernel32 through ctypes, or None elsewhere."""
    import ctypes

    try:
        return ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]  # exists on Windows only
    except (AttributeError, OSError):
        return None


def _affinity_mask() -> int | None:
    import ctypes

    kernel32 = _kernel32()
    if kernel32 is None:
        return None
    process, system = ctypes.c_size_t(0), ctypes.c_size_t(0)
    kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel32.GetCurrentProcess())
    if not kernel32.GetProcessAffinityMask(handle, ctypes.byref(process), ctypes.byref(system)):
        return None
    return process.value


def _cpu_rate() -> tuple[int, int] | None:
    import ctypes

    kernel32 = _kernel32()
    if kernel32 is None:
        return None
    information = (ctypes.c_uint32 * 2)()
    # No handle means the job of the calling process.
    if kernel32.QueryInformationJobObject(
        None, _RATE_CONTROL, ctypes.byref(information), ctypes.sizeof(information), None
    ):
        return int(information[0]), int(information[1])
    return 0, 0
