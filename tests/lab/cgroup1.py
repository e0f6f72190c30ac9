"""Real cgroup v1 groups with a quota and a cpuset, seen as containers see them: needs root and writable hierarchies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from . import require
from .commands import ROOT, clean_environ
from .containers import PERIOD_US, Container, run_container

CPU, CPUSET = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuset")


class Layout(NamedTuple):
    """A group and how it is seen, with the cores that are right there on a machine of two or more CPUs."""

    title: str
    view: str
    usable: int
    quota: float | None = None
    cpus: str | None = None
    parent_quota: float | None = None


LAYOUTS = (
    Layout("quota 0.5", "plain", 1, quota=0.5),
    Layout("quota 1", "plain", 1, quota=1.0),
    Layout("quota 1.5", "plain", 1, quota=1.5),
    Layout("quota 2", "plain", 2, quota=2.0),
    Layout("parent's quota 1", "plain", 1, parent_quota=1.0),
    Layout("parent's quota 1, own 0.5", "plain", 1, quota=0.5, parent_quota=1.0),
    Layout("cpuset {0}", "plain", 1, cpus="0"),
    Layout("cpuset {0}, quota 1.5", "plain", 1, quota=1.5, cpus="0"),
    Layout("no limit", "plain", 2),
    Layout("quota 1, private namespace", "private namespace", 1, quota=1.0),
    Layout("cpuset {0}, private namespace", "private namespace", 1, cpus="0"),
    Layout("quota 0.5, Docker's bind", "docker bind", 1, quota=0.5),
    Layout("quota 1.5, Docker's bind", "docker bind", 1, quota=1.5),
    Layout("quota 1, runc container", "container", 1, quota=1.0),
    Layout("quota 1.5, cpuset 0-1, runc container", "container", 1, quota=1.5, cpus="0-1"),
    Layout("cpuset {0}, runc container", "container", 1, cpus="0"),
)

# What is left in /sys/fs/cgroup is what the program sees. $1 is the name of the group.
VIEWS = {
    "plain": 'shift; exec "$@"',
    "private namespace": """shift
exec unshare -C -m --propagation private sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup && cd /sys/fs/cgroup &&
mkdir cpu cpuset && mount -t cgroup -o ro,cpu cgroup cpu && mount -t cgroup -o ro,cpuset cgroup cpuset && cd / &&
exec "$@"' sh "$@" """,
    "docker bind": """export GROUP=$1; shift
exec unshare -m --propagation private sh -c 'B=$(mktemp -d) && mkdir $B/cpu $B/cpuset &&
mount --bind /sys/fs/cgroup/cpu/$GROUP $B/cpu && mount --bind /sys/fs/cgroup/cpuset/$GROUP $B/cpuset &&
mount -t tmpfs tmpfs /sys/fs/cgroup && cd /sys/fs/cgroup && mkdir cpu cpuset &&
mount --move $B/cpu cpu && mount --move $B/cpuset cpuset && rmdir $B/cpu $B/cpuset $B && cd / && exec "$@"' sh "$@" """,
    "no mountinfo": """shift
exec unshare -m --propagation private sh -c 'B=$(mktemp -d) && mount -t tmpfs tmpfs $B &&
mkdir $B/$$ && ln -s $$ $B/self &&
for f in cgroup maps stat status; do : > $B/$$/$f && mount --bind /proc/$$/$f $B/$$/$f || exit 96; done &&
for d in fd task; do mkdir $B/$$/$d && mount --bind /proc/$$/$d $B/$$/$d || exit 96; done &&
mount --move $B /proc && rmdir $B && exec "$@"' sh "$@" """,
    "covered": """shift
exec unshare -m --propagation private sh -c 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"' sh "$@" """,
}


@contextmanager
def group(quota: float | None = None, cpus: str | None = None, parent_quota: float | None = None) -> Iterator[str]:
    """Make a group in both hierarchies, below a parent of its own; yields its path below the mounts."""
    require(os.geteuid() == 0, "making a cgroup needs root")
    require(os.access(CPU / "cpu.cfs_quota_us", os.R_OK) or (CPU / "cpu.shares").exists(), "no cgroup v1 cpu hierarchy")
    parent = f"ct-test-{os.getpid()}"
    name = f"{parent}/inner"
    try:
        try:
            for path in (parent, name):
                (CPU / path).mkdir()
                (CPUSET / path).mkdir()
                (CPUSET / path / "cpuset.mems").write_text((CPUSET / path / ".." / "cpuset.mems").read_text())
                (CPUSET / path / "cpuset.cpus").write_text((CPUSET / path / ".." / "cpuset.cpus").read_text())
            for path, cores in ((parent, parent_quota), (name, quota)):
                if cores is not None:
                    (CPU / path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (CPU / path / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))
            if cpus is not None:
                (CPUSET / name / "cpuset.cpus").write_text(cpus)
        except OSError as error:
            require(False, f"cgroup v1 is not writable: {error}")
        yield name
    finally:
        for path in (name, parent):
            for hierarchy in (CPU, CPUSET):
                if (hierarchy / path).exists():
                    (hierarchy / path).rmdir()


def run_inside(name: str, view: str, command: Sequence[str]) -> str:
    """Run ``command`` in the group ``name`` with one of VIEWS; returns what it printed."""
    join = 'for h in cpu cpuset; do echo $$ > "/sys/fs/cgroup/$h/$1/cgroup.procs" || exit 97; done\n'
    done = subprocess.run(
        ["/bin/sh", "-c", join + VIEWS[view], "sh", name, *command],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    require("unshare" not in done.stderr, f"namespaces are not to be had: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(layout: Layout) -> dict[str, Any]:
    """What ``answers.py`` prints in ``layout``."""
    command = (sys.executable, str(ROOT / "tests" / "lab" / "answers.py"))
    if layout.view == "container":
        text = run_container(command, Container(quota=layout.quota, cpus=layout.cpus))
    else:
        with group(layout.quota, layout.cpus, layout.parent_quota) as name:
            text = run_inside(name, layout.view, command)
    answer: dict[str, Any] = json.loads(text)
    return answer
