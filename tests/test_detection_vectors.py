"""Layouts of real containers, each with the answer that is right there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cgroup_threads as ct
from tests.lab.trees import V1, V2, lay, vectors


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
def test_vector(vector: dict[str, Any], tmp_path: Path) -> None:
    limits = ct.detect(lay(tmp_path, vector["files"]), affinity=vector["affinity"] or 64)
    expected = vector["expected_quota_cores"]
    assert limits.quota == (pytest.approx(expected) if expected is not None else None), limits.notices
    if vector["expected_status"] == "malformed":
        # Labelled so, a vector fixes the quota alone; what was odd is said, unless it clearly limits.
        assert limits.notices or limits.quota is not None
    else:
        assert limits.status == vector["expected_status"], limits.notices
    if "expected_cpuset_count" in vector:
        assert limits.cpuset is not None
        assert len(limits.cpuset) == vector["expected_cpuset_count"]
    width = min(limits.width, vector["affinity"] or 64)
    assert 1 <= limits.usable() <= width
    if expected is not None:
        assert limits.usable() == max(1, min(width, int(expected + 1e-6)))


def test_every_level_is_recorded_with_its_file_and_text(tmp_path: Path) -> None:
    limits = ct.detect(lay(tmp_path, V2), affinity=8)
    assert [(level.path.removeprefix(str(tmp_path)), level.raw, level.quota) for level in limits.levels] == [
        ("/sys/fs/cgroup/pod/box", "150000 100000", 1.5),
        ("/sys/fs/cgroup/pod", "max 100000", None),
        ("/sys/fs/cgroup", None, None),
    ]
    assert {level.file.rpartition("/")[2] for level in limits.levels} == {"cpu.max"}
    assert (limits.bound_by, limits.usable()) == ("quota", 1)


@pytest.mark.parametrize(
    ("own", "parent", "quota"),
    [("max", "200000 100000", 2.0), ("300000 100000", "200000 100000", 2.0), ("100000 100000", "200000 100000", 1.0)],
)
def test_the_smallest_level_wins(own: str, parent: str, quota: float, tmp_path: Path) -> None:
    files = V2 | {"/sys/fs/cgroup/pod/box/cpu.max": own, "/sys/fs/cgroup/pod/cpu.max": parent}
    assert ct.detect(lay(tmp_path, files), affinity=8).quota == quota


@pytest.mark.parametrize(
    ("text", "quota", "status"),
    [
        ("max 100000", None, "unlimited"),
        ("max", None, "unlimited"),
        ("-1 100000", None, "unlimited"),
        ("50000 100000", 0.5, "limited"),
        ("500000", 5.0, "limited"),  # the kernel's default period
        ("50000 100000 0", 0.5, "limited"),
        ("", None, "unknown"),  # D04
        ("junk", None, "unknown"),
        ("100000 0", None, "unknown"),  # D05
        ("0 100000", None, "unknown"),
        ("1e5 100000", None, "unknown"),
        ("\u0661\u0660 100000", None, "unknown"),  # Arabic digits
        ("99999999999999999999999 100000", None, "unknown"),
    ],
)
def test_texts_of_cpu_max(text: str, quota: float | None, status: str, tmp_path: Path) -> None:
    limits = ct.detect(lay(tmp_path, V2 | {"/sys/fs/cgroup/pod/box/cpu.max": text}), affinity=8)
    assert (limits.quota, limits.status) == (quota, status)
    assert (status == "unknown") == any(notice.code == "cgroup-malformed" for notice in limits.notices)


def test_a_quota_of_two_whole_cores_may_come_a_microsecond_short(tmp_path: Path) -> None:
    """Above a millionth of a core it counts; below, it comes from rounding (1.9999999)."""
    for quota, cores in (("199999 100000", 1), ("1999999999 1000000000", 2), ("200000 100000", 2)):
        files = V2 | {"/sys/fs/cgroup/pod/box/cpu.max": quota}
        assert ct.detect(lay(tmp_path, files), affinity=8).usable() == cores


def test_v1_without_a_limit_and_with_one(tmp_path: Path) -> None:
    assert ct.detect(lay(tmp_path / "a", V1), affinity=8).quota == 1.5
    free = V1 | {"/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "-1"}
    assert ct.detect(lay(tmp_path / "b", free), affinity=8).status == "unlimited"


def test_weights_and_bursts_are_not_cores(tmp_path: Path) -> None:
    files = V2 | {
        "/sys/fs/cgroup/pod/box/cpu.max": "max 100000",
        "/sys/fs/cgroup/pod/box/cpu.weight": "1",
        "/sys/fs/cgroup/pod/box/cpu.max.burst": "50000",
    }
    limits = ct.detect(lay(tmp_path, files), affinity=8)
    assert (limits.quota, limits.status, limits.usable()) == (None, "unlimited", 8)


def test_a_cpuset_narrows_and_offline_cpus_do_not_count(tmp_path: Path) -> None:
    files = V2 | {
        "/sys/fs/cgroup/pod/box/cpu.max": "max 100000",
        "/sys/fs/cgroup/pod/box/cpuset.cpus.effective": "1,3-5\n",  # D11
    }
    limits = ct.detect(lay(tmp_path, files), affinity=range(8))
    assert (limits.cpuset, limits.usable(), limits.bound_by) == (frozenset({1, 3, 4, 5}), 4, "cpuset")


def test_the_mask_and_the_quota_are_both_read(tmp_path: Path) -> None:
    """D10, D28: a wide mask does not hide a narrow quota, nor the other way round."""
    quota = V2 | {"/sys/fs/cgroup/pod/box/cpu.max": "30000 100000"}
    limits = ct.detect(lay(tmp_path / "a", quota), affinity={0, 2, 4})
    assert (limits.quota, limits.width, limits.usable(), limits.bound_by) == (0.3, 3, 1, "quota")
    wide = V2 | {"/sys/fs/cgroup/pod/box/cpu.max": "700000 100000"}
    limits = ct.detect(lay(tmp_path / "b", wide), affinity={0, 2})
    assert (limits.usable(), limits.bound_by) == (2, "affinity")  # D23


def test_roundings(tmp_path: Path) -> None:
    limits = ct.detect(lay(tmp_path, V2), affinity=8)
    assert [limits.usable(rounding) for rounding in ("floor", "ceil", "round")] == [1, 2, 2]


def test_a_mount_that_another_one_covers_is_not_asked(tmp_path: Path) -> None:
    """mountinfo lists a covered tree first; what lies at its path now belongs to the mount over it."""
    mounts = (
        "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "40 30 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "41 40 0:26 /pod /sys/fs/cgroup/here rw - cgroup2 cgroup2 rw\n"
    )
    files = {
        "/proc/self/cgroup": "0::/pod/box\n",
        "/proc/self/mountinfo": mounts,
        "/sys/fs/cgroup/pod/box/cpu.max": "50000 100000\n",
        "/sys/fs/cgroup/here/box/cpu.max": "300000 100000\n",
    }
    limits = ct.detect(lay(tmp_path, files), affinity=8)
    assert limits.quota == 3.0
    assert all("/here" in level.path for level in limits.levels)
