"""What a measurement belongs to: the model by its content, the library, the CPU and the limits in force.

Files are looked at, not read whole: a model's name is the hash of its size, its beginning and its end. What cannot be
told is "". Nothing here raises, and all reading is bounded.
"""

from __future__ import annotations

import os
import stat
import sys
from itertools import islice
from typing import Any, Final

from ..state import process
from .gguf import HEADER_BYTES, MAGIC, parse_header
from .records import Identity

CPUINFO: Final = "/proc/cpuinfo"
_EDGE: Final = HEADER_BYTES
_MAX_CONFIG: Final = 1 << 20
_MAX_CPUINFO: Final = 1 << 16
_MAX_ENTRIES: Final = 1000
_MAX_DIRECTORIES: Final = 16
_MAX_NAME: Final = 60
_DIGITS: Final = 16
_CONFIG: Final = "config.json"
# The first kind that is there counts: a directory may hold the same weights in several.
_WEIGHTS: Final = (".safetensors", ".bin", ".onnx", ".xml", ".pt")
_CPU_NAMES: Final = ("model name", "cpu model", "cpu")  # x86, MIPS, POWER


def present_identity(model: str, library: str) -> Identity:
    """The identity of a measurement made here and now, of ``model`` with ``library``."""
    from ..detection import detect

    limits = detect()
    return Identity(model, library, cpu_model(), limits.usable(process.settings.rounding), limits.quota)


def identify_model(path: str | os.PathLike[str]) -> str:
    """A name for the weights in a file or a directory, the same wherever they lie; "" where there are none.

    A file is known by its size, first and last 64 KiB, a directory by its configuration and the sizes of its weights:
    milliseconds for any size, and enough to tell releases and quantisations apart, if not every fine-tuned copy.
    """
    try:
        place = os.fspath(path)
        status = os.stat(place)
        if stat.S_ISDIR(status.st_mode):
            return _identify_directory(place)
        return _identify_file(place) if stat.S_ISREG(status.st_mode) else ""
    except (OSError, ValueError, TypeError):
        return ""


def library_version(distribution: str) -> str:
    """A distribution and its version: "llama-cpp-python 0.3.36"; "" where it is not installed."""
    from importlib import metadata

    try:
        return clean_name(f"{distribution} {metadata.version(distribution)}")
    except (metadata.PackageNotFoundError, ValueError, KeyError, OSError):
        return ""


def cpu_model(cpuinfo: str = CPUINFO) -> str:
    """The CPU's model for people: "Intel(R) Xeon(R) ...", on Arm "0x41 0xd0c" (implementer and part)."""
    entries = _read_cpuinfo(cpuinfo)
    for name in _CPU_NAMES:
        if entries.get(name):
            return clean_name(entries[name])
    part = " ".join(entries[name] for name in ("cpu implementer", "cpu part") if entries.get(name))
    if part:
        return clean_name(part)
    if sys.platform == "darwin":
        return clean_name(_sysctl_text("machdep.cpu.brand_string"))
    import platform

    return clean_name(platform.processor() or platform.machine())


def clean_name(text: str) -> str:
    """Foreign text as one short line of printable ASCII."""
    return " ".join("".join(c if c.isascii() and c.isprintable() else " " for c in text[:1000]).split())[:_MAX_NAME]


def _identify_file(path: str) -> str:
    from hashlib import sha256

    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_EDGE)
        file.seek(max(0, size - _EDGE))
        tail = file.read(_EDGE)
    digest = sha256(b"%d\0" % size + head + tail).hexdigest()[:_DIGITS]
    if head[:4] != MAGIC:
        return f"file {digest}"
    settings = parse_header(head)
    words = (str(settings.get(f"general.{name}", "")) for name in ("architecture", "name"))
    return " ".join(("gguf", *filter(None, map(clean_name, words)), digest))


def _identify_directory(path: str) -> str:
    from hashlib import sha256

    # The directory and those in it: older models keep their transformer in one called 0_Transformer.
    files = _list(path, "")
    files += [name for inner in files[:_MAX_DIRECTORIES] for name in _list(path, inner)]
    config = next((name for name in files if os.path.basename(name) == _CONFIG), None)
    if config is None or not stat.S_ISREG(os.stat(os.path.join(path, config)).st_mode):
        return ""
    with open(os.path.join(path, config), "rb") as file:
        text = file.read(_MAX_CONFIG)
    sizes: list[str] = []
    for ending in _WEIGHTS:
        sizes = [f"{name} {os.stat(os.path.join(path, name)).st_size}" for name in files if name.endswith(ending)]
        if sizes:
            break
    else:
        return ""
    digest = sha256(text + "\0".join(("", *sizes)).encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]
    return " ".join(("model", *filter(None, (_model_type(text),)), digest))


def _list(path: str, inner: str) -> list[str]:
    """What is in the directory ``inner`` of ``path``, in order and relative to ``path``; none where it is no directory.

    Directories come first.
    """
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(os.path.join(path, inner)) as entries:
            for entry in islice(entries, _MAX_ENTRIES):
                found.append((not entry.is_dir(), os.path.join(inner, entry.name)))
    except OSError:
        pass
    return [name for _, name in sorted(found)]


def _model_type(config: bytes) -> str:
    import json

    try:
        found: Any = json.loads(config)
    except (ValueError, RecursionError):
        return ""
    kind = found.get("model_type") if isinstance(found, dict) else None
    return clean_name(kind) if isinstance(kind, str) else ""


def _read_cpuinfo(path: str) -> dict[str, str]:
    """The first value of each name in the file, names in lower case."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_CPUINFO).decode("utf-8", "replace")
    except OSError:
        return {}
    entries: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        entries.setdefault(name.strip().lower(), value.strip())
    return entries


def _sysctl_text(name: str) -> str:
    """The text of a macOS sysctl name, "" where there is none."""
    import ctypes

    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError, TypeError):
        return ""
    buffer = ctypes.create_string_buffer(256)
    size = ctypes.c_size_t(len(buffer))
    if call(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return buffer.value.decode("utf-8", "replace")
