"""Bound functions of native libraries, as pools.

Two ways of calling matter. Functions that only touch the calling thread's own storage (OpenMP, MKL) are bound with
``PyDLL``, which keeps the GIL: 0.1 us cheaper, and no other thread can come between. Functions that may take a lock of
the library (OpenBLAS, BLIS, FlexiBLAS) release the GIL, so that a holder of that lock can go on.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from .guarding import note_replaced
from .records import Pool, Scope

# scipy-openblas wheels prefix every name; builds with 64-bit integers add a suffix.
_OPENBLAS_AFFIXES = tuple(product(("", "scipy_"), ("", "64_", "_64")))
_OPENBLAS_LAYERS = {0: "serial", 1: "pthreads", 2: "openmp"}  # openblas_get_parallel()


def bind(controller: Any) -> Pool | None:
    """The pool behind one of threadpoolctl's controllers; None if its library lacks the functions."""
    binder = _BINDERS.get(controller.internal_api, _bind_foreign)
    return binder(controller)


def bind_torch_mkl(path: str) -> Pool | None:
    """MKL linked into libtorch_cpu (x86 wheels): its thread-local setter is exported, see ``_mkl``."""
    try:
        library = ctypes.PyDLL(path, mode=ctypes.DEFAULT_MODE | _NOLOAD)  # another file may lie there by now
    except OSError:
        note_replaced(path)
        return None
    return _mkl(library, path, "", "static in libtorch_cpu")


def _bind_openmp(controller: Any) -> Pool | None:
    library = _library(ctypes.PyDLL, controller)
    get, put = _reader(library, "omp_get_max_threads"), _setter(library, "omp_set_num_threads")
    if get is None or put is None:
        return None
    name = "libiomp5" if controller.prefix == "libiomp" else controller.prefix
    # Microsoft's runtime keeps one value for the process.
    scope: Scope = "process" if name == "vcomp" else "thread"
    return Pool(
        name, controller.filepath, "", scope, "OpenMP runtime; each thread has its own count", get, put, grows=True
    )


def _bind_mkl(controller: Any) -> Pool | None:
    # The first call loads MKL's threading layer; later ones touch the thread's own storage only.
    controller.get_num_threads()
    library = _library(ctypes.PyDLL, controller)
    return _mkl(library, controller.filepath, controller.version or "", f"{controller.threading_layer} threads")


def _mkl(library: ctypes.CDLL, path: str, version: str, detail: str) -> Pool | None:
    """``MKL_Set_Num_Threads_Local`` returns the thread's previous own value: 0 where it followed the process.

    Exactly that is put back: a count left behind would hide a later ``torch.set_num_threads`` in this thread.
    """
    get, put = _reader(library, "MKL_Get_Max_Threads"), _setter(library, "MKL_Set_Num_Threads_Local")
    if get is None or put is None:
        return None
    put.restype = ctypes.c_int  # type: ignore[attr-defined]  # a ctypes function: typed as a plain callable here
    default = _setter(library, "MKL_Set_Num_Threads")
    detail = f"{detail}; each thread has its own count"
    return Pool("mkl", path, version, "thread", detail, get, put, exact=False, put_default=default, grows=True)


def _bind_openblas(controller: Any) -> Pool | None:
    library, reading = _library(ctypes.CDLL, controller), _library(ctypes.PyDLL, controller)
    path, version = controller.filepath, controller.version or ""
    for prefix, suffix in _OPENBLAS_AFFIXES:
        get = _reader(reading, f"{prefix}openblas_get_num_threads{suffix}")  # reads one variable: no lock
        put = _setter(library, f"{prefix}openblas_set_num_threads{suffix}")
        if get is None or put is None:
            continue
        parallel = _reader(library, f"{prefix}openblas_get_parallel{suffix}")
        layer = _OPENBLAS_LAYERS.get(parallel() if parallel else 1, "pthreads")
        if layer == "openmp":
            # It takes the calling thread's OpenMP count at each call; its own setter would change OpenMP for the
            # thread as well (OpenMathLib/OpenBLAS issue 5806). The symbol is found in the runtime it is linked to.
            get = _reader(library, "omp_get_max_threads") or get
            return Pool("openblas", path, version, "thread", "openmp build; follows its OpenMP runtime", get, None)
        if layer == "serial":
            return Pool("openblas", path, version, "process", "serial build", get, None)
        detail = f"{layer}; one shared pool for the process"
        return Pool("openblas", path, version, "process", detail, get, put, grows=True)
    return None


def _bind_blis(controller: Any) -> Pool | None:
    library = _library(ctypes.CDLL, controller)
    get, put = _reader(library, "bli_thread_get_num_threads"), _setter(library, "bli_thread_set_num_threads")
    if get is None or put is None:
        return None
    detail, version = f"{controller.threading_layer}; one count for the process", controller.version or ""
    return Pool("blis", controller.filepath, version, "process", detail, _unset_is_one(get), put, grows=True)


def _bind_flexiblas(controller: Any) -> Pool | None:
    library = _library(ctypes.CDLL, controller)
    get, put = _reader(library, "flexiblas_get_num_threads"), _setter(library, "flexiblas_set_num_threads")
    if get is None or put is None:
        return None
    detail = f"backend {controller.current_backend}; one count for the process"
    return Pool("flexiblas", controller.filepath, controller.version or "", "process", detail, _unset_is_one(get), put)


def _bind_foreign(controller: Any) -> Pool | None:
    """A controller that another package registered with threadpoolctl: used as it is."""
    name, version = str(controller.internal_api), str(controller.version or "")
    get, put = controller.get_num_threads, controller.set_num_threads
    return Pool(name, controller.filepath, version, "process", "registered with threadpoolctl", get, put, foreign=True)


def _unset_is_one(get: Callable[[], int]) -> Callable[[], int]:
    """BLIS says -1 where nobody set a count, and then runs one thread."""
    return lambda: max(1, get())


def _library(kind: type[ctypes.CDLL], controller: Any) -> ctypes.CDLL:
    """Function objects of our own on the handle that threadpoolctl keeps open: no prototype of ours reaches its own."""
    return kind(controller.filepath, handle=controller.dynlib._handle)


def _reader(library: ctypes.CDLL, name: str) -> Callable[[], int] | None:
    function = getattr(library, name, None)
    if function is not None:
        function.argtypes, function.restype = (), ctypes.c_int
    return function


def _setter(library: ctypes.CDLL, name: str) -> Callable[[int], object] | None:
    function = getattr(library, name, None)
    if function is not None:
        function.argtypes, function.restype = (ctypes.c_int,), None
    return function


def pause_functions(paths: Iterable[str]) -> dict[str, Callable[[int], int] | None]:
    """``omp_pause_resource_all`` (OpenMP 5.0; libgomp of GCC 9 and later) of each libgomp, None where it has none."""
    found: dict[str, Callable[[int], int] | None] = {}
    for path in paths:
        try:
            library = ctypes.CDLL(path, mode=ctypes.DEFAULT_MODE | _NOLOAD)
        except OSError:
            continue  # not loaded any more
        function = getattr(library, "omp_pause_resource_all", None)
        if function is not None:
            function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_int
        found[path] = function
    return found


_NOLOAD = getattr(os, "RTLD_NOLOAD", 0)
_BINDERS: dict[str, Callable[[Any], Pool | None]] = {
    "openmp": _bind_openmp,
    "mkl": _bind_mkl,
    "openblas": _bind_openblas,
    "blis": _bind_blis,
    "flexiblas": _bind_flexiblas,
}
