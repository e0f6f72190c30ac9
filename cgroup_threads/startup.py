"""What importing the package does, in order, behind one guard: an import must never fail because of us."""

from __future__ import annotations

import os
import sys

from .errors import first_line
from .notices import Notice
from .state import process


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
    from .environment import apply

    applied = apply()
    if settings.patch:
        from .models import hooks

        hooks.install()
    from .pools import forking

    forking.register()
    if settings.verbose:
        plan = applied.plan
        print(
            f"cgroup_threads: {plan.threads} threads, {plan.usable} usable cores (bound by {plan.bound_by})",
            file=sys.stderr,
        )
