"""Profile files: read with distrust, written whole or not at all.

Others may be able to write to the directory. What they could have put there is not read: only a regular file of this
user or root that nobody else may write to, never through a symbolic link; and no FIFO or device is waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from ..errors import CgroupThreadsError, first_line
from ..notices import shown
from . import format as text
from .location import directory as default_directory
from .location import file_name
from .records import Profile, differences

# Windows has neither links to be wary of here nor calls that wait, and translates line ends if not told otherwise.
_COMMON: Final = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _COMMON
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _COMMON
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MODE: Final = 0o644


class ProfileError(CgroupThreadsError):
    """A profile cannot be read or written. ``path`` is the file or directory, ``reason`` says what is in the way."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{shown(path, 200)}: {reason}")


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """The profile in the file ``path``.

    Raises FileNotFoundError without one, and ProfileError for what is none or could be another user's.
    """
    name = os.fspath(path)
    try:
        content = _read(name)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # the latter for names with a NUL
        raise ProfileError(name, _reason(error)) from error
    try:
        return text.read(content)
    except ValueError as error:
        raise ProfileError(name, str(error)) from error


def save_profile(profile: Profile, directory: str | os.PathLike[str] | None = None) -> str:
    """Write ``profile`` to ``directory`` (default: the setting's), and return the path.

    The file is there as a whole or not at all, also for readers at this moment and after a crash. It replaces an
    earlier profile of the same model and machine, and keeps the counts that this one has not: of decoding, where only
    prompts were measured. Raises ProfileError where profiles are switched off, for one that names
    no model (nothing could find it), where something stands in its place that is no profile of ours, which stays, and
    where it cannot be written.
    """
    where = choose_directory(directory)
    path = os.path.join(where, file_name(profile.identity))
    if not profile.identity.model:
        raise ProfileError(path, "it would name no model, and never be used")
    try:
        os.makedirs(where, mode=0o700, exist_ok=True)
        content = _write(_complete(profile, path), path)
        _replace(path, content)
    except (OSError, ValueError) as error:
        raise ProfileError(path, _reason(error)) from error
    return path


def choose_directory(directory: str | os.PathLike[str] | None = None) -> str:
    """The directory that ``save_profile`` writes to. Raises ProfileError where profiles are switched off."""
    where = default_directory() if directory is None else os.fspath(directory)
    if where is None:
        raise ProfileError("CGROUP_THREADS_PROFILES", "profiles are switched off, or there is no home directory")
    return where


def check_directory(directory: str | os.PathLike[str] | None = None) -> None:
    """Raise ProfileError where ``save_profile`` would surely fail: to be called before a measurement of minutes."""
    where = os.path.abspath(choose_directory(directory))
    there = where
    while not os.path.lexists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise ProfileError(there, os.strerror(errno.ENOTDIR))
    if not os.access(there, os.W_OK):
        raise ProfileError(there, os.strerror(errno.EACCES))


def _complete(profile: Profile, path: str) -> Profile:
    """``profile`` with the counts that only the earlier one at ``path`` has."""
    try:
        earlier = load_profile(path)
    except FileNotFoundError:
        return profile
    except ProfileError as error:
        raise ProfileError(path, f"{error.reason}: it is left as it is; move it away to save here") from error
    kept = [name for name in earlier.counts if name not in profile.counts]
    if not kept or differences(earlier.identity, profile.identity):
        return profile
    return profile._replace(
        counts={**{name: earlier.counts[name] for name in kept}, **profile.counts},
        rates={**{name: earlier.rates[name] for name in kept if name in earlier.rates}, **profile.rates},
        confidence=min(earlier.confidence, profile.confidence),
    )


def _write(profile: Profile, path: str) -> bytes:
    try:
        return text.write(profile)
    except ValueError as error:
        raise ProfileError(path, f"it would not be readable: {error}") from error


def _read(path: str) -> bytes:
    _check(os.lstat(path))  # before it is opened: opening alone can act on a device
    descriptor = os.open(path, _READ)
    try:
        _check(os.fstat(descriptor))
        content = b""
        while len(content) <= text.MAX_BYTES:
            part = os.read(descriptor, text.MAX_BYTES + 1 - len(content))
            if not part:
                break
            content += part
        return content
    finally:
        os.close(descriptor)


def _check(status: os.stat_result) -> None:
    """Raise OSError for a file that others could have put there."""
    reason = ""
    if stat.S_ISLNK(status.st_mode):
        reason = "it is a symbolic link"
    elif not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif hasattr(os, "geteuid"):
        if status.st_uid not in (os.geteuid(), 0):
            reason = f"it belongs to user {status.st_uid}"
        elif status.st_mode & _OTHERS_WRITE:
            reason = f"others may write to it (mode {stat.S_IMODE(status.st_mode):o}): chmod go-w makes it yours alone"
    if reason:
        raise OSError(errno.EPERM, reason)


def _replace(path: str, content: bytes) -> None:
    """Put a new file with ``content`` in the place of ``path``; on failure nothing is left of it."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(6).hex()}.tmp")
    # Read by all who may, never written by a group, whatever the umask: such a file would not be read.
    descriptor = os.open(temporary, _WRITE, _MODE)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            _check(os.fstat(descriptor))  # some file systems have modes and owners of their own
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(folder)


def _sync_directory(folder: str) -> None:
    """Make the new name last; file systems and platforms that cannot are left at that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return first_line(error)
    return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or first_line(error)
