"""The driver of the guest with 8 CPUs: the shapes that cgroup v2 takes in containers and under systemd."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .guest_facts import facts
    from .guest_inside import CGROUP, CPUS, Driver, Worker, group, mount, set_quota, unshare, until, workers
    from .guest_runtimes import in_crun, in_podman, in_runc
else:  # a script of its own in the guest, where pytest would take its time
    from guest_facts import facts
    from guest_inside import CGROUP, CPUS, Driver, Worker, group, mount, set_quota, unshare, until, workers
    from guest_runtimes import in_crun, in_podman, in_runc

Enter = Callable[[], None]

# ``seen`` is what the latest call had: its lease, OpenBLAS's count, and the members of a real OpenMP team.
LOAD = """
seen, stop = [None], threading.Event()
def load():
    while not stop.is_set():
        with ct.limit_threads() as lease: seen[0] = [lease.threads, *counts()]
load_pools()
loaded = threading.Thread(target=load, daemon=True)
loaded.start()
"""


def private() -> None:
    """A cgroup namespace: the own group is the root of what is mounted."""
    unshare(groups=True)


def docker(directory: Path) -> Enter:
    """Only the own group is mounted, but the namespace is the host's: paths name the whole way there."""

    def enter() -> None:
        unshare()
        mount(str(directory), str(CGROUP), bind=True)

    return enter


@contextmanager
def private_above(parent: Path) -> Iterator[tuple[Path, Enter]]:
    """A namespace that was made in the group above, as in a container that has groups of its own."""
    child = parent / "inner"
    child.mkdir()
    # Whoever is in a group hinders it from giving controllers: the one that makes the namespace leaves it first.
    with workers(1, parent, private, prelude="") as (maker,):
        maker("(CGROUP / 'inner' / 'cgroup.procs').write_text('0')")
        (parent / "cgroup.subtree_control").write_text("+cpu +cpuset")
        yield child, lambda: unshare(groups=True, of=maker.pid)


def resized() -> list[Any]:
    """Under load: what a call gets after each resize."""
    directory = group("resize", cpu_max=4)
    found = []
    with workers(1, directory, environ={"CGROUP_THREADS_MAX_CORES": "6"}) as (worker,):
        worker(LOAD)
        for quota, threads in ((4, 4), (0.5, 1), (2, 2), (6, 6), (None, 8), (1.5, 1)):
            set_quota(directory, quota)
            until(lambda threads=threads: (worker("seen[0]") or [0])[0] == threads)  # type: ignore[misc]
            found.append(worker("seen[0]"))
        worker("[stop.set(), loaded.join()]")
        found.append(worker("now()"))
    return found


def resized_in_flight() -> dict[str, Any]:
    """A lease that is open keeps what it has; what is given next is bounded by the new quota."""
    directory = group("flight", cpu_max=4)
    found: dict[str, Any] = {}
    with workers(2, directory) as (first, second):
        found["lease"] = first("enter()")
        set_quota(directory, 2)
        found["shrunk"] = [first("ct.refresh().cores"), second("ct.refresh().cores"), first("now()")]
        second("thread = wait()")
        until(lambda: second("now()")[2] == 1)
        found["waits"] = second("thread.threads")
        first("leave()")
        found["after"] = until(lambda: second("thread.threads"))
        set_quota(directory, 6)
        found["grown"] = first("ct.refresh().cores")
        found["rest"] = first("enter(6, 0)")
        second("thread.left.set()")
        first("leave()")
        until(lambda: second("now()") == [0, 0, 0])
    return found


def switch(cpus: Sequence[int], state: int) -> None:
    for cpu in cpus:
        (CPUS / f"cpu{cpu}" / "online").write_text(str(state))


def unplugged_before() -> dict[str, Any]:
    """CPUs that are offline as a process starts: without a limit, with a quota above what is left, in its cpuset."""
    alone = group("alone", cpuset_cpus="3")
    switch((3, 5), 0)
    try:
        found: dict[str, Any] = {"free": facts(group("free")), "quota": facts(group("seven", cpu_max=7))}
        with workers(1, alone) as (worker,):
            found["alone"] = worker("limits()")
        return found
    finally:
        switch((3, 5), 1)


def unplugged_while_running() -> dict[str, Any]:
    """CPUs go and come back under two processes that share a quota of all of them but one."""
    directory = group("unplugged", cpu_max=7)
    found: dict[str, Any] = {}
    look = "[limits()['affinity'], limits()['host'], ct.refresh().cores, ct.statistics().bound_by]"
    try:
        with workers(2, directory) as (first, second):
            first("load_pools()")
            found["before"] = [*first(look), first("enter()")]
            switch((3, 5), 0)
            found["during"] = [first(look), second(look)]
            second("thread = wait()")
            until(lambda: second("now()")[2] == 1)
            first("leave()")
            found["second"] = until(lambda: second("thread.threads"))
            second("thread.left.set()")
            until(lambda: second("now()") == [0, 0, 0])
            found["limited"] = first("limited()")
            switch((3, 5), 1)
            found["after"] = [first(look), second(look), first("enter()"), first("leave()")]
            found["codes"] = first("codes()")
    finally:
        with suppress(OSError):
            switch((3, 5), 1)
    return found


