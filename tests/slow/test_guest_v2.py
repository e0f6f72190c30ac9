"""cgroup v2 for real: one boot of a guest with 8 CPUs, and what is right in each of its groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.lab import require
from tests.lab.guest import Boot, boot

DEADLINE_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.where("guest: cgroup v2, 8 CPUs"), pytest.mark.timeout(DEADLINE_S + 120)]

ALL = list(range(8))
MOUNT = "/sys/fs/cgroup"
POD = f"{MOUNT}/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1\\x2d2.slice"


class Right(NamedTuple):
    """The right answers in a group. ``extra`` is 1 where a quota's fraction runs one more call; ``levels`` are the
    quotas from the own group to the mount's root."""

    case: str
    usable: int
    bound_by: str
    levels: tuple[float | None, ...]
    extra: int = 0
    cpus: tuple[int, ...] | None = tuple(ALL)
    affinity: tuple[int, ...] = tuple(ALL)
    scope: str = "container"


NOTHING = (None,)
RIGHT = (
    Right("root group", 8, "host", NOTHING, scope="process"),
    Right("no controllers", 8, "host", (None, None), scope="process"),
    Right("quota 0.5", 1, "quota", (0.5, None)),
    Right("quota 1.5", 1, "quota", (1.5, None), extra=1),
    Right("quota 4", 4, "quota", (4.0, None)),
    Right("limit of the parent", 3, "quota", (None, 3.0, None)),
    Right("limit of the grandparent", 3, "quota", (None, None, 3.0, None)),
    Right("parent smaller than child", 2, "quota", (6.0, 2.0, None)),
    Right("cpuset", 2, "cpuset", (None, None), cpus=(1, 2), affinity=(1, 2)),
    Right("cpuset of the parent", 3, "cpuset", (None, None, None), cpus=(2, 3, 4), affinity=(2, 3, 4)),
    Right("cpuset and quota", 2, "quota", (2.0, None), cpus=(0, 1, 2, 3), affinity=(0, 1, 2, 3)),
    Right("mask and quota", 3, "affinity", (6.0, None), affinity=(1, 3, 5), scope="process"),
    Right("private namespace", 3, "quota", (3.0,)),
    # The parent's 2 cores are in no file that a process in the namespace can read.
    Right("private namespace hides the parent", 6, "quota", (6.0,)),
    Right("limit at the namespace's root", 3, "quota", (None, 3.0)),
    Right("limit at the mount's root", 3, "quota", (None, 3.0)),
    Right("Docker's bind", 2, "quota", (2.5,), extra=1),
    Right("slices", 3, "quota", (5.0, 3.0, 6.0, None, None)),
    Right("service", 2, "quota", (2.0, None, None)),
    Right("not delegated, parent limited", 2, "quota", (None, 2.0, None)),
    Right("not delegated, no limit", 8, "host", (None, None, None), scope="process"),
    Right("not delegated, private", 8, "host", NOTHING, cpus=None, scope="process"),
)


@pytest.fixture(scope="session")
def guest() -> Boot:
    return boot(8, "guest_v2.py", deadline=DEADLINE_S)


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.case.replace(" ", "-"))
def test_group(guest: Boot, right: Right) -> None:
    check(guest.answer(right.case), right)


def check(found: dict[str, Any], right: Right) -> None:
    """Detection, plan, pools under limits, leases of two processes, and the report."""
    limits = found["limits"]
    quota = min((level for level in right.levels if level is not None), default=None)
    status = "unlimited" if quota is None else "limited"
    assert [level[2] for level in limits["levels"]] == [*right.levels]
    assert [limits[name] for name in ("quota", "status", "bound_by", "usable")] == [
        *(quota, status),
        *(right.bound_by, right.usable),
    ]
    assert limits["cpuset"] == (None if right.cpus is None else [*right.cpus])
    assert (limits["affinity"], limits["notices"]) == ([*right.affinity], [])

    cores = right.usable
    plan = found["plan"]
    assert (plan["threads"], plan["usable"], plan["bound_by"]) == (cores, cores, right.bound_by)
    assert plan["binds"] is (right.bound_by == "quota")
    assert (plan["omp"], plan["variable"]) == (str(cores), str(cores))
    # OpenBLAS and an OpenMP team: as started, in a lease of all, in one of a single thread, and afterwards.
    assert found["counts"] == [[cores, cores], [cores, cores, cores], [1, 1, 1], [cores, cores]]

    assert (found["scope"], found["cores"], found["first"]) == (right.scope, cores + right.extra, cores)
    if right.scope == "container":
        # The second has what is left, or waits until the first is done; never is more leased than there is.
        assert found["second"] == right.extra
        assert 1 <= found["then"] <= (right.extra or cores)  # two calls were in flight a moment ago
        for worst, overcommitted, _ in found["contended"]:
            assert worst <= cores + right.extra
            assert overcommitted == 0

    report = found["report"]
    assert report["status"] == 0
    assert (report["usable"], report["bound_by"], report["limits"]) == (cores, right.bound_by, [quota, status])
    assert (report["threads"], report["scope"], report["problems"]) == (cores, right.scope, [])


