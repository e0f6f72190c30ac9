"""What a native pool is: as the report shows it, and as the ledgers drive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Scope = Literal["process", "thread"]


class PoolState(NamedTuple):
    """One native pool as it is now.

    ``name`` is the library ("libgomp", "openblas", "mkl", "torch", ...), ``path`` its file or module file, ``scope``
    whether one count holds for the whole process or each thread has its own (then ``threads`` is the calling
    thread's). ``threads`` is None where the library does not tell; ``detail`` is one line for people.
    """

    name: str
    path: str
    version: str
    scope: Scope
    threads: int | None
    detail: str


class Pool(NamedTuple):
    """One pool with its bound functions.

    ``get`` reads the count (for a "thread" scope: of the calling thread). ``put`` sets it, and returns None or the
    value that undoes it where that is not the count itself (MKL: 0 says "follow the process"); ``put`` is None where
    the library follows another pool or cannot be told. ``exact`` says that a count the user changed by the library's
    own call can be put back by ``put``. ``put_default`` sets what threads without a count of their own follow, where a
    library has that. ``read`` is the count as it is, where ``get`` tells what was asked for. ``grows`` says that a
    limit may raise the pool above a count that we computed. ``foreign`` functions run Python code, which may raise.
    """

    name: str
    path: str
    version: str
    scope: Scope
    detail: str
    get: Callable[[], int]
    put: Callable[[int], object] | None
    exact: bool = True
    put_default: Callable[[int], object] | None = None
    read: Callable[[], int] | None = None
    grows: bool = False
    foreign: bool = False

    def real(self) -> int:
        """The count as it is."""
        return self.get() if self.read is None else self.read()
