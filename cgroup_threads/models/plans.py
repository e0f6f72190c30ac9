"""The check of explicit counts against the usable cores."""

from __future__ import annotations

import warnings

from ..errors import CgroupThreadsWarning
from ..notices import Notice
from ..state import process


def note_above_usable(library: str, name: str, count: int, usable: int) -> str:
    """Leave a notice if an explicit ``count`` is above the usable cores, and return its message, else ``""``."""
    if count <= usable:
        return ""
    message = f"{name}={count} is above the {usable} usable cores"
    fix = f"leave {name} out, or pass at most {usable}: threads without a core hold up all others at every barrier"
    process.note(Notice(f"{library}-threads-above-usable", message, "warning", fix))
    return message


def warn_above_usable(messages: list[str]) -> None:
    """Emit one CgroupThreadsWarning at the caller of the factory for the non-empty ``messages``."""
    found = [message for message in messages if message]
    if found:
        warnings.warn("; ".join(found), CgroupThreadsWarning, stacklevel=3)
