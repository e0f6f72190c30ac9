"""A cheap answer to "may a library have been loaded since I last looked?": one word of memory, or a module count.

glibc keeps the loaded objects of a process in a linked list (``struct link_map`` of <link.h>: address, name, dynamic
section, next, previous) and appends each new one at its end. So while the ``next`` of the last object is NULL, nothing
was loaded after it, by an import or by any other ``dlopen``.

The list may change at any time in a thread that does not hold the GIL, and its objects are freed when a ``dlopen``
fails half-way: walking it crashes. Here the only object ever read is one that a handle of our own keeps loaded (with
glibc the handle is the ``link_map``, checked through ``dlinfo``), and of it only ``next``, which is never followed.
Which object is the last one is found by asking each library in the kernel's list of mapped files for a handle.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

SHORTEST_DOUBT_S: Final = 0.001
LONGEST_DOUBT_S: Final = 0.2
FREE_DOUBTS: Final = 8  # until a load that was under way must be at its end
DOUBT_SHARE: Final = 0.01  # of a CPU after that: a look takes 1 ms, and much more in a process that maps much
_RTLD_DI_LINKMAP = 2  # dlinfo: the link_map of a handle
_NEXT = 3 * ctypes.sizeof(ctypes.c_void_p)  # offset of l_next


class ModuleCount:
    """Fallback for other C libraries: ``value`` is None while ``sys.modules`` has the size it had.

    A library that comes without an import is seen at the next import only.
    """

    def __init__(self) -> None:
        self._seen = len(sys.modules)

    @property
    def value(self) -> int | None:
        count = len(sys.modules)
        return None if count == self._seen else count


class Doubt:
    """For the time after a look that could not tell, mostly because a load was under way: as ``count``, and besides it
    ``value`` is no longer None after ``seconds``."""

    def __init__(self, count: ModuleCount, seconds: float) -> None:
        self._count = count
        self._due_s = monotonic() + seconds

    @property
    def value(self) -> int | None:
        return 0 if monotonic() >= self._due_s else self._count.value


class Watch:
    """Keeps the last loaded object loaded, and renews it with each ``look``."""

    def __init__(self) -> None:
        self._handle: int | None = None
        self._loader = _Loader.open()
        self._doubts = 0

    def doubt(self, count: ModuleCount, spent_s: float) -> ModuleCount | Doubt:
        """What tells instead where ``look`` could not: soon at first, and later and later where that stays so. The look
        took ``spent_s`` of CPU time."""
        if self._loader is None:
            return count
        self._doubts += 1
        shortest = SHORTEST_DOUBT_S if self._doubts <= FREE_DOUBTS else spent_s / DOUBT_SHARE
        return Doubt(count, max(shortest, min(LONGEST_DOUBT_S, SHORTEST_DOUBT_S * 2.0 ** min(self._doubts, 10))))

    def look(self, paths: Iterable[str]) -> ctypes.c_void_p | None:
        """Something whose ``value`` is None until a library was loaded that is not in ``paths``.

        None where that cannot be told: no glibc, a load under way, the last library's file gone.
        """
        loader = self._loader
        if loader is None:
            return None
        # Libraries are mapped downwards: the lowest address, the first here, is mostly the last loaded.
        for path in paths:
            handle = loader.pin(path)
            if handle is None:
                continue
            following = ctypes.c_void_p.from_address(handle + _NEXT)
            if following.value is None:
                self._doubts = 0
                if self._handle is not None:
                    loader.unpin(self._handle)
                self._handle = handle
                return following
            loader.unpin(handle)
        return None


class Keeper:
    """Keeps libraries from being unloaded for a moment."""

    def __init__(self) -> None:
        self._loader = _Loader.open()

    @contextmanager
    def keep(self, path: str) -> Iterator[bool]:
        """Whether the library at ``path`` is loaded; it stays so inside. Always True where that cannot be told."""
        loader = self._loader
        handle = None if loader is None else loader.pin(path)
        try:
            yield loader is None or handle is not None
        finally:
            if loader is not None and handle is not None:
                loader.unpin(handle)


class _Loader:
    """glibc's ``dlopen`` without loading, and ``dlclose``. The GIL is released: both may wait for the loader's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._open = library.dlopen
        self._open.argtypes, self._open.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
        self._close = library.dlclose
        self._close.argtypes, self._close.restype = (ctypes.c_void_p,), ctypes.c_int
        self._info = library.dlinfo
        self._info.argtypes, self._info.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p), ctypes.c_int

    @classmethod
    def open(cls) -> _Loader | None:
        """None where the C library is not glibc."""
        try:
            if not os.confstr("CS_GNU_LIBC_VERSION"):
                return None
            return cls(ctypes.CDLL(None))
        except (AttributeError, OSError, TypeError, ValueError):  # no confstr, no such name, no such symbol
            return None

    def pin(self, path: str) -> int | None:
        """Keep the library at ``path`` loaded; None if it is not loaded (any more)."""
        handle: int | None = self._open(os.fsencode(path), os.RTLD_LAZY | os.RTLD_NOLOAD)
        if handle is None:
            return None
        found = ctypes.c_void_p()
        if self._info(handle, _RTLD_DI_LINKMAP, ctypes.byref(found)) == 0 and found.value == handle:
            return handle
        self._close(handle)
        return None

    def unpin(self, handle: int) -> None:
        self._close(handle)
