"""Readers of task and address space limits, on texts of every kind, and the counts that follow from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cgroup_threads.detection import detect
from cgroup_threads.detection.cgroup import read_pids
from cgroup_threads.detection.placement import Chain, Place
from cgroup_threads.detection.procfs import Files, parse_all_tasks, parse_soft_limit
from cgroup_threads.detection.tasks import (
    AddressSpace,
    Owner,
    TaskLimit,
    count_others,
    is_exempt,
    make_address_space,
    parse_owner,
    parse_stack_size,
)
from cgroup_threads.planning import ThreadPlan, count, decide, share_plan
from cgroup_threads.rooms import HEAP, POOLS, find_rooms
from cgroup_threads.settings import Settings
from tests.report_samples import make_limits

LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max stack size            8388608              unlimited            bytes     
Max processes             {processes:<20} 96551                processes 
Max address space         {space:<20} unlimited            bytes     
"""  # noqa: W291
STATUS = "Name:\tpython\nThreads:\t{threads}\nUid:\t{uid}\t0\t0\t0\nCapEff:\t{capabilities:016x}\n"
SYS_ADMIN, SYS_RESOURCE, NET_ADMIN = 1 << 21, 1 << 24, 1 << 12
numbers = st.integers(0, 2**63)
junk = st.text(max_size=300)


@given(processes=numbers | st.just("unlimited"), space=numbers | st.just("unlimited"))
def test_soft_limits(processes: int | str, space: int | str) -> None:
    text = LIMITS.format(processes=processes, space=space)
    assert parse_soft_limit(text, "Max processes") == (None if processes == "unlimited" else processes)
    assert parse_soft_limit(text, "Max address space") == (None if space == "unlimited" else space)
    assert parse_soft_limit(text, "Max stack size") == 8388608
    assert parse_soft_limit(text, "Max files") is None


@given(junk, junk, st.integers(0, 400))
def test_no_text_makes_a_parser_raise(before: str, after: str, cut: int) -> None:
    whole = LIMITS.format(processes=5, space=6) + STATUS.format(threads=1, uid=2, capabilities=3)
    for text in (before, before + whole[:cut], whole[:cut] + after, f"Max processes{after}", f"Uid:{before}\n{whole}"):
        limit = parse_soft_limit(text, "Max processes")
        assert limit is None or limit >= 0
        owner = parse_owner(text)
        assert owner is None or (owner.uid >= 0 and owner.threads >= 1)
        for parse in (parse_all_tasks, parse_stack_size):
            number = parse(text)
            assert number is None or number >= 0


@given(numbers, st.integers(1, 2**40), st.integers(0, 2**64 - 1))
def test_owner(uid: int, threads: int, capabilities: int) -> None:
    text = STATUS.format(threads=threads, uid=uid, capabilities=capabilities)
    assert parse_owner(text) == Owner(uid, capabilities, threads)
    for line in text.splitlines(keepends=True)[1:]:
        assert parse_owner(text.replace(line, "")) is None


def test_owner_of_this_process() -> None:
    owner = parse_owner(Path("/proc/self/status").read_text())
    assert owner is not None
    assert (owner.uid, owner.threads) == (os.getuid(), len(os.listdir("/proc/self/task")))


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_all_tasks(running: int, total: int) -> None:
    assert parse_all_tasks(f"0.01 0.02 0.03 {running}/{total} 4711\n") == total
    assert parse_all_tasks(f"0.01 0.02 0.03 {running} 4711\n") is None
    assert parse_all_tasks("0.01 0.02") is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("16M", 16 << 20), (" 16 m ", 16 << 20), ("2000500B", 2000500), ("10k", 10240), ("1G", 1 << 30)),
        *(("512", 512 << 10), ("", None), ("M", None), ("-1M", None), ("1T", None), ("1.5M", None), ("\u00b2M", None)),
    ],
)
def test_stack_size(text: str, size: int | None) -> None:
    assert parse_stack_size(text) == size


