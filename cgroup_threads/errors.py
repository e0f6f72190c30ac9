"""Exceptions of the library. Each carries the data of its message as attributes."""

from __future__ import annotations

from collections.abc import Iterable


class CgroupThreadsError(Exception):
    """Base of every exception this library raises on purpose."""


class CgroupThreadsWarning(UserWarning):
    """Something was not reached, and the caller should know: the first lease or factory call emits it once."""


class InvalidThreadsError(CgroupThreadsError, ValueError):
    """A thread count that is not a whole number of at least 1.

    ``threads`` is the rejected value, ``argument`` the name of the parameter.
    """

    def __init__(self, threads: object, argument: str = "threads") -> None:
        self.threads = threads
        self.argument = argument
        super().__init__(f"{argument} must be a positive integer, not {threads!r}")


class InvalidArgumentError(CgroupThreadsError, ValueError):
    """An argument outside its allowed values. ``argument`` is its name, ``value`` what was given."""

    def __init__(self, argument: str, value: object, expected: str) -> None:
        self.argument = argument
        self.value = value
        self.expected = expected
        super().__init__(f"{argument} must be {expected}, not {value!r}")


class UnknownArgumentError(CgroupThreadsError, TypeError):
    """A keyword argument the constructor does not know (``llama_cpp.Llama`` would swallow it in silence).

    ``argument`` is the unknown name, ``callee`` what was called, ``suggestion`` the nearest known name or None.
    """

    def __init__(self, argument: str, callee: str, suggestion: str | None = None) -> None:
        self.argument = argument
        self.callee = callee
        self.suggestion = suggestion
        hint = f"; did you mean {suggestion!r}?" if suggestion else ""
        super().__init__(f"{callee}() has no argument {argument!r}{hint}")


class MissingExtraError(CgroupThreadsError, ImportError):
    """An optional library is not installed. ``extra`` is the extra of this package that brings it."""

    def __init__(self, library: str, extra: str) -> None:
        self.library = library
        self.extra = extra
        super().__init__(f"{library} is not installed: pip install 'cgroup-threads[{extra}]'")


class LeaseError(CgroupThreadsError, RuntimeError):
    """A limit was left that was never entered, or left twice."""


def check_threads(threads: object, argument: str = "threads") -> int:
    """Return ``threads`` when it is an ``int`` of at least 1 (bools, floats and strings are not).

    Raises InvalidThreadsError otherwise.
    """
    if type(threads) is int and threads >= 1:
        return threads
    raise InvalidThreadsError(threads, argument)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, for one-line messages; its class name if it has none."""
    lines: Iterable[str] = str(error).splitlines()
    return next(iter(lines), type(error).__name__)
