"""What the live pools are at, and lowering them for good where variables come too late."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any

from ..errors import check_threads, first_line
from ..notices import Notice
from ..state import process
from . import ledger
from .guarding import attempt
from .records import Pool, PoolState
from .registry import Registry, not_followed


def describe() -> tuple[PoolState, ...]:
    """See ``pools.describe``. The ledger's registry is used if there is one, so that nothing is bound twice."""
    now = process.ledger
    if now is None:
        registry = Registry()
        registry.refresh()
    else:
        now.refresh()
        registry = now.registry
    states = [_read(pool) for pool in registry.pools]
    torch = _torch()
    if torch is not None:
        try:
            states.append(_read_torch(torch))
        except Exception as error:  # noqa: BLE001 - foreign code
            _note_unreadable("torch", error)
    return tuple(states)


def _read_torch(torch: Any) -> PoolState:
    detail = f"intra-op count of the calling thread; inter-op threads: {torch.get_num_interop_threads()}"
    path, version = str(torch.__file__), str(torch.__version__)
    return PoolState("torch", path, version, "thread", torch.get_num_threads(), detail)


def _read(pool: Pool) -> PoolState:
    """The pool's state; no count and a notice where the library raises (one pool must not hide the others)."""
    try:
        count = pool.real()
    except Exception as error:  # noqa: BLE001 - foreign code
        count = None
        _note_unreadable(pool.name, error)
    return PoolState(pool.name, pool.path, pool.version, pool.scope, count, pool.detail)


def _note_unreadable(name: str, error: Exception) -> None:
    message = f"{name} does not tell its count: {type(error).__name__}: {first_line(error)}"
    process.note(Notice("pool-unreadable", message, "warning"))


def lower(threads: int) -> tuple[Notice, ...]:
    """See ``pools.lower_live``."""
    check_threads(threads)
    now = ledger.current()
    now.refresh()
    notices = attempt("torch", "set", lambda: _lower_torch(threads)) or []

    def lower_pools(mine: ledger.ThreadState) -> None:
        now.levels.rebase(threads)
        mine.levels.rebase(threads)
        for pool in now.registry.pools:
            notice = attempt(pool.name, "set", partial(_lower_pool, pool, threads))
            if notice is not None:
                notices.append(notice)

    now.exclusively(lower_pools)
    return tuple(notices)


def _lower_torch(threads: int) -> list[Notice]:
    """Lower the count that threads adopt at their first use of torch, and MKL's for the process with it.

    Only in the main thread: elsewhere others may be computing, and a process was once seen to crash when the count
    changed under them.
    """
    torch = _torch()
    if torch is None or torch.get_num_threads() <= threads:
        return []
    if threading.current_thread() is not threading.main_thread():
        message = f"torch keeps {torch.get_num_threads()} threads for threads that start later: not in the main thread"
        return [Notice("torch-default-kept", message, "warning", "import cgroup_threads in the main thread")]
    torch.set_num_threads(threads)
    if torch.get_num_threads() > threads:
        message = f"torch: requested {threads}, library reports {torch.get_num_threads()}"
        return [Notice("limit-not-followed", message, "warning", "set OMP_NUM_THREADS before torch is imported")]
    return []


def _lower_pool(pool: Pool, threads: int) -> Notice | None:
    """Lower one pool if it is above, read it back, and say what stays."""
    before = pool.get()
    if before <= threads:
        return None
    if pool.put_default is not None:
        pool.put_default(threads)
    if pool.put is not None and pool.get() > threads:
        pool.put(threads)
    after = pool.real()
    if after > threads:
        return not_followed(pool, threads, after)
    if pool.scope == "thread" and pool.put_default is None:
        message = f"{pool.name} has latched {before} threads: threads that start later begin with that many"
        fix = "import cgroup_threads before it, or use limit_threads() in those threads"
        return Notice("pool-latched", message, "warning", fix)
    return None


def _torch() -> Any:
    """The torch module if it is imported to its end, else None."""
    module = sys.modules.get("torch")
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module if hasattr(module, "set_num_threads") else None
