"""Pools that are driven through a Python module: OpenCV, numexpr, pyarrow, numba. None is imported from here."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from ..notices import Notice
from ..state import process
from .forking import OPENCV, OPENCV_LEFT
from .guarding import attempt
from .records import Pool

NUMBA_PARALLEL = "numba.np.ufunc.parallel"


def find_module_pools() -> list[Pool]:
    """The pools of those modules that are imported to their end and whose threads may be set now."""
    found = []
    for name, binder in _BINDERS.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            pool = attempt(name, "bound", partial(binder, module))
            if pool is not None:
                found.append(pool)
    return found


def _version(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__version__", ""))


def _bind_opencv(module: ModuleType) -> Pool | None:
    get, put = getattr(module, "getNumThreads", None), getattr(module, "setNumThreads", None)
    if get is None or put is None:
        return None
    if process.hooks.get(OPENCV_LEFT):
        # Lowering the count waits for the end of threads that did not come along into a forked child: for ever.
        text = "OpenCV's thread count is left alone: this process was forked after OpenCV was loaded"
        fix = "set OPENCV_FOR_THREADS_NUM, or use spawn instead of fork"
        process.note(Notice("cv2-not-limited", text, "info", fix))
        return None
    return Pool("cv2", _path(module), _version("cv2"), "process", "one pool for the process", get, put, foreign=True)


def _bind_pyarrow(module: ModuleType) -> Pool | None:
    get, put = getattr(module, "cpu_count", None), getattr(module, "set_cpu_count", None)
    if get is None or put is None:
        return None
    detail = "one compute pool for the process"
    return Pool("pyarrow", _path(module), _version("pyarrow"), "process", detail, get, put, foreign=True)


def _bind_numexpr(module: ModuleType) -> Pool | None:
    if not hasattr(module, "get_num_threads") or not hasattr(module, "set_num_threads"):
        return None
    wish = _NumexprWish(module)
    detail = "one pool for the process; changed only while no other Python thread exists"
    return Pool(
        "numexpr",
        _path(module),
        _version("numexpr"),
        "process",
        detail,
        wish.get,
        wish.put,
        read=module.get_num_threads,
        foreign=True,
    )


class _NumexprWish:
    """numexpr ends and restarts its pool when the count changes, with the GIL held and without a lock against a
    running evaluation: while another thread evaluates, the process hangs for good (tried with 2.14). So the count is
    changed only while this is the only Python thread; otherwise the wish is kept until the next change.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._wish: tuple[int, int] | None = None
        """(wished, the real count at that time): a user who changed the real count has ended the wish."""

    def get(self) -> int:
        real: int = self._module.get_num_threads()
        return self._wish[0] if self._wish is not None and self._wish[1] == real else real

    def put(self, threads: int) -> None:
        real: int = self._module.get_num_threads()
        if threads == real:
            self._wish = None
        elif len(sys._current_frames()) == 1:
            self._module.set_num_threads(threads)
            self._wish = None
        else:
            self._wish = (threads, real)
            text = "numexpr keeps its thread count: it cannot be changed safely while other threads may evaluate"
            fix = "set NUMEXPR_NUM_THREADS before numexpr is imported"
            process.note(Notice("numexpr-not-changed", text, "info", fix))


def _bind_numba(module: ModuleType) -> Pool | None:
    """numba's mask of the calling thread, at most the launched count. Before its pool runs there is nothing to set,
    and starting it here would fix its threading layer and forbid a fork (with GNU OpenMP, numba ends such a child)."""
    if not getattr(module, "_is_initialized", False):
        return None
    get, put = getattr(module, "_get_num_threads", None), getattr(module, "_set_num_threads", None)
    if get is None or put is None:
        return None
    detail = "each thread masks the launched pool with its own count"
    return Pool("numba", _path(module), _version("numba"), "thread", detail, get, put, foreign=True)


def _path(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or module.__name__)


_BINDERS = {
    OPENCV: _bind_opencv,
    "numexpr": _bind_numexpr,
    "pyarrow": _bind_pyarrow,
    NUMBA_PARALLEL: _bind_numba,
}
