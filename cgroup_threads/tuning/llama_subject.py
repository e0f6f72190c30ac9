"""A GGUF model, or a ``llama_cpp.Llama``, as something to measure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..errors import MissingExtraError
from ..measuring.child import worker_environment
from ..models.llama_leases import DISTRIBUTION
from ..profiles.gguf import HEADER_BYTES, embeds_alone, parse_header
from ..profiles.identity import identify_model, library_version
from .child_subject import ChildSubject, Spec
from .records import Task

DECODE: Final = Task("decode", "tokens", "n_threads")
PREFILL: Final = Task("prefill", "tokens", "n_threads_batch")
EMBED: Final = Task("embed", "tokens", "n_threads_batch")
CONTEXT: Final = 1024
"""More than is measured with. A larger context would only take memory, a second time beside the given model's."""
_PASSAGE: Final = 512
# What has no meaning for the time, or cannot be passed to another process.
_LEFT_OUT: Final = frozenset(
    {"model_path", "n_threads", "n_threads_batch", "verbose", "seed", "chat_format", "logits_all"}
)


def from_file(path: str, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """The model in a GGUF file. One that only embeds has the task ``embed``, others have ``decode`` and ``prefill``."""
    with open(path, "rb") as file:
        settings = parse_header(file.read(HEADER_BYTES))
    if embeds_alone(settings):
        arguments = {"embedding": True, "n_ctx": _PASSAGE, "n_batch": _PASSAGE, "n_ubatch": _PASSAGE}
        return _make(path, arguments, (EMBED,), environment, limit)
    return _make(path, {"n_ctx": CONTEXT, "n_batch": _PASSAGE}, (DECODE, PREFILL), environment, limit)


def from_object(llm: Any, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """The model of a ``llama_cpp.Llama``, loaded anew with its arguments; one made with ``embedding=True`` embeds."""
    state = {name: value for name, value in llm.__getstate__().items() if not name.startswith("_")}  # our own mark
    arguments = {name: value for name, value in state.items() if name not in _LEFT_OUT and _plain(value)}
    arguments["n_ctx"] = min(int(arguments.get("n_ctx") or CONTEXT), CONTEXT)
    tasks = (EMBED,) if arguments.get("embedding") else (DECODE, PREFILL)
    return _make(str(llm.model_path), arguments, tasks, environment, limit)


def _make(
    path: str,
    arguments: Mapping[str, Any],
    tasks: tuple[Task, ...],
    environment: Mapping[str, str] | None,
    limit: float | None,
) -> ChildSubject:
    library = library_version(DISTRIBUTION)
    if not library:
        raise MissingExtraError(DISTRIBUTION, "llama")
    names = [task.name for task in tasks]
    options = {"work": "llama", "path": os.path.abspath(path), "arguments": arguments, "tasks": names}
    variables = worker_environment(environment)
    return ChildSubject(
        Spec(
            f"{os.path.basename(path)}, {library}",
            tasks,
            options,
            lambda threads: variables,
            model=identify_model(path),
            library=library,
        ),
        limit,
    )


def _plain(value: object) -> bool:
    """Whether a value passes through JSON unchanged."""
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _plain(item) for name, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))
