"""No descriptors left, and a /dev/shm that is full or read-only: what is known stays known, and cores stay shared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.lab import require
from tests.lab.commands import clean_environ, inside, quota_group, run

# Duplicates of standard output until there are no more.
EXHAUST = """
import json, os, resource
import cgroup_threads as ct

def exhaust():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    while True:
        try: held.append(os.dup(1))
        except OSError: return held

def lease():
    with ct.limit_threads() as lease: return lease.threads

def in_child():
    pid = os.fork()
    if pid == 0: os._exit(100 + lease())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) - 100

def look():
    limits = ct.detect()
    report = ct.report()
    codes = [notice.code for notice in report.notices if "Too many open files" in notice.message]
    str(report)
    return [limits.quota, limits.status, limits.usable(), ct.plan().threads, ct.refresh().cores, lease(), codes]
"""
# One process holds the only core while another asks for it: ``overcommitted`` says that it knew.
SHARE = """
import json, subprocess, sys
import cgroup_threads as ct
again = '''
import cgroup_threads as ct
with ct.limit_threads(patience=0.2) as lease: print(lease.threads, ct.refresh().overcommitted)
'''
with ct.limit_threads() as lease:
    other = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True)
    codes = [notice.code for notice in ct.report().notices if notice.code.startswith("slots-")]
    print(json.dumps([lease.threads, ct.refresh().scope, other.stdout.split(), codes]))
"""


def run_json(command: Sequence[str], **environ: str) -> Any:
    done = run(command, clean_environ(**environ))
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def test_limits_do_not_vanish_with_the_last_descriptor() -> None:
    """A limit that could not be read again must not let the budget grow, here or in a forked child."""
    script = """
lease(); ct.report()
before = look()
held = exhaust()
lacking, child = look(), in_child()
for descriptor in held: os.close(descriptor)
print(json.dumps([before, lacking, child, look()]))
"""
    with quota_group(1.0) as group:
        before, lacking, child, after = run_json(inside(group, [sys.executable, "-c", EXHAUST + script]))
    assert before == after == [1.0, "limited", 1, 1, 1, 1, []]
    assert lacking[:-1] == before[:-1]
    assert lacking[-1] == ["cgroup-unreadable"]
    assert child == 1


def test_the_first_look_without_descriptors_says_so() -> None:
    script = """
from cgroup_threads.state import process
ct.detect()
exhaust()
process.observation = None
limits = ct.detect()
print(json.dumps([limits.status, limits.usable() >= 1, limits.notices[0].code]))
"""
    with quota_group(1.0) as group:
        found = run_json(inside(group, [sys.executable, "-c", EXHAUST + script]))
    assert found == ["unknown", True, "cgroup-unreadable"]


def mounted(shell: str, command: Sequence[str]) -> list[str]:
    """``command`` in a mount namespace in which ``shell`` was run."""
    unshare = shutil.which("unshare")
    require(unshare, "unshare is not installed")
    assert unshare is not None
    prefix = [unshare, "--mount", "/bin/sh", "-ec", f'{shell}\nexec "$@"', "sh"]
    done = run([*prefix, "true"])
    require(done.returncode == 0, f"no such mounts can be made (root is needed): {done.stderr.strip()}")
    return [*prefix, *command]


FULL = "mount -t tmpfs -o size=4k none /dev/shm; head -c 4096 /dev/zero > /dev/shm/filler"
NO_NAMES = "mount -t tmpfs -o nr_inodes=1 none /dev/shm"
READ_ONLY = "mount --bind /dev/shm /dev/shm; mount -o remount,bind,ro /dev/shm"
CASES = [
    ("true", True, []),
    (FULL, True, ["slots-without-hints"]),
    (NO_NAMES, True, ["slots-elsewhere"]),
    (READ_ONLY, True, ["slots-elsewhere"]),
    # No directory at all to meet in: each process has a budget of its own.
    (f"{READ_ONLY}; mount -t tmpfs -o ro none /tmp", False, ["slots-unavailable"]),
    (f"{NO_NAMES}; mount -t tmpfs -o nr_inodes=1 none /tmp", False, ["slots-unavailable"]),
]


@pytest.mark.parametrize(("shell", "shared", "codes"), CASES)
def test_dev_shm(shell: str, shared: bool, codes: list[str]) -> None:
    # A directory below which nothing else looks like a temporary one, so that /tmp is the only other.
    script = f"import tempfile; tempfile._candidate_tempdir_list = lambda: ['/tmp']\n{SHARE}"
    with quota_group(1.0) as group:
        command = mounted(shell, [sys.executable, "-c", script])
        threads, scope, other, found = run_json(inside(group, command), CGROUP_THREADS_SCOPE="container")
    assert (threads, scope) == (1, "container" if shared else "process")
    assert other == ["1", "1" if shared else "0"]
    assert found == codes


def test_a_full_dev_shm_neither_delays_nor_ends_the_import() -> None:
    done = run(mounted(FULL, [sys.executable, "-W", "error", "-c", "import cgroup_threads; print('on')"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


def test_no_descriptor_for_a_waiting_call() -> None:
    """Four threads share one core while there is no descriptor left: both get their turn, and nothing raises."""
    script = """
import threading
lease()
held = exhaust()
gate, seen = threading.Barrier(4), []
def work():
    gate.wait()
    for _ in range(50): seen.append(lease())
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(json.dumps([len(seen), max(seen), ct.refresh().leased]))
"""
    with quota_group(1.0) as group:
        command = inside(group, [sys.executable, "-c", EXHAUST + script])
        try:
            found = run_json(command)
        except subprocess.TimeoutExpired:
            pytest.fail("a call waits for ever")
    assert found == [200, 1, 0]
