"""What a tuning found, as it is kept: for which model on which machine, and the thread counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Identity(NamedTuple):
    """What a measurement belongs to: a profile holds where all of it is the same.

    ``model`` names the weights by content (not by path), ``library`` is like "llama-cpp-python 0.3.36"; both are ""
    where there is none. ``quota`` in cores, None where none was in force; ``usable`` in cores.
    """

    model: str
    library: str
    cpu: str
    usable: int
    quota: float | None


class Profile(NamedTuple):
    """The recommended thread counts of one model on one machine.

    ``counts`` has them by the name of the argument they are for: "n_threads" and "n_threads_batch" of a llama,
    "intra_op_num_threads" of a session, "threads" elsewhere. ``confidence`` (0 to 1) is that of the least sure one. For
    information: ``rates`` in units a second at these counts, by the same names, ``created`` as ISO 8601 in UTC,
    ``version`` of this package.
    """

    identity: Identity
    counts: Mapping[str, int]
    confidence: float
    rates: Mapping[str, float]
    created: str
    version: str


def new_profile(
    identity: Identity, counts: Mapping[str, int], confidence: float, rates: Mapping[str, float] | None = None
) -> Profile:
    """A profile made now by this version."""
    import sys
    from datetime import datetime, timezone

    version: str = sys.modules[__name__.partition(".")[0]].__version__  # an import would point to the layers above
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Profile(identity, dict(counts), confidence, dict(rates or {}), created, version)


def differences(there: Identity, here: Identity) -> tuple[str, ...]:
    """What keeps a measurement of ``there`` from holding ``here``: "quota 4, here 1", ...; empty if nothing does."""
    found = []
    if there.model != here.model:
        found.append("another model")
    if there.library != here.library:
        found.append(f"{there.library or 'no library'}, here {here.library or 'none'}")
    if there.cpu != here.cpu:
        found.append(f"CPU {there.cpu or 'unknown'}, here {here.cpu or 'unknown'}")
    if there.usable != here.usable:
        found.append(f"{there.usable} usable cores, here {here.usable}")
    if write_quota(there.quota) != write_quota(here.quota):
        found.append(f"quota {write_quota(there.quota)}, here {write_quota(here.quota)}")
    return tuple(found)


def write_quota(quota: float | None) -> str:
    """A quota to a thousandth of a core, the finest that containers are given: "4", "0.5"; "none"."""
    return "none" if quota is None else f"{quota:.3f}".rstrip("0").rstrip(".")
