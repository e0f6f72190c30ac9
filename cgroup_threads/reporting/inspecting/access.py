"""Bounded reads of another process's files, and of the top of its threads' stacks. Nothing here raises."""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from .owners import CodeMap
from .tasks import Mapping, parse_syscall

GONE: Final = "gone"
SMALL: Final = 4096
MEDIUM: Final = 1 << 16
LARGE: Final = 16 << 20  # maps of some 150 000 mappings; the environment of a process
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_STACK: Final = 1 << 15  # bytes above the stack pointer: enough for a torch call below an interpreter's frame
_PAGE: Final = 4096
_MAX_ADDRESS: Final = 1 << 63


class Content(NamedTuple):
    """Bytes of a file, and why they are missing or cut: GONE, or a reason in words."""

    data: bytes
    problem: str = ""


def read_bytes(path: str, limit: int = SMALL) -> Content:
    """At most ``limit`` bytes of ``path``."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        return Content(b"", _reason(error))
    try:
        pieces: list[bytes] = []
        size = 0
        while size < limit:
            piece = os.read(descriptor, min(limit - size, 1 << 18))
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if limit == SMALL:  # such a file comes whole
                break
        return Content(b"".join(pieces), f"cut at {limit} bytes" if size >= limit else "")
    except OSError as error:
        return Content(b"", _reason(error))
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ESRCH, errno.ENOTDIR):
        return GONE
    return error.strerror or type(error).__name__


class Stacks:
    """Tells threads' owners from their stacks while they sleep; ``problem`` says why it cannot.

    Needs the right to trace the process: its own user has it, unless Yama (ptrace_scope) or a missing capability in a
    container takes it away.
    """

    def __init__(self, pid: int, task: int, code: Sequence[Mapping], stacks: Sequence[Mapping]) -> None:
        self._pid = pid
        self._code = CodeMap(code)
        self._stacks = sorted(stacks)
        self._starts = [mapping.start for mapping in self._stacks]
        self.problem = ""
        self._memory = -1
        self._open(task)  # to know beforehand whether it may be read
        self.close()

    def _open(self, task: int) -> None:
        """Open the memory of the process, which a thread that has ended does not show."""
        try:
            self._memory = os.open(f"/proc/{self._pid}/task/{task}/mem", _FLAGS)
        except OSError as error:
            self.problem = _reason(error)

    def close(self) -> None:
        """Give the descriptor back after a look: hundreds of processes may be under watch at once."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def owner_of(self, tid: int) -> str | None:
        """The owner of a sleeping thread; None if it runs or its stack tells nothing."""
        if self.problem:
            return None
        content = read_bytes(f"/proc/{self._pid}/task/{tid}/syscall")
        if content.problem:
            if content.problem != GONE:
                self.problem = content.problem
            return None
        found = parse_syscall(content.data)
        if found is None or not 0 < found[0] < _MAX_ADDRESS:
            return None
        if self._memory < 0:
            self._open(tid)
            if self._memory < 0:
                return None
        pointer, counter = found
        at = bisect_right(self._starts, pointer) - 1
        known = at >= 0 and pointer < self._stacks[at].end
        # A stack younger than the map ends nobody knows where: no more than its page.
        end = self._stacks[at].end if known else (pointer // _PAGE + 1) * _PAGE
        try:
            words = os.pread(self._memory, min(_STACK, end - pointer), pointer)
        except OSError:  # the thread ended, or its stack was unmapped
            words = b""
        return self._code.owner_of(counter, words)
