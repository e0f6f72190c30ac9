"""A method of one object replaced by one of ours: found before its class's, gone without a trace when taken back."""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
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
    ``model``. Copies and pickles of the object get one of their own; one that is copied or pickled alone (a
    ``functools.partial`` of it) holds the object's copy, which nobody else has. A shallow copy shares this one.
    """

    __slots__ = ("__weakref__", "_claimants", "_held", "_name", "_original", "_owner", "_threads")

    def __new__(cls, *_: Any) -> InstanceMethod:
        self = super().__new__(cls)
        # Until ``__setstate__``: the object is in the making.
        self._owner, self._name, self._threads, self._original, self._held = _nobody, "method", None, None, None
        self._claimants = weakref.WeakSet()
        return self

    def __init__(self, owner: object, name: str, threads: int | None = None, original: Any = None) -> None:
        self._owner: Callable[[], Any] = weakref.ref(owner)
        self._name = name
        self._threads = threads
        self._original = original
        """What the object's ``__dict__`` had under the name before; None for the class's method."""
        self._held: object
        self._claimants: weakref.WeakSet[Any]
        """In whose name it was put: pipelines may share a model."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The method without us, bound."""
        method = self._of_class() if self._original is None else self._original
        assert callable(method)
        return method  # type: ignore[no-any-return]

    def _find_owner(self) -> Any:
        owner = self._owner()
        if owner is None:
            raise ReferenceError(f"the object that this {self._name} belongs to is gone: keep a reference to it")
        return owner

    def _of_class(self) -> Any:
        owner, name = self._find_owner(), self._name
        for cls in type(owner).__mro__:
            if name in vars(cls):
                method = vars(cls)[name]
                if not hasattr(method, "__get__"):
                    return method
                try:
                    return method.__get__(owner, type(owner))
                except AttributeError:  # torch.jit's, which leaves it to ``__getattr__``
                    break
        with process.lock:
            standing = vars(owner).get(name)
            method = type(owner).__getattr__(owner, name)
            if standing is not None:  # torch.jit keeps what it finds, in our place
                vars(owner)[name] = standing
        return method

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:
            return getattr(self.__wrapped__, name)
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """The object is in the state, since it may be in the making, with us in what it is made of."""
        return copyreg.__newobj__, (type(self),), (self._find_owner(), self._name, self._threads, self._original)  # type: ignore[attr-defined]

    def __setstate__(self, state: tuple[Any, str, int | None, Any]) -> None:
        InstanceMethod.__init__(self, *state)
        # One that is complete already was made for us, and has no other user yet.
        self._held = state[0] if vars(state[0]) else None


class LeasedMethod(InstanceMethod):
    """The method under ``limit_threads()``, with at most ``threads`` if that is a number."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with limit(self._threads):
            return self.__wrapped__(*args, **kwargs)


def limit(threads: int | None) -> AbstractContextManager[Any]:
    """``limit_threads(threads)``, as torch's compiler can bear it."""
    found = ThreadLimit(threads)
    uncompiled = process.hooks.get(UNCOMPILED)
    return _Uncompiled(found, *uncompiled) if isinstance(uncompiled, tuple) else found


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


def put(
    owner: object, name: str, kind: type[InstanceMethod], threads: int | None = None, claimant: object = None
) -> None:
    """Let ``owner`` have a method of ``kind`` in place of ``name``, unless it has one, in the name of ``claimant``.

    Without a claimant that is the owner itself.
    """
    with process.lock:
        attributes = vars(owner)
        found = attributes.get(name)
        if not isinstance(found, InstanceMethod) or found._owner() is not owner:
            original = found._original if isinstance(found, InstanceMethod) else found  # the former: a shallow copy's
            found = kind(owner, name, threads, original)
            # Not by setattr: torch's modules have one of their own, and compiled ones hand it on to the module inside.
            attributes[name] = found
        found._claimants.add(owner if claimant is None else claimant)


def take_back(owner: object, name: str, claimant: object = None) -> None:
    """Let ``owner`` have its own method ``name`` again. What another library has put over ours stays.

    Of several claimants the last one ends it; the owner itself ends it for all.
    """
    with process.lock:
        attributes = vars(owner)
        found = attributes.get(name)
        if not isinstance(found, InstanceMethod):
            return
        if claimant is not None and claimant is not owner and found._owner() is owner:
            found._claimants.discard(claimant)
            if found._claimants:
                return
        if found._original is None:
            del attributes[name]
        else:
            attributes[name] = found._original


def _nobody() -> None:
    return None
