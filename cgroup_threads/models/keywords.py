"""Keyword arguments of constructors that do not check them, and thread counts among them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..errors import UnknownArgumentError, check_threads

# "Choose for me": None and 0 are what llama_cpp.Llama itself replaces by a default, -1 is llama.cpp's own spelling.
UNSET: Final = (None, 0, -1)


def reject_unknown(
    arguments: Iterable[str], constructor: Callable[..., Any], callee: str, also: Iterable[str] = ()
) -> None:
    """Raise UnknownArgumentError for the first name ``constructor`` does not declare.

    A ``**kwargs`` of the constructor declares nothing: ``llama_cpp.Llama`` takes one and drops what it holds in
    silence. ``also`` are further names it understands.
    """
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(constructor).parameters.values()
    known = {parameter.name for parameter in parameters if parameter.kind in kinds} - {"self"}
    known.update(also)
    for name in arguments:
        if name not in known:
            import difflib

            nearest = difflib.get_close_matches(name, sorted(known), n=1)
            raise UnknownArgumentError(name, callee, nearest[0] if nearest else None)


def is_unset(value: Any) -> bool:
    """Whether ``Llama`` (or llama.cpp behind it) would choose the count itself: any false value, or one below 1."""
    if not value:
        return True
    try:
        return operator.index(value) < 1
    except TypeError:
        return False


def read_count(arguments: Mapping[str, Any], name: str) -> int | None:
    """The thread count ``arguments[name]``, or None where it is left to us (see UNSET).

    Raises InvalidThreadsError for bools, floats, strings and other numbers below 1.
    """
    value = arguments.get(name)
    if value is None or (type(value) is int and value in UNSET):
        return None
    return check_threads(value, name)
