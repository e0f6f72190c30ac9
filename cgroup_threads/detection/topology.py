"""What /sys says of the CPUs inside an affinity mask: SMT siblings, faster and slower cores, offline and isolated CPUs.

Sources: kernel documents ``admin-guide/cputopology``, ``ABI/testing/sysfs-devices-system-cpu`` and, for Intel hybrid
CPUs, the PMU devices ``cpu_core`` and ``cpu_atom``. In containers /sys shows the host (lxcfs masks only some files),
so nothing outside the mask is ever counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..notices import Notice, shown
from .cpulist import format_cpulist, parse_cpulist, parse_number
from .procfs import MEDIUM, MISSING, Files
from .records import Topology

CPU_DIRECTORY: Final = "/sys/devices/system/cpu"
ONLINE: Final = f"{CPU_DIRECTORY}/online"
_ALL_CAPACITIES: Final = 16  # CPUs: above, three samples tell whether a machine mixes cores (servers do not)
_NONE: Final[frozenset[int]] = frozenset()


def read_list(files: Files, path: str, notices: list[Notice]) -> frozenset[int]:
    """The CPUs listed in ``path``; empty if there is no such file, or (with a notice) if it makes no sense."""
    reading = files.read(path, MEDIUM)
    if reading.text is None:
        if reading.problem != MISSING:
            notices.append(Notice("topology-unreadable", f"{path}: {reading.problem}", "warning"))
        return _NONE
    cpus = parse_cpulist(reading.text)
    if cpus is None:
        message = f"{path}: {shown(reading.text.strip())} is no list of CPUs"
        notices.append(Notice("topology-malformed", message, "warning"))
        return _NONE
    return cpus


def read_topology(files: Files, mask: frozenset[int], online: frozenset[int], notices: list[Notice]) -> Topology:
    """Read the topology of the CPUs in ``mask``; never raises.

    One file says that SMT is off and saves a file a CPU. Where nothing is told, each CPU counts as a core.
    """
    smt_is_off = files.read(f"{CPU_DIRECTORY}/smt/active").text
    siblings = () if smt_is_off is not None and smt_is_off.strip() == "0" else _read_siblings(files, mask, notices)
    fast = _read_performance_cpus(files, mask, notices)
    return Topology(
        physical_cores=_count_cores(mask, siblings),
        performance_cpus=fast,
        performance_cores=_count_cores(fast, siblings),
        online=online,
        offline=read_list(files, f"{CPU_DIRECTORY}/offline", notices),
        isolated=read_list(files, f"{CPU_DIRECTORY}/isolated", notices),
        mask=mask,
    )


def _read_siblings(files: Files, mask: frozenset[int], notices: list[Notice]) -> tuple[frozenset[int], ...]:
    """The sets of CPUs that share a core, as far as CPUs of the mask are in them: one file a core, not a CPU."""
    known: set[int] = set()
    cores: list[frozenset[int]] = []
    for cpu in sorted(mask):
        if cpu in known:
            continue
        core = read_list(files, f"{CPU_DIRECTORY}/cpu{cpu}/topology/thread_siblings_list", notices)
        if not core and not cores:
            break  # not told for the first CPU: not told at all
        known |= core
        cores.append(core)
    return tuple(cores)


def _count_cores(cpus: frozenset[int], siblings: Iterable[frozenset[int]]) -> int:
    """Distinct cores among ``cpus``; a CPU in no set of siblings is a core of its own."""
    left = set(cpus)
    cores = 0
    for core in siblings:
        if left & core:
            left -= core
            cores += 1
    return cores + len(left)


def _read_performance_cpus(files: Files, mask: frozenset[int], notices: list[Notice]) -> frozenset[int]:
    """The faster CPUs of a mask that mixes faster and slower ones, else the empty set."""
    if len(mask) < 2:
        return _NONE
    fast = read_list(files, "/sys/devices/cpu_core/cpus", notices) & mask
    if fast:
        slow = read_list(files, "/sys/devices/cpu_atom/cpus", notices) & mask
        return fast if slow else _NONE
    cpus = sorted(mask)
    samples = cpus if len(cpus) <= _ALL_CAPACITIES else [cpus[0], cpus[len(cpus) // 2], cpus[-1]]
    if len(set(_read_capacities(files, samples).values())) < 2:
        return _NONE
    capacities = _read_capacities(files, cpus)
    top = max(capacities.values())
    return frozenset(cpu for cpu, capacity in capacities.items() if capacity == top)


def _read_capacities(files: Files, cpus: list[int]) -> dict[int, int]:
    """``cpu_capacity`` by CPU (1024 is the fastest core's), for those that have one."""
    found: dict[int, int] = {}
    for cpu in cpus:
        text = files.read(f"{CPU_DIRECTORY}/cpu{cpu}/cpu_capacity").text
        if text is None:
            break
        capacity = parse_number(text.strip())
        if capacity is not None:
            found[cpu] = capacity
    return found


def judge_topology(topology: Topology, mask: frozenset[int]) -> list[Notice]:
    """Hints for the report: mixed cores and isolated CPUs inside the mask."""
    notices = []
    fast = topology.performance_cpus
    if fast:
        message = (
            f"hybrid CPU: {topology.performance_cores} performance cores ({len(fast)} CPUs, {format_cpulist(fast)}) "
            f"among the {len(mask)} CPUs of the mask; parallel regions wait for the slowest core"
        )
        fix = f"compare with CGROUP_THREADS_CORES={topology.performance_cores} and the process pinned to those CPUs"
        notices.append(Notice("hybrid-cpu", message, "info", fix))
    isolated = topology.isolated & mask
    if isolated and len(mask) > 1:
        message = (
            f"CPUs {format_cpulist(isolated)} of the mask are isolated: the kernel does not spread threads over them"
        )
        notices.append(Notice("isolated-cpus", message, "warning", "pin threads one to a CPU, or leave them out"))
    return notices
