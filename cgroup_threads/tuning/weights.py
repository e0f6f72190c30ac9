"""How many bytes of a GGUF file a decoder reads for one token, from the file's table of tensors.

A header may say anything: the work on it is bounded, for all parts of a model together.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from ..profiles.gguf import Reader, Steps

EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"
# One row of each is read for a token: too little to count. (per_layer_token_embd: gemma-3n.)
LOOKED_UP: Final = frozenset({EMBEDDING, "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"})
MAX_PARTS: Final = 999
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_EXPERTS: Final = re.compile(r"_exps\.")
_MAX_DIMENSIONS: Final = 8  # llama.cpp knows four
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
        sizes = [_size_of_file(part) for part in parts]
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    steps = Steps()
    try:
        headers = [_read_header(part, size, steps) for part, size in zip(parts, sizes, strict=True)]
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


def _size_of_file(path: str) -> int:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # to open a FIFO would wait for its writer
        raise OSError(f"{path} is not a regular file")
    return status.st_size


def _read_header(path: str, size: int, steps: Steps) -> _Header:
    """Raises OSError, ValueError or struct.error where this is no GGUF that can be understood."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        reader = Reader(view, size, steps)
        tensors, settings = reader.begin()
        numbers: dict[str, int] = {}
        for key, value in reader.settings(settings):
            if key.endswith(_KEPT) and isinstance(value, int):
                numbers[key if key.startswith("general.") else key.rpartition(".")[2]] = value
        offsets = {}
        for _ in range(tensors):
            name, dimensions = reader.name(), reader.u32()
            if dimensions > _MAX_DIMENSIONS:
                raise ValueError(f"{dimensions} dimensions")
            reader.take(8 * dimensions + 4)  # their sizes, and the type of the numbers
            offsets[name] = reader.u64()
        alignment = numbers.get("general.alignment", 32)
        if alignment < 1:
            raise ValueError(f"alignment {alignment}")
        start = -(-reader.at // alignment) * alignment
        return _Header(numbers, _differences(offsets, size - start))


def _differences(offsets: dict[str, int], end: int) -> dict[str, int]:
    """The bytes of each tensor: up to where the next one begins."""
    ordered = sorted(offsets.items(), key=lambda item: item[1])
    bounds = [offset for _, offset in ordered] + [end]
    if any(later < earlier for earlier, later in pairwise(bounds)):
        raise ValueError("tensors lie beyond the end of the file")
    return {name: bounds[index + 1] - bounds[index] for index, (name, _) in enumerate(ordered)}
