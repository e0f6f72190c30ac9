"""limit_threads as a decorator: functions, coroutines, generators and methods stay what they are."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

import pytest

import cgroup_threads as ct
from cgroup_threads.errors import InvalidArgumentError
from tests.lab.limits import limits_script


def test_functions_and_coroutines() -> None:
    script = """
@ct.limit_threads
def bare(a, b=1): return a + b, look()
@ct.limit_threads(1)
def one(): return look()
@ct.limit_threads(2)
async def coroutine():
    with ct.limit_threads(): return look()
seen += [bare(1), one(), asyncio.run(coroutine()), look()]
"""
    assert limits_script(script) == [[2, [3, 3]], [1, 1], [2, 2], [4, 4]]


def test_methods_of_every_kind() -> None:
    script = """
class Model:
    @ct.limit_threads(1)
    def plain(self): return type(self).__name__, look()
    @ct.limit_threads(1)
    @classmethod
    def of_class(cls): return cls.__name__, look()
    @classmethod
    @ct.limit_threads(1)
    def inside(cls): return cls.__name__, look()
    @ct.limit_threads(1)
    @staticmethod
    def static(): return "static", look()
seen += [Model().plain(), Model.of_class(), Model.inside(), Model.static(), Model().static()]
"""
    assert [counts for _, counts in limits_script(script)] == [[1, 1]] * 5


def test_a_generator_is_limited_while_it_runs_only() -> None:
    script = """
@ct.limit_threads(1)
def generate():
    got = yield look()
    try:
        yield got, look()
    except ValueError as error:
        yield str(error), look()
    try:
        yield "last"
    finally:
        seen.append(["closing", look()])
    return "end"
g = generate()
seen.append(next(g)); see()
seen.append(g.send("sent")); see()
seen.append(g.throw(ValueError("thrown"))); see()
next(g); g.close(); see()
def delegate(): return (yield from generate())
d = delegate(); [next(d) for _ in range(3)]
try: next(d)
except StopIteration as stop: seen.append(stop.value)
"""
    assert limits_script(script) == [
        [1, 1], [4, 4], ["sent", [1, 1]], [4, 4], ["thrown", [1, 1]], [4, 4], ["closing", [1, 1]], [4, 4],
        ["closing", [1, 1]], "end",
    ]  # fmt: skip


def test_an_async_generator_reserves_while_it_runs_only() -> None:
    script = """
def work():
    with ct.limit_threads() as lease: return lease.threads
@ct.limit_threads(1)
async def generate():
    for _ in range(2):
        got = yield await asyncio.to_thread(work)
        seen.append(got)
async def main():
    g = generate()
    seen.append(await g.asend(None))
    seen.append(await asyncio.to_thread(work))
    seen.append(await g.asend("sent"))
    await g.aclose()
    async for count in generate(): seen.append(count)
    seen.append(await asyncio.to_thread(work))
asyncio.run(main())
"""
    assert limits_script(script) == [1, 3, "sent", 1, 1, None, 1, None, 3]


def test_objects_and_partials_are_what_their_call_is() -> None:
    script = """
import functools
def count():
    with ct.limit_threads() as lease: return lease.threads
class Coroutine:
    async def __call__(self): return await asyncio.to_thread(count)
class Generator:
    def __call__(self): yield count()
class AsyncGenerator:
    async def __call__(self): yield await asyncio.to_thread(count)
async def first(generator): return await anext(generator)
one = ct.limit_threads(1)
for wrapped in (lambda function: function, functools.partial):
    seen += [asyncio.run(one(wrapped(Coroutine()))()), next(one(wrapped(Generator()))())]
    seen.append(asyncio.run(first(one(wrapped(AsyncGenerator()))())))
    see()
"""
    assert limits_script(script) == [1, 1, 1, [4, 4]] * 2


def test_a_suspended_generator_keeps_nothing_alive() -> None:
    class Batch:
        pass

    def batches() -> Generator[Batch, Batch, None]:
        while True:
            yield Batch()

    limited = ct.limit_threads(1)(batches)()
    item = weakref.ref(next(limited))
    assert item() is None
    sent = Batch()
    item, given = weakref.ref(limited.send(sent)), weakref.ref(sent)
    del sent
    assert (item(), given()) == (None, None)


def test_a_suspended_async_generator_keeps_nothing_alive() -> None:
    class Batch:
        pass

    async def batches() -> AsyncGenerator[Batch, None]:
        while True:
            yield Batch()

    async def look() -> object:
        limited = ct.limit_threads(1)(batches)()
        item = weakref.ref(await anext(limited))
        alive = item()
        await limited.aclose()
        return alive

    assert asyncio.run(look()) is None


def test_what_a_generator_does_as_it_is_closed_is_its_own() -> None:
    def returns() -> Generator[int, None, int]:
        try:
            yield 1
        except GeneratorExit:
            return 5
        return 6

    def ignores() -> Generator[int, None, None]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    def outcome(generator: Generator[int, None, object], end: str) -> object:
        next(generator)
        try:
            return generator.close() if end == "close" else generator.throw(GeneratorExit)  # type: ignore[func-returns-value]
        except (RuntimeError, StopIteration) as error:
            return repr(error)

    for function in (returns, ignores):
        for end in ("close", "throw"):
            assert outcome(ct.limit_threads(1)(function)(), end) == outcome(function(), end)


def test_what_inspect_sees_is_unchanged() -> None:
    def function(a: int, *, b: str = "x") -> str:
        """Doc."""
        return b * a

    async def coroutine() -> int:
        return 1

    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    limited = ct.limit_threads(2)(function)
    assert limited(2, b="y") == "yy"
    assert inspect.signature(limited) == inspect.signature(function)
    assert (limited.__name__, limited.__doc__) == ("function", "Doc.")
    assert inspect.iscoroutinefunction(ct.limit_threads(coroutine))
    assert inspect.isgeneratorfunction(ct.limit_threads(generator))
    assert inspect.isasyncgenfunction(ct.limit_threads(async_generator))


@pytest.mark.parametrize("thing", [int, 3, "text"])
def test_what_is_no_function_is_rejected(thing: object) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a function"):
        ct.limit_threads(2)(thing)


def test_a_bare_decorator_takes_a_classmethod() -> None:
    script = """
class Model:
    @ct.limit_threads
    @classmethod
    def size(cls): return cls.__name__, look()
seen.append(Model.size())
"""
    assert limits_script(script) == [["Model", [3, 3]]]
