"""The text of a profile file: one JSON object with the name and version of the format. Pure.

The reader is strict. It takes what this version writes and nothing else, so that a file that was cut, edited by
mistake, or made by another program or a later version is never half understood.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from .records import Identity, Profile

FORMAT: Final = "cgroup_threads-profile"
VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
MAX_COUNT: Final = 4096
_MAX_CORES: Final = 1 << 20
_LARGEST: Final = sys.float_info.max
_MAX_NAMES: Final = 16
_MAX_TEXT: Final = 500
_MAX_WORD: Final = 64


def write(profile: Profile) -> bytes:
    """The content of the file. Raises ValueError for what ``read`` would not take."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "identity": profile.identity._asdict(),
        "counts": dict(profile.counts),
        "confidence": profile.confidence,
        "rates": dict(profile.rates),
        "created": profile.created,
        "made_by": profile.version,
    }
    try:
        content = (json.dumps(data, indent=2, allow_nan=False) + "\n").encode("ascii")
    except TypeError as error:
        raise ValueError(f"it cannot be written as JSON: {error}") from error
    read(content)
    return content


def read(content: bytes) -> Profile:
    """The profile in ``content``. Raises ValueError, saying what is wrong with it."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 1024} KiB")
    data = _decode(content)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError("it is not a profile of cgroup_threads")
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise ValueError(f"its version is not {VERSION}, the only one this release knows")
    _check_names(data, ("format", "version", *Profile._fields[:-1], "made_by"), "the profile")
    found = data["identity"]
    if not isinstance(found, dict):
        raise ValueError("identity is no object")
    _check_names(found, Identity._fields, "identity")
    identity = Identity(
        model=_text(found["model"], "model"),
        library=_text(found["library"], "library"),
        cpu=_text(found["cpu"], "cpu"),
        usable=_count(found["usable"], "usable", _MAX_CORES),
        quota=None if found["quota"] is None else _number(found["quota"], "quota", _MAX_CORES),
    )
    if identity.quota == 0:
        raise ValueError("quota is 0")
    counts = {name: _count(value, name, MAX_COUNT) for name, value in _named(data["counts"], "counts").items()}
    if not counts:
        raise ValueError("counts is empty")
    return Profile(
        identity=identity,
        counts=counts,
        confidence=_number(data["confidence"], "confidence", 1),
        rates={name: _number(value, name, _LARGEST) for name, value in _named(data["rates"], "rates").items()},
        created=_text(data["created"], "created"),
        version=_text(data["made_by"], "made_by"),
    )


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_reject)
    except (ValueError, RecursionError) as error:  # the latter for thousands of brackets
        raise ValueError("it is not JSON") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity, which are no JSON


def _check_names(data: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    if set(data) != set(names):
        raise ValueError(f"the names in {where} are not those of version {VERSION}")


def _named(data: Any, where: str) -> dict[str, Any]:
    """An object whose names could be those of arguments."""
    if not isinstance(data, dict) or len(data) > _MAX_NAMES:
        raise ValueError(f"{where} is no object, or has more than {_MAX_NAMES} names")
    if not all(len(name) <= _MAX_WORD and name.isascii() and name.isidentifier() for name in data):
        raise ValueError(f"{where} has a name that no argument has")
    return data


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"{name} is no printable text of at most {_MAX_TEXT} characters")
    return value


def _count(value: Any, name: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is no whole number from 1 to {most}")
    return value


def _number(value: Any, name: str, most: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= most:  # also true of NaN
        raise ValueError(f"{name} is no number from 0 to {most:g}")
    return float(value)