def test_address_space_of_a_thread() -> None:
    assert make_address_space(1 << 30, 8 << 20) == AddressSpace(1 << 30, 8 << 20)
    assert make_address_space(1 << 30, None) == AddressSpace(1 << 30, 2 << 20)  # unlimited: glibc's own default
    assert make_address_space(1 << 30, 8 << 20, "64M") == AddressSpace(1 << 30, 64 << 20)
    assert make_address_space(1 << 30, 8 << 20, "1M") == AddressSpace(1 << 30, 8 << 20)
    assert make_address_space(1 << 30, 8 << 20, "junk") == AddressSpace(1 << 30, 8 << 20)


@pytest.mark.parametrize(
    ("uid", "capabilities", "uid_map", "exempt"),
    [
        (0, 0, "0 0 4294967295", True),
        (1000, 0, "0 0 4294967295", False),
        (1000, NET_ADMIN, "0 0 4294967295", False),
        (1000, SYS_ADMIN, "0 0 4294967295", True),
        (1000, SYS_RESOURCE, "0 0 4294967295", True),
        # Rootless containers, and Docker's userns-remap: root there is a plain user to the kernel.
        (0, 2**41 - 1, "0 1000 1", False),
        (0, 2**41 - 1, "0 100000 65536", False),
        (0, 0, None, True),
    ],
)
def test_who_is_exempt(uid: int, capabilities: int, uid_map: str | None, exempt: bool, tmp_path: Path) -> None:
    if uid_map is not None:
        (tmp_path / "proc" / "7").mkdir(parents=True)
        (tmp_path / "proc" / "7" / "uid_map").write_text(f"  {uid_map}\n")
    assert is_exempt(Files(str(tmp_path)), "7", Owner(uid, capabilities, 1)) is exempt


def test_others_of_this_user() -> None:
    owner = parse_owner(Path("/proc/self/status").read_text())
    assert owner is not None
    others = count_others(Files(), owner)
    assert others is not None
    assert others >= 0
    assert count_others(Files(), Owner(2**31 - 3, 0, 1)) == 0
    assert count_others(Files("/nowhere"), owner) is None


def make_tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


V2 = {
    "proc/self/cgroup": "0::/a/b\n",
    "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "proc/self/status": STATUS.format(threads=3, uid=1000, capabilities=0),
    "sys/fs/cgroup/a/pids.max": "40\n",
    "sys/fs/cgroup/a/pids.current": "30\n",
    "sys/fs/cgroup/a/b/pids.max": "max\n",
    "sys/fs/cgroup/a/b/pids.current": "30\n",
}


def test_a_copied_tree_of_cgroup_v2(tmp_path: Path) -> None:
    """The pids files stand beside those of the cpu; a group above binds as well."""
    limits = detect(make_tree(tmp_path, V2), affinity=4)
    file = f"{tmp_path}/sys/fs/cgroup/a/pids.max"
    assert limits.tasks == (TaskLimit("pids.max", 40, 30, 3, file),)
    assert limits.tasks[0].allowance == 13


def test_a_copied_tree_of_cgroup_v1(tmp_path: Path) -> None:
    cpu = "29 1 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    pids = "30 1 0:26 /k /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    files = {
        "proc/self/cgroup": "5:pids:/k/pod\n4:cpu:/\n",
        "proc/self/mountinfo": cpu + pids,
        "proc/self/limits": LIMITS.format(processes=2**40, space=2**33),
        "sys/fs/cgroup/pids/pod/pids.max": "5",
        "sys/fs/cgroup/pids/pod/pids.current": "2",
    }
    limits = detect(make_tree(tmp_path, files), affinity=4)
    assert limits.tasks == (TaskLimit("pids.max", 5, 2, 1, f"{tmp_path}/sys/fs/cgroup/pids/pod/pids.max"),)
    assert limits.address_space == AddressSpace(2**33, 8388608)


