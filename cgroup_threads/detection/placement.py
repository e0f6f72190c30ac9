"""Where the files of our control groups are, decided from two texts alone: /proc/self/cgroup and mountinfo.

The path in the first names our group in a hierarchy; a mount shows the part of the hierarchy below its ``root``. Only
both together give a directory, and there may be none, one or several.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from typing import Final, NamedTuple

from ..notices import Notice, shown
from .procfs import (
    MISSING,
    Membership,
    Mount,
    MountTree,
    Reading,
    find_hidden,
    parse_membership,
    parse_mounts,
    parse_tree,
)

OVERRIDE_FIX: Final = "set CGROUP_THREADS_CORES to the cores the container was given"
_NO_CGROUPS: Final = "this kernel or sandbox shows no cgroups: no quota can be seen"
_MAX_MOUNTS: Final = 16  # of one controller; a machine has one or two
_MAX_DIRECTORIES: Final = 2048  # of one controller, in more than one mount: groups lie ten or twenty deep
_STANDARD: Final = "/sys/fs/cgroup"

# Where distributions mount cgroups, for sandboxes that deny reading mountinfo.
_USUAL_MOUNTS: Final = [
    Mount(2, "/", _STANDARD),
    Mount(2, "/", f"{_STANDARD}/unified"),
    Mount(1, "/", f"{_STANDARD}/cpu,cpuacct", ("cpu",)),
    Mount(1, "/", f"{_STANDARD}/cpu", ("cpu",)),
    Mount(1, "/", f"{_STANDARD}/cpuset", ("cpuset",)),
    Mount(1, "/", f"{_STANDARD}/pids", ("pids",)),
]


class Chain(NamedTuple):
    """The directories from our group up to the mount that shows it, and that mount's root."""

    root: str
    directories: tuple[str, ...]


class Place(NamedTuple):
    """Where one controller's files are: a chain for each mount that shows our group, and the mount points that show
    only a group above our namespace."""

    version: int
    chains: tuple[Chain, ...] = ()
    ancestors: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    hidden: bool = False
    """Whether another mount lies over every mount there is: what is found at their paths may be something else."""


class Placement(NamedTuple):
    """The places of the controllers (None: the process is in no hierarchy that could have it), and what they were
    decided from. The same two readings give the same placement, so it may be kept."""

    lines: Reading
    table: Reading
    cpu: Place | None
    cpuset: Place | None
    certain: bool
    """Whether an absent limit is known to be absent: false where a line or a mount may have been missed."""
    lxcfs: bool
    """Whether lxcfs shows the container its own CPU numbers in /sys and /proc."""
    notices: tuple[Notice, ...] = ()
    identities: tuple[tuple[str, tuple[int, int]], ...] = ()
    """Our directories with their device and inode, while all of them are there."""
    pids: Place | None = None


