"""What an inspection is made from: frozen records of another process, as /proc showed it over an interval."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from ...detection.records import CpuLimits
from ...detection.throttling import Throttling
from ...errors import CgroupThreadsError
from ...settings import Rounding

Level = Literal["ok", "warning", "problem"]

BUSY: Final = 0.05  # cores, or half the share of looks: less is a thread that sleeps


class InspectError(CgroupThreadsError):
    """A process that cannot be judged. ``pid`` is its number, ``reason`` why ("gone", "foreign", "kernel", ...)."""

    def __init__(self, pid: int, reason: str, message: str) -> None:
        self.pid = pid
        self.reason = reason
        super().__init__(message)


class Library(NamedTuple):
    """A mapped shared library that owns or drives threads: its kind ("libgomp", "openblas", "llama", ...)."""

    kind: str
    path: str


class Thread(NamedTuple):
    """One native thread over the interval.

    ``owner`` says who made it, as far as its name and stack tell. ``cpu`` are cores it kept busy, ``runnable`` the
    share of looks at which it ran or wanted to. Switches are per second. ``affinity`` is None, and ``wchan`` (where
    the kernel lets it sleep) empty, where they could not be read.
    """

    tid: int
    name: str
    owner: str
    cpu: float = 0.0
    runnable: float = 0.0
    voluntary: float = 0.0
    involuntary: float = 0.0
    affinity: frozenset[int] | None = None
    wchan: str = ""


class Child(NamedTuple):
    """A process that the one under watch has started, itself or through others; ``cpu`` are cores it kept busy."""

    pid: int
    name: str
    cpu: float


class Sample(NamedTuple):
    """All that was read of one process. Nothing in it changes afterwards.

    ``limits`` are those of the process with its mask as it was before an OpenMP runtime narrowed it, as far as that
    can be told. ``seconds`` is the interval, ``looks`` how often thread states were read in it. ``cpu`` are the cores
    kept busy, ``runnable`` the threads runnable on average; ``total`` counts threads, of which ``threads`` were
    followed. ``variables`` are thread variables as the process was started with them, ``binding`` the one that pins
    threads, ``rounding`` what it makes of a fractional quota. ``guessed`` says where the mask comes from if that is a
    guess. ``children`` are the busy processes below it. ``unread`` says in words what could not be read.
    """

    pid: int
    name: str
    command: str
    state: str
    limits: CpuLimits
    seconds: float
    looks: int
    cpu: float
    runnable: float
    total: int
    threads: tuple[Thread, ...]
    variables: tuple[tuple[str, str], ...] = ()
    libraries: tuple[Library, ...] = ()
    binding: str | None = None
    rounding: Rounding = "floor"
    guessed: str = ""
    throttling: Throttling | None = None
    group: str = ""
    children: tuple[Child, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def usable(self) -> int:
        """Cores the process may keep busy."""
        return self.limits.usable(self.rounding)

    @property
    def busy(self) -> list[Thread]:
        """Threads that used a CPU, or waited for one, in more than a moment of the interval."""
        return [thread for thread in self.threads if thread.cpu >= BUSY or thread.runnable >= 2 * BUSY]

    @property
    def factor(self) -> float:
        """Runnable threads a usable core: above 1 threads wait for each other."""
        return self.runnable / self.usable

    @property
    def involuntary(self) -> float:
        """Times a second a thread was made to yield its CPU."""
        return sum(thread.involuntary for thread in self.threads)

    @property
    def voluntary(self) -> float:
        """Times a second a thread went to sleep by itself."""
        return sum(thread.voluntary for thread in self.threads)


class Verdict(NamedTuple):
    """``code`` is stable; ``line`` says in one line what is wrong (or that nothing is) and how to mend it."""

    code: str
    level: Level
    message: str
    fix: str = ""
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Message and fix."""
        return f"{self.message}: {self.fix}" if self.fix else self.message
