"""The cores that a process has locked in a slot file: the truth of who holds what."""

from __future__ import annotations

from .slot_locks import lock, locked_by_others, unlock
from .slot_rows import MAX_SLOTS, first_run, run_mask, runs


class CoreLocks:
    """Locks on the first bytes of an open file, a byte a core. ``held`` is the mask of those this process has."""

    __slots__ = ("_descriptor", "_owed", "held")

    def __init__(self, descriptor: int) -> None:
        self.held = 0
        self._descriptor = descriptor
        """-1 once it is closed."""
        self._owed = 0
        """Cores given back whose locks the kernel kept."""

    def locked(self, budget: int) -> int:
        """The mask of the first ``budget`` slots that other processes hold: the truth, where ``look`` gives a hint."""
        if self._descriptor < 0:
            return 0
        return locked_by_others(self._descriptor, min(budget, MAX_SLOTS))

    def take(self, cores: int, budget: int, held: int) -> int:
        """Lock at most ``cores`` of the first ``budget`` slots; returns the mask of those it got, 0 for none.

        Slots in ``held`` are tried only where the hints prove wrong.
        """
        if self._descriptor < 0 or cores < 1:
            return 0
        budget = min(budget, MAX_SLOTS)
        below = (1 << budget) - 1
        got = self._lock_first(cores, below & ~(self.held | held))
        missing = cores - got.bit_count()
        if missing:
            others = locked_by_others(self._descriptor, budget)
            got |= self._lock_first(missing, below & ~(self.held | others))
        return got

    def give(self, mask: int) -> None:
        """Unlock the slots in ``mask``, as far as they are held."""
        if self._descriptor < 0:
            return
        mask = (mask | self._owed) & self.held
        self._owed = 0
        for start, length in runs(mask):
            bits = run_mask(start, length)
            if unlock(self._descriptor, start, length):
                self.held &= ~bits
            else:  # no memory to split a lock
                self._owed |= bits

    def _lock_first(self, cores: int, free: int) -> int:
        """Lock the first ``cores`` of ``free``, up to where somebody else was faster; returns the mask."""
        got = 0
        while free and cores:
            start, length = first_run(free, cores)
            bits = run_mask(start, length)
            self.held |= bits  # first: what an interrupt leaves here can be given, a lock nobody knows of cannot
            if not lock(self._descriptor, start, length):
                self.held &= ~bits
                break
            got |= bits
            free &= ~bits
            cores -= length
        return got
