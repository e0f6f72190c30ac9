"""Parsers of what /proc says of a process and its threads (proc(5)). Pure; junk gives None or nothing, never an error.

A thread's name is up to 15 bytes of anything, brackets, newlines and broken UTF-8 included, so texts come as bytes.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ...detection.cpulist import parse_number

_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD of include/linux/sched.h
_DIGITS: Final = 20  # 2**64 has 20 digits
_FIELDS: Final = 20  # of stat after the name, up to starttime
_MAX_TEXT: Final = 200


class TaskStat(NamedTuple):
    """Fields of a stat file: ``ticks`` is user and system time, ``start`` when it was started, both in clock ticks."""

    name: str
    state: str
    parent: int
    kernel: bool
    ticks: int
    start: int


class TaskStatus(NamedTuple):
    """Fields of a status file; None where a line is missing. ``cpus`` is the text of the affinity list."""

    group: int | None = None
    uid: int | None = None
    voluntary: int | None = None
    involuntary: int | None = None
    cpus: str | None = None


def printable(data: bytes, limit: int = _MAX_TEXT) -> str:
    """Foreign bytes made safe for one line: whitespace is one blank, what cannot be printed is escaped."""
    text = " ".join(data[: 4 * limit].decode("utf-8", "backslashreplace").split())
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= limit else text[:limit] + "..."


def parse_stat(data: bytes) -> TaskStat | None:
    """A stat line. The name ends at the last bracket: it may hold brackets itself, the fields after it cannot."""
    start, end = data.find(b"("), data.rfind(b")")
    if start < 0 or end < start:
        return None
    fields = data[end + 1 :].decode("ascii", "replace").split()
    if len(fields) < _FIELDS or len(fields[0]) != 1:
        return None
    parent, flags, user, system, born = (parse_number(fields[at], _DIGITS) for at in (1, 6, 11, 12, 19))
    if flags is None or user is None or system is None or born is None:
        return None
    name = printable(data[start + 1 : end])
    return TaskStat(name, fields[0], parent or 0, bool(flags & _KERNEL_THREAD), user + system, born)


def parse_status(data: bytes) -> TaskStatus:
    """The lines of a status file that matter here. The kernel escapes newlines in its Name line."""
    lines = dict(line.partition(":\t")[::2] for line in data.decode("ascii", "replace").split("\n"))

    def number(name: str) -> int | None:
        first = lines.get(name, "").split()
        return parse_number(first[0], _DIGITS) if first else None

    return TaskStatus(
        number("Tgid"),
        number("Uid"),
        number("voluntary_ctxt_switches"),
        number("nonvoluntary_ctxt_switches"),
        lines.get("Cpus_allowed_list"),
    )


def parse_environ(data: bytes) -> dict[str, str]:
    """A NUL-separated environment, values cut short. The first of two entries counts, as for getenv."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        key, equals, value = entry.partition(b"=")
        if key and equals:
            found.setdefault(key.decode("ascii", "replace"), value[:_MAX_TEXT].decode("utf-8", "backslashreplace"))
    return found


class Mapping(NamedTuple):
    """One file-backed range of addresses that holds code, or a stack ("" or "[stack]")."""

    start: int
    end: int
    path: str


_MAPPING: Final = re.compile(rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) (\S{4}) \S+ \S+ \d+ *([^\n]*)$", re.MULTILINE)


def parse_maps(data: bytes) -> tuple[list[Mapping], list[Mapping], list[str]]:
    """Of a maps file: ranges with code, writable ranges without a file (stacks), and the paths of mapped files."""
    code: list[Mapping] = []
    stacks: list[Mapping] = []
    paths: dict[str, None] = {}
    for start, end, rights, raw in _MAPPING.findall(data):
        path = raw.removesuffix(b" (deleted)").replace(b"\\012", b"\n").decode("utf-8", "backslashreplace")
        if path.startswith("/"):
            paths[path] = None
            if b"x" in rights:
                code.append(Mapping(int(start, 16), int(end, 16), path))
        elif rights.startswith(b"rw") and path in ("", "[stack]"):
            stacks.append(Mapping(int(start, 16), int(end, 16), path))
    return code, stacks, list(paths)


def parse_syscall(data: bytes) -> tuple[int, int] | None:
    """Stack pointer and program counter of a thread that sleeps in the kernel; None for one that runs."""
    fields = data.split()
    if len(fields) < 3:  # "running"
        return None
    try:
        return int(fields[-2], 16), int(fields[-1], 16)
    except ValueError:
        return None
