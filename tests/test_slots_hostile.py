"""Slots where files are in the way, permissions deny, memory is full, and the file is removed or replaced in use."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cgroup_threads.governor.slot_rows import PAGE_SIZE
from cgroup_threads.governor.slots import Slots, SlotsUnavailable, open_slots
from tests.lab import require
from tests.lab.commands import NOBODY, clean_environ, hidden, run, run_python
from tests.lab.slots import IMPORTS, a_key, become, two_parties, workers

NAME = "cgroup_threads-k.slots"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Slots, Slots]]:
    with two_parties(tmp_path) as both:
        yield both


def make_symlink(path: Path) -> None:
    path.with_name("target").touch(0o600)
    path.symlink_to("target")


def make_dangling_symlink(path: Path) -> None:
    path.symlink_to("nowhere")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_hard_link(path: Path) -> None:
    path.touch(0o600)
    path.with_name("other").hardlink_to(path)


def make_readable(path: Path) -> None:
    path.touch()
    path.chmod(0o640)


def make_foreign(path: Path) -> None:
    require(os.geteuid() == 0, "only root can give files away")
    path.touch(0o600)
    os.chown(path, NOBODY, NOBODY)


REFUSED = [
    (make_symlink, "it is a symbolic link"),
    (make_dangling_symlink, "it is a symbolic link"),
    (lambda path: os.mkfifo(path, 0o600), "it is not a regular file"),
    (make_socket, "it is not a regular file"),
    (lambda path: path.mkdir(0o700), "it is not a regular file"),
    (make_hard_link, "it has another name, too"),
    (make_readable, "other users may use it (mode 640)"),
    (make_foreign, f"it belongs to user {NOBODY}"),
]


@pytest.mark.parametrize(
    ("make", "reason"),
    REFUSED,
    ids=["link", "dangling link", "FIFO", "socket", "directory", "hard link", "readable", "foreign"],
)
def test_what_is_not_ours_is_refused(make: object, reason: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    assert callable(make)
    make(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SlotsUnavailable) as caught:
        open_slots("k", directory=str(tmp_path))
    assert (caught.value.path, caught.value.reason) == (str(path), reason)
    assert isinstance(caught.value, OSError)
    assert reason in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_file_is_its_owners_alone(pair: tuple[Slots, Slots]) -> None:
    status = os.stat(pair[0].path)
    assert (status.st_mode & 0o777, status.st_size) == (0o600, PAGE_SIZE)
    assert pair[0].notices == ()


def test_another_directory(tmp_path: Path) -> None:
    done = run_python(
        IMPORTS
        + """
s = open_slots("k", directory="/nowhere")
print(s.path, [n.code for n in s.notices], s.hints, s.take(1, 4, 0))
""",
        TMPDIR=str(tmp_path),
    )
    assert done.stdout.split(maxsplit=1) == [f"{tmp_path}/{NAME}", "['slots-elsewhere'] True 1\n"]


def test_no_directory_at_all() -> None:
    script = """
tempfile.tempdir = "/nowhere/else"
try: open_slots("k", directory="/nowhere")
except SlotsUnavailable as error: print(error.path, error.reason)
"""
    done = run_python(IMPORTS + script)
    assert done.stdout == f"/nowhere/{NAME} No such file or directory\n"


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that a plain user may enter: pytest's own ones are root's alone."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_a_user_without_rights(open_path: Path) -> None:
    """Root's file in a shared directory is refused; a directory that may not be written is not the only one."""
    require(os.geteuid() == 0, "only root can become somebody else")
    for name in ("closed", "open"):
        (open_path / name).mkdir()
    (open_path / "open").chmod(0o1777)
    (open_path / "open" / NAME).touch(0o600)
    script = f"""
os.chdir({str(open_path)!r})
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
tempfile.tempdir = "open"
for key, directory in (("k", "open"), ("k", "closed"), ("new", "closed")):
    try:
        s = open_slots(key, directory=directory)
        print("|".join((s.path, s.notices[0].message)))
    except SlotsUnavailable as error: print(error)
"""
    said = run_python(IMPORTS + script).stdout.splitlines()
    assert said[0] == f"'open/{NAME}': it belongs to user 0"
    assert said[1] == f"'closed/{NAME}': Permission denied"
    path, message = said[2].split("|")
    assert path == "open/cgroup_threads-new.slots"
    assert message == f"no file can be made in 'closed' (Permission denied): slots are in {path!r}"


