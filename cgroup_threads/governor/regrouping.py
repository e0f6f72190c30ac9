"""Whether a process was moved out of the cgroup whose processes it shares cores with, and whom it shares them with."""

from __future__ import annotations

from ..detection.placement import Placement
from ..detection.records import CpuLimits
from .sizing import binding_directory
from .slots import slot_key


def new_key(key: str, limits: CpuLimits, placement: Placement | None) -> str | None:
    """The key of the slots in the group we are in by now; None while one of our groups still has ``key``.

    A group whose limits were changed keeps its processes together: only who was moved, or can see none of it, moves on.
    None as well where it cannot be told which groups are ours.
    """
    if placement is None or not placement.certain:
        return None
    places = (placement.cpu, placement.cpuset)
    ours: set[str | None] = set()
    for place in places:
        if place is not None:
            ours.update(slot_key(found) for chain in place.chains for found in chain.directories)
            ours.update(map(slot_key, place.ancestors))
    directory = binding_directory(limits)
    if key in ours or None in ours or directory is None:
        return None
    there = slot_key(directory)
    return None if there == key else there
