"""A command that measures is told to end: what it has started ends first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

_LEFT_ALONE: Final = (signal.SIG_IGN, None)  # None: not made by Python


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit inside the block, so that children are ended and groups removed.

    What is ignored stays so, as nohup(1) wants it; but for SIGCHLD, without which children cannot be waited for. Only
    in the main thread; elsewhere it does nothing, since Python allows no handlers there.
    """

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in _numbers("SIGTERM", "SIGHUP"):
            if signal.getsignal(number) not in _LEFT_ALONE:
                previous[number] = signal.signal(number, end)
        for number in _numbers("SIGCHLD"):
            if signal.getsignal(number) is signal.SIG_IGN:
                previous[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def putting_off_signals() -> Iterator[None]:
    """Handle what would end the block, Ctrl-C too, after it: between a child's start and the first chance to end it.

    A child must not inherit a mask of blocked signals, hence handlers. Only in the main thread, where they run.
    """
    came: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in _numbers("SIGINT", "SIGTERM", "SIGHUP"):
            if signal.getsignal(number) not in _LEFT_ALONE:
                previous[number] = signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


@contextmanager
def noticing_stops() -> Iterator[list[int]]:
    """A list that is no longer empty once this process was stopped (Ctrl-Z, SIGSTOP) and goes on inside the block: what
    it measures runs on meanwhile. Only in the main thread."""
    came: list[int] = []
    numbers = _numbers("SIGCONT") if threading.current_thread() is threading.main_thread() else []
    previous = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _numbers(*names: str) -> list[signal.Signals]:
    """The signals that this platform has: Windows has no SIGHUP, and no SIGCHLD."""
    return [getattr(signal, name) for name in names if hasattr(signal, name)]
