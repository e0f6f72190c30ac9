"""Real groups that are taken away, and processes that are moved to other groups, while calls hold cores and wait."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cgroup_threads.detection.placement import Chain, Place, Placement
from cgroup_threads.detection.procfs import Reading
from cgroup_threads.detection.records import CgroupLevel, CpuLimits, Topology
from cgroup_threads.governor.regrouping import new_key
from cgroup_threads.governor.slots import slot_key
from tests.lab import require
from tests.lab.cgroup1 import CPU, CPUSET, group
from tests.lab.commands import clean_environ, run
from tests.lab.containers import PERIOD_US
from tests.lab.shared_budget import Worker, slot_files, workers
from tests.lab.waiting import has_ended, wait_until

HIERARCHIES = (CPU, CPUSET)


def remove(name: str) -> None:
    """Remove a group as soon as the kernel has let its last process go."""

    def gone() -> bool:
        for hierarchy in HIERARCHIES:
            try:
                (hierarchy / name).rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # EBUSY
                return False
        return True

    wait_until(gone)


@contextmanager
def sibling(name: str, quota: float | None) -> Iterator[str]:
    """Another group beside ``name``."""
    other = f"{os.path.dirname(name)}/other"
    try:
        for hierarchy in HIERARCHIES:
            (hierarchy / other).mkdir()
        for file in ("cpuset.mems", "cpuset.cpus"):
            (CPUSET / other / file).write_text((CPUSET / other / ".." / file).read_text())
        if quota is not None:
            (CPU / other / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (CPU / other / "cpu.cfs_quota_us").write_text(str(round(quota * PERIOD_US)))
        yield other
    finally:
        remove(other)


def move(worker: Worker, name: str) -> None:
    for hierarchy in HIERARCHIES:
        (hierarchy / name / "cgroup.procs").write_text(str(worker.process.pid))


def slots_of(name: str, worker: Worker) -> bool:
    """Whether ``worker`` shares the slots of the group ``name``."""
    return os.path.basename(worker("core().slots.path")) in slot_files(name)


def test_processes_that_are_moved_share_the_new_groups_cores() -> None:
    """While one of them holds cores and the other waits; their first group is gone before they look."""
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    with group(quota=2.0) as name, sibling(name, 1.0) as new:
        with workers(name, 2) as (holder, waiter):
            assert holder("enter()") == 2
            waiter("thread = wait()")
            wait_until(lambda: waiter("now()") == [0, 0, 1])
            (left,) = slot_files(name)
            move(holder, new)
            move(waiter, new)
            remove(name)
            assert holder("ct.refresh().cores") == 1
            assert holder("now()") == [1, 2, 0], "open leases keep their cores"
            assert slots_of(new, holder)
            assert waiter("now()") == [0, 0, 1], "what the other one holds is not free in the first file"
            newcomer = Worker(new, {})
            try:
                newcomer("thread = wait()")
                wait_until(lambda: newcomer("now()") == [0, 0, 1])
                levels = holder("[(level.path, level.quota) for level in ct.report().evidence.limits.levels][0]")
                assert levels == [str(CPU / new), 1.0]
                assert f"{CPU / new}/cpu.cfs_quota_us" in holder("str(ct.report())")
                assert holder("ct.report().evidence.budget.cores") == 1
                assert waiter("ct.refresh().cores") == 1
                assert slots_of(new, waiter)
                assert newcomer("now()") == waiter("now()") == [0, 0, 1]
                holder("leave()")
                for worker in (waiter, newcomer):  # first come, first served
                    wait_until(lambda worker=worker: worker("now()") == [1, 1, 0])  # type: ignore[misc]
                    worker("thread.left.set()")
                    wait_until(lambda worker=worker: worker("now()") == [0, 0, 0])  # type: ignore[misc]
                assert not os.path.exists(f"/dev/shm/{left}")
                assert holder("enter()") == 1
                assert newcomer("core().slots.locked(2)") == 1
                everyone = (holder, waiter, newcomer)
                assert [worker("ct.statistics().overcommitted") for worker in everyone] == [0, 0, 0]
            finally:
                newcomer.close()
        assert slot_files(new) == set()


def test_one_that_is_moved_takes_no_cores_of_those_that_stay() -> None:
    """It keeps what its open leases hold there; what it leases from now on is the new group's."""
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    with group(quota=2.0) as name, sibling(name, 2.0) as new, workers(name, 2) as (moved, stays):
        assert moved("enter(1)") == 1
        assert stays("enter(1)") == 1
        stays("thread = wait()")
        wait_until(lambda: stays("now()") == [1, 1, 1])
        move(moved, new)
        moved("ct.refresh()")
        assert slots_of(new, moved)
        assert stays("now()") == [1, 1, 1]
        moved("leave()")
        wait_until(lambda: stays("now()") == [2, 2, 0])
        assert stays("inside[0]")[0] == 1
        moved("touch()")
        assert moved("enter()") == 2
        assert [moved("now()"), stays("now()")] == [[1, 2, 0], [2, 2, 0]]
        assert slots_of(name, stays)
        assert [worker("ct.statistics().overcommitted") for worker in (moved, stays)] == [0, 0]
        stays("[thread.left.set(), leave()]")


