"""A factory for ``llama_cpp.Llama`` that sets both thread counts and governs the model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..environment import warn_once_if_late
from ..errors import MissingExtraError
from ..planning import current_plan
from .keywords import read_count, reject_unknown
from .llama_builds import cap_where_spinning
from .llama_hook import COUNTS, MARK
from .llama_leases import govern
from .plans import note_above_usable, warn_above_usable

if TYPE_CHECKING:
    import llama_cpp


def create_llama(model_path: str | os.PathLike[str], **kwargs: Any) -> llama_cpp.Llama:
    """Return ``llama_cpp.Llama(model_path, **kwargs)`` with ``n_threads`` and ``n_threads_batch`` set, both at least 1.

    ``n_threads`` is used for generation, token by token; ``n_threads_batch`` for prompts and embeddings. One that is
    missing, None, 0 or -1 becomes the plan's count, each for itself: ``n_threads=4`` leaves ``n_threads_batch`` at the
    plan's. Explicit values are kept; above the usable cores they bring one CgroupThreadsWarning. (A llama.cpp built
    without OpenMP, whose threads spin without end, gets the usable cores instead.)

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
    counts = cap_where_spinning({name: plan.threads if count is None else count for name, count in explicit.items()})
    model = Llama(os.fspath(model_path), **{**kwargs, **counts})
    filled = {name: counts[name] for name, count in explicit.items() if count is None}
    if filled:
        setattr(model, MARK, filled)
    govern(model)
    return model
