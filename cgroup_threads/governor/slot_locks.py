"""Locks on bytes of a file that belong to an open file description: the kernel drops them with its last descriptor.

POSIX's record locks would be dropped whenever any descriptor of the file is closed, and threads would share them.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

from .slot_rows import run_mask

if sys.platform != "win32":
    from fcntl import fcntl

_GETLK, _SETLK = 36, 37  # F_OFD_GETLK and F_OFD_SETLK of <fcntl.h>; the module fcntl does not name them
_READ, _WRITE, _UNLOCK = 0, 1, 2  # F_RDLCK, F_WRLCK, F_UNLCK
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


def lock(descriptor: int, start: int, length: int) -> bool:
    """Lock ``length`` bytes from ``start`` on, all or none, without waiting; False if somebody else has one of them."""
    try:
        fcntl(descriptor, _SETLK, _FLOCK.pack(_WRITE, 0, start, length, 0))
    except OSError:
        return False
    return True


def unlock(descriptor: int, start: int, length: int) -> bool:
    """Give up the locks on these bytes, as far as they are this description's. False if the kernel had no memory."""
    try:
        fcntl(descriptor, _SETLK, _FLOCK.pack(_UNLOCK, 0, start, length, 0))
    except OSError:
        return False
    return True


def check_locks(descriptor: int, byte: int) -> None:
    """Raises OSError where the kernel or the file system has no such locks. ``byte`` is one that nobody locks."""
    fcntl(descriptor, _SETLK, _FLOCK.pack(_READ, 0, byte, 1, 0))
    unlock(descriptor, byte, 1)


def locked_by_others(descriptor: int, end: int) -> int:
    """The mask of the bytes below ``end`` that other descriptions have locked; 0 where it cannot be told.

    The kernel names any one lock inside a range: what is left of and right of it is asked for again.
    """
    mask = 0
    ranges = [(0, end)]
    while ranges:
        start, stop = ranges.pop()
        if start >= stop:
            continue
        try:
            answer = fcntl(descriptor, _GETLK, _FLOCK.pack(_WRITE, 0, start, stop - start, 0))
        except OSError:  # the descriptor was closed, or the file system lost its server: no lock can be had either
            return 0
        kind, _, first, length, _ = _FLOCK.unpack(answer)
        if kind == _UNLOCK:
            continue
        first = max(first, start)
        last = min(first + length, stop) if length else stop
        mask |= run_mask(first, last - first)
        ranges += (start, first), (last, stop)
    return mask