def test_one_that_is_moved_to_where_no_limit_is_leaves_the_group_alone() -> None:
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    with group(quota=1.0) as name, sibling(name, None) as new, workers(name, 2) as (moved, stays):
        assert moved("enter()") == 1
        move(moved, new)
        assert moved("ct.refresh().cores") >= 2
        moved("leave()")
        assert moved("enter()") >= 2
        assert stays("enter()") == 1
        assert moved("ct.report().evidence.limits.status") == "unlimited"
        assert [worker("ct.statistics().overcommitted") for worker in (moved, stays)] == [0, 0]


COVER = """
import ctypes
libc = ctypes.CDLL(None)
assert libc.mount(b"none", b"/sys/fs/cgroup", b"tmpfs", 0, None) == 0
"""


def test_one_that_cannot_see_its_group_any_more_stays_with_the_others() -> None:
    """Out of descriptors, or with another mount over the groups: that is no move."""
    prefix = ("unshare", "--mount", "--propagation", "private")
    with group(quota=1.0) as name, workers(name, 1, CGROUP_THREADS_CORES="2") as (other,):
        blind = Worker(name, {"CGROUP_THREADS_CORES": "2"}, prefix)
        try:
            assert blind("enter(1)") == 1
            blind("import resource; soft = resource.getrlimit(resource.RLIMIT_NOFILE)")
            blind("resource.setrlimit(resource.RLIMIT_NOFILE, (3, soft[1]))")
            blind("[core_budget().follow() for _ in range(2)]")
            blind("resource.setrlimit(resource.RLIMIT_NOFILE, soft)")
            assert slots_of(name, blind)
            blind(f"exec({COVER!r}, globals())")
            blind("[core_budget().follow() for _ in range(2)]")
            assert slots_of(name, blind)
            assert blind("now()") == [1, 1, 0]
            assert other("core().slots.locked(2)") == 1
            blind("leave()")
        finally:
            blind.close()


def test_a_change_of_limits_is_no_move() -> None:
    """The parent's quota is the smaller one now: who shared the own group's cores does so on."""
    with group(quota=2.0, parent_quota=2.0) as name, workers(name, 2) as (first, second):
        first("ct.statistics()")
        shared = second("core().slots.path")
        for quota in (1.0, 0.5):
            (CPU / name / "cpu.cfs_quota_us").write_text(str(round(quota * PERIOD_US)))
            assert first("ct.refresh().cores") == 1
            assert first("core().slots.path") == shared == second("core().slots.path")


def test_cores_in_a_removed_file_are_not_free_while_their_lease_is_open() -> None:
    """One has moved to the new file, the other not yet: it must not take what the first one holds."""
    with group(quota=1.0) as name, workers(name, 2, CGROUP_THREADS_CORES="6") as (first, second):
        assert first("enter(4)") == 4
        assert second("now()") == [0, 0, 0]
        (made,) = slot_files(name)
        os.unlink(f"/dev/shm/{made}")
        wait_until(lambda: first("touch()") is None and made in slot_files(name))
        assert second("core().slots.moved()") is True
        assert second("core().slots.locked(6)").bit_count() == 4
        first("leave()")
        assert second("core().slots.locked(6)") == 0
        wait_until(lambda: first("touch()") is None and first("[len(core()._left), core().slots.held]") == [0, 0])


LEFT = """
def child():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os.write(writer, b"x")
        signal.pause()
        os._exit(1)
    os.read(reader, 1)
    return pid
"""


def test_a_child_keeps_no_cores_in_a_file_that_was_left() -> None:
    with group(quota=1.0) as name, workers(name, 2, CGROUP_THREADS_CORES="6") as (parent, other):
        parent(f"exec({LEFT!r}, globals())")
        assert parent("enter(4)") == 4
        assert other("now()") == [0, 0, 0]
        (made,) = slot_files(name)
        os.unlink(f"/dev/shm/{made}")
        wait_until(lambda: parent("touch()") is None and made in slot_files(name))
        pid = parent("child()")
        assert other("core().slots.locked(6)").bit_count() == 4, "the child has not unlocked its parent's cores"
        try:
            parent.kill()
            assert not has_ended(pid)
            assert other("core().slots.locked(6)") == 0
        finally:
            os.kill(pid, signal.SIGKILL)


