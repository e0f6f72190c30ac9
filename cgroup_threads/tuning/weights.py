"""How many bytes of a GGUF file a decoder reads for one token, from the file's table of tensors."""

from __future__ import annotations

import mmap
import os
import re
import struct
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"
# One row of each is read for a token: too little to count. (per_layer_token_embd: gemma-3n.)
LOOKED_UP: Final = frozenset({EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"})
MAX_PARTS: Final = 999
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_EXPERTS: Final = re.compile(r"_exps\.")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_STRING, _ARRAY, _U32_TYPE = 8, 9, 4  # numbers of types in the file
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_KEPT: Final = ("general.alignment", "expert_count", "expert_used_count")


class Weights(NamedTuple):
    """Bytes read for a token; ``basis`` says whether they are the sum of "tensors", or just the size of the "file"."""

    size: int
    basis: Literal["tensors", "file"]


class _Header(NamedTuple):
    """The numbers of the metadata that matter here, and the bytes of each tensor."""

    numbers: dict[str, int]
    tensors: dict[str, int]


def measure_weights(path: str) -> Weights | None:
    """What is read of the model at ``path`` for each token; None where there is no such file.

    Tables of embeddings are looked up, one row a token, and not counted; one that is the output matrix, too (there is
    no other), is read whole. Of a mixture of experts only those that a token uses count. A model in several files
    counts with all of them.
    """
    parts = find_parts(path)
    try:
        sizes = [os.path.getsize(part) for part in parts]
    except OSError:
        return None
    try:
        headers = [_read_header(part, size) for part, size in zip(parts, sizes, strict=True)]
    except (OSError, ValueError, OverflowError, struct.error):
        return Weights(sum(sizes), "file")
    tensors = {name: size for header in headers for name, size in header.tensors.items()}
    total = sum_read(tensors, headers[0].numbers)
    return Weights(total, "tensors") if total > 0 else Weights(sum(sizes), "file")


def find_parts(path: str) -> list[str]:
    """The files of a model that was split as llama.cpp does it ("-00001-of-00003.gguf"), or the one file."""
    match = _PART.search(path)
    if match is None or not 0 < int(match[2]) <= MAX_PARTS:
        return [path]
    return [f"{path[: match.start()]}-{part:05d}-of-{match[2]}.gguf" for part in range(1, int(match[2]) + 1)]


def sum_read(tensors: dict[str, int], numbers: dict[str, int]) -> int:
    """The bytes of ``tensors`` that one token needs. ``numbers`` may say how many experts there are, and are used."""
    experts, used = numbers.get("expert_count", 0), numbers.get("expert_used_count", 0)
    share = used / experts if 0 < used <= experts else 1.0
    total = 0.0
    for name, size in tensors.items():
        if name in LOOKED_UP and not (name == EMBEDDING and OUTPUT not in tensors):
            continue
        total += size * share if _EXPERTS.search(name) else size
    return round(total)


def _read_header(path: str, size: int) -> _Header:
    """Raises OSError, ValueError or struct.error where this is no GGUF that can be understood."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return _Reader(view, size).read()


class _Reader:
    """Walks over the header of a GGUF file (versions 2 and 3, little-endian)."""

    def __init__(self, view: Any, size: int) -> None:
        self.view = view
        self.size = size
        self.at = 0

    def read(self) -> _Header:
        magic, version = self._take(4), self._u32()
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"not a GGUF file of version 2 or 3: {magic!r} {version}")
        tensors, pairs = self._u64(), self._u64()
        numbers: dict[str, int] = {}
        for _ in range(pairs):
            key, kind = self._text(), self._u32()
            if kind == _U32_TYPE and key.endswith(_KEPT):
                numbers[key if key.startswith("general.") else key.rpartition(".")[2]] = self._u32()
            else:
                self._skip(kind)
        offsets = {}
        for _ in range(tensors):
            name = self._text()
            dimensions = self._u32()
            self._take(8 * dimensions + 4)  # their sizes, and the type of the numbers
            offsets[name] = self._u64()
        alignment = numbers.get("general.alignment", 32)
        if alignment < 1:
            raise ValueError(f"alignment {alignment}")
        start = -(-self.at // alignment) * alignment
        return _Header(numbers, _differences(offsets, self.size - start))

    def _take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise ValueError("the file ends within its header")
        found: bytes = self.view[self.at : self.at + count]
        self.at += count
        return found

    def _u32(self) -> int:
        number: int = _U32.unpack(self._take(4))[0]
        return number

    def _u64(self) -> int:
        number: int = _U64.unpack(self._take(8))[0]
        return number

    def _text(self) -> str:
        return self._take(self._u64()).decode("utf-8", "replace")

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._skip_strings(1)
        elif kind == _ARRAY:
            kind, count = self._u32(), self._u64()
            if kind == _STRING:
                self._skip_strings(count)
            else:
                self._advance(_size_of(kind) * count)
        else:
            self._advance(_size_of(kind))

    def _advance(self, count: int) -> None:
        if count > self.size - self.at:
            raise ValueError("the file ends within its header")
        self.at += count

    def _skip_strings(self, count: int) -> None:
        """A vocabulary has hundreds of thousands of them: nothing is copied."""
        view, at, unpack = self.view, self.at, _U64.unpack_from
        for _ in range(count):
            at += 8 + unpack(view, at)[0]
            if at > self.size:
                raise ValueError("the file ends within its header")
        self.at = at


def _size_of(kind: int) -> int:
    if kind not in _SIZES:
        raise ValueError(f"unknown type {kind}")
    return _SIZES[kind]


def _differences(offsets: dict[str, int], end: int) -> dict[str, int]:
    """The bytes of each tensor: up to where the next one begins."""
    ordered = sorted(offsets.items(), key=lambda item: item[1])
    bounds = [offset for _, offset in ordered] + [end]
    if any(later < earlier for earlier, later in pairwise(bounds)):
        raise ValueError("tensors lie beyond the end of the file")
    return {name: bounds[index + 1] - bounds[index] for index, (name, _) in enumerate(ordered)}
