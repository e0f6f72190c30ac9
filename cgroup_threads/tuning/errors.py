"""What can go wrong while thread counts are measured."""

from __future__ import annotations

from ..errors import CgroupThreadsError


class TuneError(CgroupThreadsError, RuntimeError):
    """What was to be measured failed. ``what`` names it ("decode", a file, a command; may be empty)."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"tune, {what}: {reason}" if what else f"tune: {reason}")
