"""What cannot be read, changes meanwhile, or lies behind namespaces: never a wrong number, always said."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cgroup_threads.reporting.inspecting import InspectError, access, following, inspect_process, reading
from tests.lab import cgroup1, require
from tests.lab.commands import NOBODY
from tests.lab.native import compiled
from tests.test_inspect_processes import HEALTHY, IDLE_SERVER, READY, has_code, python, running, watch_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

PR_SET_DUMPABLE = 4


def as_nobody(ask: Callable[[int], str], *, dumpable: bool) -> str:
    """What ``ask`` says, as a user without rights, of a process of the same user."""
    require(os.geteuid() == 0, "giving up rights needs root")
    result, answer = os.pipe()
    child = os.fork()
    if child:
        os.close(answer)
        with open(result, encoding="utf-8") as file:
            text = file.read()
        os.waitpid(child, 0)
        return text
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        ready, say = os.pipe()
        wait, end = os.pipe()
        target = os.fork()
        if target == 0:
            # A process that changed its user may not be read, even by its own user, until it says so.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(dumpable), 0, 0, 0)
            os.write(say, b"x")
            os.close(end)
            os.read(wait, 1)
            os._exit(0)
        os.read(ready, 1)
        os.write(answer, ask(target).encode())
        os.close(end)
    finally:
        os._exit(0)


def inspect_to_json(pid: int) -> str:
    try:
        return inspect_process(pid, seconds=0.1).to_json()
    except InspectError as error:
        return json.dumps(f"{error.reason}: {error}")


def test_an_own_process_is_read_without_privileges() -> None:
    found = json.loads(as_nobody(inspect_to_json, dumpable=True))
    assert found["verdict"]["code"] == "idle", found
    assert not [line for line in found["unread"] if "environ" in line or "maps" in line]
    assert found["variables"] == {
        name: value for name, value in found["variables"].items() if os.environ.get(name) == value
    }


def test_what_could_not_be_read_is_said() -> None:
    found = json.loads(as_nobody(inspect_to_json, dumpable=False))
    assert found["verdict"]["code"] == "idle", found
    unread = " ".join(found["unread"])
    assert "its variables" in unread
    assert "its libraries" in unread
    assert "its stacks" in unread


def test_a_choice_of_threads_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MAX_THREADS", 20)
    with running(python(IDLE_SERVER)) as process:
        sample = inspect_process(process.pid, seconds=0.2).sample
    assert sample.total == 101
    assert 5 <= len(sample.threads) <= 40
    assert process.pid in [thread.tid for thread in sample.threads]
    assert any("101 threads (a choice is followed)" in line for line in sample.unread)


SPINNING = f"""
import ctypes, sys, threading
spin = ctypes.CDLL(sys.argv[1]).spin
started = threading.Barrier(13)
def work():
    started.wait()
    spin()
for _ in range(12): threading.Thread(target=work, daemon=True).start()
started.wait()
{READY}threading.Event().wait()
"""


def test_runnable_threads_are_scaled_up_from_a_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = compiled("void spin(void) { for (volatile unsigned long n = 0;; n++); }", tmp_path / "spin.so")
    with running(["nice", "-n", "19", *python(SPINNING, library)], busy=True) as process:
        whole = watch_until(process.pid, lambda found: found.sample.runnable > 11, 0.3).sample
        monkeypatch.setattr(following, "MAX_THREADS", 6)
        part = inspect_process(process.pid, seconds=0.3).sample
    assert 11 < whole.runnable <= 13
    assert len(part.threads) < 13
    assert 11 < part.runnable <= 13


BUSY_BEFORE = f"""
import os, threading
there, back = os.pipe(), os.pipe()
def answer():
    for _ in range(20000): os.write(back[1], os.read(there[0], 1))
    threading.Event().wait()
threading.Thread(target=answer, daemon=True).start()
for _ in range(20000):
    os.write(there[1], b"x")
    os.read(back[0], 1)
{READY}threading.Event().wait()
"""


def test_only_switches_within_the_interval_count() -> None:
    with running(python(BUSY_BEFORE)) as process:
        sample = inspect_process(process.pid, seconds=0.5).sample
    assert sample.voluntary < 200
    assert sample.cpu < 0.5


def test_a_number_given_to_another_process_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    real = reading.check_process
    looks = iter((0, 1))
    monkeypatch.setattr(reading, "check_process", lambda pid: _aged(real(pid), next(looks)))
    with running(python(HEALTHY)) as process, pytest.raises(InspectError, match="given to another") as caught:
        inspect_process(process.pid, seconds=0.1)
    assert caught.value.reason == "gone"


def _aged(stat: following.TaskStat, by: int) -> following.TaskStat:
    return stat._replace(start=stat.start + by)


def test_stacks_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    real = access.read_bytes

    def deny(path: str, limit: int = access.SMALL) -> access.Content:
        return access.Content(b"", "Operation not permitted") if path.endswith("/syscall") else real(path, limit)

    monkeypatch.setattr(access, "read_bytes", deny)
    with running(python(IDLE_SERVER)) as process:
        found = watch_until(process.pid, has_code("idle"), 0.3)
    assert found.verdict.code == "idle", found
    assert found.to_dict()["owners"] == {"unknown": 100, "main": 1}
    assert any("told from names alone (Operation not permitted)" in line for line in found.sample.unread)


def test_descriptors_are_given_back() -> None:
    with running(python(HEALTHY)) as process:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            inspect_process(process.pid, seconds=0.01)
        assert len(os.listdir("/proc/self/fd")) == before


def test_two_watchers_at_once() -> None:
    codes: list[str] = []
    with running(python(HEALTHY)) as process:
        watchers = [
            threading.Thread(target=lambda: codes.append(inspect_process(process.pid, seconds=0.2).verdict.code))
            for _ in range(2)
        ]
        for watcher in watchers:
            watcher.start()
        for watcher in watchers:
            watcher.join()
    assert codes == ["idle", "idle"]


# Control groups and their namespaces.

LOOK = (
    "import sys; from cgroup_threads.reporting.inspecting import inspect_process;"
    "print(inspect_process(int(sys.argv[1]), seconds=0.1).to_json())"
)


def test_the_quota_of_a_process_in_a_namespace_of_its_own() -> None:
    require(os.geteuid() == 0, "namespaces need root")
    with cgroup1.group(quota=1.0) as name:
        join = 'for h in cpu cpuset; do echo $$ > "/sys/fs/cgroup/$h/$0/cgroup.procs" || exit 77; done; exec "$@"'
        with running(["/bin/sh", "-c", join, name, "unshare", "-C", *python(HEALTHY)]) as process:
            sample = inspect_process(process.pid, seconds=0.1).sample
    assert (sample.limits.quota, sample.limits.status, sample.usable) == (1.0, "limited", 1)


def test_limits_outside_of_our_own_namespace_are_unknown() -> None:
    """A side-car that sees its neighbour's processes, but not their control groups."""
    with running(python(HEALTHY)) as process, cgroup1.group(quota=1.0) as name:
        text = cgroup1.run_inside(name, "private namespace", [sys.executable, "-c", LOOK, str(process.pid)])
    found = json.loads(text)
    assert (found["status"], found["quota"]) == ("unknown", None)
    assert "as far as limits could be read" in found["verdict"]["line"]
    assert any(line.startswith("its quota (") and "/proc/self" not in line for line in found["unread"])


def test_a_private_proc_shows_no_foreign_process() -> None:
    require(os.geteuid() == 0, "namespaces need root")
    with running(python(HEALTHY)) as process:
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", LOOK, str(process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert f"there is no process {process.pid}" in done.stderr
