"""A factory for ``llama_cpp.Llama`` that sets both thread counts and governs the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..environment import warn_once_if_late
from ..errors import MissingExtraError
from ..planning import current_plan
from ..profiles.lookup import find_counts
from .keywords import read_count, reject_unknown
from .llama_builds import cap_where_spinning
from .llama_hook import COUNTS, LOWERED, MARK
from .llama_leases import DISTRIBUTION, govern
from .plans import note_above_usable, warn_above_usable

if TYPE_CHECKING:
    import llama_cpp


def create_llama(model_path: str | os.PathLike[str], **kwargs: Any) -> llama_cpp.Llama:
    """Return ``llama_cpp.Llama(model_path, **kwargs)`` with ``n_threads`` and ``n_threads_batch`` set, both at least 1.

    ``n_threads`` is used for generation, token by token; ``n_threads_batch`` for prompts and embeddings. One that is
    missing, None, 0 or -1 becomes the tuned count of a profile that holds here, else the plan's; each for itself:
    ``n_threads=4`` leaves ``n_threads_batch`` at the plan's. Explicit values are kept; above the usable cores they
    bring one CgroupThreadsWarning. (A llama.cpp built without OpenMP, whose threads spin without end, gets the usable
    cores instead.)

    The model is governed: each native call takes a lease of the core budget, of at most these counts, and computes
    with its threads. ``release`` ends that.

    Raises MissingExtraError without llama-cpp-python, UnknownArgumentError for a keyword ``Llama`` does not declare
    (it would swallow ``n_thread_batch`` in silence), InvalidThreadsError for a count that is a bool, float, string or
    any other number below 1; and what ``Llama`` raises.
    """
    try:
        from llama_cpp import Llama
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise
        raise MissingExtraError("llama-cpp-python", "llama") from error
    warn_once_if_late(stacklevel=3)
    reject_unknown(kwargs, Llama.__init__, "Llama")
    plan = current_plan()
    explicit = {name: read_count(kwargs, name) for name in COUNTS}
    warn_above_usable([note_above_usable("llama", name, count or 0, plan.usable) for name, count in explicit.items()])
    left = [name for name, count in explicit.items() if count is None]
    tuned = find_counts(model_path, DISTRIBUTION, left)
    computed = {name: tuned.counts.get(name, plan.threads) for name in left}
    given = {name: count for name, count in explicit.items() if count is not None}
    counts = cap_where_spinning({**given, **computed})
    model = Llama(os.fspath(model_path), **{**kwargs, **counts})
    if left:
        setattr(model, MARK, {name: counts[name] for name in left})
    lowered = {name: (count, counts[name]) for name, count in given.items() if counts[name] != count}
    if lowered:
        setattr(model, LOWERED, lowered)
    govern(model, tuned)
    return model
