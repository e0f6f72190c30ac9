"""Two ledgers: one for each thread's own pools, one for the pools the process shares.

Nothing is saved and restored per block: overlapping blocks would then put back each other's limits. A thread's limit is
the smallest of its active leases; the process's limit is the smallest limit of its threads. The baseline is taken when
the first limit begins and put back when the last one ends. Per-thread pools are only ever set in their own thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from ..errors import LeaseError
from ..state import process
from . import forking
from .guarding import attempt
from .leases import Lease, ThreadState, smallest
from .levels import FREE
from .registry import Registry
from .shares import Shares
from .watching import watch_imports

__all__ = ["Lease", "Ledger", "ThreadState", "current", "watch_imports"]


class _End:
    """Lives in the thread's local storage alone, so that its end is the thread's end."""

    _ledger: Ledger | None = None  # for ``__del__``, where an exception came in before ``__init__``
    _thread: ThreadState

    def __init__(self, ledger: Ledger, thread: ThreadState) -> None:
        self._thread = thread
        self._ledger = ledger

    def __del__(self) -> None:
        if self._ledger is not None and not sys.is_finalizing():
            self._ledger.retire(self._thread)


class _Local(threading.local):
    thread: ThreadState = None  # type: ignore[assignment]  # for a finalizer that runs while __init__ does
    end: _End

    def __init__(self, ledger: Ledger) -> None:
        thread = ThreadState()
        end = _End(ledger, thread)
        if not self.thread:  # nothing has come in between
            self.end, self.thread = end, thread


class Ledger(Shares):
    """Both ledgers of a process. A forked child starts a new one; the old is ``closed`` and its leases do nothing.

    An operation may be interrupted by an exception, or by another operation of the same thread (finalizers and signal
    handlers run between any two steps). Both are told by ``ThreadState.busy``; nothing that comes while it is set waits
    for a lock, so that nothing waits for itself.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.local = _Local(self)

    def mine(self) -> ThreadState:
        """The state of the calling thread."""
        if not self.local.thread:
            self.local.__init__(self)  # type: ignore[misc]  # the one under way finds it done
        return self.local.thread

    def enter(self, lease: Lease) -> None:
        """Begin ``lease`` in the calling thread. If this is interrupted, ``abandon`` must follow."""
        registry = self.registry
        mine = self.local.thread or self.mine()
        lease._ledger, lease._thread = self, mine  # first: ``abandon`` then sees to new pools, too
        if registry.news.value is not None or registry.dirty:
            self.refresh(again=False)
        if (mine.busy or self._burier) and self._is_inside(mine):
            mine.leases.append(lease)
            mine.stale = True
            lease.threads = smallest(mine.leases)
            return
        mine.busy = True
        try:
            with mine.lock:
                mine.leases.append(lease)
                limit = mine.levels.limit
                if mine.stale:
                    self._settle(mine)
                    lease.threads = min(lease.threads, mine.levels.limit)
                elif lease.threads < limit:
                    self._settle(mine)
                elif lease.threads > limit:
                    lease.threads = limit
        finally:
            mine.busy = False
        if mine.stale:
            self._catch_up(mine)

    def leave(self, lease: Lease) -> None:
        """End ``lease``. From another thread the process's share ends now, the owner's pools at its next operation.

        Raises LeaseError if it has ended before.
        """
        if self.closed:
            lease._active = False
            return
        owner = lease._thread
        if owner is None or not lease._active:
            raise LeaseError("this limit was left already")
        mine = self.local.thread or self.mine()
        if owner is not mine or ((mine.busy or self._burier) and self._is_inside(mine)):
            self.abandon(lease, doubt=False)
            return
        try:
            mine.busy = True
            try:
                with mine.lock:
                    lease._active = False
                    mine.leases.remove(lease)
                    if lease.threads <= mine.levels.limit or mine.stale:
                        self._settle(mine)
            finally:
                mine.busy = False
            if mine.stale:
                self._catch_up(mine)
        except BaseException:
            self.abandon(lease)
            raise

    def abandon(self, lease: Lease, *, doubt: bool = True) -> None:
        """Undo an ``enter`` or finish a ``leave`` that an exception interrupted, wherever it was."""
        lease._active = False
        owner = lease._thread
        if owner is None or self.closed:
            return
        owner.stale = True
        mine = self.local.thread or self.mine()
        if owner is not mine:
            mine.later.append(lambda: self._share_again(owner))
            mine.stale = True
        elif doubt:
            mine.doubted = True
        self._catch_up(mine)

    def settle(self, doubt: bool = False) -> None:
        """Bring the calling thread's pools in line, if it has anything open. ``doubt``: set them all again."""
        mine = self.local.thread or self.mine()
        if doubt:
            mine.doubted = mine.stale = True
        if not mine.levels.settled:
            mine.stale = True
        self._catch_up(mine)

    def refresh(self, *, again: bool = True) -> None:
        """Look for new pools, and put limits that are active on them. Within an operation of this thread: nothing.

        ``again=False`` leaves it where another thread has just done so.
        """
        mine = self.local.thread or self.mine()
        if self._is_inside(mine):
            return
        mine.busy = True
        try:
            with self.lock:
                if again or self.registry.dirty or self.registry.news.value is not None:
                    self.registry.refresh()
                    for thread in tuple(self.shares):
                        thread.stale = True
                    if self.shares:
                        self.levels.settled = False
                        self._settle_process()
        finally:
            mine.busy = False
        self._catch_up(mine)

    def imported(self) -> None:
        """A module that brings pools was imported to its end, by this thread."""
        self.registry.dirty = True
        if self.shares:
            self.refresh()
            self.settle()

    def exclusively(self, function: Callable[[ThreadState], None]) -> None:
        """Call ``function`` with the calling thread's state while no other operation is under way in this thread or on
        the process's pools; within an operation of this thread, at its end. ``function`` may be called twice."""
        mine = self.local.thread or self.mine()

        def call() -> None:
            with mine.lock, self.lock:
                function(mine)

        mine.later.append(call)
        mine.stale = True
        self._catch_up(mine)

    def close(self) -> None:
        """In a forked child: end what the parent had begun, and put the pools back to their counts.

        The only thread here is the one that forked. Locks may be held for ever by threads that do not exist here.
        """
        self.closed = True
        mine = self.mine()
        if mine.busy:  # forked by a signal handler: the operation that it came into goes on here, and ends with this
            mine.stale = True
            return
        self._free(mine)

    def _free(self, mine: ThreadState) -> None:
        registry = self.registry
        try:
            mine.levels.hold(registry.thread_ops, FREE)
        except Exception as error:  # noqa: BLE001 - foreign code
            registry.hold_guarded(mine.levels, "thread", FREE, 0, error)
        try:
            self.levels.hold(registry.process_ops, FREE)
        except Exception as error:  # noqa: BLE001 - foreign code
            registry.hold_guarded(self.levels, "process", FREE, 0, error)

    def _receive(self) -> None:
        if self.local.thread:
            self._catch_up(self.local.thread)

    def _catch_up(self, mine: ThreadState) -> None:
        """Do what was left for later, unless this thread is in an operation: that one comes here at its end."""
        while mine.stale and not self._is_inside(mine):
            mine.busy = True
            try:
                if self.closed:
                    mine.stale = False
                    self._free(mine)
                    return
                while mine.later:
                    try:
                        mine.later[0]()
                    except Exception:
                        del mine.later[0]
                        raise
                    del mine.later[0]
                with mine.lock:
                    self._settle(mine)
            finally:
                mine.busy = False

    def _settle(self, mine: ThreadState) -> None:
        """In the thread concerned, with its lock held."""
        leases = mine.leases
        try:
            if mine.stale:
                mine.stale = False
                if mine.later:  # that is for the end of the operation
                    mine.stale = True
                for lease in tuple(leases):
                    if not lease._active:
                        leases.remove(lease)
                if mine.doubted:
                    mine.doubted = False
                    mine.levels.doubt()
            limit = smallest(leases) if leases else FREE
            if limit != self.shares.get(mine, FREE) or not self.levels.settled:
                self._share(mine, limit)
            registry = self.registry
            if limit != FREE and registry.touch_torch is not mine.touched:
                self._touch_torch(mine)
            try:
                mine.levels.hold(registry.thread_ops, limit, self.ours)
            except Exception as error:  # noqa: BLE001 - foreign code
                with self.lock:
                    registry.hold_guarded(mine.levels, "thread", limit, self.ours, error)
            if registry.unproved and limit != FREE:
                registry.prove(limit)
        except BaseException:
            mine.stale = mine.doubted = True
            raise

    def _touch_torch(self, mine: ThreadState) -> None:
        """torch sets a thread up at its first operation there, from its own default, which would end a limit."""
        touch = self.registry.touch_torch
        if touch is not None:
            attempt("torch", "read", touch)
        mine.touched = touch
        mine.levels.doubt()

    def _share_again(self, owner: ThreadState) -> None:
        """The calling thread has ended a lease of another."""
        with owner.lock:
            if not self.closed:
                self._share(owner, FREE if owner.dead else smallest(owner.leases))


def current() -> Ledger:
    """The ledger of this process; made at first use, with its import hooks."""
    ledger = process.ledger
    if ledger is not None:
        return ledger
    with process.lock:
        if process.ledger is None:
            watch_imports()
            forking.register()
            made = Ledger(Registry())
            if process.ledger is None:  # a finalizer may have come here in between
                process.ledger = made
        return process.ledger
