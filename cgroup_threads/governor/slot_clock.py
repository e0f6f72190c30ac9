"""The clock that processes sharing a budget have in common: a time namespace moves the monotonic clock of its own."""

from __future__ import annotations

from typing import Final

from ..detection.cpulist import parse_number
from ..detection.procfs import Files

_OFFSETS: Final = "/proc/self/timens_offsets"
_DIGITS: Final = 10
"""The kernel takes no offset that has more."""


def clock_shift() -> float:
    """Seconds that ``time.monotonic`` is ahead of the machine's: in a time namespace, as of a container that was
    restored from a checkpoint. 0.0 where there is none."""
    return parse_offset(Files().read(_OFFSETS).text or "")


def parse_offset(text: str) -> float:
    """The seconds of ``monotonic`` in /proc/PID/timens_offsets: a name, seconds that may be negative, nanoseconds."""
    for line in text.split("\n"):
        fields = line.split()
        if len(fields) == 3 and fields[0] == "monotonic":
            seconds = parse_number(fields[1].removeprefix("-"), _DIGITS)
            nanoseconds = parse_number(fields[2], _DIGITS)
            if seconds is not None and nanoseconds is not None:
                return (-seconds if fields[1].startswith("-") else seconds) + nanoseconds / 1e9
    return 0.0
