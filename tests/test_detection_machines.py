"""Topology, batch schedulers, other platforms and narrowed masks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cgroup_threads as ct
from cgroup_threads.detection import macos, windows
from cgroup_threads.detection.affinity import find_binding, read_affinity, restore_mask
from cgroup_threads.detection.probe import conclude, read_limits
from cgroup_threads.errors import InvalidArgumentError
from tests.lab import require, require_module
from tests.lab.commands import run_python
from tests.lab.trees import V2, lay

CPU = "/sys/devices/system/cpu"
FREE = V2 | {"/sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"}


def plan_threads(limits: ct.CpuLimits) -> int:
    return ct.plan(limits).threads


def test_siblings_are_counted_once_and_only_inside_the_mask(tmp_path: Path) -> None:
    """D27, M04: a cpuset of eight CPUs that are four cores."""
    root = lay(tmp_path, FREE)
    assert ct.detect(root, affinity=range(8)).physical_cores == 4
    assert ct.detect(root, affinity={0, 1, 4}).physical_cores == 2
    assert ct.detect(root, affinity={0, 4}).physical_cores == 1
    assert plan_threads(ct.detect(root, affinity=range(8))) == 4


def test_a_quota_is_never_halved_for_siblings(tmp_path: Path) -> None:
    root = lay(tmp_path, V2 | {"/sys/fs/cgroup/pod/box/cpu.max": "300000 100000\n"})
    assert plan_threads(ct.detect(root, affinity=range(8))) == 3


def test_smt_switched_off_saves_the_look(tmp_path: Path) -> None:
    root = lay(tmp_path, FREE | {f"{CPU}/smt/active": "0\n"})
    assert ct.detect(root, affinity=range(8)).physical_cores == 8


@pytest.mark.parametrize("kind", ["intel", "arm"])
def test_faster_and_slower_cores_are_a_hint(kind: str, tmp_path: Path) -> None:
    """M05"""
    slow = {"/sys/devices/cpu_core/cpus": "0-3\n", "/sys/devices/cpu_atom/cpus": "4-7\n"}
    if kind == "arm":
        slow = {f"{CPU}/cpu{n}/cpu_capacity": "1024\n" if n < 4 else "446\n" for n in range(8)}
    limits = ct.detect(lay(tmp_path, FREE | slow), affinity=range(8))
    assert limits.topology.performance_cpus == frozenset(range(4))
    assert "hybrid-cpu" in {notice.code for notice in limits.notices}
    assert not ct.detect(lay(tmp_path / "x", FREE | slow), affinity=range(4)).topology.performance_cpus


def test_offline_and_isolated_cpus(tmp_path: Path) -> None:
    files = FREE | {f"{CPU}/online": "0-5\n", f"{CPU}/offline": "6-7\n", f"{CPU}/isolated": "5\n"}
    limits = ct.detect(lay(tmp_path, files))
    assert limits.topology.offline == {6, 7}
    assert limits.host_cpus == 6
    assert limits.usable() <= 6  # D12: the mask of /proc/self/status names eight
    assert "isolated-cpus" in {notice.code for notice in limits.notices}


def test_masks_above_1024_cpus(tmp_path: Path) -> None:
    files = FREE | {
        f"{CPU}/online": "0-2047\n",
        f"{CPU}/smt/active": "0\n",
        "/sys/fs/cgroup/pod/box/cpuset.cpus.effective": "0-2047\n",
        "/proc/self/status": "Cpus_allowed_list:\t0-1499\n",
    }
    limits = ct.detect(lay(tmp_path, files))
    assert (len(limits.affinity), limits.usable(), limits.host_cpus) == (1500, 1500, 2048)


@pytest.mark.parametrize(
    ("environ", "cores"),
    [
        ({"SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "8"}, 3),
        ({"SLURM_CPUS_ON_NODE": "5", "SLURM_JOB_NUM_NODES": "1"}, 5),
        ({"SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_CPUS_ON_NODE": "8", "SLURM_JOB_NUM_NODES": "3"}, 2),
        ({"PBS_NUM_PPN": "4"}, 4),
        ({"NCPUS": "4"}, 4),
        ({"NSLOTS": "6"}, 6),
        ({"LSB_DJOB_NUMPROC": "2"}, 2),
        ({"PJM_VNODE_CORE": "7"}, 7),
        ({"CPU_LIMIT": "1.6"}, 1),
        ({"CPU_LIMIT": "500m"}, 1),  # S09
        ({"NSLOTS": "99"}, 8),
        ({"NSLOTS": "junk"}, 8),
        ({"SLURM_CPUS_PER_TASK": "0"}, 8),
    ],
)
def test_batch_schedulers(environ: dict[str, str], cores: int, tmp_path: Path) -> None:
    limits = read_limits(str(lay(tmp_path, FREE)), range(8), environ)
    assert limits.usable() == cores
    assert (limits.bound_by == "scheduler") == (cores < 8)
    assert bool(limits.notices) == (environ.get("NSLOTS") == "junk" or "0" in environ.values())


def test_macos_counts_performance_cores() -> None:
    told = {"hw.logicalcpu": 10, "hw.physicalcpu": 10, "hw.perflevel0.logicalcpu": 6, "hw.perflevel0.physicalcpu": 6}
    limits = conclude(macos.observe(told.get))
    assert (limits.usable(), limits.physical_cores, limits.status) == (10, 6, "unlimited")
    assert plan_threads(limits) == 6
    assert conclude(macos.observe(lambda name: None, lambda: 3)).usable() == 3


@pytest.mark.parametrize(
    ("mask", "rate", "count", "usable", "status"),
    [
        (0b1111, (0, 0), 8, 4, "unlimited"),
        (0b1111, (0x5, 2500), 8, 2, "limited"),  # a hard cap of 25 % of 8
        (0b1111, (0x11, 5000 << 16 | 100), 4, 2, "limited"),  # at most 50 %
        (0b1111, (0x3, 5), 8, 4, "unlimited"),  # a weight is no limit
        (0, (0, 0), 96, 96, "unlimited"),  # D25: several processor groups
        (None, None, 4, 4, "unknown"),
    ],
)
def test_windows_mask_and_job(
    mask: int | None, rate: tuple[int, int] | None, count: int, usable: int, status: str
) -> None:
    limits = conclude(windows.observe(windows.Calls(lambda: mask, lambda: rate, lambda: count)))
    assert (limits.usable(), limits.status) == (usable, status)


def test_an_unknown_platform_says_that_limits_are_not_read() -> None:
    limits = read_limits(platform="sunos5")
    assert limits.usable() >= 1
    assert "platform-limits-unread" in {notice.code for notice in limits.notices}


def test_no_cgroup_is_listed_or_mounted(tmp_path: Path) -> None:
    """gVisor: the limit is outside of the sandbox, if there is one."""
    mounts = "13 10 0:12 / /proc rw  - proc none rw,dentry_cache_limit=1000\n"
    root = lay(tmp_path, {"/proc/self/cgroup": "", "/proc/self/mountinfo": mounts})
    limits = ct.detect(root, affinity=4)
    assert (limits.status, limits.usable()) == ("unknown", 4)
    assert [(notice.code, bool(notice.fix)) for notice in limits.notices] == [("cgroup-missing", True)]
    assert read_limits(str(root), 4, {}, override=2.5).usable() == 2


def test_no_cgroup_at_all(tmp_path: Path) -> None:
    """A kernel without them: no file tells a limit, an override must work."""
    mounts = "22 1 0:21 / /proc rw - proc proc rw\n"
    root = lay(tmp_path, {"/proc/self/status": "Cpus_allowed_list:\t0-3\n", "/proc/self/mountinfo": mounts})
    limits = ct.detect(root, affinity=4)
    assert (limits.status, limits.usable()) == ("unlimited", 4)
    assert read_limits(str(root), 4, {}, override=2.5).usable() == 2
    assert read_limits(str(root), 4, {}, override=16).bound_by == "override"


def test_the_mask_before_an_openmp_runtime_narrowed_it() -> None:
    """D21"""
    assert find_binding({"OMP_PROC_BIND": "true"}) == "OMP_PROC_BIND"
    assert find_binding({"OMP_PROC_BIND": "false", "GOMP_CPU_AFFINITY": "0-3"}) is None
    one = frozenset({0})
    restored = restore_mask(one, 4, "OMP_PROC_BIND", frozenset(range(4)), None)
    assert (restored.cpus, restored.source) == (frozenset(range(4)), "other threads")
    restored = restore_mask(one, None, "KMP_AFFINITY", one, frozenset(range(6)))
    assert (len(restored.cpus), restored.source) == (6, "cpuset")
    assert restore_mask(one, None, "OMP_PLACES", one, None).cpus == one


@pytest.mark.parametrize("first", ["cgroup_threads", "torch"])
def test_a_real_runtime_that_narrows_the_mask(first: str) -> None:
    """D21: whichever comes first."""
    require_module("torch")
    require(len(os.sched_getaffinity(0)) >= 2, "one CPU: nothing can be narrowed")
    second = "torch" if first == "cgroup_threads" else "cgroup_threads"
    script = f"""
import os
before = len(os.sched_getaffinity(0))
import {first}
import {second}
torch = __import__("torch"); torch.ones(9).sum()
print(len(os.sched_getaffinity(0)), before, __import__("cgroup_threads").usable_cores(), before)
"""
    narrowed, _, usable, before = map(int, run_python(script, OMP_PROC_BIND="true").stdout.split())
    assert narrowed < before  # libgomp did narrow it
    assert usable == before


def test_a_narrow_mask_without_a_binding_counts() -> None:
    if hasattr(os, "sched_getaffinity"):
        found = read_affinity(frozenset(range(4096)), {}, None)
        assert found is not None
        assert found.cpus == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    "arguments", [{"root": 3}, {"root": ""}, {"affinity": 0}, {"affinity": "0-3"}, {"affinity": [-1]}]
)
def test_wrong_arguments(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        ct.detect(**arguments)  # type: ignore[arg-type]  # the point of the test
