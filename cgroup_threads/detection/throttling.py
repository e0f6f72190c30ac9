"""How often a CPU quota stopped a group, and how much threads wait for a CPU: counters the kernel keeps.

Parsers are pure; readers are bounded and answer None where a file cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .cpulist import parse_number
from .procfs import Files
from .records import CgroupLevel

_MAX_DIGITS = 20  # 2**64 has 20 digits
_BRIEF = 0.02  # of the CPU time that a period allows


class Throttling(NamedTuple):
    """How often a CPU quota stopped the group.

    ``periods`` are quota periods in which the group wanted to run, ``throttled`` those that ended with it stopped,
    ``seconds`` the time its threads stood still, summed over CPUs. ``file`` is the cpu.stat that was read.
    """

    file: str
    periods: int
    throttled: int
    seconds: float

    @property
    def share(self) -> float:
        """Throttled periods over all periods, 0.0 to 1.0."""
        return self.throttled / self.periods if self.periods > 0 else 0.0


class Pressure(NamedTuple):
    """Share of the last 10 and 60 seconds in which some thread waited for a CPU, in per cent (kernel's PSI)."""

    file: str
    avg10: float
    avg60: float


def read_text(path: str) -> str | None:
    """Text of a small file; None if it cannot be read."""
    return Files().read(path).text


def parse_cpu_stat(text: str, file: str) -> Throttling | None:
    """Throttling from a cpu.stat: v1 has ``throttled_time`` in nanoseconds, v2 ``throttled_usec`` in microseconds.

    None where the counters are missing: a group without the cpu controller, or the root group.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        value = parse_number(number.strip(), _MAX_DIGITS)
        if value is not None:
            values[name] = value
    if "nr_periods" not in values or "nr_throttled" not in values:
        return None
    nanoseconds = values.get("throttled_time", values.get("throttled_usec", 0) * 1000)
    return Throttling(file, values["nr_periods"], min(values["nr_throttled"], values["nr_periods"]), nanoseconds / 1e9)


def read_throttling(directory: str) -> Throttling | None:
    """Throttling counters of the cgroup at ``directory``."""
    file = f"{directory}/cpu.stat"
    text = read_text(file)
    return None if text is None else parse_cpu_stat(text, file)


def throttling_between(before: Throttling | None, after: Throttling | None) -> Throttling | None:
    """What was counted between two samples of one file; None if either is missing or the file changed."""
    if before is None or after is None or before.file != after.file or after.periods < before.periods:
        return None
    periods = after.periods - before.periods
    throttled = min(max(0, after.throttled - before.throttled), periods)
    return Throttling(after.file, periods, throttled, max(0.0, after.seconds - before.seconds))


def is_brief(throttling: Throttling, levels: Sequence[CgroupLevel]) -> bool:
    """Whether the stops were too short to matter: on average less than a fiftieth of what a period allows.

    As many busy threads as a quota has cores are stopped for a moment in many periods, because each CPU gets its part
    of the quota in slices: eight threads under 8 cores on 64 CPUs in 28 % of all periods, but for 9 of 800 ms.
    """
    raw = next((level.raw for level in levels if throttling.file == f"{level.path}/cpu.stat"), None) or ""
    allowed_us = parse_number(raw.partition(" ")[0], _MAX_DIGITS)
    if not allowed_us or not throttling.throttled:
        return False
    return throttling.seconds / throttling.throttled < _BRIEF * allowed_us / 1e6


def parse_pressure(text: str, file: str) -> Pressure | None:
    """The ``some`` line of a PSI file."""
    for line in text.splitlines():
        if not line.startswith("some "):
            continue
        fields = dict(field.partition("=")[::2] for field in line.split()[1:])
        try:
            avg10, avg60 = float(fields["avg10"]), float(fields["avg60"])
        except (KeyError, ValueError):
            return None
        # Not-a-number fails each comparison.
        return Pressure(file, avg10, avg60) if 0.0 <= avg10 <= 100.0 and 0.0 <= avg60 <= 100.0 else None
    return None


def read_pressure(level: CgroupLevel | None) -> Pressure | None:
    """CPU pressure of the process's v2 group, else of the whole machine."""
    files = ["/proc/pressure/cpu"]
    if level is not None and level.version == 2:
        files.insert(0, f"{level.path}/cpu.pressure")
    for file in files:
        text = read_text(file)
        pressure = None if text is None else parse_pressure(text, file)
        if pressure is not None:
            return pressure
    return None