def partitioned() -> list[Any]:
    """Another group gets CPUs of its own alone, and gives them back."""
    found = []
    with workers(1, group("left")) as (worker,):
        look = "[limits()['cpuset'], limits()['affinity'], ct.refresh().cores, ct.statistics().bound_by]"
        found.append(worker(look))
        partition = group("partition", cpuset_cpus="6-7")  # no other group names those
        for state in ("root", "member"):
            (partition / "cpuset.cpus.partition").write_text(state)
            found.append(worker(look))
    return found


def moved() -> dict[str, Any]:
    """A running process is put into another group: one it can see, and one outside its namespace."""
    here, there = group("here", cpu_max=2), group("there", cpu_max=4)
    found = {}
    look = "[limits()['quota'], limits()['status'], limits()['notices'], ct.refresh().cores]"
    for name, enter in (("seen", None), ("private", private)):
        with workers(1, here, enter) as (worker,):
            found[name] = [worker(look), worker("enter()"), worker("leave()")]
            (there / "cgroup.procs").write_text(str(worker.pid))
            found[name] += [worker(look), worker("enter()"), worker("now()"), worker("leave()"), worker("codes()")]
    return found


def numpy_itself() -> dict[str, Any]:
    """numpy, imported and computing, with and without the package."""
    directory = group("numpy", cpu_max=1.5)
    compute = "import numpy; ones = numpy.ones((200, 200)); done = float((ones @ ones).sum())"
    count = "[c['num_threads'] for c in __import__('threadpoolctl').threadpool_info()]"
    with workers(1, directory) as (ours,):
        ours(compute)
        found = {"ours": ours(f"[done, {count}, len(os.listdir('/proc/self/task'))]")}
        found["block"] = ours(f"[ct.limit_threads().__enter__().threads, {count}]")
    default = Worker(directory, prelude="")
    try:
        default("import numpy")
        found["default"] = default(f"[{count}, len(os.listdir('/proc/self/task'))]")
    finally:
        default.kill()
    return found


def nested(path: str, *quotas: float | None) -> Path:
    """Groups in each other with these quotas, outermost first; the innermost."""
    directory = CGROUP
    names = path.split("/")
    for depth, quota in enumerate(quotas, 1):
        directory = group("/".join(names[:depth]))
        if quota is not None:
            set_quota(directory, quota)
    return directory


def undelegated(name: str, quota: float | None) -> Path:
    """A group whose parent, with a quota, gave it no cpu controller."""
    parent = group(name)
    if quota is not None:
        set_quota(parent, quota)
    child = parent / "child"
    child.mkdir(exist_ok=True)
    return child


def plain(name: str) -> Path:
    """A group as it is before any controller was given."""
    directory = CGROUP / name
    directory.mkdir()
    return directory


SLICES = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1\\x2d2.slice/cri-containerd-abc.scope"
CASES: dict[str, Callable[[], object]] = {
    "root group": lambda: facts(None),  # these two come before any controller is given to a group
    "no controllers": lambda: facts(plain("plain")),
    "quota 0.5": lambda: facts(group("half", cpu_max=0.5)),
    "quota 1.5": lambda: facts(group("onehalf", cpu_max=1.5)),
    "quota 4": lambda: facts(group("four", cpu_max=4)),
    "limit of the parent": lambda: facts(nested("n1/inner", 3, None)),
    "limit of the grandparent": lambda: facts(nested("n2/middle/inner", 3, None, None)),
    "parent smaller than child": lambda: facts(nested("n3/inner", 2, 6)),
    "cpuset": lambda: facts(group("set", cpuset_cpus="1-2")),
    "cpuset of the parent": lambda: facts(_inside_cpuset()),
    "cpuset and quota": lambda: facts(group("both", cpuset_cpus="0-3", cpu_max=2)),
    "private namespace": lambda: facts(group("private", cpu_max=3), private),
    "private namespace hides the parent": lambda: facts(nested("n4/inner", 2, 6), private),
    "limit at the namespace's root": lambda: _above(group("n5", cpu_max=3)),
    "limit at the mount's root": lambda: _bound(nested("n6/inner", 3, None), 1),
    "Docker's bind": lambda: _bound(group("docker", cpu_max=2.5), 0),
    "mask and quota": lambda: facts(group("mask", cpu_max=6), lambda: os.sched_setaffinity(0, {1, 3, 5})),
    "slices": lambda: facts(nested(SLICES, None, 6, 3, 5)),
    "service": lambda: facts(nested("system.slice/app@1.service", None, 2)),
    "not delegated, parent limited": lambda: facts(undelegated("u1", 2)),
    "not delegated, no limit": lambda: facts(undelegated("u2", None)),
    "not delegated, private": lambda: facts(undelegated("u3", None), private),
    "numpy": numpy_itself,
    "resized": resized,
    "resized in flight": resized_in_flight,
    "partitioned": partitioned,
    "moved": moved,
    "unplugged before": unplugged_before,
    "unplugged while running": unplugged_while_running,
    "runtimes": lambda: {name: shutil.which(name) for name in ("runc", "crun", "podman")},
    "runc": in_runc,
    "crun": in_crun,
    "podman": in_podman,
}


def _inside_cpuset() -> Path:
    group("outer", cpuset_cpus="2-4")
    return group("outer/inner")


def _above(parent: Path) -> dict[str, Any]:
    with private_above(parent) as (directory, enter):
        return facts(directory, enter)


def _bound(directory: Path, levels: int) -> dict[str, Any]:
    """Seen through a bind mount of the group that is so many ``levels`` above."""
    return facts(directory, docker((directory, *directory.parents)[levels]))


if __name__ == "__main__":
    driver = Driver()
    for name, function in CASES.items():
        driver.case(name, function)
