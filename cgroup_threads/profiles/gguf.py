"""The first settings in the header of a GGUF file: what kind of model it is. Its text is hostile: all is bounded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Writers put ``general.*`` and the settings of the
architecture before the tokenizer's long lists, so that the first 64 KiB hold them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

MAGIC: Final = b"GGUF"
HEADER_BYTES: Final = 1 << 16
_MAX_STRING: Final = 1024
_MAX_ENTRIES: Final = 4096
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final[Mapping[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_EMBEDDERS: Final = ("bert", "embedding", "t5encoder")

Value = str | int | float | bool


def parse_header(data: bytes) -> dict[str, Value]:
    """The single values in the beginning of a GGUF file, in its order; what comes after the first oddity is left out.

    Empty for anything that is no GGUF of version 2 or 3 in little-endian order.
    """
    found: dict[str, Value] = {}
    if data[:4] != MAGIC:
        return found
    reader = _Reader(data, 4)
    try:
        version, _, entries = reader.scalar("<I"), reader.scalar("<Q"), reader.scalar("<Q")
        if version not in (2, 3):
            return found
        for _ in range(min(int(entries), _MAX_ENTRIES)):
            key = reader.string()
            kind = int(reader.scalar("<I"))
            value = reader.value(kind)
            if value is not None:
                found[key] = value
    except (struct.error, ValueError, KeyError, OverflowError):
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


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def scalar(self, form: str) -> int | float | bool:
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        number: int | float | bool = value
        return number

    def string(self) -> str:
        length = int(self.scalar("<Q"))
        end = self.position + length
        if end > len(self.data):
            raise ValueError("a string beyond what was read")
        text = self.data[self.position : min(end, self.position + _MAX_STRING)].decode("utf-8", "replace")
        self.position = end
        return text

    def value(self, kind: int) -> Value | None:
        """The value at the present place; None for a list, which is passed over."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        inner, count = int(self.scalar("<I")), int(self.scalar("<Q"))
        if inner == _STRING:
            while count and self.position < len(self.data):
                self.string()
                count -= 1
            return None
        self.position += count * struct.calcsize(_SCALARS[inner])
        return None
