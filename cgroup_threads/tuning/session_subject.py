"""An ONNX model as something to measure: a file, or an ``onnxruntime.InferenceSession``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..errors import InvalidArgumentError, MissingExtraError
from ..measuring.child import worker_environment
from ..profiles.identity import identify_model, library_version
from .child_subject import ChildSubject, Spec
from .records import Task

LIBRARY: Final = "onnxruntime"
RUN: Final = Task("run", "calls", "intra_op_num_threads")
_SPINNING: Final = "session.intra_op.allow_spinning"
_SETTINGS: Final = ("execution_mode", "graph_optimization_level", "inter_op_num_threads")


def from_file(path: str, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """The model in a file, on the CPU."""
    return _make(path, {"providers": ["CPUExecutionProvider"], "settings": {}, "spinning": None}, environment, limit)


def from_object(session: Any, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """The model of a session that was made from a file, with the session's options but for its thread count."""
    path = getattr(session, "_model_path", None)
    if not path or not os.path.isfile(path):
        raise InvalidArgumentError("target", session, "an InferenceSession that was made from a file")
    given = session.get_session_options()
    options = {
        "providers": session.get_providers(),
        "settings": {name: int(getattr(given, name)) for name in _SETTINGS},
        "spinning": _read_spinning(given),
    }
    return _make(os.fspath(path), options, environment, limit)


def _read_spinning(options: Any) -> str | None:
    try:
        return str(options.get_session_config_entry(_SPINNING))
    except RuntimeError:  # how SessionOptions says that the key is not set
        return None


def _make(
    path: str, options: Mapping[str, Any], environment: Mapping[str, str] | None, limit: float | None
) -> ChildSubject:
    library = library_version(LIBRARY)
    if not library:
        raise MissingExtraError(LIBRARY, "onnx")
    variables = worker_environment(environment)
    spec = Spec(
        f"{os.path.basename(path)}, {library}",
        (RUN,),
        {"work": "session", "path": os.path.abspath(path), **options},
        lambda threads: variables,
        model=identify_model(path),
        library=library,
    )
    return ChildSubject(spec, limit)
