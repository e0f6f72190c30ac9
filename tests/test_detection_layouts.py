"""Where our groups are and which of their files count: variants of each rule beside the collected vectors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import cgroup_threads as ct
from cgroup_threads.detection.cgroup import read_cgroups
from cgroup_threads.detection.procfs import Files
from tests.lab.trees import V1, lay

ROOT = "22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n21 22 0:20 / /sys rw - sysfs sysfs rw\n"
UNIFIED = f"{ROOT}25 21 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
HYBRID = (
    f"{ROOT}30 21 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n"
    "32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup c rw,xattr,name=systemd\n"
    "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup c rw,seclabel,cpuacct,cpu\n"
    "34 30 0:30 / /sys/fs/cgroup/cpuset rw - cgroup c rw,cpuset\n"
)
G, C, U = "/sys/fs/cgroup", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"


class Case(NamedTuple):
    name: str
    lines: str
    mounts: str
    files: dict[str, str]
    quota: float | None
    status: str


def mount2(root: str, point: str = G, number: int = 25, parent: int = 21) -> str:
    return f"{number} {parent} 0:22 {root} {point} rw - cgroup2 cgroup2 rw\n"


def v1(directory: str, quota: str, period: str = "100000") -> dict[str, str]:
    return {f"{directory}/cpu.cfs_quota_us": f"{quota}\n", f"{directory}/cpu.cfs_period_us": f"{period}\n"}


CASES = [
    # D01: the group of a systemd unit, far below the mount point
    Case("below-mount-point", "0::/user.slice/app.scope\n", UNIFIED,
         {f"{G}/user.slice/app.scope/cpu.max": "200000 100000\n"}, 2.0, "limited"),
    # D06: the host's cgroup namespace; counters at the true root are the host's
    Case("host-namespace", "0::/kubepods.slice/pod1.slice/cri-1.scope\n", UNIFIED,
         {f"{G}/kubepods.slice/pod1.slice/cri-1.scope/cpu.max": "150000 100000\n", f"{G}/cpu.stat": "nr_throttled 9\n"},
         1.5, "limited"),
    # D26: WSL2 is plain Linux, with no cpu.max anywhere
    Case("no-cpu-max-anywhere", "0::/init.scope\n", UNIFIED, {f"{G}/cgroup.controllers": "cpu\n"}, None, "unlimited"),
    # D08: only a group above our namespace is mounted
    Case("ancestor-limits", "0::/\n", ROOT + mount2("/../../.."), {f"{G}/cpu.max": "300000 100000\n"}, 3.0, "limited"),
    Case("ancestor-unlimited", "0::/\n", ROOT + mount2("/.."), {f"{G}/cpu.max": "max 100000\n"}, None, "unknown"),
    Case("ancestor-true-root", "0::/x\n", ROOT + mount2("/.."), {f"{G}/x/cpu.max": "100000 100000\n"}, None, "unknown"),
    Case("sibling-mounted", "0::/\n", ROOT + mount2("/../b"), {f"{G}/cpu.max": "100000 100000\n"}, None, "unknown"),
    Case("outside-namespace", "0::/../../x\n", ROOT + mount2("/../.."), {f"{G}/x/cpu.max": "1 1\n"}, None, "unknown"),
    Case("outside-namespace-v1", "4:cpu:/../x\n", HYBRID, v1(C, "100000"), None, "unknown"),
    Case("two-dots-in-a-name", "0::/a..b/...\n", UNIFIED, {f"{G}/a..b/.../cpu.max": "100000 100000"}, 1.0, "limited"),
    Case("ancestor-beside-own", "0::/\n", ROOT + mount2("/") + mount2("/..", "/host", 26),
         {f"{G}/cpu.max": "400000 100000", "/host/cpu.max": "200000 100000"}, 2.0, "limited"),
    # A mount shows a part of the hierarchy
    Case("bind-of-a-parent", "0::/pod/box/job\n", ROOT + mount2("/pod"),
         {f"{G}/box/job/cpu.max": "max 100000", f"{G}/box/cpu.max": "250000 100000", f"{G}/cpu.max": "max"},
         2.5, "limited"),
    Case("bind-of-a-child", "0::/pod\n", ROOT + mount2("/pod/box"), {f"{G}/cpu.max": "1 1"}, None, "unknown"),
    Case("bind-of-own", "4:cpu,cpuacct:/docker/a\n", HYBRID.replace("0:29 / ", "0:29 /docker/a "), v1(C, "50000"),
         0.5, "limited"),
    Case("docker-in-docker", "4:cpu,cpuacct:/docker/a/docker/b\n", HYBRID.replace("0:29 / ", "0:29 /docker/a "),
         {**v1(f"{C}/docker/b", "-1"), **v1(f"{C}/docker", "-1"), **v1(C, "150000")}, 1.5, "limited"),
    Case("wider-view-elsewhere", "0::/pod/box\n", ROOT + mount2("/pod/box") + mount2("/", "/host/cgroup", 26),
         {f"{G}/cpu.max": "400000 100000", "/host/cgroup/pod/box/cpu.max": "400000 100000",
          "/host/cgroup/pod/cpu.max": "300000 100000"}, 3.0, "limited"),
    Case("same-view-twice", "0::/a\n", ROOT + mount2("/", "/cg", 24) + mount2("/"),
         {f"{G}/a/cpu.max": "200000 100000", "/cg/a/cpu.max": "100000 100000"}, 2.0, "limited"),
    Case("group-was-removed", "0::/a/b (deleted)\n", UNIFIED, {f"{G}/cpu.max": "100000 100000"}, 1.0, "limited"),
    # A mount under another one
    Case("covered-alone", "0::/a\n", f"{UNIFIED}26 25 0:9 / {G} rw - tmpfs t rw\n", {f"{G}/x": ""}, None, "unknown"),
    Case("covered-by-its-parent-directory", "0::/a\n", f"{UNIFIED}26 21 0:9 / /sys/fs rw - tmpfs t rw\n", {},
         None, "unknown"),
    Case("covered-then-mounted-anew", "0::/\n", UNIFIED + mount2("/../..", G, 27, 25),
         {f"{G}/cpu.max": "200000 100000"}, 2.0, "limited"),
    # Hybrid: the hierarchy that has the controller
    Case("v1-line-wins", "4:cpuacct,cpu:/a\n0::/a\n", HYBRID,
         {**v1(f"{C}/a", "150000"), f"{U}/a/cpu.max": "100000 100000"}, 1.5, "limited"),
    Case("v1-line-not-mounted", "4:cpu:/a\n0::/a\n", UNIFIED, {f"{G}/a/cpu.max": "100000 100000"}, None, "unknown"),
    Case("systemd-line-only", "1:name=systemd:/a\n0::/a\n", HYBRID, {f"{U}/a/cpu.max": "100000 100000"},
         1.0, "limited"),
    Case("named-like-a-controller", "2:name=cpu:/a\n0::/b\n", HYBRID, {f"{U}/b/cpu.max": "100000 100000"},
         1.0, "limited"),
    Case("cpuacct-is-not-cpu", "5:cpuacct:/a\n0::/b\n", HYBRID, {f"{U}/b/cpu.max": "200000 100000"}, 2.0, "limited"),
    Case("cpuset-is-not-cpu", "3:cpuset:/a\n0::/b\n", HYBRID, {f"{U}/b/cpu.max": "200000 100000"}, 2.0, "limited"),
    Case("v1-line-malformed", "4:cpu,cpuacct\n0::/a\n", HYBRID, {**v1(C, "100000"), f"{U}/a/x": ""}, None, "unknown"),
    Case("v1-line-lost-beside-v2", "0::/a\n", HYBRID, {**v1(C, "100000"), f"{U}/a/x": ""}, None, "unknown"),
    Case("line-malformed-beside-v2", "junk\n0::/a\n", UNIFIED, {f"{G}/a/cpu.max": "max 100000"}, None, "unknown"),
    Case("v1-line-beside-malformed", "junk\n4:cpu:/a\n", HYBRID, v1(f"{C}/a", "-1"), None, "unlimited"),
    Case("v1-no-cpu-hierarchy", "3:memory:/a\n", f"{ROOT}30 21 0:9 / {G}/memory rw - cgroup c rw,memory\n", {},
         None, "unlimited"),
    Case("v1-line-lost", "3:memory:/a\n", HYBRID, v1(f"{C}/a", "100000"), None, "unknown"),
    Case("no-lines-no-mounts", "", ROOT, {}, None, "unknown"),  # gVisor
    Case("no-lines-but-mounts", "", UNIFIED, {f"{G}/cpu.max": "100000 100000"}, None, "unknown"),
    # Text of the two tables
    Case("colons", "4:cpu,cpuacct:/a:b:c\n", HYBRID, v1(f"{C}/a:b:c", "100000"), 1.0, "limited"),
    Case("escapes-in-mountinfo", "0::/my app/w\n", ROOT + mount2("/my\\040app", "/cg\\040x\\134y"),
         {"/cg x\\y/w/cpu.max": "100000 100000"}, 1.0, "limited"),
    Case("escaped-backslash-is-decoded-once", "0::/a\\040b\n", ROOT + mount2("/a\\134040b"),
         {f"{G}/cpu.max": "100000 100000"}, 1.0, "limited"),
    Case("no-escapes-in-membership", "0::/a\\040b\n", UNIFIED, {f"{G}/a\\040b/cpu.max": "100000 100000",
         f"{G}/a b/cpu.max": "900000 100000"}, 1.0, "limited"),
    Case("non-ascii", "0::/größe\n", UNIFIED, {f"{G}/größe/cpu.max": "100000 100000"}, 1.0, "limited"),
    Case("component-not-prefix", "4:cpu:/docker/ab\n", HYBRID.replace("0:29 / ", "0:29 /docker/a "), v1(C, "100000"),
         None, "unknown"),
    Case("junk-lines", "junk\n0::/a\n7\n:::\n", "junk\n\n - cgroup2\n1 2 3\n" + UNIFIED,
         {f"{G}/a/cpu.max": "100000 100000"}, 1.0, "limited"),
    Case("type-not-source", "0::/\n", f"{ROOT}25 21 0:9 / /x rw - tmpfs cgroup2 rw\n" + mount2("/"),
         {f"{G}/cpu.max": "100000 100000", "/x/cpu.max": "1 1"}, 1.0, "limited"),
    Case("line-ends-of-windows", "0::/a\r\n", UNIFIED.replace("\n", "\r\n"), {f"{G}/a/cpu.max": "100000 100000\r\n"},
         1.0, "limited"),
    # Which level binds
    Case("ratio-not-quota", "0::/a/b\n", UNIFIED,
         {f"{G}/a/b/cpu.max": "20000 10000", f"{G}/a/cpu.max": "100000 100000"}, 1.0, "limited"),
    Case("missing-own-unlimited-parent", "0::/a/b\n", UNIFIED, {f"{G}/a/cpu.max": "max 100000"}, None, "unlimited"),
    Case("junk-own-limited-parent", "0::/a/b\n", UNIFIED,
         {f"{G}/a/b/cpu.max": "junk", f"{G}/a/cpu.max": "300000 100000"}, 3.0, "limited"),
    Case("threaded", "0::/a/t\n", UNIFIED, {f"{G}/a/t/cgroup.type": "threaded\n", f"{G}/a/t/cpu.max": "max 100000\n",
         f"{G}/a/cgroup.type": "domain threaded\n", f"{G}/a/cpu.max": "100000 100000\n"}, 1.0, "limited"),
    Case("v1-own-unlimited-parent-limits", "4:cpu,cpuacct:/a/b\n", HYBRID,
         {**v1(f"{C}/a/b", "-1"), **v1(f"{C}/a", "30000", "10000"), **v1(C, "-1")}, 3.0, "limited"),
    Case("v1-weight-alone", "4:cpu,cpuacct:/a\n", HYBRID, {f"{C}/a/cpu.shares": "2\n"}, None, "unlimited"),
    Case("burst-and-weight", "0::/a\n", UNIFIED, {f"{G}/a/cpu.max": "max 100000", f"{G}/a/cpu.max.burst": "50000",
         f"{G}/a/cpu.weight": "1", f"{G}/a/cpu.idle": "1"}, None, "unlimited"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layout(case: Case, tmp_path: Path) -> None:
    tables = {"/proc/self/cgroup": case.lines, "/proc/self/mountinfo": case.mounts}
    limits = ct.detect(lay(tmp_path, {**tables, **case.files}), affinity=64)
    assert (limits.quota, limits.status) == (case.quota, case.status), (limits.levels, limits.notices)
    assert limits.usable() == (64 if case.quota is None else int(case.quota) or 1)
    if case.status == "unknown":
        assert all(notice.message for notice in limits.notices)
        assert any(notice.fix for notice in limits.notices), "no way out is named"


@pytest.mark.parametrize(
    ("quota", "period", "cores", "status"),
    [
        ("150000", "100000", 1.5, "limited"),
        ("150000\t\n", " 100000", 1.5, "limited"),
        ("-1", "100000", None, "unlimited"),
        ("-51114", "0", None, "unlimited"),
        ("-1", None, None, "unlimited"),
        ("150000", None, None, "unknown"),
        ("150000", "", None, "unknown"),
        ("150000", "0", None, "unknown"),
        ("150000", "-5", None, "unknown"),
        ("0", "100000", None, "unknown"),
        ("", "100000", None, "unknown"),
        ("150000 100000", "100000", None, "unknown"),
        ("1e5", "100000", None, "unknown"),
        ("--1", "100000", None, "unknown"),
    ],
)
def test_texts_of_v1(quota: str, period: str | None, cores: float | None, status: str, tmp_path: Path) -> None:
    files = {name: text for name, text in V1.items() if "cpu.cfs" not in name}
    files["/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us"] = quota
    if period is not None:
        files["/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us"] = period
    limits = ct.detect(lay(tmp_path, files), affinity=8)
    assert (limits.quota, limits.status) == (cores, status)
    assert (status == "unknown") == ("cgroup-malformed" in {notice.code for notice in limits.notices})


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({f"{G}/a/cpuset.cpus.effective": "0-3\n", f"{G}/cpuset.cpus.effective": "0-7\n"}, 4),
        ({f"{G}/a/cpuset.cpus.effective": "\n", f"{G}/cpuset.cpus.effective": "0-5\n"}, 6),  # D11: empty inherits
        ({f"{G}/a/cpuset.cpus": "\n", f"{G}/cpuset.cpus.effective": "2,4\n"}, 2),
        ({f"{G}/a/cpuset.cpus.effective": "junk\n", f"{G}/cpuset.cpus.effective": "0-1\n"}, 2),
        ({f"{G}/a/cpuset.cpus": "3\n"}, 1),
        ({}, None),
    ],
)
def test_the_cpuset_of_the_nearest_level_that_names_cpus(
    files: dict[str, str], cpus: int | None, tmp_path: Path
) -> None:
    tables = {"/proc/self/cgroup": "0::/a\n", "/proc/self/mountinfo": UNIFIED}
    limits = ct.detect(lay(tmp_path, {**tables, **files}), affinity=64)
    assert (None if limits.cpuset is None else len(limits.cpuset)) == cpus
    assert limits.usable() == (64 if cpus is None else cpus)


def test_a_missing_mount_table_leaves_the_usual_places(tmp_path: Path) -> None:
    """A limit found there counts; none found there proves nothing."""
    files = {"/proc/self/cgroup": "0::/a\n", f"{G}/a/cpu.max": "100000 100000\n"}
    assert ct.detect(lay(tmp_path / "limit", files), affinity=8).quota == 1.0
    files[f"{G}/a/cpu.max"] = "max 100000\n"
    assert ct.detect(lay(tmp_path / "none", files), affinity=8).status == "unknown"


class Counting(Files):
    """Notes which files are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.names: list[str] = []

    def read(self, path: str, limit: int = 4096):  # type: ignore[no-untyped-def]  # as the parent's
        self.names.append(path)
        return super().read(path, limit)


