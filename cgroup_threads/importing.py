"""Callbacks that run right after a named module was imported, for libraries we may not import ourselves.

A finder at the head of ``sys.meta_path`` answers only for watched names. It lets the other finders find the module and
puts a stand-in loader into the spec, which hands the real loader back before the module's code runs: after the import
nothing of ours is left on the module. ``importlib.reload`` takes the same way, so callbacks run again on reload.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import first_line
from .notices import Notice
from .state import process

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Callback = Callable[[ModuleType], None]
_HOOK = "importing"


class _NotifyingLoader:
    """Stands in for the real loader until the module's code runs."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # an instance made without __init__
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        """A copy, also a pickled one, is the real loader."""
        return _itself, (self._loader,)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.notify(module)


def _itself(loader: Any) -> Any:
    return loader


class _Finder:
    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}
        self._searches: set[tuple[int, str]] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Other hooks also ask every finder (wrapt, a second copy of this one): without the mark two would ask each
        # other for ever.
        search = (get_ident(), fullname)
        if fullname not in self.callbacks or search in self._searches:
            return None
        self._searches.add(search)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._searches.discard(search)
        # A loader without exec_module (a namespace package, an old-style loader) is left alone.
        if spec is not None and hasattr(spec.loader, "exec_module") and hasattr(spec.loader, "create_module"):
            spec.loader = _NotifyingLoader(spec.loader, self)  # type: ignore[assignment]  # duck-typed
        return spec

    def _ask_others(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def notify(self, module: ModuleType) -> None:
        for callback in tuple(self.callbacks.get(module.__name__, ())):
            _call(callback, module)


def _call(callback: Callback, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:  # noqa: BLE001 - an import of somebody else's library must not fail because of us
        message = f"after import of {module.__name__}: {type(error).__name__}: {first_line(error)}"
        process.note(Notice("import-hook-failed", message, "warning"))


def when_imported(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` after each import of ``name``, and now if it is imported already.

    The same callback is kept once a name. Exceptions of the callback become notices.
    """
    with process.lock:
        finder = process.hooks.get(_HOOK)
        if not isinstance(finder, _Finder):
            finder = process.hooks[_HOOK] = _Finder()
        if finder not in sys.meta_path:
            sys.meta_path.insert(0, finder)
        callbacks = finder.callbacks.setdefault(name, [])
        if callback in callbacks:
            return
        callbacks.append(callback)
    module = sys.modules.get(name)
    if module is None:
        return
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        # Another thread, or a frame above us, is executing it and found its loader before our finder was there.
        message = f"{name} was being imported while cgroup_threads was: it is not watched"
        process.note(Notice("import-hook-missed", message, "warning", f"import cgroup_threads before {name}"))
        return
    _call(callback, module)


def stop_watching() -> None:
    """Take the finder out of ``sys.meta_path`` and forget all callbacks."""
    with process.lock:
        finder = process.hooks.pop(_HOOK, None)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
