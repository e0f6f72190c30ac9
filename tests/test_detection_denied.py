"""Files that permissions deny: with real permission bits, as a user they bind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cgroup_threads as ct
from tests.lab.commands import NOBODY
from tests.lab.trees import V1, V2, lay


@contextmanager
def as_plain_user() -> Iterator[None]:
    """Permission bits do not bind root, so be somebody else for a moment."""
    user = os.geteuid()
    if user == 0:
        try:
            os.seteuid(NOBODY)
        except PermissionError:  # a root without capabilities, whom permission bits bind
            user = NOBODY
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)


@pytest.fixture
def tree() -> Iterator[Path]:
    """A directory that a plain user may enter: pytest's own ones are root's alone."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def detect_denied(root: Path, files: dict[str, str], name: str) -> ct.CpuLimits:
    path = lay(root, files) / name.lstrip("/")
    path.chmod(0)
    with as_plain_user():
        with pytest.raises(PermissionError):
            path.read_text()
        return ct.detect(root, affinity=8)


@pytest.mark.parametrize("version", ["v2", "v1"])
@pytest.mark.parametrize("name", ["/proc/self/cgroup", "quota"])
def test_a_denied_file_leaves_the_quota_unknown(name: str, version: str, tree: Path) -> None:
    """D05"""
    files, quota = (
        (V2, "/sys/fs/cgroup/pod/box/cpu.max")
        if version == "v2"
        else (V1, "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us")
    )
    limits = detect_denied(tree, files, quota if name == "quota" else name)
    assert (limits.quota, limits.status, limits.usable()) == (None, "unknown", 8)
    said = [notice for notice in limits.notices if notice.code == "cgroup-unreadable"]
    assert len(said) == 1
    assert "Permission denied" in said[0].message
    assert "CGROUP_THREADS_CORES" in said[0].fix


def test_a_denied_mount_table_leaves_the_usual_places(tree: Path) -> None:
    limits = detect_denied(tree, V2, "/proc/self/mountinfo")
    assert (limits.quota, limits.status) == (1.5, "limited")
    assert "cgroup-unreadable" in {notice.code for notice in limits.notices}


def test_a_denied_level_does_not_hide_a_limit_above_it(tree: Path) -> None:
    files = V2 | {"/sys/fs/cgroup/pod/cpu.max": "200000 100000\n"}
    limits = detect_denied(tree, files, "/sys/fs/cgroup/pod/box/cpu.max")
    assert (limits.quota, limits.status) == (2.0, "limited")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("/sys/fs/cgroup/pod/box/cpuset.cpus.effective", "cpuset-unreadable"),
        ("/sys/devices/system/cpu/online", "topology-unreadable"),
        ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "topology-unreadable"),
    ],
)
def test_other_denied_files_are_said_to_be(name: str, code: str, tree: Path) -> None:
    limits = detect_denied(tree, V2, name)
    assert (limits.quota, limits.status) == (1.5, "limited")
    assert [notice.code for notice in limits.notices] == [code]


def test_a_directory_that_may_not_be_entered(tree: Path) -> None:
    lay(tree, V2)
    (tree / "sys/fs/cgroup/pod").chmod(0)
    with as_plain_user():
        limits = ct.detect(tree, affinity=8)
    (tree / "sys/fs/cgroup/pod").chmod(0o755)
    assert (limits.status, limits.usable()) == ("unknown", 8)
