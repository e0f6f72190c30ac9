"""Slots in a hostile place: no locks, room, rights or directory there, or all descriptors closed, as daemons do."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cgroup_threads.governor.slots import SlotsUnavailable, open_slots
from tests.lab import require
from tests.lab.actors import VICTIM
from tests.lab.commands import clean_environ, run

LIMIT_S = 1.0
CLOSING = """
import os, socket, sys, time
import cgroup_threads as ct
import cgroup_threads.governor.slots as slots
from cgroup_threads.governor.core_budget import core_budget
slots.open_slots.__kwdefaults__["directory"] = sys.argv[1]
ct.configure(scope="container", cores=2)
for files_opened in (0, 100, 700):
    for fork in (False, True):
        with ct.limit_threads(): pass
        assert ct.statistics().scope == "container"
        if fork and os.fork():
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            continue
        os.closerange(3, 4096)
        files, pairs = [], []
        for number in range(files_opened):
            name = f"{sys.argv[1]}/user{number}"
            files.append(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            os.write(files[-1], b"precious")
            if number % 2:
                pairs.append(socket.socketpair())
                pairs[-1][0].send(b"mine")
        if files_opened > 500 and not fork:  # our numbers are reached: it looks after them every 100 ms
            core_budget().budget._tidied_s = 0.0
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            with ct.limit_threads(patience=0.1): pass
        assert ct.statistics().scope == "container"
        for file in files:
            assert os.pread(file, 99, 0) == b"precious"
            os.close(file)
        for one, two in pairs:
            assert two.recv(9) == b"mine"
            one.close(), two.close()
        with ct.limit_threads(): pass
        if fork:
            ct.configure(scope="process")
            os._exit(0)
print("done")
"""


def test_a_program_that_closes_all_descriptors(tmp_path: Path) -> None:
    """As daemons do: calls go on, and whatever has our numbers by then is neither written to, read nor closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    require(hard == resource.RLIM_INFINITY or hard >= 4096, "too few open files are allowed")
    script = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4096, {hard}))\n{CLOSING}"
    done = run([sys.executable, "-c", script, str(tmp_path)], clean_environ(CGROUP_THREADS_AUTO="0"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
/* As a network file system without a lock daemon; after AFTER calls, as one whose server is gone. */
static long calls;
int fcntl64(int fd, int command, ...) {
    static int (*real)(int, int, ...);
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if ((command == 36 || command == 37) && ++calls > AFTER) { errno = ENOLCK; return -1; }
    if (!real) real = dlsym(RTLD_NEXT, "fcntl64");
    return real(fd, command, argument);
}
"""


@pytest.mark.parametrize("after", [0, 8])
def test_a_file_system_without_locks(after: int, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    require(compiler, "there is no C compiler")
    assert compiler is not None
    source = tmp_path / "locks.c"
    source.write_text(
        NO_LOCKS.replace(
            "int fcntl(int fd, int command, void *argument)", "int unused_(int fd, int command, void *argument)"
        )
    )
    library = tmp_path / "locks.so"
    subprocess.run([compiler, "-shared", "-fPIC", f"-DAFTER={after}", "-o", library, source, "-ldl"], check=True)
    script = """
import sys, time
import cgroup_threads as ct
import cgroup_threads.governor.slots as slots
slots.open_slots.__kwdefaults__["directory"] = sys.argv[1]
ct.configure(scope="container", cores=2)
began = time.monotonic()
for _ in range(8):
    with ct.limit_threads(patience=0.05): pass
print(time.monotonic() - began < 3, ct.statistics().scope)
print([n.message.partition("slots': ")[2] for n in ct.report().notices if n.code == "slots-unavailable"])
"""
    done = run(
        [sys.executable, "-c", script, str(tmp_path)],
        clean_environ(CGROUP_THREADS_AUTO="0", LD_PRELOAD=str(library)),
    )
    scope, said = ("process", "['No locks available']") if after == 0 else ("container", "[]")
    assert (done.stdout, done.stderr) == (f"True {scope}\n{said}\n", "")


MOUNTS = {
    "read-only": ("mount -t tmpfs -o ro none /dev/shm", "slots-elsewhere"),
    "noexec": ("mount -t tmpfs -o noexec,nosuid,nodev none /dev/shm", ""),
    "without room": (
        "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/filler",
        "slots-without-hints",
    ),
    "without inodes": ("mount -t tmpfs -o nr_inodes=1 none /dev/shm", "slots-elsewhere"),
    "not to be entered": ("mount -t tmpfs -o mode=0 none /dev/shm", "slots-elsewhere"),
    "no directory": ("mount -t tmpfs none /dev", "slots-elsewhere"),
}


@pytest.mark.parametrize("name", MOUNTS)
def test_a_shared_memory_directory(name: str) -> None:
    mount, expected = MOUNTS[name]
    script = f"""
import time
began = time.monotonic()
with ct.limit_threads() as lease: pass
took = time.monotonic() - began
assert took < {LIMIT_S}, took
said = [[n.code, bool(n.fix), n.message.isprintable()] for n in ct.report().notices if n.code.startswith("slots")]
print(lease.threads, ct.statistics().scope, said)
"""
    start = """
import os, sys, tempfile
import cgroup_threads as ct
import cgroup_threads.governor.sharing, cgroup_threads.reporting.collect
ct.configure(cores=2, scope="process")
with ct.limit_threads(): pass
ct.report()
os.setgroups([]); os.setgid(UID); os.setuid(UID)
ct.configure(cores=2, scope="container")
""".replace("UID", str(VICTIM))
    shell = ["unshare", "--mount", "/bin/sh", "-c", f'{mount} && exec "$@"', "sh"]
    require(run([*shell[:4], "mount -t tmpfs none /dev/shm"]).returncode == 0, "no mount namespace can be made")
    done = run([*shell, sys.executable, "-c", start + script], clean_environ(CGROUP_THREADS_AUTO="0", TMPDIR="/tmp"))
    said = [[expected, True, True]] if expected else []
    assert (done.stdout, done.stderr) == (f"2 container {said}\n", "")


@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_file_that_may_not_be_changed(flag: str, tmp_path: Path) -> None:
    """Our own file, made immutable or append-only by root: it is left as it is."""
    path = tmp_path / "cgroup_threads-k.slots"
    path.touch(0o600)
    require(shutil.which("chattr"), "chattr is not installed")
    if run(["chattr", f"+{flag}", str(path)]).returncode:
        pytest.skip("this file system has no such flags, or this user may not set them")
    try:
        before = path.stat()
        with pytest.raises(SlotsUnavailable, match="Operation not permitted"):
            open_slots("k", directory=str(tmp_path))
        after = path.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    finally:
        run(["chattr", f"-{flag}", str(path)])
