"""The tuned thread counts of a model, if there are any that hold here. What is ignored leaves a notice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from ..errors import first_line
from ..notices import Notice, shown
from ..planning import current_plan
from ..state import process
from .files import ProfileError, load_profile
from .location import directory, file_name, is_name, prefix
from .records import Profile, differences

_MAX_ENTRIES: Final = 10_000
_MAX_READ: Final = 16
"""Profiles of a model for other machines that are read to say what differs."""
_AGAIN: Final = "measure here: cgroup-threads tune --save"


class Tuned(NamedTuple):
    """Tuned counts by the name of their argument: to begin with, and those past which more threads were waste.

    ``tops`` bound leases. A count that is all the cores that were usable is none: nobody has measured more, and a
    container that is resized up later may use more.
    """

    counts: Mapping[str, int] = {}
    tops: Mapping[str, int] = {}


def find_counts(model: object, library: str, names: Iterable[str]) -> Tuned:
    """The tuned counts of ``names`` for the model in the file or directory ``model``, cut to what is usable now.

    ``library`` is the distribution that computes with it. Never raises, and does no more than list a directory while
    that holds no profile.
    """
    wanted = tuple(names)
    try:
        found = _find(model, library) if wanted else None
        if found is None:
            return Tuned()
        profile, path = found
        plan = current_plan()
        cores = max(1, plan.usable // plan.workers)
        counts = {name: min(profile.counts[name], cores) for name in wanted if name in profile.counts}
    except Exception as error:  # noqa: BLE001 - a model must not fail because of its profile
        message = f"looking for a profile failed: {type(error).__name__}: {first_line(error)}"
        process.note(Notice("profile-failed", message, "warning", "report this with its text"))
        return Tuned()
    if counts:
        said = ", ".join(f"{name}={count}" for name, count in counts.items())
        process.note(Notice("profile-used", f"{said}: tuned, by {shown(path, 200)} of {profile.created}"))
    tops = {name: profile.counts[name] for name in counts if profile.counts[name] < profile.identity.usable}
    return Tuned(counts, tops)


def _find(model: object, library: str) -> tuple[Profile, str] | None:
    """The profile that holds for ``model`` here and now, and its path."""
    where = directory()
    if where is None or not isinstance(model, (str, os.PathLike)):
        return None
    names = _names(where)
    path = os.fspath(model)
    if not names or not isinstance(path, str) or not os.path.exists(path):
        return None
    from .identity import identify_model, library_version, present_identity

    here = present_identity(identify_model(path), library_version(library))
    if not here.model:
        return None
    own = file_name(here)
    others = (name for name in names if name != own and name.startswith(prefix(here.model)))
    misfits: list[tuple[str, ...]] = []
    for name in (own, *islice(others, _MAX_READ)):
        profile = _load(os.path.join(where, name))
        if profile is not None:
            differing = differences(profile.identity, here)
            if not differing:
                return profile, os.path.join(where, name)
            misfits.append(differing)
    if misfits:
        nearest = min(misfits, key=len)
        message = f"a profile of this model does not hold here: it was measured with {'; '.join(nearest)}"
        process.note(Notice("profile-other-machine", message, "info", _AGAIN))
    return None


def _names(where: str) -> list[str]:
    """The names in the directory that could be profiles."""
    try:
        with os.scandir(where) as entries:
            return sorted(entry.name for entry in islice(entries, _MAX_ENTRIES) if is_name(entry.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        _note_ignored(ProfileError(where, error.strerror or first_line(error)))
        return []


def _load(path: str) -> Profile | None:
    """The profile at ``path``; None, with a notice, if something else is there."""
    try:
        return load_profile(path)
    except FileNotFoundError:
        return None
    except ProfileError as error:
        _note_ignored(error)
        return None


def _note_ignored(error: ProfileError) -> None:
    process.note(Notice("profile-ignored", f"not used as a profile: {error}", "warning", f"look at it, or {_AGAIN}"))
