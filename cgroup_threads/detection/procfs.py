"""Bounded reads below a root, and parsers of /proc/self/cgroup and /proc/self/mountinfo (proc(5), cgroups(7)).

Nothing here raises or blocks, whatever a file holds or is.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
import errno
import os
import stat
import sys
from typing import Final, NamedTuple, TypeAlias

from ..notices import shown
from .cpulist import parse_number

SMALL: Final = 4096  # bytes: quota files, single numbers; a path is no longer either (PATH_MAX)
MEDIUM: Final = 1 << 16  # bytes: CPU lists, /proc/self/cgroup, /proc/self/status
LARGE: Final = 8 << 20  # bytes: mountinfo of a host with tens of thousands of mounts
MISSING: Final = "missing"
MAX_DIGITS: Final = 20  # 2**64 has 20 digits

# O_NONBLOCK: opening a FIFO or a device must not wait for anybody. Not all platforms have all flags.
_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
) | getattr(os, "O_BINARY", 0)
# As os.fsdecode, without its three calls: paths among the text go back to the kernel unchanged.
_ENCODING: Final = sys.getfilesystemencoding()
_ERRORS: Final = sys.getfilesystemencodeerrors()
_MAX_SHOWN: Final = 500  # characters of a path in a message
_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ESRCH)


class Reading(NamedTuple):
    """The text of a file, or why there is none: ``problem`` is MISSING or a reason for the report.

    A table cut at its size limit has both: its whole lines up to there, and the problem.
    """

    text: str | None
    problem: str = ""


_MISSING_FILE: Final = Reading(None, MISSING)


class Files:
    """Reads small files below ``root``. Tests and other readers stand in for it with the same methods."""

    def __init__(self, root: str = "/") -> None:
        self._prefix = root.rstrip("/")

    def locate(self, path: str) -> str:
        """The real path of ``path`` below the root."""
        return self._prefix + path

    def identify(self, path: str) -> tuple[int, int] | None:
        """Device and inode of what ``path`` leads to now; None if it leads nowhere."""
        try:
            found = os.stat(self._prefix + path)
        except (OSError, ValueError):  # ValueError: a NUL in the path
            return None
        return found.st_dev, found.st_ino

    def read(self, path: str, limit: int = SMALL) -> Reading:
        """Read at most ``limit`` bytes of ``path``; a longer file is a problem, not a truncated number."""
        try:
            descriptor = os.open(self._prefix + path, _FLAGS)
        except FileNotFoundError:
            return _MISSING_FILE
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            return _failed(error)
        try:
            data = os.read(descriptor, limit + 1)
            # Tables of many records come in pieces of less than a page; other files whole, up to a page.
            while (limit == LARGE or len(data) >= SMALL) and len(data) <= limit:
                more = os.read(descriptor, limit + 1 - len(data))
                if not more:
                    break
                data += more
            if not data and not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Reading(None, "not a regular file")
            if len(data) > limit:
                head = data[: data.rfind(b"\n", 0, limit) + 1]
                text = head.decode(_ENCODING, _ERRORS) if limit == LARGE else None
                return Reading(text, f"larger than {limit} bytes")
            return Reading(data.decode(_ENCODING, _ERRORS))
        except (OSError, ValueError) as error:  # ValueError: undecodable text where the codec is strict (Windows)
            return _failed(error)
        finally:
            os.close(descriptor)


def _failed(error: OSError | ValueError) -> Reading:
    if isinstance(error, OSError):
        if error.errno in _GONE:
            return _MISSING_FILE
        return Reading(None, error.strerror or type(error).__name__)
    return Reading(None, "not a valid path or text")


def shown_path(path: str) -> str:
    """A path on one line of a message: as it is, or escaped where its names hold anything odd."""
    return path if path.isascii() and path.isprintable() and len(path) <= _MAX_SHOWN else shown(path, _MAX_SHOWN)


class Membership(NamedTuple):
    """The lines of /proc/self/cgroup: v1 controllers with their path, the v2 path, and the lines that make no sense."""

    controllers: dict[str, str]
    unified: str | None
    malformed: tuple[str, ...] = ()


def parse_membership(text: str) -> Membership:
    """Parse ``hierarchy-ID:controllers:path`` lines. The path may hold colons and backslashes, and is not escaped."""
    controllers: dict[str, str] = {}
    unified: str | None = None
    malformed: list[str] = []
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if not line:
            continue
        parts = line.split(":", 2)
        if (
            len(parts) != 3
            or not (parts[0].isascii() and parts[0].isdigit())
            or not (parts[2].startswith("/") and len(parts[2]) <= SMALL)
        ):
            malformed.append(line)
        elif parts[1]:
            for controller in parts[1].split(","):
                controllers.setdefault(controller, parts[2])
        elif parts[0] != "0":  # the unified hierarchy always has ID 0
            malformed.append(line)
        elif unified is None:
            unified = parts[2]
    return Membership(controllers, unified, tuple(malformed))


class Mount(NamedTuple):
    """One cgroup mount: the cgroup directory it shows (``root``), where (``point``), and for v1 its options."""

    version: int
    root: str
    point: str
    options: tuple[str, ...] = ()
    mount_id: str = ""


_MAX_MOUNTS: Final = 256  # cgroup mounts kept of one table; a host has about twenty
MountTree: TypeAlias = tuple[dict[str, str], dict[str, list[tuple[str, str]]]]
"""Mounts by ID: the parent of each, and the children of each with their mount points."""
_CGROUP_TYPES: Final = {"cgroup": 1, "cgroup2": 2}


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup mounts of a mountinfo table that may have CPU or pids files, in order; senseless lines are skipped.

    The type is the field after `` - `` (blanks inside fields are escaped, so it occurs once): neither the source nor
    the mount point says what a mount is.
    """
    found: list[Mount] = []
    at = text.find(" - cgroup")
    while at >= 0 and len(found) < _MAX_MOUNTS:
        end = text.find("\n", at)
        if end < 0:
            end = len(text)
        # v1 lines of other controllers are most of the table: their options settle it before anything is split.
        if "cpu" in text[at:end] or "pids" in text[at:end] or text.startswith("cgroup2 ", at + 3):
            mount = _parse_mount(text[text.rfind("\n", 0, at) + 1 : end])
            if mount is not None:
                found.append(mount)
        at = text.find(" - cgroup", end)
    return found


