"""The counts of some pools while a limit holds on them: what they were, what they are, how to get back.

One instance belongs to each thread that has a limit, one to the process. Written so that an exception between any two
steps (KeyboardInterrupt comes anywhere) leaves something that ``hold`` can be called on again.
"""

from __future__ import annotations

import sys
from typing import Final

from .registry import Op

FREE: Final = sys.maxsize
"""The limit that is none."""


class Levels:
    """``hold`` brings the pools to the smaller of a limit and their baseline.

    The baseline is read when a limit begins and put back when it ends, also where the user changed a count meanwhile.
    """

    __slots__ = ("_base", "_now", "_undo", "limit", "settled")

    def __init__(self) -> None:
        self.limit = FREE
        self.settled = True
        """False while pools may differ from what ``limit`` says."""
        self._base: list[int] | None = None
        """The counts before the limit; None while there is none."""
        self._now: list[int] = []
        """The counts as we left them; 0 where that is not known."""
        self._undo: list[int | None] = []
        """What ``put`` takes to get a pool back; None where we did not change it."""

    def hold(self, ops: tuple[Op, ...], limit: int) -> None:
        """Make ``limit`` hold on the pools ``ops`` (those of the last call, and perhaps more behind them)."""
        self.settled = False
        if limit == FREE:
            if self._base is not None:
                self._restore(ops, self._base)
        else:
            base = self._base
            if base is None:
                base = [get() for get, _, _ in ops]
                # No call in between: all three or none.
                self._base, self._now, self._undo = base, base.copy(), [None] * len(base)
            elif len(base) < len(ops):
                self._extend(ops, base)
            self._lower(ops, base, limit)
        self.limit = limit
        self.settled = True

    def _lower(self, ops: tuple[Op, ...], base: list[int], limit: int) -> None:
        now, undo = self._now, self._undo
        for index, (_, put, exact) in enumerate(ops):
            target = base[index]
            target = min(target, limit)
            if now[index] == target:
                continue
            if undo[index] is not None:
                put(target)
            elif exact:
                undo[index] = base[index]
                put(target)
            else:
                # What ``put`` returns is the only way back. The slice is filled by one instruction, so that no
                # KeyboardInterrupt can come between the change and its record.
                undo[index : index + 1] = map(put, (target,))  # type: ignore[arg-type]  # an inexact put returns int
            now[index] = target

    def _restore(self, ops: tuple[Op, ...], base: list[int]) -> None:
        undo = self._undo
        for index, before in enumerate(base):
            get, put, exact = ops[index]
            back = undo[index]
            if back is not None:
                put(back)
            elif exact and get() != before:
                put(before)
        self._base = None

    def _extend(self, ops: tuple[Op, ...], base: list[int]) -> None:
        del self._now[len(base) :], self._undo[len(base) :]  # left by an interrupted call
        for get, _, _ in ops[len(base) :]:
            before = get()
            self._now.append(before)
            self._undo.append(None)
            base.append(before)  # last: the length of the baseline says how many are complete

    def doubt(self) -> None:
        """Somebody else may have set the pools: the next ``hold`` sets all of them again."""
        self.settled = False
        self._now = [0] * len(self._now)

    def rebase(self, threads: int) -> None:
        """Lower the baseline itself to ``threads`` at most: what a running limit will put back."""
        if self._base is not None:
            self._base[:] = [min(before, threads) for before in self._base]
            self._undo[:] = [None if back is None else min(back, threads) for back in self._undo]
