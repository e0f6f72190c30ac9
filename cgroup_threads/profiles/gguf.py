"""The header of a GGUF file: settings, which tell what kind of model it is. All of it is hostile: the work is bounded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Writers put
``general.*`` and the settings of the architecture before the tokenizer's long lists: the first 64 KiB hold them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from typing import Final

MAGIC: Final = b"GGUF"
HEADER_BYTES: Final = 1 << 16
_MAX_SHOWN: Final = 1024  # bytes of a string that are kept
_MAX_NAME: Final = (1 << 16) - 1  # bytes of a key, as the format says; names of tensors have at most 64
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    number: struct.Struct(f"<{form}")
    for number, form in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]
_EMBEDDERS: Final = ("bert", "embedding", "t5encoder")
_MAX_STEPS: Final = 1 << 21
"""A string of a list is one: gemma-3 takes 270 756 for its 262 144 words and all else, 0.05 s."""
_ENTRY_STEPS: Final = 32  # what a setting or a tensor takes, in strings of a list
_STEP_BYTES: Final = 256  # of a name that is copied

Value = str | int | float | bool


def parse_header(data: bytes) -> dict[str, Value]:
    """The single values in the beginning of a GGUF file, in its order; what comes after the first oddity is left out.

    Empty for anything that is no GGUF file of a version that is known.
    """
    found: dict[str, Value] = {}
    reader = Reader(data, len(data), Steps())
    try:
        _, settings = reader.begin()
        for key, value in reader.settings(settings):
            found[key] = value
    except (struct.error, ValueError):
        pass  # the end of what was read, or junk: what came before it stands
    return found


def embeds_alone(settings: Mapping[str, Value]) -> bool:
    """Whether the settings are those of a model that gives embeddings and generates nothing."""
    architecture = str(settings.get("general.architecture", ""))
    if any(word in architecture for word in _EMBEDDERS):
        return True
    if settings.get(f"{architecture}.attention.causal") is False:
        return True
    return bool(settings.get(f"{architecture}.pooling_type", 0))


class Steps:
    """What reading may still take, for all files of a model together."""

    def __init__(self, left: int = _MAX_STEPS) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Raises ValueError once there are none left."""
        self.left -= count
        if self.left < 0:
            raise ValueError("more in the header than any model has")


class Reader:
    """Walks over a header. All raise ValueError or struct.error where it ends early, or makes no sense."""

    def __init__(self, view: bytes | mmap.mmap, size: int, steps: Steps) -> None:
        self.view = view
        self.size = size
        self.steps = steps
        self.at = 0

    def begin(self) -> tuple[int, int]:
        """The numbers of tensors and of settings; settings come first."""
        magic, version = self.take(4), self.u32()
        if magic != MAGIC or version not in (2, 3):
            raise ValueError(f"not a GGUF file of version 2 or 3: {magic!r} {version}")
        return self.u64(), self.u64()

    def settings(self, count: int) -> Iterator[tuple[str, Value]]:
        """``count`` settings but for lists, which are passed over."""
        for _ in range(count):
            key = self.name()
            kind = self.u32()
            if kind == _ARRAY:
                self._skip_list()
            else:
                yield key, self._string() if kind == _STRING else self._scalar(_scalar_of(kind))

    def name(self) -> str:
        """A key or a name: with each, a setting or a tensor begins."""
        length = self.u64()
        if length > _MAX_NAME:
            raise ValueError(f"a name of {length} bytes")
        self.steps.take(_ENTRY_STEPS + length // _STEP_BYTES)
        return self.take(length).decode("utf-8", "replace")

    def u32(self) -> int:
        return int(self._scalar(_U32))

    def u64(self) -> int:
        return int(self._scalar(_U64))

    def take(self, count: int) -> bytes:
        start = self.at
        self._advance(count)
        return self.view[start : self.at]

    def _scalar(self, form: struct.Struct) -> int | float | bool:
        value: int | float | bool = form.unpack(self.take(form.size))[0]
        return value

    def _string(self) -> str:
        length, start = self.u64(), self.at
        self._advance(length)
        return self.view[start : start + min(length, _MAX_SHOWN)].decode("utf-8", "replace")

    def _skip_list(self) -> None:
        kind, count = self.u32(), self.u64()
        if kind != _STRING:
            self._advance(_scalar_of(kind).size * count)
            return
        # A vocabulary has hundreds of thousands of them: nothing is copied.
        self.steps.take(count)
        view, at, unpack = self.view, self.at, _U64.unpack_from
        for _ in range(count):
            at += 8 + unpack(view, at)[0]
            if at > self.size:
                raise ValueError("the file ends within its header")
        self.at = at

    def _advance(self, count: int) -> None:
        if count > self.size - self.at:
            raise ValueError("the file ends within its header")
        self.at += count


def _scalar_of(kind: int) -> struct.Struct:
    if kind not in _SCALARS:
        raise ValueError(f"unknown type {kind}")
    return _SCALARS[kind]
