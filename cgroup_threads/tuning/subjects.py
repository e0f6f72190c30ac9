"""What can be measured, and which subject measures it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..errors import InvalidArgumentError
from .records import Subject

ACCEPTED: Final = (
    "a function of the thread count, a llama_cpp.Llama, a SentenceTransformer, an onnxruntime.InferenceSession, the "
    "path of a .gguf or .onnx file or of a sentence-transformers directory, 'module:function', or a command with "
    "{threads} in it as a list"
)
# Root package and class of the models that are known. They can be called, but not with a thread count.
_MODELS: Final = (
    ("llama_cpp", "Llama", "llama_subject"),
    ("sentence_transformers", "SentenceTransformer", "encoder_subject"),
    ("onnxruntime", "InferenceSession", "session_subject"),
    ("torch", "Module", ""),
    ("transformers", "Pipeline", ""),
)
_MAGIC: Final = b"GGUF"


def make_subject(
    target: object, *, environment: Mapping[str, str] | None = None, limit: float | None = None
) -> Subject:
    """The subject that measures ``target``; its ``close`` must be called in the end.

    A function is called in this process. Models, ``module:function`` and commands run in fresh children, in the user's
    environment (or ``environment``) without what this package computed. A measurement that takes more than ``limit``
    seconds beyond its time is given up (None: several times what one thread would need).

    Raises InvalidArgumentError for anything else, and MissingExtraError where the library is not installed.
    """
    model = _find_model(target)
    if model is not None:
        return _from_object(model, target, environment, limit)
    if isinstance(target, (list, tuple)):
        from .command_subject import CommandSubject

        return CommandSubject(target, environment, limit)
    if isinstance(target, (str, os.PathLike)):
        return _from_text(os.fspath(target), environment, limit)
    if callable(target) and not isinstance(target, type):
        from .function import FunctionSubject

        return FunctionSubject(target)
    raise InvalidArgumentError("target", target, ACCEPTED)


def _find_model(target: object) -> str | None:
    """The module for a known model, "" for one that cannot be measured as it is; None for everything else."""
    for cls in type(target).__mro__:
        root = cls.__module__.partition(".")[0]
        for package, name, module in _MODELS:
            if root == package and cls.__name__ == name:
                return module
    return None


def _from_object(module: str, target: Any, environment: Mapping[str, str] | None, limit: float | None) -> Subject:
    if module == "llama_subject":
        from .llama_subject import from_object as from_llama

        return from_llama(target, environment, limit)
    if module == "encoder_subject":
        from .encoder_subject import from_object as from_encoder

        return from_encoder(target, environment, limit)
    if module == "session_subject":
        from .session_subject import from_object as from_session

        return from_session(target, environment, limit)
    name = type(target).__name__
    raise InvalidArgumentError("target", name, f"{ACCEPTED}; of other models a function that calls them")


def _from_text(target: str, environment: Mapping[str, str] | None, limit: float | None) -> Subject:
    if os.path.isdir(target):
        from .encoder_subject import from_directory

        return from_directory(target, environment, limit)
    if os.path.isfile(target):
        if target.endswith(".onnx"):
            from .session_subject import from_file as from_onnx

            return from_onnx(target, environment, limit)
        if _begins_like_gguf(target):
            from .llama_subject import from_file as from_gguf

            return from_gguf(target, environment, limit)
        raise InvalidArgumentError("target", target, "a GGUF or .onnx file")
    if target.endswith((".gguf", ".onnx")) or os.sep in target:
        raise InvalidArgumentError("target", target, "the path of something that exists")
    from .module_subject import PATTERN, from_name

    if PATTERN.fullmatch(target):
        return from_name(target, environment, limit)
    raise InvalidArgumentError("target", target, ACCEPTED)


def _begins_like_gguf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