def test_a_full_file_system(tmp_path: Path) -> None:
    """Locks need no room. Hints come as soon as there is some."""
    script = """
from contextlib import closing
os.close(os.open("cgroup_threads-k.slots", os.O_CREAT | os.O_WRONLY, 0o600))
with open("filler", "wb", buffering=0) as filler:
    try:
        while True: filler.write(bytes(4096))
    except OSError as error: assert error.errno == errno.ENOSPC
with closing(open_slots("k", directory=".")) as one, closing(open_slots("k", directory=".")) as two:
    assert not one.hints
    assert [n.code for n in one.notices] == ["slots-without-hints"]
    assert one.take(3, 4, 0) == 7 and two.take(3, 4, 0) == 8 and two.take(1, 4, 0) == 0
    one.publish(1, 0, None, 1.0); one.wake(0); one.wake(1)
    assert two.look() == View() and not two.reap()
    one.give(2)
    assert two.take(3, 4, 0) == 2
    os.unlink("filler")
    assert not one.reap() and not two.reap()
    assert one.hints and not one.notices
    one.publish(1, 0, None, 1.0)
    assert two.look() == View(1, 5)
print("done")
"""
    shell = 'mount -t tmpfs -o size=64k none "$0" && cd "$0" && exec "$@"'
    unshare = ["unshare", "--mount", "/bin/sh", "-c", shell, str(tmp_path)]
    environ = clean_environ()
    require(run([*unshare, "true"], environ).returncode == 0, "no mount namespace can be made (root is needed)")
    done = run([*unshare, sys.executable, "-c", IMPORTS + script], environ)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
s = open_slots("k", directory={str(tmp_path)!r})
s.publish(1, 0, None, 1.0)
print(s.hints, s.take(2, 4, 0), s.reap(), s.look() == View())
"""
    assert run_python(IMPORTS + script).stdout == "False 3 False True\n"


def test_a_file_that_is_removed_or_replaced(pair: tuple[Slots, Slots], tmp_path: Path) -> None:
    one, two = pair
    assert not one.moved()
    one.take(2, 4, 0)
    Path(one.path).rename(tmp_path / "elsewhere")
    assert one.moved()
    Path(one.path).touch(0o600)
    assert one.moved()
    (tmp_path / "elsewhere").unlink()
    assert one.moved()
    assert two.take(4, 4, 0) == 0b1100  # they still exclude each other
    with closing(open_slots("k", directory=str(tmp_path))) as third:
        assert not third.moved()


def test_a_child_follows_its_parents_file(pair: tuple[Slots, Slots]) -> None:
    """Removed meanwhile, or no /proc to open it through: the parent's budget if that can be, else the new file's."""
    other = pair[1]
    directory, script = os.path.dirname(other.path), "[s.take(2, 4, 0), exec(CHILD, globals())][0], seen"
    child = """
reader, writer = os.pipe()
if os.fork() == 0:
    n = s.abandon_in_child()
    os.write(writer, json.dumps([n.take(4, 4, 0), n.moved()]).encode())
    os._exit(0)
os.wait()
seen = json.loads(os.read(reader, 99))
"""
    ask = script.replace("CHILD", repr(child))
    with workers(1, "k", directory) as (parent,):
        assert parent.ask(ask) == [0b11, [0b1100, False]]
        os.unlink(other.path)
        assert parent.ask(f"[s.give(15), {ask}]")[2] == [0b1100, True]
    prefix = hidden("/proc", [])
    with workers(1, "k", directory, prefix) as (parent,):
        assert parent.ask("os.listdir('/proc')") == []
        assert parent.ask(ask) == [0b11, [0b1100, False]]


@pytest.mark.parametrize("namespace", ["pid", "net"])
def test_other_namespaces(namespace: str) -> None:
    """Cores are excluded and freed across pid namespaces; wakes do not cross network namespaces, and do no harm."""
    prefix = ["unshare", "--pid", "--fork", "--kill-child"] if namespace == "pid" else ["unshare", "--net"]
    require(run([*prefix, "true"]).returncode == 0, f"no {namespace} namespace can be made (root is needed)")
    with a_key() as key, closing(open_slots(key)) as slots, workers(1, key, prefix=prefix) as (worker,):
        assert (worker.pid == 1) is (namespace == "pid")
        assert slots.take(1, 4, 0) == 0b0001
        slots.publish(1, 0, None, 1.0)
        assert worker.ask("s.look()") == [1, 1, None, None, 0, 0]
        assert worker.ask("s.take(4, 4, 0)") == 0b1110
        slots.wake(1)
        assert worker.ask(f"[heard({0 if namespace == 'net' else 10}), s.wake(0)]") == [namespace == "pid", None]
        worker.ask("s.publish(1, 0, None, 1.0)")
        assert not slots.reap()
        assert slots.take(1, 4, 0) == 0
        worker.kill()
        become(lambda: slots.take(4, 4, 0) | slots.held == 0b1111, "the cores were not freed")
        assert slots.reap()


def test_too_many_open_files(tmp_path: Path) -> None:
    """None left for the file, and one left for it but none for the socket."""
    script = f"""
import resource
before = sorted(os.listdir("/proc/self/fd"))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(3, 5):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try: open_slots("k", directory={str(tmp_path)!r})
    except SlotsUnavailable as error: print(error.reason)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
assert sorted(os.listdir("/proc/self/fd")) == before
"""
    assert run_python(IMPORTS + script).stdout == "Too many open files\n" * 2
