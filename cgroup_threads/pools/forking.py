"""What keeps a forked child from hanging or from living with its parent's limits.

A child has one thread, but libgomp in it believes in the workers of the parent's team and waits for them for ever.
``omp_pause_resource_all(omp_pause_hard)`` before the fork ends the forking thread's team; other threads keep theirs,
and the next parallel region on either side makes a new one. ``subprocess`` does not come here (it starts programs
without these callbacks).
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

from ..errors import first_line
from ..notices import Notice
from ..state import process

OPENCV: Final = "cv2"
OPENCV_LEFT: Final = "cv2-left-alone"
"""The key in ``process.hooks`` that says: this process was forked with OpenCV loaded."""
_HOOK = "fork"
_PAUSE_HARD = 2  # omp_pause_hard of <omp.h>


def register() -> None:
    """Install the callbacks once a process; does nothing on systems that cannot fork."""
    if hasattr(os, "register_at_fork") and _HOOK not in process.hooks:
        process.hooks[_HOOK] = unpaused = _Unpaused()
        os.register_at_fork(before=unpaused.pause, after_in_child=unpaused.in_child)


def registered() -> bool:
    """Whether the callbacks are installed; they stay for the life of the process."""
    return _HOOK in process.hooks


class _Unpaused:
    """The runtimes that could not be paused before the fork under way (each thread forks for itself)."""

    def __init__(self) -> None:
        self._local = threading.local()

    def pause(self) -> None:
        self._local.paths = None
        try:
            self._local.paths = _pause_runtimes()
        except Exception as error:  # noqa: BLE001 - the interpreter would print it and fork all the same
            message = f"before a fork: {type(error).__name__}: {first_line(error)}"
            process.note(Notice("fork-unprepared", message, "warning"))

    def in_child(self) -> None:
        process.lock = threading.RLock()  # another thread of the parent may have held it
        ended, process.ledger = process.ledger, None
        if sys.modules.get(OPENCV) is not None:
            process.hooks[OPENCV_LEFT] = True
        try:
            if ended is not None:
                ended.close()
            if self._local.paths:
                _start_at_one(self._local.paths)
        except Exception as error:  # noqa: BLE001 - see above
            message = f"after a fork: {type(error).__name__}: {first_line(error)}"
            process.note(Notice("fork-unprepared", message, "warning"))


def _pause_runtimes() -> list[str]:
    """Pause every loaded libgomp in this thread; returns the paths of those that could not be.

    libomp and libiomp5 set themselves up anew in a child. A runtime refuses inside a parallel region.
    """
    from .maps import library_paths

    runtimes = [path for path in library_paths()[0] if path.rpartition("/")[2].startswith("libgomp")]
    if not runtimes:
        return []
    from .setters import pause_functions

    return [path for path, pause in pause_functions(runtimes).items() if pause is None or pause(_PAUSE_HARD) != 0]


def _start_at_one(paths: list[str]) -> None:
    """One thread needs no team, so nothing is waited for. MKL and BLIS ask the runtime for a count of their own, so
    all pools are lowered and not the runtime alone."""
    from .live import lower

    lower(1)
    for path in paths:
        name = path.rpartition("/")[2]
        message = f"{name} could not be paused before this process was forked: it starts with one thread here"
        process.note(Notice("fork-one-thread", message, "warning", "fork before the first parallel work, or use spawn"))
