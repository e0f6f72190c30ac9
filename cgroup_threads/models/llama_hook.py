"""What the import hooks change in llama-cpp-python: a forgotten thread count becomes the plan's.

Explicit counts are kept, but for builds whose threads spin without end: there one above the usable cores is lowered.

llama-cpp-python takes half of the host's CPUs for a missing ``n_threads`` and all of them for a missing
``n_threads_batch`` (`Llama.__init__`: ``n_threads or cpu_count() // 2``, ``n_threads_batch or cpu_count()``). No thread
variable reaches them. Subclasses, ``Llama.from_pretrained``, unpickling and libraries that construct ``Llama``
themselves all pass through ``Llama.__init__``; its web server passes defaults of its own and is handled apart.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ..errors import first_line
from ..notices import Notice
from ..state import process
from .keywords import is_unset
from .llama_builds import cap_where_spinning
from .plans import note_above_usable

COUNTS: Final = ("n_threads", "n_threads_batch")
# Under this name a wrapped callable is marked, an instance remembers the counts filled in by name, and its pickle has
# their names (Llama ignores keyword arguments it does not know, so the pickle also loads where we are not).
MARK: Final = "_cgroup_threads_filled"
# Under this name an instance remembers what its caller passed where its threads spin without end and got fewer.
LOWERED: Final = "_cgroup_threads_lowered"


def govern_llama(module: ModuleType) -> None:
    """Wrap ``Llama.__init__`` and ``Llama.__getstate__`` of ``llama_cpp.llama``; once a class."""
    cls = module.Llama
    if not hasattr(cls.__init__, MARK):
        cls.__init__ = _wrap_init(cls.__init__)
        cls.__getstate__ = _wrap_getstate(cls.__getstate__, cls.__init__)


def _wrap_init(original: Callable[..., None]) -> Callable[..., None]:
    parameters = inspect.signature(original).parameters
    # Positional counts could not be told from missing ones; llama-cpp-python has none since 2023.
    names = tuple(n for n in COUNTS if n in parameters and parameters[n].kind is inspect.Parameter.KEYWORD_ONLY)
    if names != COUNTS:
        note_failure(TypeError(f"Llama() takes {' and '.join(names) or 'none of them'} by keyword"))

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        filled: tuple[str, ...] = ()
        lowered: dict[str, int] = {}
        try:
            kwargs, filled = fill_counts(kwargs, names, type(self).__name__)
            kwargs, lowered = lower_counts(kwargs, names)
        except Exception as error:  # noqa: BLE001 - Llama() must not fail because of us
            note_failure(error)
        original(self, *args, **kwargs)
        if filled:
            self.__dict__[MARK] = {name: kwargs[name] for name in filled}
        if lowered:
            self.__dict__[LOWERED] = {name: (asked, kwargs[name]) for name, asked in lowered.items()}

    setattr(__init__, MARK, True)
    return __init__


def fill_counts(kwargs: dict[str, Any], names: tuple[str, ...], callee: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``kwargs`` with the plan's count where one of ``names`` is missing, and the names filled in.

    Without an applied plan (``undo()`` was called) they are returned as they came.
    """
    recomputed = kwargs.get(MARK, ())
    kwargs = {name: value for name, value in kwargs.items() if name != MARK}
    applied = process.applied
    if applied is None:
        return kwargs, ()
    threads = applied.plan.threads
    filled = tuple(name for name in names if name in recomputed or is_unset(kwargs.get(name)))
    kwargs.update(dict.fromkeys(filled, threads))
    if filled:
        message = f"{callee}() was given no {' and no '.join(filled)}: set to {threads}"
        process.note(Notice("llama-threads-filled", message))
    for name in names:
        if name not in filled:
            note_above_usable("llama", name, kwargs[name], applied.plan.usable)
    return kwargs, filled


def lower_counts(kwargs: dict[str, Any], names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, int]]:
    """``kwargs`` with the usable cores for a count above them where threads spin without end; and what was asked."""
    if process.applied is None:
        return kwargs, {}
    given = {name: operator.index(kwargs[name]) for name in names}
    lowered = {name: count for name, count in cap_where_spinning(given).items() if count != given[name]}
    return {**kwargs, **lowered}, {name: given[name] for name in lowered}


def _wrap_getstate(original: Callable[[Any], Any], init: Callable[..., None]) -> Callable[[Any], Any]:
    """Let a pickle say which counts were ours: a process with another share of the cores fills in its own.

    It holds counts as they were passed, not as lowered: the cores or the build may be others where it is loaded.
    """
    swallows = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in inspect.signature(init).parameters.values()
    )

    @functools.wraps(original)
    def __getstate__(self: Any) -> Any:
        state = original(self)
        if isinstance(state, dict):
            for name, (asked, lowered) in self.__dict__.get(LOWERED, {}).items():
                if state.get(name) == lowered:
                    state[name] = asked
        filled = self.__dict__.get(MARK)
        # A subclass with a constructor of its own might not swallow the extra name.
        if filled and swallows and isinstance(state, dict) and type(self).__init__ is init:
            # A count changed since then in context_params is the caller's.
            ours = tuple(name for name, count in filled.items() if state.get(name) == count)
            if ours:
                state[MARK] = ours
        return state

    return __getstate__


def govern_server_settings(module: ModuleType) -> None:
    """Make ``-1`` ("max cpu threads") of ``llama_cpp.server.settings`` mean the plan's count.

    Its validator asks ``multiprocessing.cpu_count()`` through the module's own name, which gets a stand-in.
    """
    if hasattr(module, "multiprocessing") and not isinstance(module.multiprocessing, _Multiprocessing):
        module.multiprocessing = _Multiprocessing()  # type: ignore[attr-defined]  # a module takes any attribute


class _Multiprocessing:
    """The ``multiprocessing`` module, except that ``cpu_count`` is the plan's count."""

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)

    def cpu_count(self) -> int:
        applied = process.applied
        return multiprocessing.cpu_count() if applied is None else applied.plan.threads


def govern_server_model(module: ModuleType) -> None:
    """Wrap ``LlamaProxy.load_llama_from_model_settings`` of ``llama_cpp.server.model``; once a class.

    ``ModelSettings`` computes its defaults from the host's CPUs and passes them on like values of the user.
    ``model_fields_set`` of pydantic still knows which fields the command line, the environment or a file set.
    """
    proxy = module.LlamaProxy
    original = proxy.load_llama_from_model_settings
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def load_llama_from_model_settings(settings: Any) -> Any:
        try:
            settings = _without_defaults(settings)
        except Exception as error:  # noqa: BLE001 - the server must not fail because of us
            note_failure(error)
        return original(settings)

    setattr(load_llama_from_model_settings, MARK, True)
    proxy.load_llama_from_model_settings = staticmethod(load_llama_from_model_settings)


def _without_defaults(settings: Any) -> Any:
    """A copy of the settings whose thread counts nobody set are None, for the wrapped ``Llama`` to fill in."""
    if process.applied is None:
        return settings
    unset = [name for name in COUNTS if hasattr(settings, name) and name not in settings.model_fields_set]
    return settings.model_copy(update=dict.fromkeys(unset)) if unset else settings


def note_failure(error: Exception) -> None:
    """Leave a notice that a wrapper of ours failed and let the call through as it came."""
    message = f"thread counts of llama_cpp left as they came: {type(error).__name__}: {first_line(error)}"
    process.note(Notice("llama-hook-failed", message, "warning"))
