"""The report: how many cores, what bound them, what libraries made of it, and what to do."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidArgumentError
from ..notices import Notice
from .collect import MAX_INTERVAL, collect
from .judge import find_problems
from .records import Evidence
from .render import render
from .values import to_dict

__all__ = ["Report", "report"]


class Report:
    """What was found. ``str(report)`` is the text, ``to_json()`` and ``to_dict()`` the same for machines.

    ``notices`` are all findings, worst first; ``problems`` those of level "problem".
    """

    def __init__(self, evidence: Evidence, notices: tuple[Notice, ...]) -> None:
        self.evidence = evidence
        self.notices = notices

    @property
    def problems(self) -> tuple[Notice, ...]:
        """Findings that cost speed or correctness until something is changed; ``report --check`` fails on them."""
        return tuple(notice for notice in self.notices if notice.level == "problem")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values. ``schema`` is raised when the meaning of a key changes."""
        return to_dict(self.evidence, self.notices)

    def to_json(self) -> str:
        """The report as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2, default=str)  # a library may tell a version that is no text

    def __str__(self) -> str:
        return render(self.evidence, self.notices)

    def __repr__(self) -> str:
        plan = self.evidence.plan
        return f"<Report: {plan.usable} usable cores, bound by {plan.bound_by}, {len(self.problems)} problems>"


def report(*, interval: float = 0.0) -> Report:
    """Look at this process and its limits, and judge.

    Reads only: no library is imported, no pool started, no limit changed; what cannot be read becomes a notice.
    Pool counts are those of the calling thread where a pool is kept per thread. ``interval`` in seconds: wait that
    long and judge throttling over it, instead of over the life of the cgroup. Raises InvalidArgumentError for an
    ``interval`` that is no number from 0 to an hour.
    """
    number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not number or not 0 <= interval <= MAX_INTERVAL:
        raise InvalidArgumentError("interval", interval, f"a number of seconds between 0 and {MAX_INTERVAL:g}")
    evidence = collect(interval)
    return Report(evidence, find_problems(evidence))
