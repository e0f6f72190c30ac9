"""Thread counts of libmtmd's encoders of pictures and sounds, which are fixed when ``llama_cpp.mtmd_cpp`` loads them.

Left alone, an encoder gets 4 threads, or from the chat handlers the model's ``n_threads``, which is meant for one token
at a time. It reads a picture as a whole, like a prompt. Nothing changes its count afterwards: a lease admits its call
(see ``llama_leases``), but does not lower its threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..notices import Notice
from ..planning import current_plan
from ..state import process
from .llama_builds import cap_where_spinning
from .llama_hook import MARK, note_failure
from .llama_leases import governors


def govern_encoders(module: ModuleType) -> None:
    """Wrap what makes the parameters of an encoder and what loads it, in ``llama_cpp.mtmd_cpp``; once an import."""
    for name, wrap in (("mtmd_context_params_default", _wrap_default), ("mtmd_init_from_file", _wrap_load)):
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, MARK):
            wrapped = wrap(function)
            setattr(wrapped, MARK, True)
            setattr(module, name, wrapped)


def _wrap_default(original: Callable[..., Any]) -> Callable[..., Any]:
    """The default becomes the plan's count; whoever sets another one replaces it."""

    @functools.wraps(original)
    def mtmd_context_params_default(*arguments: Any) -> Any:
        parameters = original(*arguments)
        try:
            if process.applied is not None:
                parameters.n_threads = process.applied.plan.threads
                setattr(parameters, MARK, parameters.n_threads)
        except Exception as error:  # noqa: BLE001 - loading must not fail because of us
            note_failure(error)
        return parameters

    return mtmd_context_params_default


def _wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def mtmd_init_from_file(*arguments: Any) -> Any:
        passed = arguments
        try:
            passed = _with_count(*arguments)
        except Exception as error:  # noqa: BLE001 - loading must not fail because of us
            note_failure(error)
        return original(*passed)

    return mtmd_init_from_file


def _with_count(path: Any, model: Any, parameters: Any) -> tuple[Any, Any, Any]:
    """The arguments of ``mtmd_init_from_file`` with the count to load the encoder with; the caller's stay as they are.

    That is the count for prompts where ``model`` is governed and has no other than its own, at most the usable cores.
    Of other models it is kept, unless threads spin without end.
    """
    if process.applied is None:
        return path, model, parameters
    asked = parameters.n_threads
    left = asked == getattr(parameters, MARK, None)
    context = _find_context(model)
    if context is None:
        count = cap_where_spinning({"n_threads": asked})["n_threads"]
    else:
        own = left or asked == context.params.n_threads
        count = min(context.params.n_threads_batch if own else asked, current_plan().usable)
    if left or count != asked:
        given = "no n_threads" if left else f"n_threads={asked}"
        process.note(Notice("llama-threads-filled", f"mtmd_init_from_file() was given {given}: set to {count}"))
    if count == asked:
        return path, model, parameters
    changed = type(parameters).from_buffer_copy(parameters)
    changed.n_threads = count
    return path, model, changed


def _find_context(model: Any) -> Any:
    """The context of a governed ``Llama`` whose native model is ``model``; None if there is none."""
    address = getattr(model, "value", model)
    contexts = [governor.context for governor in governors()]
    return next((context for context in contexts if context is not None and context.model.model == address), None)
