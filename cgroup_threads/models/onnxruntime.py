"""Sessions of ONNX Runtime: a factory that sets their thread counts, and leases around their runs.

The count of a session cannot change once it is made: a lease admits a run, and asks for at most that count. A session
that is governed has a mark, which the methods of its class look for: bound, they hold it like any other, so that
``create_onnx_session(path).run(...)`` works, and it is freed with its last user.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..environment import warn_once_if_late
from ..planning import current_plan
from ..state import process
from .back_ends import complete_session_options, require_onnxruntime, threads_of_session
from .instance_methods import limit
from .keywords import reject_unknown
from .origins import find_intra_op
from .plans import warn_above_usable

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# ``run_async`` returns before it has computed, and is left alone.
_RUNS: Final = ("run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
# Under this name a session has the count its leases are for, and a wrapped method is marked.
_MARK: Final = "_cgroup_threads_session"
# What ``InferenceSession`` takes out of its ``**kwargs``.
_UNDECLARED: Final = ("enable_fallback", "read_config_from_model", "disabled_optimizers")


def create_onnx_session(model: str | os.PathLike[str] | bytes, **kwargs: Any) -> InferenceSession:
    """Return ``onnxruntime.InferenceSession(model, **kwargs)`` with its thread counts set, governed.

    ``model`` is a path or the bytes of a model. ``sess_options`` are made, or completed in place: the intra-op count
    is the tuned one of a profile that holds here, else the plan's, the inter-op count 1, and idle threads do not spin
    where a quota binds. Counts and entries of the caller are kept, and bring a CgroupThreadsWarning above the usable
    cores. Each run takes a lease of the core budget.

    Raises MissingExtraError without onnxruntime, UnknownArgumentError for a keyword the constructor does not know (it
    would swallow it in silence), and what the constructor raises.
    """
    library = require_onnxruntime()
    warn_once_if_late(stacklevel=3)
    reject_unknown(kwargs, library.InferenceSession.__init__, "InferenceSession", _UNDECLARED)
    given = kwargs.pop("sess_options", None)
    options, above = complete_session_options(given, current_plan(), lambda: find_intra_op(model))
    warn_above_usable([above])
    session = library.InferenceSession(model, sess_options=options, **kwargs)
    govern(session)
    return session


def govern(session: Any) -> None:
    """Let each run of ``session`` take a lease of at most the threads it has."""
    with process.lock:
        for name in _RUNS:
            _watch(type(session), name)
        vars(session)[_MARK] = threads_of_session(session)


def release(session: Any) -> None:
    """Let the runs of ``session`` take no lease."""
    vars(session).pop(_MARK, None)


def _watch(cls: type, name: str) -> None:
    """Let the method ``name`` of ``cls`` look for a mark; once a class that defines one."""
    for base in cls.__mro__:
        if name in vars(base):
            method = vars(base)[name]
            if not hasattr(method, _MARK):
                setattr(base, name, _leased(method))
            return


def _leased(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        attributes = vars(self)
        if _MARK not in attributes:
            return method(self, *args, **kwargs)
        with limit(attributes[_MARK]):
            return method(self, *args, **kwargs)

    setattr(run, _MARK, True)
    return run
