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


def wrap(limit: Both, function: Any) -> Any:
    """``function`` inside ``limit``; a generator is inside while it runs, and outside between its yields.

    Raises InvalidArgumentError for what is no function.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap(limit, function.__func__))
    if not callable(function) or isinstance(function, type):
        raise InvalidArgumentError("function", function, "a function")
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator(limit, function)
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(limit, function)
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine(limit, function)
    else:
        wrapper = _wrap_function(limit, function)
    return functools.update_wrapper(wrapper, function)


def _wrap_function(limit: Both, function: Callable[..., Any]) -> Callable[..., Any]:
    def limited(*args: Any, **kwargs: Any) -> Any:
        with limit:
            return function(*args, **kwargs)

    return limited


def _wrap_coroutine(limit: Both, function: Callable[..., Any]) -> Callable[..., Any]:
    async def limited(*args: Any, **kwargs: Any) -> Any:
        async with limit:
            return await function(*args, **kwargs)

    return limited


def _wrap_generator(limit: Both, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    """Each step into the generator is a block of its own (PEP 380 describes what a delegating generator owes)."""

    def limited(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[Any], Any] = generator.send
        value: Any = None
        while True:
            with limit:
                try:
                    item = resume(value)
                except StopIteration as stop:
                    return stop.value
            try:
                value = yield item
                resume = generator.send
            except GeneratorExit:
                with limit:
                    generator.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the generator's to handle
                resume, value = generator.throw, error

    return limited


def _wrap_async_generator(limit: Both, function: Callable[..., AsyncGenerator[Any, Any]]) -> Callable[..., Any]:
    async def limited(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[Any], Any] = generator.asend
        value: Any = None
        while True:
            async with limit:
                try:
                    item = await resume(value)
                except StopAsyncIteration:
                    return
            try:
                value = yield item
                resume = generator.asend
            except GeneratorExit:
                async with limit:
                    await generator.aclose()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the generator's to handle
                resume, value = generator.athrow, error

    return limited
