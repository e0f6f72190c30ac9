"""The records detection returns. They hold what was read; nothing here reads or decides for others."""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..notices import Notice
from ..settings import Rounding
from .placement import Placement

if TYPE_CHECKING:
    from .tasks import AddressSpace, TaskLimit
else:
    AddressSpace = TaskLimit = object  # most processes need not load what these come from

Status = Literal["limited", "unlimited", "unknown"]
BoundBy = Literal["override", "quota", "affinity", "cpuset", "scheduler", "host"]

# A quota of 2.9999999 cores comes from integer microseconds that were meant as 3; a true 2.99999 stays 2.
EPSILON = 1e-6


class CgroupLevel(NamedTuple):
    """One directory between the process's own cgroup and the mount root, as it was read.

    ``path`` is the directory, ``file`` the file that holds (or would hold) the quota, ``raw`` its text without outer
    blanks (v1: "quota period", or the quota alone where it is "-1"; None if nothing could be read), ``quota`` the
    cores it allows or None.
    """

    version: Literal[1, 2]
    path: str
    file: str
    raw: str | None
    quota: float | None


class SchedulerGrant(NamedTuple):
    """Cores a batch scheduler (or a notebook hub) granted through ``variable``, whose text is ``raw``."""

    scheduler: str
    variable: str
    raw: str
    cores: float


class Topology(NamedTuple):
    """What /sys says of the CPUs inside the affinity mask. Empty sets mean "not told".

    ``mask`` are the CPUs described, ``physical_cores`` counts distinct cores among them; ``performance_cpus`` is set
    only where the mask mixes faster and slower cores (Intel P/E, Arm big.LITTLE, Apple).
    """

    physical_cores: int
    performance_cpus: frozenset[int] = frozenset()
    performance_cores: int = 0
    online: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()
    isolated: frozenset[int] = frozenset()
    mask: frozenset[int] = frozenset()


class Observation(NamedTuple):
    """What one platform's files and calls say, before schedulers and overrides; fields as in CpuLimits.

    ``host_known`` says whether ``host_cpus`` was told, and not just taken to be as wide as the mask. ``placement`` is
    where the cgroup files are; a later look may start from it.
    """

    affinity: frozenset[int]
    affinity_source: str
    host_cpus: int
    topology: Topology
    host_known: bool = True
    quota: float | None = None
    status: Status = "unknown"
    cpuset: frozenset[int] | None = None
    levels: tuple[CgroupLevel, ...] = ()
    notices: tuple[Notice, ...] = ()
    placement: Placement | None = None
    cpuset_directory: str | None = None
    tasks: tuple[TaskLimit, ...] = ()
    address_space: AddressSpace | None = None


class CpuLimits(NamedTuple):
    """How many cores this process may use, and why.

    ``quota`` is in cores (float; None if no quota is known), ``status`` says whether the cgroups limit CPU time
    ("limited"), surely do not ("unlimited"), or could not be read ("unknown"). ``affinity`` are the CPUs the
    scheduler may use, ``affinity_source`` where that was read, ``cpuset`` the CPUs of the cpuset cgroup in
    ``cpuset_directory`` if visible.
    ``bound_by`` names the constraint that won. ``levels`` are all cgroup directories visited, own group first.
    ``tasks`` are limits on processes and threads, ``address_space`` is RLIMIT_AS: these bound threads, not cores.
    """

    quota: float | None
    status: Status
    affinity: frozenset[int]
    affinity_source: str
    cpuset: frozenset[int] | None
    host_cpus: int
    physical_cores: int
    bound_by: BoundBy
    topology: Topology
    levels: tuple[CgroupLevel, ...] = ()
    scheduler: SchedulerGrant | None = None
    override: float | None = None
    notices: tuple[Notice, ...] = ()
    cpuset_directory: str | None = None
    tasks: tuple[TaskLimit, ...] = ()
    address_space: AddressSpace | None = None

    @property
    def width(self) -> int:
        """CPUs the process can be scheduled on: the affinity mask, narrowed by the cpuset."""
        if self.cpuset:
            return max(1, min(len(self.affinity), len(self.cpuset)))
        return max(1, len(self.affinity))

    def usable(self, rounding: Rounding = "floor") -> int:
        """Cores the process may keep busy, at least 1.

        ``rounding`` is applied to a fractional quota; affinity and host CPUs cap the result. An override wins over
        everything, the machine's width included.
        """
        if self.override is not None:
            return round_cores(self.override, rounding)
        result = self.width
        if self.quota is not None:
            result = min(result, round_cores(self.quota, rounding))
        if self.scheduler is not None:
            result = min(result, round_cores(self.scheduler.cores, "floor"))
        return max(1, result)


def round_cores(cores: float, rounding: Rounding = "floor") -> int:
    """Whole cores from a fractional amount; never below 1. A quota of 1.9999999 counts as 2 in every rounding."""
    whole = int(cores + EPSILON)
    rest = cores - whole
    if (rounding == "ceil" and rest > EPSILON) or (rounding == "round" and rest >= 0.5):
        whole += 1
    return max(1, whole)
