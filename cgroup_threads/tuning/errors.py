"""What can go wrong while thread counts are measured."""

from __future__ import annotations

from ..errors import CgroupThreadsError


class TuneError(CgroupThreadsError, RuntimeError):
    """What was to be measured failed. ``what`` names it ("decode", a file, a command; may be empty)."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        name = " ".join(what.split())  # messages end at their first line: a script would hide the reason
        super().__init__(f"tune, {name}: {reason}" if name else f"tune: {reason}")
