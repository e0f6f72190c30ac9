"""Real containers on cgroup v1: in each the package imports in silence, finds the right cores, limits threads, and
shares the cores or says why it does not.

Field cases: D05 (files that cannot be read), D10 (quota and cpuset together), D28 (what a runtime masks).
"""

from __future__ import annotations

import errno

import pytest

from tests.lab.cgroup1 import group, run_inside
from tests.lab.commands import NOBODY
from tests.lab.contained import FLAGS, INSIDE, NO_SLOTS, ONE, UNLIMITED, UNSEEN, Right, check
from tests.lab.containers import Container, gvisor, run_container, run_podman, without

OVERRIDE = {"CGROUP_THREADS_CORES": "1"}
OVERRIDDEN = UNSEEN._replace(usable=1, bound_by="override")
UNREADABLE = frozenset({"cgroup-unreadable"})
NO_SYS = without("/sys", "/sys/fs/cgroup")
SEALED = without("/dev", "/dev/shm")  # with a read-only root there is no place for a file

RUNC = {
    "quota 1": (Container(quota=1.0), ONE),
    "quota 1, own cgroup namespace": (Container(quota=1.0, shared=False), ONE),
    "quota 1, own user namespace": (Container(quota=1.0, mapped=True), ONE),
    "shares": (Container(shares=512), UNLIMITED),
    "unprivileged user": (Container(quota=1.0, user=NOBODY), ONE),
    "read-only, no HOME": (Container(quota=1.0, user=NOBODY, read_only=True), ONE),
    "read-only, no HOME, nowhere to write": (
        Container(quota=1.0, user=NOBODY, read_only=True, mounts=SEALED),
        NO_SLOTS,
    ),
    "mountinfo masked": (Container(quota=1.0, masked=("/proc/self/mountinfo",)), ONE._replace(codes=UNREADABLE)),
    "cgroup masked": (Container(quota=1.0, masked=("/proc/self/cgroup",)), UNSEEN._replace(codes=UNREADABLE)),
    "no /sys": (Container(quota=1.0, mounts=NO_SYS), UNSEEN),
    "no /sys, overridden": (Container(quota=1.0, mounts=NO_SYS, environ=OVERRIDE), OVERRIDDEN),
    "no /sys, a cpuset": (Container(cpus="0", mounts=NO_SYS), UNSEEN._replace(usable=1, bound_by="affinity")),
    "sched_getaffinity not permitted": (Container(quota=1.0, refused={"sched_getaffinity": errno.EPERM}), ONE),
    "sched_getaffinity unknown, a cpuset": (
        Container(cpus="0", refused={"sched_getaffinity": errno.ENOSYS}),
        Right(1, None, "unlimited", "cpuset"),
    ),
    "socket not permitted": (Container(quota=1.0, refused={"socket": errno.EPERM}), NO_SLOTS),
}


@pytest.mark.where("containers: runc")
@pytest.mark.parametrize("name", RUNC)
def test_runc(name: str) -> None:
    container, right = RUNC[name]
    check(run_container(INSIDE, container), right)


@pytest.mark.where("containers: podman")
@pytest.mark.parametrize("flags", FLAGS)
def test_podman(flags: str) -> None:
    check(run_podman(INSIDE, *flags.split()), FLAGS[flags])


@pytest.mark.where("containers: podman")
def test_podman_with_a_read_only_root() -> None:
    # Else podman would copy this machine's /tmp into memory.
    check(run_podman(INSIDE, "--cpus", "1", "--read-only", "--read-only-tmpfs=false"), ONE)


@pytest.mark.where("containers: gVisor")
@pytest.mark.parametrize("overridden", [False, True])
def test_gvisor_hides_a_real_quota(overridden: bool) -> None:
    """Inside of the sandbox no file tells of it; what the user says holds."""
    right = (OVERRIDDEN if overridden else UNSEEN)._replace(codes=frozenset({"cgroup-missing"}))
    variables = [f"{name}={value}" for name, value in OVERRIDE.items()] if overridden else []
    with group(quota=1.0) as name:
        check(run_inside(name, "plain", gvisor(["/usr/bin/env", *variables, *INSIDE])), right)


def test_proc_without_mountinfo() -> None:
    with group(quota=1.0) as name:
        check(run_inside(name, "no mountinfo", INSIDE), ONE._replace(codes=UNREADABLE))
