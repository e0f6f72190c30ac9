"""All pools this process has shown so far, in an order that never changes: a pool keeps its index for good."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..notices import Notice
from ..state import process
from .discovery import find_libraries
from .linkmap import ModuleCount, Watch
from .modules import find_module_pools
from .records import Pool
from .setters import bind, bind_torch_mkl

Op = tuple[Callable[[], int], Callable[[int], object], bool]
"""(get, put, exact) of a pool: all that the hot path needs of it."""


class Registry:
    """The pools found, split by scope, and the token that tells whether there may be more.

    Libraries stay bound for the life of the process (threadpoolctl keeps their handles, so they stay loaded).
    Not thread-safe: the ledger calls ``refresh`` under its lock.
    """

    def __init__(self) -> None:
        self.pools: tuple[Pool, ...] = ()
        self.thread_pools: tuple[Pool, ...] = ()
        self.process_pools: tuple[Pool, ...] = ()
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
        self._seen: set[str] = set()
        self._watch = Watch()

    def refresh(self) -> None:
        """Add what is new."""
        self.dirty = False
        count = ModuleCount()  # before the look, so that an import meanwhile is news
        libraries = find_libraries()
        watched = self._watch.look(libraries.paths)
        self.news = count if watched is None else watched  # a NULL pointer is false
        found = []
        for controller in libraries.controllers:
            if self._is_new(controller.filepath):
                found.append(bind(controller))
        if libraries.torch is not None and self._is_new(libraries.torch):
            found.append(bind_torch_mkl(libraries.torch))
        found.extend(pool for pool in find_module_pools() if self._is_new(pool.path))
        self._add([pool for pool in found if pool is not None])
        torch = sys.modules.get("torch")
        if torch is not None and not getattr(torch.__spec__, "_initializing", False):
            self.touch_torch = getattr(torch, "get_num_threads", None)

    def _is_new(self, path: str) -> bool:
        new = path not in self._seen
        self._seen.add(path)
        return new

    def _add(self, found: list[Pool]) -> None:
        if not found:
            return
        self.pools += tuple(found)
        self.thread_pools = tuple(pool for pool in self.pools if pool.scope == "thread" and pool.put is not None)
        self.process_pools = tuple(pool for pool in self.pools if pool.scope == "process" and pool.put is not None)
        self.thread_ops, self.process_ops = _ops(self.thread_pools), _ops(self.process_pools)
        self.unproved.extend(found)

    def prove(self, limit: int) -> None:
        """Read back, once a pool, whether it took ``limit``; what did not follow becomes a notice.

        Some builds override a value silently (OpenMathLib/OpenBLAS issue 5806).
        """
        pools, self.unproved = self.unproved, []
        for pool in pools:
            threads = pool.get()
            if threads > limit:
                process.note(not_followed(pool, limit, threads))


def not_followed(pool: Pool, asked: int, threads: int) -> Notice:
    """The notice for a library that reports more threads than it was asked to use."""
    message = f"{pool.name}: requested {asked}, library reports {threads}"
    return Notice("limit-not-followed", message, "warning", f"set its variable before it is loaded: {pool.path}")


def _ops(pools: tuple[Pool, ...]) -> tuple[Op, ...]:
    return tuple((pool.get, pool.put, pool.exact) for pool in pools if pool.put is not None)
