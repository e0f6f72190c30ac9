"""Where profiles are: the directory, and a file name for each model on each machine. Only computed, nothing is read."""

from __future__ import annotations

import os
import sys
from typing import Final

from ..state import process
from .records import Identity, write_quota

DIGITS: Final = 16
SUFFIX: Final = ".json"
_HEX: Final = frozenset("0123456789abcdef")


def directory() -> str | None:
    """The directory of the profiles; None where they are switched off, or no home directory is known."""
    setting = process.settings.profiles
    if setting is not None:
        return setting or None
    environ = process.user_environ()
    base = environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # its specification: a relative one is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "cgroup_threads", "profiles") if os.path.isabs(base) else None


def file_name(identity: Identity) -> str:
    """One name for each model on each kind of machine, so that several can share a directory."""
    rest = (identity.library, identity.cpu, str(identity.usable), write_quota(identity.quota))
    return f"{prefix(identity.model)}{_digest(*rest)}{SUFFIX}"


def prefix(model: str) -> str:
    """What the names of all profiles of one model begin with."""
    return _digest(model) + "-"


def is_name(name: str) -> bool:
    """Whether a file of this name could be a profile."""
    parts = name.removesuffix(SUFFIX).split("-")
    return name.endswith(SUFFIX) and [len(part) for part in parts] == [DIGITS, DIGITS] and set("".join(parts)) <= _HEX


def _digest(*parts: str) -> str:
    from hashlib import sha256

    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
