"""How much memory may be filled here, and how large the caches are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ..detection.cpulist import parse_number
from ..detection.procfs import MEDIUM, Files, parse_membership

_MAX_DIGITS: Final = 20
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MAX_INDEX: Final = 8  # caches of a CPU: machines have up to five
# Where distributions mount the memory controller: v2 (alone, and beside v1), and v1.
_MOUNTS: Final = {2: ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), 1: ("/sys/fs/cgroup/memory",)}
_NAMES: Final = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}


def find_free_memory(files: Files | None = None) -> int | None:
    """Bytes that can be filled without swapping, or being killed at a cgroup's limit; None where nothing tells."""
    files = files or Files()
    rooms = _cgroup_rooms(files)
    for line in (files.read("/proc/meminfo", MEDIUM).text or "").splitlines():
        if line.startswith("MemAvailable:"):
            number = parse_number(line.partition(":")[2].removesuffix("kB").strip(), _MAX_DIGITS)
            rooms += [] if number is None else [number * 1024]
    return min(rooms, default=None)


def _cgroup_rooms(files: Files) -> list[int]:
    """What is left below the limit of each memory group we are in, as far as they are mounted where they usually are.

    Within a container the path of our group may be that of the host, while the mount shows only the own group: so the
    mount point is always asked, too.
    """
    members = parse_membership(files.read("/proc/self/cgroup", MEDIUM).text or "")
    path = members.controllers.get("memory")
    version = 2 if path is None else 1
    names = [name for name in (path or members.unified or "").split("/") if name]
    if ".." in names:  # a group outside of our namespace
        names = []
    rooms = []
    for mount in _MOUNTS[version]:
        for depth in range(len(names), -1, -1):
            room = _room(files, "/".join([mount, *names[:depth]]), version)
            rooms += [] if room is None else [room]
    return rooms


def _room(files: Files, directory: str, version: int) -> int | None:
    limit, used = (_number(files, f"{directory}/{name}") for name in _NAMES[version])
    if limit is None or used is None:
        return None
    cached = 0
    for line in (files.read(f"{directory}/memory.stat", MEDIUM).text or "").splitlines():
        name, _, text = line.partition(" ")
        if name == ("inactive_file" if version == 2 else "total_inactive_file"):
            cached = parse_number(text.strip(), _MAX_DIGITS) or 0  # files in memory: the kernel takes them back
    return max(0, limit - max(0, used - cached))


def _number(files: Files, path: str) -> int | None:
    text = files.read(path).text
    return None if text is None else parse_number(text.strip(), _MAX_DIGITS)  # "max" is no number: no limit


def find_cache(cpus: Collection[int], files: Files | None = None) -> int:
    """Bytes of the last level of cache that ``cpus`` have together; 0 where nothing tells."""
    files = files or Files()
    found: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for index in range(_MAX_INDEX):
            directory = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            level = _number(files, f"{directory}/level")
            if level is None:
                break
            size = parse_size((files.read(f"{directory}/size").text or "").strip())
            shared = (files.read(f"{directory}/shared_cpu_list").text or str(cpu)).strip()
            if size is not None:
                found[level, shared] = size
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last)


def parse_size(text: str) -> int | None:
    """Bytes of a cache's ``size`` file, such as "2048K"."""
    unit = _UNITS.get(text[-1:], 1)
    number = parse_number(text[:-1] if unit > 1 else text, _MAX_DIGITS)
    return None if number is None else number * unit
