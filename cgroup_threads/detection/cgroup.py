"""CPU quota and cpuset of the control groups this process is in: cgroup v2, v1 and hybrids of both.

Sources: kernel documents ``admin-guide/cgroup-v2`` (cpu.max, cpuset.cpus.effective), ``scheduler/sched-bwc``
(cpu.cfs_quota_us) and ``admin-guide/cgroup-v1/cpusets``. A limit of an ancestor binds as much as the own one, so every
visible level up to the mount root is read and the smallest ratio of quota to period wins. Weights, shares and bursts
are not limits and are not read.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from typing import Final, NamedTuple

from ..notices import Notice, shown
from .cpulist import parse_cpulist, parse_number
from .placement import OVERRIDE_FIX, Place, Placement, place_groups
from .procfs import LARGE, MAX_DIGITS, MEDIUM, MISSING, Files, Reading, shown_path
from .records import CgroupLevel, Status

_NO_LIMIT: Final = float("inf")  # without the module math, a shared object to load
_DEFAULT_PERIOD: Final = "100000"  # microseconds; the kernel's default, for a cpu.max that names none


class CgroupLimits(NamedTuple):
    """What the cgroups say: ``quota`` in cores, its ``status``, the ``cpuset`` if one is visible, and the evidence."""

    quota: float | None
    status: Status
    cpuset: frozenset[int] | None
    levels: tuple[CgroupLevel, ...]
    notices: tuple[Notice, ...]
    placement: Placement
    cpuset_directory: str | None = None


def parse_cpu_max(text: str) -> float | None:
    """Cores of a cgroup v2 ``cpu.max`` (``"quota period"`` in microseconds); ``inf`` for no limit, None for junk.

    ``max`` and ``-1`` are no limit. A missing period is the kernel's default, further fields are ignored.
    """
    fields = text.split()
    if not fields or not text.isascii():
        return None
    if fields[0] in ("max", "-1"):
        return _NO_LIMIT
    return _ratio(fields[0], fields[1] if len(fields) > 1 else _DEFAULT_PERIOD)


def parse_cfs(quota: str, period: str | None) -> float | None:
    """Cores of cgroup v1's ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; ``inf`` for no limit, None for junk.

    Any negative quota is no limit. Without a period there is no number: the kernel always has both files.
    """
    quota = quota.strip()
    if quota[:1] == "-" and parse_number(quota[1:], MAX_DIGITS) is not None:
        return _NO_LIMIT
    return None if period is None else _ratio(quota, period.strip())


def _ratio(quota: str, period: str) -> float | None:
    runtime, interval = parse_number(quota, MAX_DIGITS), parse_number(period, MAX_DIGITS)
    return runtime / interval if runtime and interval else None


def read_cgroups(files: Files, pid: str = "self", known: Placement | None = None) -> CgroupLimits:
    """Locate the cgroups of process ``pid`` and read their limits. Never raises: what is odd becomes a notice.

    ``status``: "limited" if any level limits; else "unknown" if our group cannot be located or a level cannot be
    read; else "unlimited". No cgroups at all (a kernel without them) is "unlimited" too, a list of none (gVisor) is
    "unknown". ``known`` is an earlier placement; it is used while what it was decided from has not changed.
    """
    known = _place(files, files.read(f"/proc/{pid}/cgroup", MEDIUM), known)
    notices = list(known.notices)
    levels, certain = _read_levels(files, known.cpu, notices)
    quotas = [level.quota for level in levels if level.quota is not None]
    cpuset, cpuset_directory = _read_cpuset(files, known.cpuset, notices)
    return CgroupLimits(
        quota=min(quotas, default=None),
        status="limited" if quotas else "unlimited" if certain and known.certain else "unknown",
        cpuset=cpuset,
        levels=tuple(levels),
        notices=tuple(notices),
        placement=known,
        cpuset_directory=cpuset_directory,
    )


def _place(files: Files, lines: Reading, known: Placement | None) -> Placement:
    """Find our directories, or keep those of an earlier look.

    The kernel writes mountinfo anew at each read, which takes longer than all else here together. It is spared while we
    are in the same groups and their directories are the same objects: nothing was mounted over them or taken away.
    """
    if (
        known is not None
        and known.lines == lines
        and known.identities
        and all(files.identify(directory) == identity for directory, identity in known.identities)
    ):
        return known
    table = files.read("/proc/self/mountinfo", LARGE)
    if known is None or known.lines != lines or known.table != table:
        known = place_groups(lines, table)
    own = {chain.directories[0] for place in (known.cpu, known.cpuset) if place is not None for chain in place.chains}
    found = {directory: files.identify(directory) for directory in own}
    identities = tuple((directory, identity) for directory, identity in found.items() if identity is not None)
    return known._replace(identities=identities if known.certain and len(identities) == len(own) else ())


def _read_levels(files: Files, place: Place | None, notices: list[Notice]) -> tuple[list[CgroupLevel], bool]:
    """Read every visible level once. The second value says whether all of them could be understood."""
    if place is None:
        return [], True
    levels: dict[str, CgroupLevel] = {}
    certain = True
    seen_roots: set[str] = set()
    for root, directories in place.chains:
        if root in seen_roots:  # another mount of the same group has nothing new
            continue
        for directory in directories:
            if directory not in levels:
                levels[directory], understood = _read_level(files, place.version, directory, notices)
                certain = certain and understood
                if levels[directory].raw is not None:
                    seen_roots.add(root)
    for directory in place.ancestors:
        if directory not in levels:
            level, _ = _read_level(files, place.version, directory, notices)
            if level.quota is not None:
                levels[directory] = level
    if place.hidden and all(level.raw is None for level in levels.values()):
        message = f"{shown_path(place.chains[0].directories[-1])}: another mount lies over the control groups"
        notices.append(Notice("cgroup-hidden", message, "warning", OVERRIDE_FIX))
        certain = False
    return list(levels.values()), certain


def read_pids(files: Files, place: Place | None, need: int) -> list[tuple[int, int, str]]:
    """Limit, use and file of each level of the pids controller that has room for less than ``need`` tasks more."""
    found: list[tuple[int, int, str]] = []
    for directory in {d: None for chain in place.chains for d in chain.directories} if place is not None else ():
        name = f"{directory}/pids.max"
        limit = parse_number((files.read(name).text or "").strip(), MAX_DIGITS)  # "max" is no number
        if limit is not None:
            used = parse_number((files.read(f"{directory}/pids.current").text or "").strip(), MAX_DIGITS)
            if used is not None and limit - used < need:
                found.append((limit, used, files.locate(name)))
    return found


def _read_level(files: Files, version: int, directory: str, notices: list[Notice]) -> tuple[CgroupLevel, bool]:
    """Read one directory. The second value says whether it is certain what the level allows."""
    name = f"{directory}/{'cpu.max' if version == 2 else 'cpu.cfs_quota_us'}"
    reading = files.read(name)
    raw: str | None = None
    cores: float | None = _NO_LIMIT
    if reading.text is None:
        if reading.problem != MISSING:
            cores = None
            notices.append(
                Notice("cgroup-unreadable", f"{shown_path(name)}: {reading.problem}", "warning", OVERRIDE_FIX)
            )
    elif version == 2:
        raw = reading.text.strip()
        cores = parse_cpu_max(raw)
    else:
        raw = reading.text.strip()
        cores = parse_cfs(raw, None)
        if cores is None:
            period = files.read(f"{directory}/cpu.cfs_period_us")
            cores = parse_cfs(raw, period.text)
            raw += f" {(period.text or period.problem).strip()}"
            if period.problem == MISSING and files.read(name).problem == MISSING:  # the group was removed in between
                raw, cores = None, _NO_LIMIT
    if cores is None and raw is not None:
        notices.append(
            Notice("cgroup-malformed", f"{shown_path(name)}: {shown(raw)} is no quota", "warning", OVERRIDE_FIX)
        )
    level = CgroupLevel(
        2 if version == 2 else 1,
        files.locate(directory),
        files.locate(name),
        raw,
        None if cores is None or cores == _NO_LIMIT else cores,
    )
    return level, cores is not None


def _read_cpuset(files: Files, place: Place | None, notices: list[Notice]) -> tuple[frozenset[int] | None, str | None]:
    """The effective CPUs of the nearest level that names any, and the outermost directory that has the same ones; a
    group without an own file has its parent's."""
    if place is None:
        return None, None
    effective = "cpuset.cpus.effective" if place.version == 2 else "cpuset.effective_cpus"
    for _, directories in place.chains:
        for index, directory in enumerate(directories):
            for name in (effective, "cpuset.cpus"):
                cpus = _read_cpus(files, f"{directory}/{name}", notices)
                if cpus:
                    return cpus, _widen(files, directories[index:], name, cpus)
    return None, None


def _widen(files: Files, directories: tuple[str, ...], name: str, cpus: frozenset[int]) -> str:
    """The last of ``directories``, outwards from the first, that all have the same ``cpus``: the steps of a job."""
    found = directories[0]
    for directory in directories[1:]:
        text = files.read(f"{directory}/{name}", MEDIUM).text
        if text is None or parse_cpulist(text) != cpus:
            break
        found = directory
    return found


def _read_cpus(files: Files, path: str, notices: list[Notice]) -> frozenset[int] | None:
    reading = files.read(path, MEDIUM)
    if reading.text is None:
        if reading.problem != MISSING:
            notices.append(Notice("cpuset-unreadable", f"{shown_path(path)}: {reading.problem}", "warning"))
        return None
    cpus = parse_cpulist(reading.text)
    if cpus is None:
        message = f"{shown_path(path)}: {shown(reading.text.strip())} is no list of CPUs"
        notices.append(Notice("cpuset-malformed", message, "warning"))
    return cpus
