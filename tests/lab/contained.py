"""What a container says of itself, and what is right there."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

from . import require
from .commands import ROOT

INSIDE = (sys.executable, "-W", "error", str(ROOT / "tests" / "lab" / "inside.py"))
"""What runs in a container: see ``inside.py``."""
ALL = 0
"""As many cores as this machine has."""
# What other programs of this machine do is said, too.
_OTHERS = {"cpu-pressure", "threads-runnable", "throttled"}


class Answer(NamedTuple):
    """What a container said: a script with the package, and ``cgroup-threads report --json``."""

    script: dict[str, Any]
    report: dict[str, Any]


class Right(NamedTuple):
    """What is right in a container, on a machine of two or more CPUs.

    ``codes`` are the findings about limits, ``scope`` is who shares the budget, ``slots`` are the findings about that.
    """

    usable: int
    quota: float | None
    status: str
    bound_by: str
    scope: str = "container"
    codes: frozenset[str] = frozenset()
    slots: frozenset[str] = frozenset()


ONE = Right(1, 1.0, "limited", "quota")
UNLIMITED = Right(ALL, None, "unlimited", "host", "process")
UNSEEN = UNLIMITED._replace(status="unknown", codes=frozenset({"cgroup-not-mounted"}))
NO_SLOTS = ONE._replace(scope="process", slots=frozenset({"slots-unavailable"}))
FLAGS = {
    "--cpus 1.5": Right(1, 1.5, "limited", "quota"),
    "--cpuset-cpus 0": Right(1, None, "unlimited", "cpuset"),
    "--cpus 1.5 --cpuset-cpus 0": Right(1, 1.5, "limited", "cpuset"),
    "--cpu-shares 512": UNLIMITED,
    "--cpus 2 --cpu-shares 512": Right(2, 2.0, "limited", "quota"),
}
"""Users' own flags of podman and Docker, and what is right with them."""


def parse_answer(text: str) -> Answer:
    """The answer in what INSIDE printed."""
    line, _, rest = text.partition("\n")
    return Answer(json.loads(line), json.loads(rest))


def check(text: str, right: Right) -> None:
    """Whether the container said in ``text``, and the package did, what is right there."""
    cpus = len(os.sched_getaffinity(0))
    require(cpus >= 2, "one CPU only")
    if right.usable in (ALL, cpus):  # a quota that is no less than the machine takes nothing away
        right = right._replace(usable=cpus, bound_by="host" if cpus == os.cpu_count() else "affinity")
    answer = parse_answer(text)
    said, report = answer.script, answer.report
    assert (said["raised"], said["printed"]) == (None, ""), said
    names = ("usable", "quota", "status", "bound_by", "scope")
    found = Right._make([*(said[name] for name in names), frozenset(said["codes"]), frozenset()])
    assert found == right._replace(slots=frozenset()), said
    assert all(said["fixes"]), said
    limits = report["limits"]
    named = (report["usable_cores"], limits["quota"], limits["status"], report["bound_by"])
    assert named == right[:4], report
    assert _codes(report) == right.codes, report
    assert _codes(said["report"]) == right.codes | right.slots, said["report"]
    # The variables were there before the libraries; a lease lowers what was raised since, and only meanwhile.
    threads = min(right.usable, limits["physical_cores"])
    assert (said["plan"], said["asked"], said["started"]) == (threads, str(threads), [threads, threads]), said
    assert (said["threads"], said["within"], said["after"]) == (threads, [threads, threads], [4, 4]), said
    assert said["warned"] == [], said
    # A child has to wait for what its parent has leased, unless the quota has half a core besides.
    half = right.quota == 1.5 and right.bound_by == "quota"
    assert said["child"] == (right.scope == "container" and not half), said


def _codes(report: dict[str, Any]) -> set[str]:
    """The codes of the findings, but for those about what others do."""
    found = {notice["code"] for level in ("problems", "warnings", "notes") for notice in report[level]}
    return found - _OTHERS