def test_paths_of_slices_are_taken_as_they_are(guest: Boot) -> None:
    """systemd writes ``\\x2d`` for a dash, and the kernel shows it so: it is no escape of /proc/self/cgroup."""
    paths = [level[0] for level in guest.answer("slices")["limits"]["levels"]]
    assert paths[:2] == [f"{POD}/cri-containerd-abc.scope", POD]


def test_two_processes_did_lease_at_the_same_time(guest: Boot) -> None:
    """Without that, "never more than there is" would be no proof."""
    shared = [right.case for right in RIGHT if right.scope == "container" and right.usable + right.extra > 1]
    assert any(met for case in shared for _, _, met in guest.answer(case)["contended"])


def test_numpy(guest: Boot) -> None:
    """The library's default on 8 CPUs is 8 threads, whatever the quota."""
    found = guest.answer("numpy")
    assert found["ours"] == [200.0**3, [1], 1]
    assert found["block"] == [1, [1]]
    assert found["default"] == [[8], 8]


def test_a_resize_is_followed_under_load(guest: Boot) -> None:
    """Up and down, below one core and to no limit at all: lease, OpenBLAS and OpenMP team."""
    *seen, end = guest.answer("resized")
    assert seen == [[threads] * 3 for threads in (4, 1, 2, 6, 8, 1)]
    assert end == [0, 0, 0]


def test_a_resize_leaves_open_leases_alone(guest: Boot) -> None:
    found = guest.answer("resized in flight")
    assert (found["lease"], found["shrunk"]) == (4, [2, 2, [1, 4, 0]])
    assert found["waits"] == 0  # there are two cores now, and four are still in use
    assert 1 <= found["after"] <= 2
    assert (found["grown"], found["rest"]) == (6, 6 - found["after"])


def test_a_partition_takes_cpus_away(guest: Boot) -> None:
    left = ALL[:6]
    assert guest.answer("partitioned") == [[ALL, ALL, 8, "host"], [left, left, 6, "cpuset"], [ALL, ALL, 8, "host"]]


def test_a_process_that_is_moved(guest: Boot) -> None:
    """Into a group it sees: its quota holds. Out of its namespace: no quota can be read, and the last one is kept."""
    found = guest.answer("moved")
    before, after = [2.0, "limited", [], 2], [4.0, "limited", [], 4]
    assert found["seen"][:-1] == [before, 2, None, after, 4, [1, 4, 0], None]
    unknown = [None, "unknown", ["cgroup-outside-namespace"], 2]
    assert found["private"][:-1] == [before, 2, None, unknown, 2, [1, 2, 0], None]
    assert "cgroup-outside-namespace" in found["private"][-1]


def test_cpus_that_are_offline_at_the_start(guest: Boot) -> None:
    found = guest.answer("unplugged before")
    left = (0, 1, 2, 4, 6, 7)
    for case, quota, scope in (("free", None, "process"), ("quota", 7.0, "container")):
        check(found[case], Right(case, 6, "host", (quota, None), cpus=left, affinity=left, scope=scope))
        assert found[case]["limits"]["host"] == 6
    # All CPUs of its cpuset are offline: the kernel lets the group use its parent's.
    assert [found["alone"][name] for name in ("cpuset", "affinity", "usable")] == [[*left], [*left], 6]


def test_cpus_that_go_and_come_back(guest: Boot) -> None:
    """Two processes share a quota of 7 of 8 CPUs, of which two go while the first has a lease of all seven."""
    found = guest.answer("unplugged while running")
    assert found["before"] == [ALL, 8, 7, "quota", 7]
    left = [[0, 1, 2, 4, 6, 7], 6, 6, "host"]
    assert found["during"] == [left, left]
    assert 1 <= found["second"] <= 6
    assert found["limited"][1:3] == [[6, 6, 6], [1, 1, 1]]
    back = [ALL, 8, 7, "quota"]
    assert found["after"] == [back, back, 7, None]
    assert found["codes"] == []


CONTAINERS = {
    "runc": Right("runc", 1, "quota", (1.5,)),
    "crun": Right("crun", 2, "quota", (2.5, None, None), cpus=(4, 5, 6, 7)),
    "podman": Right("podman", 3, "quota", (3.0,), cpus=(0, 1, 2, 3, 4, 5)),
}


@pytest.mark.parametrize("runtime", CONTAINERS)
def test_container(guest: Boot, runtime: str) -> None:
    """runc and podman's crun with a cgroup namespace, crun without."""
    require(guest.answer("runtimes")[runtime], f"{runtime} is not installed")
    found, right = guest.answer(runtime), CONTAINERS[runtime]
    quota = right.levels[0]
    limits, cores = found["limits"], right.usable
    assert [level[2] for level in limits["levels"]] == [*right.levels]
    assert (limits["quota"], limits["status"], limits["bound_by"], limits["usable"]) == (
        *(quota, "limited"),
        *("quota", cores),
    )
    assert limits["cpuset"] == limits["affinity"] == [*(right.cpus or ALL)]
    assert found["planned"]["threads"] == cores
    assert found["limited"] == [[cores, cores], [cores, cores, cores], [1, 1, 1], [cores, cores]]
    assert (found["reported"]["usable"], found["reported"]["scope"]) == (cores, "container")
    assert found["reported"]["problems"] == []
