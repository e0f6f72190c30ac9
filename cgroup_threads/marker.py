"""CGROUP_THREADS_APPLIED: tells child processes which variables were computed, not set by the user. Pure.

Format: ``1;<device:inode of the cgroup or ->;<boot id or ->;NAME=value,NAME=value``. The text is hostile: bounded,
names outside the table are ignored, and anything else that does not fit makes the whole marker count as missing.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from collections.abc import Mapping
from typing import Final, NamedTuple

from .notices import Notice, shown
from .variables import BY_NAME

MARKER: Final = "CGROUP_THREADS_APPLIED"
VERSION: Final = "1"
MAX_LENGTH: Final = 4096
MAX_VALUE: Final = 9  # digits of a thread count we write


class Origin(NamedTuple):
    """Where the values were computed; "-" where it could not be told."""

    cgroup: str = "-"
    boot: str = "-"


class Marker(NamedTuple):
    """The origin and the variables that were written, with their values."""

    origin: Origin
    values: dict[str, str]


def write_marker(marker: Marker) -> str:
    """The text of the variable."""
    pairs = ",".join(f"{name}={value}" for name, value in marker.values.items())
    return ";".join((VERSION, *marker.origin, pairs))


def read_marker(text: str | None) -> tuple[Marker | None, Notice | None]:
    """The marker in ``text``, or why it does not count; (None, None) if there is none."""
    if text is None or not text.strip():
        return None, None
    parts = text.split(";") if len(text) <= MAX_LENGTH and text.isascii() and text.isprintable() else []
    if len(parts) != 4 or parts[0] != VERSION:
        message = f"{MARKER}={shown(text)} is ignored, so inherited values count as the user's"
        return None, Notice("marker-invalid", message, "warning", f"unset {MARKER}")
    values = {}
    for pair in parts[3].split(","):
        name, _, value = pair.partition("=")
        if name in BY_NAME and value.isdigit() and len(value) <= MAX_VALUE:
            values[name] = value
    return Marker(Origin(parts[1], parts[2]), values), None


def computed_values(environ: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """The entries of ``values`` that still hold in ``environ``: where they differ, the user changed them."""
    return {name: value for name, value in values.items() if environ.get(name) == value}
