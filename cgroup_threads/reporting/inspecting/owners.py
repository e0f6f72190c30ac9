"""Who made a thread, and which libraries a process has mapped: decided from names and addresses alone. Pure."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from .records import Library
from .tasks import Mapping

MAIN: Final = "main"
PYTHON: Final = "Python"
OPENMP: Final = "OpenMP team"
OPENBLAS: Final = "OpenBLAS"
RAYON: Final = "Rayon"
UNNAMED: Final = "unknown"
OPENMP_KINDS: Final = ("libgomp", "libomp", "libiomp5")
LLAMA_KINDS: Final = ("llama", "ggml")

# Beginnings of file names. Wheels add a hash ("libgomp-a34b3233.so.1.0.0"), and libompl is no OpenMP.
_KINDS: Final = (
    (re.compile(r"libgomp(?!-plugin)[-.]"), "libgomp"),
    (re.compile(r"libomp5?[-.]"), "libomp"),
    (re.compile(r"libiomp5?[-.]"), "libiomp5"),
    (re.compile(r"lib(scipy_)?openblas"), "openblas"),
    (re.compile(r"libmkl_"), "mkl"),
    (re.compile(r"libtorch_cpu[-.]"), "torch"),
    (re.compile(r"libllama[-.]"), "llama"),
    (re.compile(r"libggml"), "ggml"),
    (re.compile(r"libonnxruntime[-.]|onnxruntime_pybind11"), "onnxruntime"),
    (re.compile(r"tokenizers[-.]"), "tokenizers"),
    (re.compile(r"polars[-._]|_polars_runtime"), "polars"),
    (re.compile(r"libtbb[-.]"), "tbb"),
)
# A thread whose stack goes through code of this kind belongs to this owner; the first that matches wins, since a
# Python thread that calls torch has OpenMP code on its stack too, but a team's thread never has Python's.
_STACKS: Final = (
    ("python", PYTHON),
    ("openblas", OPENBLAS),
    *((kind, OPENMP) for kind in OPENMP_KINDS),
    ("tokenizers", RAYON),
    ("polars", RAYON),
    ("onnxruntime", "onnxruntime"),
    ("ggml", "ggml pool"),
    ("tbb", "TBB"),
    ("torch", "torch"),
)
_PYTHON_FILE: Final = re.compile(r"(libpython3|python3?)[\d.]*t?d?(\.so[\d.]*)?$")  # t: free-threaded, d: debug
# Names that programs give their threads (at most 15 bytes are kept).
_NAMES: Final = (
    (re.compile(r"(ThreadPoolExecu|Thread-\d|AnyIO worker|asyncio_\d|QueueFeederThr|QueueManagerThr|Dummy-)"), PYTHON),
    (re.compile(r"gunicorn"), "gunicorn"),
    (re.compile(r"(rayon|polars-|tokenizers)"), RAYON),
    (re.compile(r"openblas", re.IGNORECASE), OPENBLAS),
    (re.compile(r"(OMP|omp)[ _-]"), OPENMP),
    (re.compile(r"pt_"), "torch"),
    (re.compile(r"tf_"), "TensorFlow"),
    (re.compile(r"tokio"), "tokio"),
    (re.compile(r"(jemalloc_bg_thd|iou-)"), "system"),
)
_NUMBER: Final = re.compile(r"[ \-_#/:]*\d+$")


def find_kind(path: str) -> str | None:
    """The kind of library a mapped file is, or None."""
    base = path.rpartition("/")[2]
    return next((kind for pattern, kind in _KINDS if pattern.match(base)), None)


def find_libraries(paths: Iterable[str]) -> tuple[Library, ...]:
    """The thread libraries among the mapped files."""
    return tuple(Library(kind, path) for path in paths for kind in [find_kind(path)] if kind)


def runs_python(paths: Iterable[str]) -> bool:
    """Whether an interpreter, or its library, is among the mapped files."""
    return any(_PYTHON_FILE.match(path.rpartition("/")[2]) for path in paths)


class CodeMap:
    """Finds the owner of a stack by the code its words point to."""

    def __init__(self, code: Sequence[Mapping]) -> None:
        ranges = []
        for mapping in sorted(code):
            kind = find_kind(mapping.path) or ("python" if runs_python([mapping.path]) else None)
            if kind is not None:
                ranges.append((mapping.start, mapping.end, kind))
        self._ranges = ranges
        self._starts = [start for start, _, _ in ranges]

    def kind_at(self, address: int) -> str | None:
        """The kind of library whose code is at ``address``."""
        at = bisect_right(self._starts, address) - 1
        return self._ranges[at][2] if at >= 0 and address < self._ranges[at][1] else None

    def owner_of(self, counter: int, stack: bytes) -> str | None:
        """The owner of a thread that sleeps at ``counter`` with the words of ``stack`` above its stack pointer.

        Words are taken for return addresses where they point into code: a guess, as any stack walk without tables.
        """
        if not self._ranges:
            return None
        low, high = self._starts[0], self._ranges[-1][1]
        words = array("Q", stack[: len(stack) // 8 * 8])
        kinds = {self.kind_at(word) for word in words if low <= word < high}
        kinds.add(self.kind_at(counter))
        return next((owner for kind, owner in _STACKS if kind in kinds), None)


def find_owner(tid: int, pid: int, name: str, process_name: str, by_stack: str | None) -> str:
    """The owner of a thread: what its name says, else its stack, else a name that is not just the process's."""
    if tid == pid:
        return MAIN
    for pattern, owner in _NAMES:
        if pattern.match(name):
            return owner
    if by_stack is not None:
        return by_stack
    stem = _NUMBER.sub("", name) or name
    return UNNAMED if name == process_name or not stem else stem
