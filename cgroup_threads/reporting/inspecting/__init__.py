"""Another process, judged from /proc alone: who its threads are, what they do, and what to change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ...errors import InvalidArgumentError
from .reading import find_processes, watch
from .records import InspectError, Sample, Verdict
from .render import render, to_dict
from .together import judge_together
from .verdict import judge

__all__ = ["InspectError", "Inspection", "find_processes", "inspect_process", "inspect_processes", "judge_together"]

MAX_SECONDS: Final = 3600.0


class Inspection:
    """What was seen of one process. ``str()`` is the text, ``to_json()`` and ``to_dict()`` the same for machines."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.verdict: Verdict = judge(sample)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values. ``schema`` is raised when the meaning of a key changes."""
        return to_dict(self.sample, self.verdict)

    def to_json(self) -> str:
        """The inspection as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return render(self.sample, self.verdict)

    def __repr__(self) -> str:
        return f"<Inspection of {self.sample.pid}: {self.verdict.code}>"


def inspect_process(pid: int, *, seconds: float = 2.0) -> Inspection:
    """Watch process ``pid`` for ``seconds`` and judge what its threads do with the cores it may use.

    Reads /proc only; works without privileges on processes of the same user, and says what it could not read.
    Raises InspectError for a process that is gone, ends meanwhile, belongs to somebody else or to the kernel, and
    InvalidArgumentError for arguments out of range.
    """
    found = inspect_processes([pid], seconds=seconds)[0]
    if isinstance(found, InspectError):
        raise found
    return found


def inspect_processes(pids: Sequence[int], *, seconds: float = 2.0) -> list[Inspection | InspectError]:
    """Watch several processes over the same interval; an error stands in the place of one that cannot be judged."""
    for pid in pids:
        if type(pid) is not int or pid < 1:
            raise InvalidArgumentError("pid", pid, "a process number")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= MAX_SECONDS:
        raise InvalidArgumentError("seconds", seconds, f"above 0, up to {MAX_SECONDS:g}")
    return [item if isinstance(item, InspectError) else Inspection(item) for item in watch(pids, seconds)]
