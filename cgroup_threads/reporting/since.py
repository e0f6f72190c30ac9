"""Throttling and CPU pressure between two moments: raw counters with whose they are, and their difference.

The first moment may be in a file: the JSON of an earlier report. Its text is hostile: bounded and checked.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any, Final, NamedTuple

from .. import __version__
from ..detection.cpulist import parse_number
from ..detection.procfs import Files
from ..detection.records import CgroupLevel, CpuLimits
from ..detection.throttling import is_brief
from ..errors import CgroupThreadsError
from ..notices import shown
from .counters import Throttling, binding_level, read_text, read_throttling
from .judge import MIN_PERIODS, THROTTLED_PROBLEM
from .records import CounterSample, PressureCounter

SCHEMA: Final = 1
MAX_FILE: Final = 4 << 20  # bytes; a report of 8192 threads, each with a name of its own, has half of that
_DIGITS: Final = 20  # 2**64 has 20 digits
_HUGE: Final = 2.0**64
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class SinceError(CgroupThreadsError):
    """There is no interval between then and now. ``source`` is where then came from, ``reason`` what is wrong."""

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{_plain(source)}: {reason}")


class Interval(NamedTuple):
    """What was counted in ``seconds``.

    ``quota`` is in cores, None without one. ``throttling`` and ``pressure`` (the seconds in which some thread waited
    for a CPU) are None where they cannot be read, or where they were another group's before. ``levels`` tell how much
    a period allows.
    """

    seconds: float
    cgroup: str
    quota: float | None
    throttling: Throttling | None
    pressure: PressureCounter | None
    levels: tuple[CgroupLevel, ...] = ()

    @property
    def pressure_share(self) -> float | None:
        """The share of the time in which some thread waited for a CPU, 0.0 to 1.0."""
        if self.pressure is None or self.seconds <= 0:
            return None
        return min(1.0, self.pressure.seconds / self.seconds)

    @property
    def problem(self) -> bool:
        """Whether the throttling is what a report with an ``interval`` calls a problem."""
        throttling, quota = self.throttling, self.quota
        if throttling is None or quota is None or quota < 1:  # one busy thread is more than such a quota
            return False
        often = throttling.periods >= MIN_PERIODS and throttling.share >= THROTTLED_PROBLEM
        return often and not is_brief(throttling, self.levels)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values: times in seconds, shares 0 to 1."""
        throttling, pressure = self.throttling, self.pressure
        return {
            "schema": SCHEMA,
            "version": __version__,
            "seconds": self.seconds,
            "cgroup": self.cgroup,
            "quota": self.quota,
            "throttling": None if throttling is None else {**throttling._asdict(), "share": throttling.share},
            "pressure": None
            if pressure is None
            else {"file": pressure.file, "seconds": pressure.seconds, "share": self.pressure_share},
            "problem": self.problem,
        }

    def __str__(self) -> str:
        throttling, pressure, share = self.throttling, self.pressure, self.pressure_share
        if throttling is None:
            lines = [f"in {self.seconds:.1f} s: no throttling counters are visible"]
        elif not throttling.periods:
            why = "no quota" if self.quota is None else "nothing ran"
            lines = [f"in {self.seconds:.1f} s: no quota period was counted ({why}); {_plain(throttling.file)}"]
        else:
            lines = [f"in {self.seconds:.1f} s: throttled in {100 * throttling.share:.0f} % of the periods"]
            counted = f"{throttling.throttled} of {throttling.periods} periods, {throttling.seconds:.2f} s stopped"
            lines.append(f"  throttled  {counted} (summed over CPUs); {_plain(throttling.file)}")
        if pressure is not None and share is not None:
            where = " of the machine" if pressure.file.startswith("/proc/") else ""
            waited = f"threads{where} waited for a CPU in {100 * share:.0f} % of the time, {pressure.seconds:.2f} s"
            lines.append(f"  pressure   {waited}; {_plain(pressure.file)}")
        return "\n".join(lines)


def _plain(path: str) -> str:
    return path if path.isascii() and path.isprintable() and len(path) <= 500 else shown(path, 500)


def read_counters(limits: CpuLimits) -> CounterSample:
    """The counters of the group that limits, and the pressure in the own group, as they are now."""
    level = binding_level(limits.levels)
    throttling = None if level is None else read_throttling(level.path)
    boot = (read_text(_BOOT_ID) or "").strip()
    return CounterSample(
        boot=boot if boot.isascii() and boot.isprintable() else "",
        uptime_s=_uptime(),
        cgroup="" if level is None else _identify(level.path),
        throttling=throttling,
        pressure=read_pressure_counter(limits.levels),
    )


def read_pressure_counter(levels: tuple[CgroupLevel, ...]) -> PressureCounter | None:
    """For how long some thread has waited for a CPU: in the own group where it is of cgroup v2, else on the machine."""
    own = levels[0] if levels else None
    if own is not None and own.version == 2:
        file = f"{own.path}/cpu.pressure"
        seconds = parse_pressure_total(read_text(file) or "")
        if seconds is not None:
            return PressureCounter(file, _identify(own.path), seconds)
    file = "/proc/pressure/cpu"
    seconds = parse_pressure_total(read_text(file) or "")
    return None if seconds is None else PressureCounter(file, "", seconds)


