"""The counts of some pools while a limit holds on them: what they were, what they are, how to get back.

One instance belongs to each thread that has a limit, one to the process. Written so that an exception between any two
steps (KeyboardInterrupt comes anywhere) leaves something that ``hold`` can be called on again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from .registry import Op

FREE: Final = sys.maxsize
"""The limit that is none."""


class _Recipe:
    """How ``limit`` begins on ``ops`` whose counts are ``base``: the calls, and the records they leave."""

    __slots__ = ("back", "base", "exact", "inexact", "kept", "limit", "now", "ops", "ours", "undo")

    def __init__(self, ops: tuple[Op, ...], limit: int, ours: int, base: list[int]) -> None:
        now = [_target(op, before, limit, ours) for op, before in zip(ops, base, strict=True)]
        rows = [(index, *op[1:3], base[index]) for index, op in enumerate(ops) if now[index] != base[index]]
        undo: list[int | None] = [None] * len(base)
        for index, _, exact, before in rows:
            undo[index] = before if exact else None
        self.ops, self.limit, self.ours = ops, limit, ours
        self.base = base.copy()  # the list itself grows and changes while the limit holds
        self.now, self.undo = now, undo
        self.exact = tuple((put, limit) for _, put, exact, _ in rows if exact)
        self.inexact = tuple((index, put, limit) for index, put, exact, _ in rows if not exact)
        self.back = tuple((put, before) for _, put, exact, before in rows if exact)
        """What puts the exact ones back that were changed."""
        self.kept = tuple((op[0], op[1], n) for op, n, left in zip(ops, base, now, strict=True) if op[2] and n == left)
        """The exact ones that were right already: put back if the user has changed them."""


def _target(op: Op, before: int, limit: int, ours: int) -> int:
    """Where ``limit`` takes a pool that was at ``before``: up only if that is a count of ``ours``."""
    return limit if op[3] and before == ours > 0 else min(before, limit)


class Levels:
    """``hold`` brings the pools to the smaller of a limit and their baseline, and up to a limit where that is ours.

    The baseline is read when a limit begins and put back when it ends, also where the user changed a count meanwhile.
    """

    __slots__ = ("_base", "_now", "_recipe", "_simple", "_undo", "limit", "settled")

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
        self._recipe: _Recipe | None = None
        """The calls of the last limit that began here: mostly the next one is the same."""
        self._simple: _Recipe | None = None
        """The recipe, while nothing but its calls was made."""

    def hold(self, ops: tuple[Op, ...], limit: int, ours: int = 0) -> None:
        """Make ``limit`` hold on the pools ``ops`` (those of the last call, and perhaps more behind them).

        ``ours`` is the baseline of those it may raise; 0 for none.
        """
        self.settled = False
        base = self._base
        try:
            if limit == FREE:
                if base is not None:
                    self._restore(ops, base)
            elif base is None:
                self._begin(ops, limit, ours)
            else:
                if len(base) < len(ops):
                    self._extend(ops, base)
                self._move(ops, base, limit, ours)
        except BaseException:
            self.doubt()  # at once: where the pools are the process's, another thread may be the next to come here
            raise
        self.limit = limit
        self.settled = True

    def _begin(self, ops: tuple[Op, ...], limit: int, ours: int) -> None:
        base = [get() for get, _, _, _ in ops]
        recipe = self._recipe
        if (
            recipe is None
            or recipe.limit != limit
            or recipe.ops is not ops
            or recipe.ours != ours
            or recipe.base != base
        ):
            recipe = self._recipe = _Recipe(ops, limit, ours, base)
        # No call in between: all three or none. After an interruption here, ``doubt`` sets everything again, and what
        # was not changed yet is put back to what it is.
        self._base, self._now, self._undo, self._simple = base, recipe.now, recipe.undo[:], recipe
        for put, target in recipe.exact:
            put(target)
        for index, put, target in recipe.inexact:
            self._put_inexact(index, put, target)

    def _move(self, ops: tuple[Op, ...], base: list[int], limit: int, ours: int) -> None:
        self._leave_recipe()
        now, undo = self._now, self._undo
        for index, (_, put, exact, grows) in enumerate(ops):
            before = base[index]
            target = limit if before > limit or (grows and before == ours > 0) else before  # as ``_target``, uncalled
            if now[index] == target:
                continue
            if undo[index] is not None:
                put(target)
            elif exact:
                undo[index] = before
                put(target)
            else:
                self._put_inexact(index, put, target)
            now[index] = target

    def _put_inexact(self, index: int, put: Callable[[int], object], target: int) -> None:
        """What ``put`` returns is the only way back. The slice is filled by one instruction, so that no
        KeyboardInterrupt can come between the change and its record."""
        self._undo[index : index + 1] = map(put, (target,))  # type: ignore[arg-type]  # an inexact put returns int

    def _leave_recipe(self) -> None:
        if self._simple is not None:
            self._now = self._now.copy()
            self._simple = None

    def _restore(self, ops: tuple[Op, ...], base: list[int]) -> None:
        simple = self._simple
        if simple is not None and simple.ops is ops:
            for put, before in simple.back:
                put(before)
            for get, put, before in simple.kept:
                if get() != before:
                    put(before)
            for index, put, _ in simple.inexact:
                put(self._undo[index])  # type: ignore[arg-type]  # ``_begin`` has recorded it
        else:
            for (get, put, exact, _), before, back in zip(ops, base, self._undo, strict=False):  # ops may have grown
                if back is not None:
                    put(back)
                elif exact and get() != before:
                    put(before)
        self._base = None

    def _extend(self, ops: tuple[Op, ...], base: list[int]) -> None:
        self._leave_recipe()
        del self._now[len(base) :], self._undo[len(base) :]  # left by an interrupted call
        for get, _, _, _ in ops[len(base) :]:
            before = get()
            self._now.append(before)
            self._undo.append(None)
            base.append(before)  # last: the length of the baseline says how many are complete

    def doubt(self) -> None:
        """Somebody else may have set the pools: the next ``hold`` sets all of them again."""
        self.settled = False
        self._simple = None
        self._now = [0] * len(self._now)

    def rebase(self, threads: int) -> None:
        """Lower the baseline itself to ``threads`` at most: what a running limit will put back."""
        if self._base is not None:
            self._leave_recipe()
            base = [min(before, threads) for before in self._base]
            undo = [None if back is None else min(back, threads) for back in self._undo]
            self._base, self._undo = base, undo