@given(st.integers(1, 500), st.integers(0, 600), st.integers(1, 600))
def test_only_near_limits_are_kept(limit: int, used: int, need: int) -> None:
    class Stub(Files):
        def read(self, path: str, limit_: int = 0) -> Any:
            from cgroup_threads.detection.procfs import Reading

            return Reading(str(limit if path.endswith("max") else used))

    found = read_pids(Stub(), Place(2, (Chain("/", ("/g",)),)), need)
    assert found == ([(limit, used, "/g/pids.max")] if limit - used < need else [])


def test_no_place_has_no_limit() -> None:
    assert read_pids(Files(), None, 9) == []


tasks = st.builds(
    TaskLimit,
    st.sampled_from(["pids.max", "RLIMIT_NPROC"]),
    st.integers(0, 4000),
    st.integers(0, 4000),
    st.integers(1, 100),
    st.just("/f"),
)
spaces = st.none() | st.builds(AddressSpace, st.integers(0, 2**42), st.integers(0, 2**30))


@example([TaskLimit("pids.max", 0, 0, 8, "/f")], None, 2, 1)  # counted while threads began
@given(st.lists(tasks, max_size=3), spaces, st.integers(1, 64), st.integers(1, 16))
def test_plans_fit(limited: list[TaskLimit], space: AddressSpace | None, cpus: int, workers: int) -> None:
    limits = make_limits(None, cpus, physical_cores=cpus, tasks=tuple(limited), address_space=space)
    free = decide(limits._replace(tasks=(), address_space=None), Settings(), workers=workers)
    plan = decide(limits, Settings(), workers=workers)
    assert 1 <= plan.threads <= free.threads
    assert (plan.usable, plan.interop, free.ceiling) == (free.usable, free.interop, None)
    if plan.threads > 1:
        assert all(POOLS * plan.threads <= task.allowance for task in limited)
        assert all(POOLS * plan.threads * workers <= task.limit for task in limited)
        assert space is None or 2 * POOLS * (plan.threads - 1) * (space.stack + HEAP) <= space.limit
    lowered = plan.threads < free.threads
    assert (plan.bound_by in ("pids.max", "RLIMIT_NPROC", "RLIMIT_AS")) is lowered
    codes = [notice.code for notice in plan.notices]
    assert not lowered or codes
    for task in limited:
        if task.allowance < POOLS:
            assert any(notice.level == "problem" and task.name in notice.message for notice in plan.notices)
    numbers = count(plan, Settings(max_cores=128))
    assert plan.ceiling is None or max(numbers[2:5]) <= max(plan.ceiling, plan.threads)
    assert share_plan(plan, 2).threads <= plan.threads


def plan_of(cpus: int, *limited: TaskLimit, workers: int = 1) -> ThreadPlan:
    return decide(make_limits(None, cpus, physical_cores=cpus, tasks=limited), Settings(), workers=workers)


def test_workers_share_the_tasks() -> None:
    """Those that have started count against the limit: a worker that starts late has the share of the first."""
    for used in (2, 60):
        plan = plan_of(32, TaskLimit("pids.max", 96, used, 1, "/f"), workers=4)
        assert (plan.threads, plan.bound_by) == (6, "pids.max")
    assert plan_of(32, TaskLimit("pids.max", 96, 80, 1, "/f"), workers=4).threads == 4


def test_the_smallest_room_wins_and_all_are_named() -> None:
    one, two = TaskLimit("pids.max", 20, 1, 1, "/f"), TaskLimit("RLIMIT_NPROC", 14, 1, 1, "/g")
    plan = plan_of(8, one, two)
    assert (plan.threads, plan.bound_by, plan.ceiling) == (3, "RLIMIT_NPROC", 3)
    assert [notice.message.split()[0] for notice in plan.notices] == ["RLIMIT_NPROC", "pids.max"]
    assert [room.threads for room in find_rooms(make_limits(tasks=(one, two)), 1)] == [3, 5]