def parse_pressure_total(text: str) -> float | None:
    """Seconds from the ``total`` of the ``some`` line of a PSI file, which is in microseconds."""
    for line in text.splitlines():
        fields = line.split()
        if fields[:1] == ["some"] and fields[-1].startswith("total="):
            number = parse_number(fields[-1][len("total=") :], _DIGITS)
            return None if number is None else number / 1e6
    return None


def _identify(directory: str) -> str:
    """Device and inode of a group: the same in all namespaces, and another one once the group was made anew."""
    found = Files().identify(directory)
    return "" if found is None else f"{found[0]}:{found[1]}"


def _uptime() -> float:
    """Seconds since boot, the same in all processes."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def read_report(path: str) -> CounterSample:
    """The counters in the JSON of an earlier report. Raises SinceError for anything else."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SinceError(path, getattr(error, "strerror", None) or "not a valid path") from error
    if len(data) > MAX_FILE:
        raise SinceError(path, f"larger than {MAX_FILE} bytes: not a report")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SinceError(path, "not the JSON of a report (cgroup-threads report --json)") from error
    if not isinstance(found, dict) or "usable_cores" not in found:
        raise SinceError(path, "not the JSON of a report (cgroup-threads report --json)")
    counters = found.get("counters")
    if counters is None:
        raise SinceError(path, "this report has no counters: make one with this version")
    sample = _parse(counters)
    if sample is None:
        raise SinceError(path, "the counters in this report make no sense")
    return sample


def _parse(found: object) -> CounterSample | None:
    if not isinstance(found, dict):
        return None
    boot, cgroup = found.get("boot"), found.get("cgroup")
    uptime = _number(found.get("uptime_s"))
    if not isinstance(boot, str) or not isinstance(cgroup, str) or uptime is None:
        return None
    throttling, pressure = found.get("throttling"), found.get("pressure")
    stopped, waited = _parse_throttling(throttling), _parse_pressure(pressure)
    if (stopped is None and throttling is not None) or (waited is None and pressure is not None):
        return None
    return CounterSample(boot, uptime, cgroup, stopped, waited)


def _parse_throttling(found: object) -> Throttling | None:
    if not isinstance(found, dict):
        return None
    periods, throttled = _number(found.get("periods")), _number(found.get("throttled"))
    file, seconds = found.get("file"), _number(found.get("seconds"))
    if periods is None or throttled is None or seconds is None or not isinstance(file, str):
        return None
    return Throttling(file, int(periods), int(throttled), seconds) if throttled <= periods else None


def _parse_pressure(found: object) -> PressureCounter | None:
    if not isinstance(found, dict):
        return None
    file, cgroup, seconds = found.get("file"), found.get("cgroup"), _number(found.get("seconds"))
    if not isinstance(file, str) or not isinstance(cgroup, str) or seconds is None:
        return None
    return PressureCounter(file, cgroup, seconds)


def _number(value: object) -> float | None:
    """A number as a kernel counter can be; JSON also brings true, NaN, -1 and 10**400."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _HUGE:
        return None
    return value if math.isfinite(value) else None


def between(
    before: CounterSample,
    after: CounterSample,
    quota: float | None,
    source: str,
    levels: tuple[CgroupLevel, ...] = (),
) -> Interval:
    """What was counted between two readings; ``source`` says where ``before`` came from.

    Raises SinceError where they are of different groups or boots, or counters went back.
    """
    if before.boot != after.boot:
        raise SinceError(source, "this machine was started anew since then, or it is another one")
    if before.cgroup != after.cgroup:
        then, now = before.cgroup or "none", after.cgroup or "none"
        raise SinceError(source, f"that was another cgroup (then {shown(then)[1:-1]}, now {now}): a new container?")
    seconds = after.uptime_s - before.uptime_s
    if seconds < 0:
        raise SinceError(source, "it is younger than now: the clock went back")
    throttling = _throttling(before.throttling, after.throttling, source)
    pressure = _pressure(before.pressure, after.pressure, source)
    if throttling is None and pressure is None:
        raise SinceError(source, "neither throttling nor CPU pressure can be read here")
    return Interval(seconds, after.cgroup, quota, throttling, pressure, levels)


def _throttling(before: Throttling | None, after: Throttling | None, source: str) -> Throttling | None:
    if before is None or after is None:
        return None
    periods, throttled = after.periods - before.periods, after.throttled - before.throttled
    seconds = after.seconds - before.seconds
    if periods < 0 or throttled < 0 or seconds < 0:
        raise SinceError(source, "the throttling counters went back since then")
    return Throttling(after.file, periods, min(throttled, periods), seconds)


def _pressure(before: PressureCounter | None, after: PressureCounter | None, source: str) -> PressureCounter | None:
    if before is None or after is None or before.cgroup != after.cgroup:
        return None
    seconds = after.seconds - before.seconds
    if seconds < 0:
        raise SinceError(source, "the counter of CPU pressure went back since then")
    return after._replace(seconds=seconds)