def place_groups(lines: Reading, table: Reading) -> Placement:
    """Decide where the cpu and cpuset files are from /proc/PID/cgroup (``lines``) and mountinfo (``table``). Pure."""
    mounts = _USUAL_MOUNTS if table.text is None else parse_mounts(table.text)
    lxcfs = table.text is not None and " - fuse.lxcfs " in table.text
    if lines.text is None:
        if lines.problem == MISSING and not mounts:
            notice = Notice("cgroup-missing", _NO_CGROUPS)
            return Placement(lines, table, None, None, not table.problem, lxcfs, (notice,))
        notice = Notice("cgroup-unreadable", f"/proc/self/cgroup: {lines.problem}", "warning", OVERRIDE_FIX)
        return Placement(lines, table, None, None, False, lxcfs, (notice,))
    notices: list[Notice] = []
    if table.problem:
        message = f"/proc/self/mountinfo: {table.problem}"
        if table.text is None:
            message += "; the usual cgroup mount points are tried"
        notices.append(Notice("cgroup-unreadable", message, "warning", OVERRIDE_FIX))
    members = parse_membership(lines.text)
    if members.malformed:
        message = f"/proc/self/cgroup: {shown(members.malformed[0])} makes no sense"
        notices.append(Notice("cgroup-malformed", message, "warning", OVERRIDE_FIX))
    if not lines.text.strip() and table.text is not None and not mounts:
        # gVisor: if there is a limit, it is outside of the sandbox.
        notices.append(Notice("cgroup-missing", _NO_CGROUPS, fix=OVERRIDE_FIX))
        return Placement(lines, table, None, None, False, lxcfs, tuple(notices))
    tree = None if table.text is None else parse_tree(table.text)
    cpu = _locate("cpu", members, mounts, tree)
    cpuset = _locate("cpuset", members, mounts, tree)
    unified = cpu is not None and cpu.version == 2 and "pids" not in members.controllers
    pids = cpu if unified else _locate("pids", members, mounts, tree)
    if cpu is None:
        # A controller in no hierarchy limits nobody. If there is a mount for it, a line was lost.
        certain = not members.malformed and not any(m.version == 2 or "cpu" in m.options for m in mounts)
        if not certain:
            message = "/proc/self/cgroup names no group of cpu, though there should be one"
            notices.append(Notice("cgroup-not-listed", message, "warning", OVERRIDE_FIX))
    else:
        certain = table.text is not None and bool(cpu.chains) and (cpu.version == 1 or not members.malformed)
        notices.extend(cpu.notices)
        if cpu.version == 2 and table.text is not None and any(m.version == 1 and "cpu" in m.options for m in mounts):
            # The controller lives in the v1 hierarchy then, where each process has a group.
            certain = False
            message = "/proc/self/cgroup names no group of cpu in the v1 hierarchy that is mounted"
            notices.append(Notice("cgroup-not-listed", message, "warning", OVERRIDE_FIX))
    return Placement(lines, table, cpu, cpuset, certain, lxcfs, tuple(notices), pids=pids)


def _locate(controller: str, members: Membership, mounts: list[Mount], tree: MountTree | None) -> Place | None:
    """Find the directories of ``controller``.

    A v1 line that names the controller wins over the v2 line: a controller lives in one hierarchy only.
    """
    path = members.controllers.get(controller)
    version = 2 if path is None else 1
    if path is None:
        path = members.unified
    if path is None:
        return None
    own = _split(path)
    where = f"cgroup v{version} group {shown(path)} of {controller}"
    if ".." in own:
        return _nowhere(version, "cgroup-outside-namespace", f"{where} lies outside this cgroup namespace")
    candidates = [m for m in mounts if m.version == version and (version == 2 or controller in m.options)]
    if not candidates:
        return _nowhere(version, "cgroup-not-mounted", f"{where}: its hierarchy is not mounted here")
    hidden = False
    if tree is not None:
        candidates, hidden = _rank(candidates[:_MAX_MOUNTS], tree)
    chains: list[Chain] = []
    ancestors: list[str] = []
    for mount in candidates:
        root = _split(mount.root)
        if own[: len(root)] == root:
            if sum(len(chain.directories) for chain in chains) > _MAX_DIRECTORIES:
                break
            chains.append(Chain(mount.root, _climb(mount.point, own[len(root) :])))
        elif all(name == ".." for name in root):
            ancestors.append(mount.point)
    if chains:
        return Place(version, tuple(chains), tuple(ancestors), hidden=hidden)
    first = candidates[0]
    if not ancestors:
        message = f"{where} is not below {shown(first.root)}, which {shown(first.point)} shows"
        return _nowhere(version, "cgroup-not-covered", message)
    message = f"{where}: only a group above it is mounted, at {shown(ancestors[0])}"
    return _nowhere(version, "cgroup-ancestor-mount", message)._replace(ancestors=tuple(ancestors))


def _nowhere(version: int, code: str, message: str) -> Place:
    return Place(version, notices=(Notice(code, message, "warning", OVERRIDE_FIX),))


def _rank(mounts: list[Mount], tree: MountTree) -> tuple[list[Mount], bool]:
    """Mounts in the order they are asked: reachable ones only (if any is), those below /sys/fs/cgroup first.

    The second value says that none is reachable.
    """
    hidden = find_hidden(tree, mounts)
    reachable = [mount for mount in mounts if mount.mount_id not in hidden]
    order = sorted(reachable or mounts, key=lambda mount: not (mount.point + "/").startswith(_STANDARD + "/"))
    return order, not reachable


def _split(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _climb(point: str, below: list[str]) -> tuple[str, ...]:
    """The directories from ``point``/``below`` up to ``point``."""
    base = point.rstrip("/")
    return tuple("/".join([base, *below[:depth]]) for depth in range(len(below), -1, -1))
