"""Sessions of ONNX Runtime: a factory that sets their thread counts, and leases around their runs.

The count of a session cannot change once it is made: a lease admits a run, and asks for at most that count.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ..environment import warn_once_if_late
from ..planning import current_plan
from .back_ends import complete_session_options, require_onnxruntime, threads_of_session
from .instance_methods import LeasedMethod, put, take_back
from .keywords import reject_unknown
from .plans import warn_above_usable

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# ``run_async`` returns before it has computed, and is left alone.
_RUNS: Final = ("run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
# What ``InferenceSession`` takes out of its ``**kwargs``.
_UNDECLARED: Final = ("enable_fallback", "read_config_from_model", "disabled_optimizers")


def create_onnx_session(model: str | os.PathLike[str] | bytes, **kwargs: Any) -> InferenceSession:
    """Return ``onnxruntime.InferenceSession(model, **kwargs)`` with its thread counts set, governed.

    ``model`` is a path or the bytes of a model. ``sess_options`` are made, or completed in place: the intra-op count
    is the plan's, the inter-op count 1, and idle threads do not spin where a quota binds. Counts and entries of the
    caller are kept, and bring a CgroupThreadsWarning above the usable cores. Each run takes a lease of the core budget.

    Raises MissingExtraError without onnxruntime, UnknownArgumentError for a keyword the constructor does not know (it
    would swallow it in silence), and what the constructor raises.
    """
    library = require_onnxruntime()
    warn_once_if_late(stacklevel=3)
    reject_unknown(kwargs, library.InferenceSession.__init__, "InferenceSession", _UNDECLARED)
    options, above = complete_session_options(kwargs.pop("sess_options", None), current_plan())
    warn_above_usable([above])
    session = library.InferenceSession(model, sess_options=options, **kwargs)
    govern(session)
    return session


def govern(session: Any) -> None:
    """Let each run of ``session`` take a lease of at most the threads it has."""
    threads = threads_of_session(session)
    for name in _RUNS:
        if hasattr(type(session), name):
            put(session, name, LeasedMethod, threads)


def release(session: Any) -> None:
    """Give ``session`` back its own methods."""
    for name in _RUNS:
        take_back(session, name)