def _parse_mount(line: str) -> Mount | None:
    head, _, tail = line.removesuffix("\r").partition(" - ")
    fields = head.split(" ")
    rest = tail.split(" ")
    version = _CGROUP_TYPES.get(rest[0])
    if version is None or len(fields) < 6 or not (fields[3].startswith("/") and fields[4].startswith("/")):
        return None
    options = tuple(rest[-1].split(",")) if len(rest) >= 3 else ()
    if version == 1 and not any(name in options for name in ("cpu", "cpuset", "pids")):
        return None
    return Mount(version, unescape(fields[3]), unescape(fields[4]), options, fields[0])


def unescape(field: str) -> str:
    """Decode the octal escapes of mountinfo (``\\040`` is a blank, ``\\134`` a backslash), once."""
    if "\\" not in field:
        return field
    first, *pieces = field.split("\\")
    decoded = [first]
    for piece in pieces:
        code = piece[:3]
        # 0-177 octal: the kernel escapes no bytes above ASCII
        if len(code) == 3 and code[0] in "01" and all(digit in "01234567" for digit in code):
            decoded.append(chr(int(code, 8)) + piece[3:])
        else:
            decoded.append("\\" + piece)
    return "".join(decoded)


def parse_tree(text: str) -> MountTree:
    """Which mount of a mountinfo table stands on which."""
    parents: dict[str, str] = {}
    children: dict[str, list[tuple[str, str]]] = {}
    for line in text.split("\n"):
        fields = line.split(" ", 5)
        if len(fields) == 6:
            parents[fields[0]] = fields[1]
            children.setdefault(fields[1], []).append((fields[0], unescape(fields[4])))
    return parents, children


def find_hidden(tree: MountTree, mounts: list[Mount]) -> set[str]:
    """IDs of those mounts that path lookup cannot reach any more, because another mount lies over them.

    mountinfo still lists an over-mounted cgroup tree, often first. A mount is hidden if it, or any mount it stands on,
    carries another child whose mount point is at or above the path in question.
    """
    return {mount.mount_id for mount in mounts if _is_hidden(mount, tree)}


def _is_hidden(mount: Mount, tree: MountTree) -> bool:
    parents, children = tree
    node, below = mount.mount_id, ""
    seen: set[str] = set()
    while node in parents and node not in seen:
        seen.add(node)
        for child, point in children.get(node, ()):
            if child not in (node, below) and (mount.point + "/").startswith(point.rstrip("/") + "/"):
                return True
        node, below = parents[node], node
    return False


def parse_soft_limit(text: str, name: str) -> int | None:
    """The soft limit called ``name`` in /proc/PID/limits; None if there is none, or no such line."""
    start = text.find(name)
    fields = text[start + len(name) : start + 64].split(None, 1) if start >= 0 else ()
    return parse_number(fields[0], MAX_DIGITS) if fields else None


def parse_all_tasks(text: str) -> int | None:
    """The tasks of the whole machine: what follows the slash in /proc/loadavg."""
    fields = text.split()
    return parse_number(fields[3].partition("/")[2], MAX_DIGITS) if len(fields) > 3 else None


def parse_status_cpus(text: str) -> str | None:
    """The text of ``Cpus_allowed_list`` in /proc/PID/status, or None."""
    for line in text.split("\n"):
        if line.startswith("Cpus_allowed_list:"):
            return line[len("Cpus_allowed_list:") :]
    return None
