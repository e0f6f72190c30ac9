"""Functions, coroutines and generators that run inside a context manager and otherwise stay what they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from ..errors import InvalidArgumentError


class Both(AbstractContextManager[Any], AbstractAsyncContextManager[Any], Protocol):
    """A context manager for ``with`` and ``async with``."""


class Make(Protocol):
    """Makes a limit for one entry: calls that share one object could not tell whose entry they leave, if a generator is
    closed in another context. ``at_once`` is for one that is closed: its finalizer must not wait for cores."""

    def __call__(self, at_once: bool = False) -> Both: ...


def wrap(limit: Make, function: Any) -> Any:
    """``function`` inside a limit; a generator is inside while it runs, and outside between its yields.

    Raises InvalidArgumentError for what is no function.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap(limit, function.__func__))
    if not callable(function) or isinstance(function, type):
        raise InvalidArgumentError("function", function, "a function")
    if _is(inspect.isasyncgenfunction, function):
        wrapper = _wrap_async_generator(limit, function)
    elif _is(inspect.isgeneratorfunction, function):
        wrapper = _wrap_generator(limit, function)
    elif _is(inspect.iscoroutinefunction, function):
        wrapper = _wrap_coroutine(limit, function)
    else:
        wrapper = _wrap_function(limit, function)
    return functools.update_wrapper(wrapper, function)


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    """``test`` for a function, or for an object by its ``__call__``, also inside ``functools.partial``."""
    while isinstance(function, functools.partial):
        function = function.func
    return test(function) or test(type(function).__call__)


def _wrap_function(limit: Make, function: Callable[..., Any]) -> Callable[..., Any]:
    def limited(*args: Any, **kwargs: Any) -> Any:
        with limit():
            return function(*args, **kwargs)

    return limited


def _wrap_coroutine(limit: Make, function: Callable[..., Any]) -> Callable[..., Any]:
    async def limited(*args: Any, **kwargs: Any) -> Any:
        async with limit():
            return await function(*args, **kwargs)

    return limited


def _wrap_generator(limit: Make, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    """Each step into the generator is a block of its own (PEP 380 describes what a delegating generator owes).

    What passes through stays in ``box`` for that moment only, so that a suspended generator keeps nothing alive.
    GeneratorExit is thrown into the generator like any exception: it may return a value, which ``close`` hands on.
    """

    def limited(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[Any], Any] = generator.send
        box: list[Any] = [None]
        closing = False
        while True:
            with limit(at_once=closing):
                try:
                    box.append(resume(box.pop()))
                except StopIteration as stop:
                    return stop.value
            try:
                box.append((yield box.pop()))
                resume = generator.send
            except BaseException as error:  # noqa: BLE001 - it is the generator's to handle
                closing = isinstance(error, GeneratorExit)
                box.append(error)
                resume = generator.throw

    return limited


def _wrap_async_generator(limit: Make, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
    async def limited(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[Any], Any] = generator.asend
        box: list[Any] = [None]
        closing = False
        while True:
            async with limit(at_once=closing):
                try:
                    box.append(await resume(box.pop()))
                except StopAsyncIteration:
                    return
            try:
                box.append((yield box.pop()))
                resume = generator.asend
            except BaseException as error:  # noqa: BLE001 - it is the generator's to handle
                closing = isinstance(error, GeneratorExit)
                box.append(error)
                resume = generator.athrow

    return limited