# In its own group, whose parent has a quota: before the ``number``th time that one of the group's files is opened or
# read, the process is moved to the parent and the group is removed.
VANISHING = """
import json, os, sys
from cgroup_threads.detection import detect
from cgroup_threads.state import process
parent, known = sys.argv[1], sys.argv[2] == "known"
HIERARCHIES = ("/sys/fs/cgroup/cpu/", "/sys/fs/cgroup/cpuset/")
own = parent + "/vanishing"
def join(name):
    for hierarchy in HIERARCHIES:
        with open(hierarchy + name + "/cgroup.procs", "w") as file: file.write(str(os.getpid()))
def make():
    for hierarchy in HIERARCHIES: os.mkdir(hierarchy + own)
    for name in ("cpuset.mems", "cpuset.cpus"):
        with open(HIERARCHIES[1] + parent + "/" + name) as file: text = file.read()
        with open(HIERARCHIES[1] + own + "/" + name, "w") as file: file.write(text)
    with open(HIERARCHIES[0] + own + "/cpu.cfs_quota_us", "w") as file: file.write("100000")
    join(own)
def vanish():
    join(parent)
    for hierarchy in HIERARCHIES: os.rmdir(hierarchy + own)
real_open, real_read = os.open, os.read
answers = []
number, reached = 0, True
while reached:
    number, reached, count = number + 1, False, 0
    process.observation = None
    make()
    if known: assert detect().quota == 1.0
    def place(path):
        global count, reached
        if "/vanishing/" in path:
            count += 1
            if count == number:
                reached = True
                vanish()
    def open_(path, flags, mode=0o777, **rest):
        place(os.fspath(path))
        return real_open(path, flags, mode, **rest)
    def read(descriptor, size):
        place(os.readlink(f"/proc/self/fd/{descriptor}"))
        return real_read(descriptor, size)
    os.open, os.read = open_, read
    try: now = detect()
    finally: os.open, os.read = real_open, real_read
    if not reached: vanish()
    then = detect()
    answers.append([now.quota, now.status, then.quota, then.status, [n.code for n in now.notices + then.notices]])
print(json.dumps(answers))
"""


def test_a_group_that_vanishes_while_it_is_read() -> None:
    """Whatever could not be read, the answer is one of the two that were right; the next one is right."""
    with group(parent_quota=2.0) as name:
        parent = os.path.dirname(name)
        join = 'for h in cpu cpuset; do echo $$ > "/sys/fs/cgroup/$h/$0/cgroup.procs" || exit 97; done; exec "$@"'
        for known in ("known", "new"):
            command = ["/bin/sh", "-c", join, parent, sys.executable, "-c", VANISHING, parent, known]
            done = run(command, clean_environ())
            assert done.returncode == 0, done.stderr
            answers = json.loads(done.stdout)
            assert len(answers) > 4, "before each opening and each reading"
            for now_quota, now_status, then_quota, then_status, notices in answers:
                assert (now_quota in (1.0, 2.0), now_status) == (True, "limited"), answers
                assert (then_quota, then_status, notices) == (2.0, "limited", []), answers
            assert answers[-1][0] == 1.0


def test_a_group_that_only_a_mount_above_shows_is_ours(tmp_path: Path) -> None:
    """Its limit may be the one that binds: who shares it is in no other group."""
    own, above, elsewhere = (tmp_path / name for name in ("own", "above", "elsewhere"))
    for directory in (own, above, elsewhere):
        directory.mkdir()
    place = Place(1, (Chain("/", (str(own),)),), (str(above),))
    placement = Placement(Reading("", ""), Reading("", ""), place, None, True, False)

    def limits(directory: Path) -> CpuLimits:
        level = CgroupLevel(1, str(directory), "", None, 2.0)
        return CpuLimits(2.0, "limited", frozenset(range(8)), "", None, 8, 2, "quota", Topology(8), (level,))

    key = slot_key(str(above))
    assert key is not None
    assert new_key(key, limits(above), placement) is None
    other = slot_key(str(elsewhere))
    assert other is not None
    assert new_key(other, limits(elsewhere), placement) is None  # there already
    assert new_key(other, limits(above), placement) == key
