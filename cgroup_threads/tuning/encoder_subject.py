"""A sentence-transformers model as something to measure: a directory, or a ``SentenceTransformer``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import InvalidArgumentError, MissingExtraError
from ..measuring.child import worker_environment
from ..models.origins import directory_of
from ..profiles.identity import identify_model, library_version
from .child_subject import ChildSubject, Spec
from .records import Task

LIBRARY: Final = "torch"
"""What computes. The thread counts of a measurement hold for its version, not for that of sentence-transformers."""
PACKAGE: Final = "sentence-transformers"
ENCODE: Final = Task("encode", "sentences")
_MODULES: Final = "modules.json"


class EncoderSubject(ChildSubject):
    """Ends what ``finish`` ends, too: the copy of a model that was in memory alone."""

    def __init__(self, spec: Spec, limit: float | None, finish: Callable[[], None] | None = None) -> None:
        super().__init__(spec, limit)
        self._finish = finish

    def close(self) -> None:
        super().close()
        if self._finish is not None:
            self._finish()
            self._finish = None


def from_directory(path: str, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """The model in a directory, as ``SentenceTransformer(path)`` loads it."""
    if not any(os.path.isfile(os.path.join(path, name)) for name in (_MODULES, "config.json")):
        raise InvalidArgumentError("target", path, "a directory with a sentence-transformers model")
    return EncoderSubject(_spec(path, identify_model(path), {}, environment), limit)


def from_object(model: Any, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """A ``SentenceTransformer`` on torch, loaded anew from its directory, or from a temporary copy where it has none.

    Its number type and its maximum length are kept. One without a directory has no identity.
    """
    backend = model.get_backend() if hasattr(model, "get_backend") else "torch"
    if backend != "torch":
        expected = f"a SentenceTransformer on torch (of {backend!r} pass a function that takes the thread count)"
        raise InvalidArgumentError("target", model, expected)
    kept = {"dtype": _dtype(model), "max_seq_length": getattr(model, "max_seq_length", None)}
    path = directory_of(model)
    if path is not None:
        return EncoderSubject(_spec(path, identify_model(path), kept, environment), limit)
    copy = tempfile.TemporaryDirectory(prefix="cgroup-threads-")
    try:
        model.save(copy.name, create_model_card=False)
        return EncoderSubject(_spec(copy.name, "", kept, environment), limit, copy.cleanup)
    except BaseException:
        copy.cleanup()
        raise


def _dtype(model: Any) -> str | None:
    """The name of its number type: whoever loaded it may have chosen another than the files say."""
    first = next(iter(model.parameters()), None)
    name = str(getattr(first, "dtype", "")).removeprefix("torch.")
    return name if name in ("float16", "bfloat16", "float32", "float64") else None


def _spec(path: str, model: str, kept: Mapping[str, Any], environment: Mapping[str, str] | None) -> Spec:
    package = library_version(PACKAGE)
    if not package:
        raise MissingExtraError(PACKAGE, PACKAGE)
    options = {"work": "encoder", "path": os.path.abspath(path), "dtype": None, "max_seq_length": None, **kept}
    variables = {**worker_environment(environment), "HF_HUB_OFFLINE": "1"}  # the model comes from a directory
    library = library_version(LIBRARY)
    name = os.path.basename(os.path.abspath(path)) if model else "a model in memory"
    title = f"{name}, {package}, {library}"
    return Spec(title, (ENCODE,), options, lambda threads: variables, model=model, library=library)
