"""The file that the processes of one user and one cgroup meet in: found, made, and refused if it is not theirs."""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Final, NamedTuple

from ..errors import CgroupThreadsError, first_line
from ..notices import Notice, shown

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LINK: Final = "it is a symbolic link"
_HIGH: Final = 512  # half of the usual RLIMIT_NOFILE
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


NO_SLOTS: Final = (
    "make /dev/shm writable and let its owner or root remove what stands there, or set CGROUP_THREADS_WORKERS to the "
    "number of worker processes"
)
"""What to do without slots."""


class SlotsUnavailable(CgroupThreadsError, OSError):
    """No slots can be had. ``path`` is the file it is about, ``reason`` says what is in the way."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{shown(path, 200)}: {reason}")


class SlotFile(NamedTuple):
    """An open file; ``notices`` say what went differently. ``inode`` tells whether the descriptor still leads there."""

    key: str
    path: str
    descriptor: int
    notices: tuple[Notice, ...] = ()
    inode: tuple[int, int] = (0, 0)


def slot_key(cgroup_directory: str) -> str | None:
    """The name under which all processes of one user below a cgroup directory meet; None if it cannot be read.

    Device and inode are the same inside and outside a cgroup namespace, and differ between pods that share /dev/shm.
    """
    try:
        status = os.stat(cgroup_directory)
    except (OSError, ValueError):
        return None
    return f"{os.geteuid()}-{status.st_dev:x}-{status.st_ino:x}"


def open_file(key: str, directory: str) -> SlotFile:
    """The file of ``key`` in ``directory``, or with a notice in the temporary one if none can be made there.

    Raises SlotsUnavailable, also where something stands in its place that this user did not make.
    """
    name = f"cgroup_threads-{key}.slots"
    path = os.path.join(directory, name)
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        raise SlotsUnavailable(path, "slots need 64-bit Linux")
    try:
        return take_over(key, path, open_checked(path))
    except SlotsUnavailable:
        raise
    except OSError as error:
        if os.path.lexists(path):
            raise unavailable(path, error) from error
        import tempfile

        try:
            elsewhere = os.path.join(tempfile.gettempdir(), name)
            descriptor = open_checked(elsewhere)
        except OSError:
            raise unavailable(path, error) from error
        message = f"no file can be made in {shown(directory)} ({_reason(error)}): slots are in {shown(elsewhere)}"
        notice = Notice("slots-elsewhere", message, "warning", f"make {shown(directory)} writable")
        return take_over(key, elsewhere, descriptor, (notice,))


def take_over(key: str, path: str, descriptor: int, notices: tuple[Notice, ...] = ()) -> SlotFile:
    """An open ``descriptor`` as a slot file."""
    status = os.fstat(descriptor)
    return SlotFile(key, path, descriptor, notices, (status.st_dev, status.st_ino))


def open_checked(path: str) -> int:
    """A descriptor of the file, made if need be; whatever another user could have put there is refused.

    It is looked at first: opening alone can act on a device. What is put there in between, or has a lease that its
    owner does not give up (the kernel waits 45 s for that), is not waited for.
    """
    try:
        _check(path, os.lstat(path))
    except FileNotFoundError:
        pass
    descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return lift(descriptor)


def lift(descriptor: int) -> int:
    """The same description under a number that few programs reach, if there is one.

    Programs that close all descriptors (daemons) close ours, too. The next files they open have low numbers: those
    must not be taken for ours, and written to.
    """
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    try:
        high: int = fcntl(descriptor, F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # beyond RLIMIT_NOFILE, or too many are open
        return descriptor
    os.close(descriptor)
    return high


def _check(path: str, status: os.stat_result) -> None:
    reason = ""
    if stat.S_ISLNK(status.st_mode):
        reason = _LINK
    elif not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}"
    elif status.st_mode & 0o077:
        reason = f"other users may use it (mode {stat.S_IMODE(status.st_mode):o})"
    elif status.st_nlink > 1:  # 0: a cleaner was faster; whoever uses slots looks whether the file has moved
        reason = "it has another name, too"
    if reason:
        raise SlotsUnavailable(path, reason)


def reopen(file: SlotFile) -> int:
    """Another description of the same file, also if its name is gone; -1 if there is none (no /proc)."""
    if is_lost(file):
        return -1
    try:
        return lift(os.open(f"/proc/self/fd/{file.descriptor}", _FLAGS))
    except OSError:
        return -1


def is_lost(file: SlotFile) -> bool:
    """Whether somebody closed the descriptor, which may be another file's by now: it must be left alone."""
    try:
        status = os.fstat(file.descriptor)
    except OSError:
        return True
    return (status.st_dev, status.st_ino) != file.inode


def has_moved(file: SlotFile) -> bool:
    """Whether the name leads elsewhere by now, or nowhere, or the descriptor was closed."""
    try:
        status = os.fstat(file.descriptor)
    except OSError:
        return True
    if not status.st_nlink or (status.st_dev, status.st_ino) != file.inode:
        return True
    try:
        there = os.stat(file.path, follow_symlinks=False)
    except OSError:
        return True
    return (there.st_dev, there.st_ino) != file.inode


def close(file: SlotFile) -> None:
    """Close the descriptor, if it is still the file's."""
    if not is_lost(file):
        os.close(file.descriptor)


def allocate(descriptor: int, size: int) -> bool:
    """Make room for ``size`` bytes; False if there is none. Without it, a later write may fail."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        return error.errno not in _NO_ROOM  # a file system that cannot, but may have room
    return True


def read(descriptor: int, start: int, size: int) -> bytes:
    """At most ``size`` bytes from ``start`` on; none if that fails."""
    try:
        return os.pread(descriptor, size, start)
    except OSError:
        return b""


def write(descriptor: int, start: int, data: bytes) -> bool:
    """Whether ``data`` could be written."""
    try:
        os.pwrite(descriptor, data, start)
    except OSError:
        return False
    return True


def remove(file: SlotFile) -> None:
    """Remove the name, if it still leads to the file; it may be in a directory that is read-only by now.

    The directory is opened first: its path may lead elsewhere from one call to the next.
    """
    folder, name = os.path.split(file.path)
    try:
        directory = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (there.st_dev, there.st_ino) == file.inode:
            os.unlink(name, dir_fd=directory)
    except OSError:
        return
    finally:
        os.close(directory)


def unavailable(path: str, error: OSError) -> SlotsUnavailable:
    """``error`` as what is in the way of slots in ``path``."""
    return SlotsUnavailable(path, _reason(error))


def _reason(error: OSError) -> str:
    return _LINK if error.errno == errno.ELOOP else error.strerror or first_line(error)
