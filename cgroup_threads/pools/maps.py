"""Which shared libraries the process has mapped, read from /proc/self/maps.

The loader's own iteration (``dl_iterate_phdr``) calls back while it holds its lock; a Python callback then waits for
the GIL, which a thread inside ``dlopen`` may hold: a deadlock (joblib/threadpoolctl issue 239). The kernel's list needs
no lock of ours. Format (man 5 proc_pid_maps): address range, permissions, offset, device, inode, then the path, in
which a newline is written ``\\012``; a replaced file ends in `` (deleted)``.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

MAPS: Final = "/proc/self/maps"
# vm.max_map_count is 65 530 by default and about 100 bytes a line: 64 MiB holds ten times that.
MAX_BYTES: Final = 64 << 20
# At import: a process that has mapped more than this is no fresh one, and the answer is "loaded" long before its end.
MAX_BYTES_AT_IMPORT: Final = 8 << 20
_CHUNK: Final = 1 << 18
_DELETED: Final = b" (deleted)"
# A path begins at its line's first slash. One way to match a line, so that odd names take no longer: anybody may map a
# file with a long one.
_LIBRARY: Final = re.compile(rb"^[^/\n]* (/[^\n]*\.so[^\n]*)$", re.MULTILINE)

# File name prefixes of libraries that own or drive thread pools. "libomp" also begins names of other projects
# (libompl); whoever uses a path looks for its symbols.
NATIVE_PREFIXES: Final = {
    "libgomp": "libgomp",
    "libomp": "libomp",
    "libiomp": "libiomp5",
    "libopenblas": "openblas",
    "libscipy_openblas": "openblas",
    "libblis": "blis",
    "libflexiblas": "flexiblas",
    "libmkl_rt": "mkl",
    "libtorch_cpu": "torch",
    "libggml": "ggml",
    "libllama": "llama",
    "libarrow": "pyarrow",
    "libonnxruntime": "onnxruntime",
    "libtensorflow": "tensorflow",
}
# Importing one of these has read thread variables (or will at its first use) in native code.
NATIVE_MODULES: Final = (
    "numpy",
    "scipy",
    "sklearn",
    "torch",
    "cv2",
    "numexpr",
    "numba",
    "pyarrow",
    "mkl",
    "onnxruntime",
    "tensorflow",
    "jaxlib",
    "faiss",
    "llama_cpp",
    "ctranslate2",
    "xgboost",
    "lightgbm",
    "polars",
    "tokenizers",
    "duckdb",
    "blis",
)


def library_paths(max_bytes: int = MAX_BYTES) -> tuple[dict[str, None], bool]:
    """The distinct paths of mapped shared libraries in address order, and whether the list was read to its end.

    Empty where there is no /proc. Never raises.
    """
    found, complete = _read(max_bytes)
    return {_decode(path.removesuffix(_DELETED)): None for path in found}, complete


def replaced_paths() -> frozenset[str]:
    """The paths of mapped shared libraries whose file was removed, or replaced by another one."""
    return frozenset(_decode(path.removesuffix(_DELETED)) for path in _read(MAX_BYTES)[0] if path.endswith(_DELETED))


def _decode(path: bytes) -> str:
    return os.fsdecode(path.replace(b"\\012", b"\n"))


def _read(max_bytes: int) -> tuple[dict[bytes, None], bool]:
    found: dict[bytes, None] = {}
    complete = True
    try:
        with open(MAPS, "rb", buffering=0) as file:
            rest = b""
            total = 0
            while chunk := file.read(_CHUNK):
                total += len(chunk)
                head, newline, rest = (rest + chunk).rpartition(b"\n")
                for path in _LIBRARY.findall(head + newline):
                    directory, _, name = path.rpartition(b"/")
                    if directory and b".so" in name:
                        found[path] = None
                if total >= max_bytes:
                    complete = False
                    break
    except OSError:
        return {}, False
    return found, complete


def native_name(path: str) -> str | None:
    """The library a mapped file belongs to by its name, or None."""
    base = path.rpartition("/")[2]
    return next((name for prefix, name in NATIVE_PREFIXES.items() if base.startswith(prefix)), None)


def native_already_loaded() -> tuple[str, ...]:
    """Names of known native libraries that are in the process already, from sys.modules and the mapped files.

    Non-empty means that thread variables set from now on may come too late for them. Never raises.
    """
    names: dict[str, None] = {name: None for name in NATIVE_MODULES if sys.modules.get(name) is not None}
    for path in library_paths(MAX_BYTES_AT_IMPORT)[0]:
        name = native_name(path)
        if name is not None:
            names[name] = None
    return tuple(names)
