"""A cgroup with a CPU quota for child processes, v1 or v2, removed at the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 100_000


class NoQuotaError(RuntimeError):
    """No group could be made here; the text says why."""


def _own_directory() -> tuple[int, Path]:
    """The version of the hierarchy with the cpu controller and this process's directory in it."""
    v2: tuple[int, Path] | None = None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            for mount in (f"/sys/fs/cgroup/{controllers}", "/sys/fs/cgroup/cpu"):
                if Path(mount + path, "cpu.cfs_quota_us").exists() or Path(mount, "cpu.cfs_period_us").exists():
                    return 1, Path(mount + path)
        elif not controllers:
            v2 = 2, Path("/sys/fs/cgroup" + path)
    if v2 is None:
        raise NoQuotaError("no cpu controller in /proc/self/cgroup")
    return v2


@contextmanager
def quota_group(cores: float) -> Iterator[Path]:
    """Yield the directory of a fresh group limited to ``cores``: a process joins it by writing its pid to cgroup.procs.

    The group's weight is raised to the maximum, so that its quota and not a busy neighbour is measured. Raises
    NoQuotaError where the kernel refuses.
    """
    version, parent = _own_directory()
    group = parent / f"cgroup-threads-benchmark-{os.getpid()}"
    quota = round(cores * PERIOD_US)
    made = False
    try:
        if version == 2 and "cpu" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        made = True
        if version == 2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (group / "cpu.weight").write_text("10000")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cpu.shares").write_text("262144")
    except OSError as error:
        if made:
            group.rmdir()
        raise NoQuotaError(f"{error.filename}: {error.strerror} (root and a writable cgroup are needed)") from error
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            group.rmdir()
            return
        except OSError:  # EBUSY until the kernel has reaped the members
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
