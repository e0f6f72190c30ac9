"""What may this process use? Read-only: files and system calls in, one frozen record out."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from typing import Final

from ..errors import InvalidArgumentError
from ..settings import ROUNDINGS, Rounding
from ..state import process
from .cpulist import MAX_CPUS
from .probe import conclude, observe
from .records import CpuLimits, Observation

__all__ = ["CpuLimits", "detect", "usable_cores"]

_LACKING: Final = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_AFFINITY: Final = f"a count from 1 to {MAX_CPUS} or a collection of CPU numbers"


def detect(root: str | os.PathLike[str] = "/", *, affinity: int | Collection[int] | None = None) -> CpuLimits:
    """Find out how many cores this process may use, and why.

    Reads cgroups (v1, v2, hybrid; every visible level), cpuset, affinity, the topology in /sys, batch schedulers and
    the override CGROUP_THREADS_CORES; nothing is changed. ``root`` is a directory laid out like ``/``, for trees
    copied from another machine; ``affinity`` stands in for the affinity mask, as a count or as CPU numbers.

    What cannot be read or understood becomes a notice of the result. Raises only InvalidArgumentError, for arguments
    of the wrong kind.
    """
    path = _check_root(root)
    mask = None if affinity is None else _check_affinity(affinity)
    real = path == "/"
    known = process.observation if real else None
    seen = observe(path, mask, os.environ, snapshot=process.affinity, known=known)
    if real and mask is None:
        seen = _keep_known(seen, known)
        process.observation = seen
    return conclude(seen, os.environ, process.settings.cores)


def _keep_known(seen: Observation, known: Observation | None) -> Observation:
    """What was ``known`` before, where files could not be opened for a lack of descriptors or memory in this process or
    machine: that says nothing of the limits, and they must not seem to be gone."""
    lacking = [notice for notice in seen.notices if notice.message.endswith(_LACKING)]
    if not lacking or known is None:
        return seen
    kept = [notice for notice in known.notices if not notice.message.endswith(_LACKING)]
    return known._replace(notices=(*kept, lacking[0]))


def usable_cores(*, rounding: Rounding | None = None) -> int:
    """Cores this process may keep busy, at least 1.

    ``rounding`` ("floor", "ceil" or "round") is applied to a fractional quota; None takes CGROUP_THREADS_ROUNDING,
    else "floor". Raises InvalidArgumentError for another word.
    """
    if rounding is not None and rounding not in ROUNDINGS:
        raise InvalidArgumentError("rounding", rounding, "one of " + ", ".join(ROUNDINGS))
    return detect().usable(rounding or process.settings.rounding)


def _check_root(root: object) -> str:
    path = os.fspath(root) if isinstance(root, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise InvalidArgumentError("root", root, "a path")
    return path if path.strip("/") else "/"


def _check_affinity(affinity: object) -> int | frozenset[int]:
    if type(affinity) is int and 1 <= affinity <= MAX_CPUS:
        return affinity
    if isinstance(affinity, Collection) and not isinstance(affinity, (str, bytes)):
        try:
            cpus = frozenset(affinity)
        except TypeError:  # unhashable members
            cpus = frozenset()
        if cpus and all(type(cpu) is int and 0 <= cpu < MAX_CPUS for cpu in cpus):
            return cpus
    raise InvalidArgumentError("affinity", affinity, _AFFINITY)
