"""joblib's worker environment: it takes thread variables it finds set for the user's and hands them on undivided.

``_prepare_worker_env(n_jobs)`` gives a worker ``cpu_count() // n_jobs`` threads, but keeps each variable that is in
``os.environ`` already. What importing this package computed for one process would reach all ``n_jobs`` workers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..notices import Notice
from ..state import process

_METHOD = "_prepare_worker_env"  # joblib 0.14 and newer: loky's workers alone get an environment


def govern_workers(module: ModuleType) -> None:
    """Divide the computed variables among joblib's workers: wraps the method once for each import of the module."""
    backend: Any = getattr(module, "ParallelBackendBase", None)
    original = getattr(backend, _METHOD, None)
    if original is None:
        message = f"joblib has no {_METHOD}: its workers share the cores only if they import cgroup_threads"
        process.note(Notice("joblib-hook-failed", message, "warning"))
    elif not hasattr(original, "__wrapped__"):
        setattr(backend, _METHOD, _divide(original, getattr(module, "cpu_count", None)))


def _divide(
    original: Callable[..., dict[str, str]], cpu_count: Callable[[], int] | None
) -> Callable[..., dict[str, str]]:
    @functools.wraps(original)
    def prepare_worker_env(self: Any, n_jobs: int) -> dict[str, str]:
        environment = original(self, n_jobs)
        explicit = getattr(self, "inner_max_num_threads", None) is not None
        if process.applied is None or explicit or not process.settings.patch:
            return environment
        default = max(1, cpu_count() // n_jobs) if cpu_count is not None else None
        return environment | divide_computed(environment, n_jobs, default)

    return prepare_worker_env


def divide_computed(environment: dict[str, str], n_jobs: int, default: int | None) -> dict[str, str]:
    """What to change in joblib's ``environment`` for each of ``n_jobs`` workers.

    A computed variable becomes the worker's share, or joblib's ``default`` where that is smaller; what the user set
    stays. The worker's marker names the shares alone: the smaller defaults count as joblib's own there.
    """
    from ..environment import child_environment
    from ..marker import MARKER, Marker, read_marker, write_marker

    child = child_environment(workers=max(1, n_jobs))
    marker, _ = read_marker(child[MARKER])
    applied = process.applied
    if marker is None or applied is None:
        return {}
    changed = {}
    shares = {}
    for name, share in marker.values.items():
        if name not in applied.set or applied.set[name] != os.environ.get(name):
            continue
        smaller = name in environment and default is not None and default < int(share)
        changed[name] = str(default) if smaller else share
        if not smaller:
            shares[name] = share
    workers = {name: child[name] for name in ("CGROUP_THREADS_WORKERS",) if name in child}
    return changed | workers | {MARKER: write_marker(Marker(marker.origin, shares))}