def test_the_mount_table_is_read_again_when_our_groups_may_be_elsewhere(tmp_path: Path) -> None:
    tables = {"/proc/self/cgroup": "0::/a\n", "/proc/self/mountinfo": UNIFIED}
    root = lay(tmp_path, {**tables, f"{G}/a/cpu.max": "100000 100000\n", f"{G}/b/cpu.max": "200000 100000\n"})

    def look(known: object) -> tuple[float | None, bool, object]:
        files = Counting(root)
        found = read_cgroups(files, known=known)  # type: ignore[arg-type]  # a placement, or None
        return found.quota, "/proc/self/mountinfo" in files.names, found.placement

    quota, asked, place = look(None)
    assert (quota, asked) == (1.0, True)
    lay(root, {f"{G}/a/cpu.max": "300000 100000\n"})
    quota, asked, place = look(place)
    assert (quota, asked) == (3.0, False)  # a resize is seen, and the table is spared
    lay(root, {"/proc/self/cgroup": "0::/b\n"})
    quota, asked, place = look(place)
    assert (quota, asked) == (2.0, True)  # moved to another group
    own = root / f"{G}/b".lstrip("/")
    own.rename(own.with_name("kept"))
    lay(root, {f"{G}/b/cpu.max": "400000 100000\n"})
    quota, asked, _ = look(place)
    assert (quota, asked) == (4.0, True)  # another directory lies at its path


def test_the_steps_of_a_job_meet_in_the_outermost_cpuset_with_their_cpus(tmp_path: Path) -> None:
    """Slurm gives each step a cpuset below the job's, often with all of its CPUs."""
    tree = V1 | {
        "/proc/self/cgroup": "4:cpu,cpuacct:/\n3:cpuset:/slurm/job_7/step_0\n",
        f"{G}/cpuset/cpuset.effective_cpus": "0-7\n",
        f"{G}/cpuset/slurm/cpuset.effective_cpus": "0-7\n",
        f"{G}/cpuset/slurm/job_7/cpuset.effective_cpus": "2-3\n",
        f"{G}/cpuset/slurm/job_7/step_0/cpuset.effective_cpus": "2-3\n",
    }
    lay(tmp_path, tree)
    found = read_cgroups(Files(str(tmp_path)))
    assert (found.cpuset, found.cpuset_directory) == (frozenset({2, 3}), f"{G}/cpuset/slurm/job_7")
