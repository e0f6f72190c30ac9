"""What importing the package does, in order, behind one guard: an import must never fail because of us."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .errors import first_line
from .notices import Notice
from .state import process

if TYPE_CHECKING:
    from .environment import Applied
    from .planning import ThreadPlan


def begin() -> None:
    """Snapshot affinity, apply the plan to the environment and install the hooks, unless switched off."""
    try:
        _begin()
    except Exception as error:  # noqa: BLE001 - promise: importing never raises; the report tells instead
        message = f"importing did not finish: {type(error).__name__}: {first_line(error)}"
        process.note(Notice("startup-failed", message, "problem", "report this with the output of `cgroup-threads`"))


def _begin() -> None:
    if process.affinity is None:
        from .detection.affinity import take_snapshot

        snapshot = take_snapshot(os.environ)
        if snapshot is not None:
            process.affinity = snapshot.cpus
            process.note(*snapshot.notices)
    settings = process.settings
    process.note(*settings.notices)
    if not settings.auto:
        return
    applied = apply()
    if settings.verbose:
        plan = applied.plan
        _say(f"cgroup_threads: {plan.threads} threads, {plan.usable} usable cores (bound by {plan.bound_by})")


def _say(line: str) -> None:
    """Print to standard error, if it is there."""
    if sys.stderr is not None:  # print would take standard output instead
        try:
            print(line, file=sys.stderr, flush=True)
        except (OSError, ValueError):  # its descriptor is closed, or the object
            pass


def apply(plan: ThreadPlan | None = None) -> Applied:
    """Set the thread variables of ``plan`` (default: ``cgroup_threads.plan()``) that the user has not set.

    Importing the package does this. A second call changes nothing, unless it brings another plan: then variables that
    still hold our value are updated. Where native libraries are loaded already, their live pools are lowered instead;
    ``late`` names the libraries. It also installs the import hooks (unless ``CGROUP_THREADS_PATCH=0``) and what keeps
    forked children from hanging. Never raises because of what it finds in the environment.
    """
    from . import environment
    from .models import hooks
    from .pools import forking

    applied = environment.apply(plan)
    hooks.install()
    forking.register()
    return applied
