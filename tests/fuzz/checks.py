"""What the targets share: inputs taken apart, a directory for files, and checks that hold for all results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from cgroup_threads.notices import Notice

SEPARATOR = b"\x1e"
"""Between the files of an input (ASCII's record separator); binary files have a length before them instead."""
T = TypeVar("T")


def pieces(data: bytes, count: int) -> list[bytes]:
    """``data`` as ``count`` files; those that are missing are empty."""
    parts = data.split(SEPARATOR, count - 1)
    return parts + [b""] * (count - len(parts))


def halves(data: bytes) -> tuple[bytes, bytes]:
    """Two binary files: two bytes say how long the first is."""
    size = int.from_bytes(data[:2], "little")
    return data[2 : 2 + size], data[2 + size :]


def join_halves(first: bytes, second: bytes) -> bytes:
    """The input that ``halves`` takes apart."""
    return len(first).to_bytes(2, "little") + first + second


def text_of(data: bytes) -> str:
    """Text as the library gets it from the system: what is no UTF-8 becomes surrogates."""
    return data.decode("utf-8", "surrogateescape")


def environ_of(data: bytes) -> dict[str, str]:
    """``NAME=value`` entries that end with a NUL, as in /proc/PID/environ."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {text_of(name): text_of(value) for name, _, value in pairs if name}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory in memory, if there is one."""
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def put(directory: str, name: str, data: bytes) -> str:
    """Write a file that only its owner can use; the path of it."""
    path = Path(directory, name)
    path.touch(mode=0o600)
    path.write_bytes(data)
    return str(path)


def steady(function: Callable[[], T]) -> T:
    """What ``function`` gives, twice the same."""
    first, again = function(), function()
    assert first == again or repr(first) == repr(again), f"first {first!r}, then {again!r}"  # nan equals nothing
    return first


def check_line(text: str) -> None:
    """A message is one line that any terminal and log can take."""
    assert text.isprintable(), f"no printable line: {text!r}"


def check_notices(notices: Iterable[Notice]) -> None:
    """Notices are one printable line each, with a code and a known level."""
    for notice in notices:
        check_line(notice.message)
        check_line(notice.fix)
        assert notice.code
        assert notice.level in ("info", "warning", "problem")
