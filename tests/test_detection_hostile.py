"""Files that lie, block or are no files: never an exception, never more threads than the mask."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cgroup_threads as ct
from cgroup_threads.detection.cgroup import parse_cfs, parse_cpu_max
from cgroup_threads.detection.cpulist import format_cpulist, parse_cpulist, parse_mask
from cgroup_threads.detection.procfs import parse_membership, parse_mounts, unescape
from cgroup_threads.detection.schedulers import read_grants
from tests.lab.trees import V1, V2, lay

FILES = [("v2", name) for name in V2] + [("v1", name) for name in V1]


def _text(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


FAULTS: dict[str, Callable[[Path], object]] = {
    "empty": _text(b""),
    "huge": _text(b"7" * (10 << 20)),
    "huge-lines": _text(b"1 2 0:3 / /sys/fs/cgroup rw - cgroup2 c rw\n" * 300_000),
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
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("version", "name"), FILES, ids=lambda value: str(value).rpartition("/")[2])
def test_each_file_may_be_anything(version: str, name: str, fault: str, tmp_path: Path) -> None:
    root = lay(tmp_path, V2 if version == "v2" else V1)
    path = root / name.lstrip("/")
    path.unlink()
    FAULTS[fault](path)
    limits = ct.detect(root, affinity=8)
    assert 1 <= limits.usable() <= 8
    assert limits.quota is None or limits.quota > 0
    assert all("\n" not in notice.message and len(notice.message) < 1000 for notice in limits.notices)


def test_unreadable_files_are_said_to_be(tmp_path: Path) -> None:
    root = lay(tmp_path, V2)
    quota = root / "sys/fs/cgroup/pod/box/cpu.max"
    quota.unlink()
    quota.mkdir()
    limits = ct.detect(root, affinity=8)
    assert limits.status == "unknown"
    assert "cgroup-unreadable" in {notice.code for notice in limits.notices}


@given(st.text(max_size=80))
def test_parsers_take_any_text(text: str) -> None:
    for value in (parse_cpu_max(text), parse_cfs(text, "100000"), parse_cfs("100000", text)):
        assert value is None or value > 0
    cpus = parse_cpulist(text)
    assert cpus is None or all(cpu >= 0 for cpu in cpus)
    parse_mask(text)
    parse_membership(text)
    parse_mounts(text)
    read_grants(dict.fromkeys(("SLURM_CPUS_PER_TASK", "NSLOTS", "CPU_LIMIT", "SLURM_TASKS_PER_NODE"), text))


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_quota_is_its_ratio(quota: int, period: int) -> None:
    assert parse_cpu_max(f"{quota} {period}\n") == pytest.approx(quota / period)
    assert parse_cfs(f"{quota}\n", f"{period}\n") == pytest.approx(quota / period)


@given(st.frozensets(st.integers(0, 5000), max_size=40))
def test_cpu_lists_go_round(cpus: frozenset[int]) -> None:
    if cpus:
        assert parse_cpulist(format_cpulist(cpus) + "\n") == cpus


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=30))
def test_octal_escapes_go_round(text: str) -> None:
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)
    assert unescape(escaped) == text


def test_paths_in_membership_keep_colons_and_backslashes() -> None:
    members = parse_membership("4:cpu,cpuacct:/a:b\\040c\n0::/x:y\n1:name=systemd:/z\njunk\n")
    assert members.controllers["cpu"] == "/a:b\\040c"
    assert members.unified == "/x:y"
    assert members.malformed == ("junk",)
