"""The CGROUP_THREADS_* settings, read once into a frozen record.

Every value is hostile input: blank means unset, junk means the default and a notice, never an exception.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from collections.abc import Mapping
from os.path import isabs
from typing import Final, Literal, NamedTuple, cast

from .notices import Notice, shown

Rounding = Literal["floor", "ceil", "round"]
Scope = Literal["auto", "process", "container"]

PREFIX: Final = "CGROUP_THREADS_"
ROUNDINGS: Final = ("floor", "ceil", "round")
SCOPES: Final = ("auto", "process", "container")
MAX_COUNT: Final = 1 << 20  # far above NR_CPUS of any kernel: a larger number is a typing error
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


class Settings(NamedTuple):
    """What the user decided through the environment; units: cores, threads, seconds."""

    auto: bool = True
    """Whether importing the package sets variables (``CGROUP_THREADS_AUTO``)."""
    cores: float | None = None
    """Override of the detected cores; always wins (``CGROUP_THREADS_CORES``: ``4``, ``1.5`` or ``1500m``)."""
    max_cores: int | None = None
    """Ceiling for latched pools where the container may be resized up (``CGROUP_THREADS_MAX_CORES``)."""
    rounding: Rounding = "floor"
    """How a fractional quota becomes whole cores (``CGROUP_THREADS_ROUNDING``)."""
    workers: int | None = None
    """Worker processes that share the container, from ``workers_source``; None if nobody said."""
    workers_source: str = ""
    """The variable ``workers`` came from: CGROUP_THREADS_WORKERS, LOCAL_WORLD_SIZE or WEB_CONCURRENCY."""
    scope: Scope = "auto"
    """Who shares one core budget (``CGROUP_THREADS_SCOPE``)."""
    patience: float | None = None
    """Seconds a call may wait for cores; None lets the governor choose (``CGROUP_THREADS_PATIENCE``)."""
    smt: bool = False
    """Whether SMT siblings count as cores for compute pools (``CGROUP_THREADS_SMT``)."""
    override: bool = False
    """Whether the user's own library variables are replaced too (``CGROUP_THREADS_OVERRIDE``)."""
    patch: bool = True
    """Whether import hooks may act on other libraries (``CGROUP_THREADS_PATCH``)."""
    omp_limit: bool = False
    """Whether OMP_THREAD_LIMIT is set as a backstop (``CGROUP_THREADS_OMP_LIMIT``)."""
    follow_hidden: bool = False
    """Whether the budget follows an estimated limit that no file shows (``CGROUP_THREADS_FOLLOW_HIDDEN``)."""
    profiles: str | None = None
    """Directory of the tuned thread counts (``CGROUP_THREADS_PROFILES``); "" switches them off, None is the default."""
    verbose: bool = False
    """Whether importing prints one line on stderr (``CGROUP_THREADS_VERBOSE``)."""
    notices: tuple[Notice, ...] = ()


def parse_count(text: str) -> int | None:
    """A whole number in 1..MAX_COUNT from plain ASCII digits, else None (`` 4 `` is fine, ``+4``, ``4.0`` are not)."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    value = int(text)
    return value if 1 <= value <= MAX_COUNT else None


def _parse_decimal(text: str) -> float | None:
    """A plain decimal of at least 0 (``2``, ``0.5``, ``.5``), else None."""
    whole, _, fraction = text.partition(".")
    if len(text) > 24 or not text.isascii() or not (whole + fraction).isdigit():
        return None
    return float(text)


def parse_cores(text: str) -> float | None:
    """Cores from a decimal (``1.5``) or a Kubernetes quantity in milli-cores (``1500m``); None if neither or 0."""
    text = text.strip()
    value = _parse_decimal(text.removesuffix("m"))
    if value is not None and text.endswith("m"):
        value /= 1000
    return value if value is not None and 0 < value <= MAX_COUNT else None


def parse_seconds(text: str) -> float | None:
    """Seconds from a decimal with or without unit (``2``, ``0.5s``, ``500ms``); None if it is none of these."""
    text = text.strip()
    if text.endswith("ms"):
        value = _parse_decimal(text.removesuffix("ms"))
        return None if value is None else value / 1000
    return _parse_decimal(text.removesuffix("s"))


class _Reader:
    """Reads one variable after another and collects the notices."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.notices: list[Notice] = []

    def text(self, name: str) -> str | None:
        value = self.environ.get(name)
        return value if value is not None and value.strip() else None

    def junk(self, name: str, value: str, expected: str) -> None:
        message = f"{name}={shown(value)} is ignored: it must be {expected}"
        self.notices.append(Notice("setting-invalid", message, "warning", f"set {name} to {expected}, or unset it"))

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(PREFIX + name)
        if value is None:
            return default
        word = value.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        self.junk(PREFIX + name, value, "0 or 1")
        return default

    def count(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        number = parse_count(value)
        if number is None:
            self.junk(name, value, "a whole number of at least 1")
        return number

    def cores(self, name: str) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        number = parse_cores(value)
        if number is None:
            self.junk(name, value, "a number of cores above 0, such as 4, 1.5 or 1500m")
        return number

    def seconds(self, name: str) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        number = parse_seconds(value)
        if number is None:
            self.junk(name, value, "a number of seconds of at least 0")
        return number

    def directory(self, name: str) -> str | None:
        """An absolute path; "" for a word that says no."""
        value = self.text(PREFIX + name)
        if value is None:
            return None
        path = value.strip()
        if path.lower() in _FALSE:
            return ""
        if not isabs(path) or "\0" in path:
            self.junk(PREFIX + name, value, "the absolute path of a directory, or 0")
            return None
        return path

    def word(self, name: str, allowed: tuple[str, ...]) -> str:
        """The first allowed word is the default."""
        value = self.text(PREFIX + name)
        if value is None:
            return allowed[0]
        word = value.strip().lower()
        if word in allowed:
            return word
        self.junk(PREFIX + name, value, " or ".join(allowed))
        return allowed[0]


# Who says how many worker processes share the container, strongest first: our own setting, torchrun (one variable
# a rank), gunicorn and uvicorn.
WORKER_VARIABLES: Final = (PREFIX + "WORKERS", "LOCAL_WORLD_SIZE", "WEB_CONCURRENCY")


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings from ``environ``; never raises."""
    reader = _Reader(environ)
    workers = None
    workers_source = ""
    for name in WORKER_VARIABLES:
        workers = reader.count(name)
        if workers is not None:
            workers_source = name
            break
    max_cores = reader.cores(PREFIX + "MAX_CORES")
    return Settings(
        auto=reader.flag("AUTO", True),
        cores=reader.cores(PREFIX + "CORES"),
        max_cores=None if max_cores is None else max(1, int(max_cores + 1e-6)),
        rounding=cast(Rounding, reader.word("ROUNDING", ROUNDINGS)),
        workers=workers,
        workers_source=workers_source,
        scope=cast(Scope, reader.word("SCOPE", SCOPES)),
        patience=reader.seconds(PREFIX + "PATIENCE"),
        smt=reader.flag("SMT", False),
        override=reader.flag("OVERRIDE", False),
        patch=reader.flag("PATCH", True),
        omp_limit=reader.flag("OMP_LIMIT", False),
        follow_hidden=reader.flag("FOLLOW_HIDDEN", False),
        profiles=reader.directory("PROFILES"),
        verbose=reader.flag("VERBOSE", False),
        notices=tuple(reader.notices),
    )
