"""Functions of other packages that drive a pool: one that raises must not stop a limit or an import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import first_line
from ..notices import Notice
from ..state import process
from .maps import replaced_paths

T = TypeVar("T")

ROOM: Final = 32
"""Calls inside calls that putting things right may take. Python 3.11 ends the process where a thread is 50 above the
limit and reaches it once more, and other threads may use the room as it is taken away."""


def add_room() -> None:
    """Raise the limit on calls inside calls for the moment: what puts things right after a RecursionError needs as much
    of the stack as what it undoes. However many threads are at it, there is one ``ROOM``. ``drop_room`` must follow."""
    # Without comparisons: in Python 3.11 each takes room itself.
    with process.lock:
        if not process.overflows:
            limit = sys.getrecursionlimit()
            before, raised = process.raised
            try:
                sys.setrecursionlimit(limit + ROOM)
                process.raised = limit if limit - raised else before, limit + ROOM
            except OverflowError:
                pass  # there is no higher one
        process.overflows += 1


def drop_room() -> None:
    """Lower the limit again, unless the user has set another one meanwhile."""
    with process.lock:
        process.overflows -= 1
        before, raised = process.raised
        if not process.overflows and not sys.getrecursionlimit() - raised:
            try:
                sys.setrecursionlimit(before)
                process.raised = 0, 0
            except RecursionError:
                pass  # the stack is too deep for that, and the next one lowers it


def note_retired(name: str, what: str, error: Exception) -> None:
    """Say that the pool ``name`` is left alone from now on because it raised as it was ``what``."""
    message = f"{name} raised as its thread count was {what}, and is left alone: {type(error).__name__}"
    process.note(Notice("pool-retired", f"{message}: {first_line(error)}", "warning", "report it to that library"))


def note_replaced(path: str) -> None:
    """Say that the library mapped from ``path`` could not be opened there, if its file is another one by now."""
    if path not in replaced_paths():
        return  # unloaded meanwhile
    message = f"{path} is loaded, but its file was replaced or removed since: its threads are not limited"
    process.note(Notice("pools-unseen", message, "warning", "restart the process: the library was upgraded under it"))


def attempt(name: str, what: str, call: Callable[[], T]) -> T | None:
    """What ``call`` returns; None and a notice where it raises."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - foreign code
        note_retired(name, what, error)
        return None


class Guarded:
    """``get`` and ``put`` of a foreign pool, until one raises: then the count stays as it was last seen.

    A signal handler's exception looks the same, and so does the caller's full stack (ctypes hides RecursionError in an
    error of its own): what raises only once, with room on the stack, is not the library's, and is passed on.
    """

    __slots__ = ("_get", "_name", "_put", "_seen", "retired")

    def __init__(self, name: str, get: Callable[[], int], put: Callable[[int], object]) -> None:
        self._name, self._get, self._put = name, get, put
        self._seen = 1
        self.retired = False

    def get(self) -> int:
        """The count, or the one seen last."""
        if not self.retired:
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - foreign code
                self._try_again(self._read, "read", error)
        return self._seen

    def put(self, threads: int) -> None:
        """Set it, if it can be."""
        if not self.retired:
            try:
                self._put(threads)
            except Exception as error:  # noqa: BLE001 - foreign code
                self._try_again(lambda: self._put(threads), "set", error)

    def _read(self) -> None:
        self._seen = int(self._get())

    def _try_again(self, call: Callable[[], object], what: str, error: Exception) -> None:
        add_room()
        try:
            call()
        except Exception as second:  # noqa: BLE001 - foreign code
            self.retired = True
            note_retired(self._name, what, second)
        else:
            raise error
        finally:
            drop_room()
