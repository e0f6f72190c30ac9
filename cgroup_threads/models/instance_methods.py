"""A method of one object replaced by one of ours: found before its class's, gone without a trace when taken back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from ..governor.limiting import ThreadLimit
from ..state import process

UNCOMPILED: Final = "torch-uncompiled"
"""Under this name ``process.hooks`` has ``enter`` and ``leave`` as torch's compiler leaves them alone, once loaded."""
# What functions have and callable objects lack: transformers reads signatures and annotations of ``forward``.
_OF_FUNCTIONS: Final = ("__name__", "__qualname__", "__annotations__", "__code__", "__func__", "__self__")


class InstanceMethod:
    """Stands in an object's ``__dict__`` for the method ``name``; ``__wrapped__`` is the one it stands for.

    It holds its object weakly, so that the object is freed with its last user: who keeps ``model.forward`` must keep
    ``model``. Copies and pickles of the object get one of their own; a shallow copy shares this one.
    """

    __slots__ = ("__weakref__", "_name", "_original", "_owner", "_threads")

    def __init__(self, owner: object, name: str, threads: int | None = None, original: Any = None) -> None:
        self._owner = weakref.ref(owner)
        self._name = name
        self._threads = threads
        self._original = original
        """What the object's ``__dict__`` had under the name before; None for the class's method."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The method without us, bound."""
        owner = self._owner()
        if owner is None:
            raise ReferenceError(f"the object that this {self._name} belongs to is gone: keep a reference to it")
        method = _of_class(owner, self._name) if self._original is None else self._original
        assert callable(method)
        return method  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:
            return getattr(self.__wrapped__, name)
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle names the object, which is in the making there: the weak reference is to the new one."""
        return type(self), (self._owner(), self._name, self._threads, self._original)


class LeasedMethod(InstanceMethod):
    """The method under ``limit_threads()``, with at most ``threads`` if that is a number."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        limit: Any = ThreadLimit(self._threads)
        uncompiled = process.hooks.get(UNCOMPILED)
        if isinstance(uncompiled, tuple):
            limit = _Uncompiled(limit, *uncompiled)
        with limit:
            return self.__wrapped__(*args, **kwargs)


class _Uncompiled:
    """A limit that is entered and left by functions which torch's compiler does not look into."""

    __slots__ = ("_enter", "_leave", "_limit")

    def __init__(self, limit: ThreadLimit, enter: Callable[[Any], None], leave: Callable[[Any], None]) -> None:
        self._limit = limit
        self._enter = enter
        self._leave = leave

    def __enter__(self) -> None:
        self._enter(self._limit)

    def __exit__(self, *_: object) -> None:
        self._leave(self._limit)


def enter(limit: ThreadLimit) -> None:
    limit.__enter__()


def leave(limit: ThreadLimit) -> None:
    limit.__exit__(None, None, None)


def put(owner: object, name: str, kind: type[InstanceMethod], threads: int | None = None) -> None:
    """Let ``owner`` have a method of ``kind`` in place of ``name``, unless it has one."""
    with process.lock:
        attributes = vars(owner)
        found = attributes.get(name)
        if isinstance(found, InstanceMethod):
            if found._owner() is owner:
                return
            found = found._original  # a shallow copy's
        # Not by setattr: torch's modules have one of their own, and compiled ones hand it on to the module inside.
        attributes[name] = kind(owner, name, threads, found)


def take_back(owner: object, name: str) -> None:
    """Let ``owner`` have its own method ``name`` again. What another library has put over ours stays."""
    with process.lock:
        attributes = vars(owner)
        found = attributes.get(name)
        if not isinstance(found, InstanceMethod):
            return
        if found._original is None:
            del attributes[name]
        else:
            attributes[name] = found._original


def _of_class(owner: object, name: str) -> Any:
    for cls in type(owner).__mro__:
        if name in vars(cls):
            method = vars(cls)[name]
            return method.__get__(owner, type(owner)) if hasattr(method, "__get__") else method
    raise AttributeError(name)
