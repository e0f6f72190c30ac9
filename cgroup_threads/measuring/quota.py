"""A CPU quota of one's own for a minute: a sub-cgroup that is made, filled with child processes and removed."""

from __future__ import annotations

import os
import signal
import time
from typing import Final, NamedTuple

from ..detection.records import CpuLimits
from ..governor.slot_file import slot_key
from ..reporting.counters import read_text

PERIOD_US: Final = 100_000
REMOVAL_SECONDS: Final = 5.0


class QuotaGroup(NamedTuple):
    """A cgroup directory that limits its members to ``cores``.

    ``directory`` is where its counters are; ``procs`` the file a process writes "0" to in order to join, empty for a
    group that was there already and holds this process.
    """

    directory: str
    version: int
    cores: float
    procs: str = ""


class Refusal(NamedTuple):
    """Why no group could be made, in one line."""

    reason: str


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _enable_cpu_controller(directory: str) -> str:
    """Let children of a v2 group have cpu.max. Returns why not, or nothing."""
    if "cpu" not in (read_text(f"{directory}/cgroup.controllers") or "").split():
        return f"the cpu controller is not available in {directory}"
    if "cpu" in (read_text(f"{directory}/cgroup.subtree_control") or "").split():
        return ""
    try:
        _write(f"{directory}/cgroup.subtree_control", "+cpu")
    except OSError as error:
        # A v2 group with processes cannot hand controllers to children (kernel: "no internal process" rule, EBUSY).
        return f"{directory}/cgroup.subtree_control: {error.strerror}"
    return ""


def create_group(limits: CpuLimits, cores: float) -> QuotaGroup | Refusal:
    """Make a sub-cgroup of this process's own group with a quota of ``cores``; it stays empty.

    Its weight is the highest there is: the quota is to be measured, and not how busy the neighbours are.
    """
    if not limits.levels:
        return Refusal("no cgroup of this process is visible")
    own = limits.levels[0]
    if own.version == 2:
        reason = _enable_cpu_controller(own.path)
        if reason:
            return Refusal(reason)
    directory = f"{own.path.rstrip('/')}/cgroup-threads-demo-{os.getpid()}"
    quota = max(1000, round(cores * PERIOD_US))  # the kernel accepts no quota below 1 ms
    try:
        try:
            os.mkdir(directory)
        except FileExistsError:  # left by one of the same number that was killed; in a container all have number 1
            os.rmdir(directory)
            os.mkdir(directory)
    except OSError as error:
        return Refusal(f"cannot make a cgroup in {own.path}: {error.strerror}")
    group = QuotaGroup(directory, own.version, quota / PERIOD_US, f"{directory}/cgroup.procs")
    try:
        if own.version == 2:
            _write(f"{directory}/cpu.max", f"{quota} {PERIOD_US}")
            _write(f"{directory}/cpu.weight", "10000")
        else:
            _write(f"{directory}/cpu.cfs_period_us", str(PERIOD_US))
            _write(f"{directory}/cpu.cfs_quota_us", str(quota))
            _write(f"{directory}/cpu.shares", "262144")
    except OSError as error:
        remove_group(group)
        return Refusal(f"cannot set a quota in {directory}: {error.strerror}")
    return group


def remove_group(group: QuotaGroup) -> bool:
    """Kill what is left in a group made by ``create_group`` and remove it; False if the kernel would not.

    The file in which its members shared their core budget goes, too: those that are killed cannot remove it.
    """
    if not group.procs:
        return True
    key = slot_key(group.directory)
    removed = _remove_directory(group)
    if removed and key is not None:
        try:
            os.unlink(f"/dev/shm/cgroup_threads-{key}.slots")
        except OSError:
            pass  # there was none, or its last user removed it
    return removed


def _remove_directory(group: QuotaGroup) -> bool:
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        for word in (read_text(group.procs) or "").split():
            try:
                os.kill(int(word), signal.SIGKILL)
            except (OSError, ValueError):
                pass  # it ended by itself
        try:
            os.rmdir(group.directory)
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)  # EBUSY until the kernel has reaped the members
        else:
            return True
