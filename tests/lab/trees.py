"""Directories laid out like ``/``, from a mapping of paths to texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"


def vectors() -> list[dict[str, Any]]:
    """Layouts of real and constructed containers with the quota that holds there."""
    found: list[dict[str, Any]] = json.loads((DATA / "cgroup_vectors.json").read_text())
    return found


def lay(root: Path, files: Mapping[str, str]) -> Path:
    """Write ``files`` below ``root``."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return root


V2 = {
    "/proc/self/cgroup": "0::/pod/box\n",
    "/proc/self/mountinfo": "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/proc/self/status": "Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
    "/sys/fs/cgroup/pod/box/cpu.max": "150000 100000\n",
    "/sys/fs/cgroup/pod/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/pod/box/cpuset.cpus.effective": "0-7\n",
    "/sys/devices/system/cpu/online": "0-7\n",
    "/sys/devices/system/cpu/offline": "\n",
    "/sys/devices/system/cpu/isolated": "\n",
    "/sys/devices/system/cpu/smt/active": "1\n",
    **{f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}\n" for n in range(8)},
    **{f"/sys/devices/system/cpu/cpu{n}/cpu_capacity": "1024\n" for n in range(8)},
}
V1 = {
    "/proc/self/cgroup": "4:cpu,cpuacct:/box\n3:cpuset:/box\n",
    "/proc/self/mountinfo": (
        "31 22 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 22 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    ),
    "/proc/self/status": "Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/cpuset/box/cpuset.cpus": "0-7\n",
    "/sys/fs/cgroup/cpuset/box/cpuset.effective_cpus": "0-7\n",
    "/sys/devices/system/cpu/online": "0-7\n",
}
