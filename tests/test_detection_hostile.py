"""Files that lie, block or are no files: never an exception, never more threads than the mask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cgroup_threads as ct
from tests.lab.trees import V1, V2, lay

FILES = [("v2", name) for name in V2] + [("v1", name) for name in V1]


def _text(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


FAULTS: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: None,
    "empty": _text(b""),
    "binary": _text(bytes(range(256)) * 8),
    "nul": _text(b"100000\0 100000\0\n"),
    "digits": _text(b"99999999999999999999 99999999999999999999\n"),
    "negative": _text(b"-5 -5\n"),
    "range": _text(b"0-99999999999999999999\n"),
    "directory": lambda path: path.mkdir(),
    "loop": _loop,
    "fifo": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    # Large ones are written once and linked to.
    "huge": lambda path: path.symlink_to(_root_of(path) / "huge"),
    "huge-lines": lambda path: path.symlink_to(_root_of(path) / "huge-lines"),
}


def _root_of(path: Path) -> Path:
    return next(parent for parent in path.parents if (parent / "huge").exists())


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two sound trees that the cases share: each puts back the file it broke."""
    base = tmp_path_factory.mktemp("hostile")
    (base / "huge").write_bytes(b"7" * (10 << 20))
    (base / "huge-lines").write_bytes(b"1 2 0:3 / /sys/fs/cgroup rw - cgroup2 c rw\n" * 250_000)
    return {"v2": lay(base / "v2", V2), "v1": lay(base / "v1", V1)}


@contextmanager
def broken(root: Path, name: str, fault: str) -> Iterator[None]:
    path = root / name.lstrip("/")
    kept = path.with_name(path.name + ".kept")
    path.rename(kept)
    try:
        FAULTS[fault](path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        kept.rename(path)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("version", "name"), FILES, ids=lambda value: str(value).rpartition("/")[2])
def test_each_file_may_be_anything(version: str, name: str, fault: str, trees: dict[str, Path]) -> None:
    with broken(trees[version], name, fault):
        # The second look reads the mask too; it is within the eight CPUs that the other files name.
        for limits in (ct.detect(trees[version], affinity=8), ct.detect(trees[version])):
            assert 1 <= limits.usable() <= 8
            assert limits.quota is None or limits.quota > 0
            assert all("\n" not in notice.message and len(notice.message) < 1000 for notice in limits.notices)


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_the_sound_trees_are_put_back(version: str, trees: dict[str, Path]) -> None:
    limits = ct.detect(trees[version])
    assert (limits.quota, limits.status, len(limits.affinity), limits.notices) == (1.5, "limited", 8, ())


@pytest.mark.parametrize("fault", ["empty", "huge", "binary", "nul", "digits", "directory", "loop", "fifo", "device"])
@pytest.mark.parametrize("version", ["v2", "v1"])
def test_a_quota_that_cannot_be_read_is_not_taken_for_none(version: str, fault: str, trees: dict[str, Path]) -> None:
    """D04, D05: "unknown" with a notice that names the file; an unlimited process says something else."""
    name = "/sys/fs/cgroup/pod/box/cpu.max" if version == "v2" else "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us"
    with broken(trees[version], name, fault):
        limits = ct.detect(trees[version], affinity=8)
    if version == "v2" and fault == "digits":
        assert limits.quota == 1.0  # 20 digits are a number: 2**64 has as many
        return
    assert (limits.quota, limits.status) == (None, "unknown")
    said = [n for n in limits.notices if n.code in ("cgroup-unreadable", "cgroup-malformed")]
    assert any(name in notice.message for notice in said)


def test_a_tree_of_nothing(tmp_path: Path) -> None:
    """Not even /proc: the answer still is one that works."""
    assert ct.detect(tmp_path, affinity=3).usable() == 3
    assert ct.detect(tmp_path / "no" / "such", affinity=3).usable() == 3
