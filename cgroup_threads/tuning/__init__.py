"""Where do more threads stop helping? Measures every count, fits scalability laws and recommends one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import TuneError as TuneError
    from .records import TuneResult as TuneResult
    from .tuner import tune as tune

__all__ = ["TuneError", "TuneResult", "tune"]

# Imported at first use: the children that measure need none of it.
_HOMES = {"TuneError": "errors", "TuneResult": "records", "tune": "tuner"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
