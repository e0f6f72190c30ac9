"""A thread that follows the limits for what takes no leases. Optional: leases follow them without any thread."""

from __future__ import annotations

import threading
from types import TracebackType

from ..errors import InvalidArgumentError, first_line
from ..notices import Notice
from ..pools.ledger import Lease, current
from ..state import process
from .core_budget import core_budget

MIN_INTERVAL_S = 0.01


class Watcher:
    """Looks at the limits every ``interval`` seconds until ``stop``; a context manager stops it at its end.

    The pools that the process shares (OpenBLAS, BLIS, OpenCV, pyarrow) follow down, and up again to where they began.
    A thread's own counts (OpenMP, MKL, torch) can be set by that thread alone: they follow with its next lease. A
    forked child has no watcher: ``alive`` is False there.
    """

    def __init__(self, interval: float = 0.5) -> None:
        valid = isinstance(interval, (int, float)) and not isinstance(interval, bool)
        if not valid or not MIN_INTERVAL_S <= interval <= threading.TIMEOUT_MAX:
            raise InvalidArgumentError("interval", interval, f"a number of seconds of at least {MIN_INTERVAL_S}")
        self.interval = float(interval)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cgroup_threads-watcher", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it watches."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread and what it holds; returns when it has ended. Stopping twice does nothing."""
        self._stop.set()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        held: Lease | None = None
        try:
            while True:
                try:
                    held = self._follow(held)
                except Exception as error:  # noqa: BLE001 - it must watch on, and has nobody to raise to
                    message = f"watching the limits: {type(error).__name__}: {first_line(error)}"
                    process.note(Notice("watch-failed", message, "warning"))
                if self._stop.wait(self.interval):
                    return
        finally:
            _leave(held)

    def _follow(self, held: Lease | None) -> Lease | None:
        """Hold the shared pools at the budget; returns the lease that does. It takes no cores of the budget."""
        core = core_budget()
        core.look()
        cores = core.size.cores
        if held is not None and held.threads == cores:
            return held
        _leave(held)  # first: within a smaller one a larger lease would not widen
        lease = Lease(cores)
        current().enter(lease)
        return lease


def _leave(held: Lease | None) -> None:
    if held is not None and held._active and held._ledger is not None:
        held._ledger.leave(held)


def watch(interval: float = 0.5) -> Watcher:
    """Start a thread that follows quota and cpuset every ``interval`` seconds, for pools that are used without leases.

    ``limit_threads()`` follows by itself as leases are taken. Raises InvalidArgumentError for an interval that is no
    number of seconds of at least 0.01.
    """
    return Watcher(interval)
