"""All pools this process has shown so far, in an order that never changes: a pool keeps its index for good."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Any

from ..notices import Notice
from ..state import process
from .discovery import find_libraries
from .guarding import Guarded, attempt
from .linkmap import ModuleCount, Watch
from .modules import find_module_pools
from .records import Pool, Scope
from .setters import bind, bind_torch_mkl

if TYPE_CHECKING:
    from .levels import Levels

Op = tuple[Callable[[], int], Callable[[int], object], bool, bool]
"""(get, put, exact, grows) of a pool: all that the hot path needs of it."""


class Registry:
    """The pools found, split by scope, and the token that tells whether there may be more.

    Libraries stay bound for the life of the process (threadpoolctl keeps their handles, so they stay loaded).
    Not thread-safe: the ledger calls ``refresh`` under its lock.
    """

    def __init__(self) -> None:
        self.pools: tuple[Pool, ...] = ()
        self.thread_ops: tuple[Op, ...] = ()
        self.process_ops: tuple[Op, ...] = ()
        self.unproved: list[Pool] = []
        """Pools that were never seen to follow a change."""
        self.touch_torch: Callable[[], int] | None = None
        """``torch.get_num_threads`` once torch is there: it forces torch's lazy set-up of the calling thread."""
        self.dirty = True
        """Set by import hooks: a module that drives a pool is ready now."""
        self.news: Any = ModuleCount()
        """``news.value`` is None while no library was loaded since the last look."""
        self._seen: frozenset[str] = frozenset()
        self._watch = Watch()
        self._guards: list[Guarded] | None = None
        """Those around the functions of foreign pools; None until one of them has raised."""

    def refresh(self) -> None:
        """Add what is new. If it is interrupted, the next call does it again."""
        self.dirty = False
        try:
            self._look()
        except BaseException:
            self.dirty = True
            raise

    def _look(self) -> None:
        began = thread_time()
        count = ModuleCount()  # before the look, so that an import meanwhile is news
        libraries = find_libraries()
        watched = self._watch.look(libraries.paths)
        found: dict[str, Pool | None] = {}
        for controller in libraries.controllers:
            if controller.filepath not in self._seen:
                found[controller.filepath] = attempt(controller.filepath, "looked at", partial(bind, controller))
        if libraries.torch is not None and libraries.torch not in self._seen:
            found[libraries.torch] = bind_torch_mkl(libraries.torch)
        found |= {pool.path: pool for pool in find_module_pools() if pool.path not in self._seen}
        self._add(found)
        if watched is None:  # a NULL pointer is false, too
            self.news = self._watch.doubt(count, thread_time() - began)
        else:
            self.news = watched
        torch = sys.modules.get("torch")
        if torch is not None and not getattr(getattr(torch, "__spec__", None), "_initializing", False):
            self.touch_torch = getattr(torch, "get_num_threads", None)

    def _add(self, found: dict[str, Pool | None]) -> None:
        pools = [pool for pool in found.values() if pool is not None]
        threads, shared = _ops(pools, "thread", self._guards), _ops(pools, "process", self._guards)
        seen = self._seen.union(found)
        if pools:  # all or nothing: there is no call in between
            self.pools = (*self.pools, *pools)
            self.thread_ops = (*self.thread_ops, *threads)
            self.process_ops = (*self.process_ops, *shared)
            self.unproved = [*self.unproved, *pools]
        self._seen = seen

    def hold_guarded(self, levels: Levels, scope: Scope, limit: int, ours: int, error: Exception) -> None:
        """``levels.hold`` again after it raised ``error``, without the pool that did.

        Guards cost time at each call, so there are none before the first failure. Where no pool fails under guard,
        the exception was not a library's (a signal handler's) and is raised.
        """
        if self._guards is None:
            guards: list[Guarded] = []
            threads, shared = _ops(self.pools, "thread", guards), _ops(self.pools, "process", guards)
            self.thread_ops, self.process_ops, self._guards = tuple(threads), tuple(shared), guards
        before = self._count_retired()
        levels.doubt()
        levels.hold(self.thread_ops if scope == "thread" else self.process_ops, limit, ours)
        if self._count_retired() == before:
            raise error

    def _count_retired(self) -> int:
        return sum(guard.retired for guard in self._guards or ())

    def prove(self, limit: int) -> None:
        """Read back, once a pool, whether it took ``limit``; what did not follow becomes a notice.

        Some builds override a value silently (OpenMathLib/OpenBLAS issue 5806).
        """
        pools, self.unproved = self.unproved, []
        for pool in pools:
            threads = attempt(pool.name, "read", pool.real)
            if threads is not None and threads > limit:
                process.note(not_followed(pool, limit, threads))


def not_followed(pool: Pool, asked: int, threads: int) -> Notice:
    """The notice for a library that reports more threads than it was asked to use."""
    message = f"{pool.name}: requested {asked}, library reports {threads}"
    return Notice("limit-not-followed", message, "warning", f"set its variable before it is loaded: {pool.path}")


def _ops(pools: Iterable[Pool], scope: Scope, guards: list[Guarded] | None) -> list[Op]:
    """The pools that can be set, the foreign ones under new ``guards`` unless that is None."""
    ops: list[Op] = []
    for pool in pools:
        if pool.scope == scope and pool.put is not None:
            get, put = pool.get, pool.put
            if pool.foreign and guards is not None:
                guard = Guarded(pool.name, get, put)
                guards.append(guard)
                get, put = guard.get, guard.put
            ops.append((get, put, pool.exact, pool.grows))
    return ops
