"""Slots under attack by processes of the same user, which may do all that we may: calls go on, in bounded time."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgroup_threads.governor.slot_wakes import MAX_WAKES, drain
from tests.lab.actors import OTHER, VICTIM, Actor, actor
from tests.lab.commands import run
from tests.lab.slots import become

LIMIT_S = 1.0
PATH = "core_budget().budget.slots.path"


@pytest.fixture(scope="module")
def parties() -> Iterator[tuple[Actor, Actor]]:
    """A victim, and an attacker of the same user."""
    uid = VICTIM if os.geteuid() == 0 else os.geteuid()
    with actor(uid, "victim") as one, actor(uid) as two:
        yield one, two


@pytest.fixture
def path(parties: tuple[Actor, Actor]) -> Iterator[Path]:
    """The file that the victim uses, in a directory of this test's."""
    victim, attacker = parties
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    directory.chmod(0o777)
    victim.ask(f"open_slots.__kwdefaults__.update(directory={str(directory)!r})")
    assert victim.ask("enter()")["scope"] == "container", "no cgroup is visible"
    found = Path(victim.ask(PATH))
    attacker.ask(f"P = {str(found)!r}; fd = os.open(P, os.O_RDWR)")
    yield found
    attacker.ask("os.close(fd)")
    victim.ask("ct.configure(scope='process', cores=2)")
    shutil.rmtree(directory)


def test_cores_held_for_ever(parties: tuple[Actor, Actor], path: Path) -> None:
    """The kernel cannot tell a hog from a long call: each call waits as long as it may, and runs with one thread."""
    victim, attacker = parties
    attacker.ask("lock(fd, 1, 0, 1024)")
    assert 0.05 <= victim.ask("again(1, 0.05)") < LIMIT_S
    assert victim.ask("again(1, 0)") < LIMIT_S
    assert victim.ask("again(3)") < LIMIT_S, "nobody's calls end: it does not wait for them"
    assert victim.ask("ct.statistics().overcommitted") >= 5
    assert "cores-held" in victim.ask("[notice.code for notice in process.notices]")
    attacker.ask("lock(fd, 2, 0, 1024)")
    before = victim.ask("ct.statistics().overcommitted")
    assert victim.ask("again(3)") < LIMIT_S
    assert victim.ask("ct.statistics().overcommitted") == before


@pytest.mark.parametrize("kind", ["ofd", "posix", "read"])
def test_everything_locked_for_ever(kind: str, parties: tuple[Actor, Actor], path: Path) -> None:
    """Newcomers go their own way at once, except that somebody who only reads is no obstacle to look."""
    victim, attacker = parties
    lock = {
        "ofd": "lock(fd, 1, 0, 0)",
        "posix": "fcntl.lockf(fd, fcntl.LOCK_EX, 0, 0)",
        "read": "lock(fd, 0, 0, 0)",
    }[kind]
    victim.ask("ct.configure(scope='process', cores=2)")
    assert not path.exists()
    attacker.ask("os.close(fd); fd = os.open(P, os.O_RDWR | os.O_CREAT, 0o600)")
    attacker.ask(lock)
    found = victim.ask("enter(0.1)")
    assert found["took"] < LIMIT_S
    if kind != "read":
        assert (found["scope"], found["threads"]) == ("process", 2)
        ((code, message, _),) = found["said"]
        assert code == "slots-unavailable"
        assert message.endswith("Resource temporarily unavailable")
    else:
        assert [code for code, *_ in found["said"]] == ["slots-full"], "all rows are locked"
    assert victim.ask("again(5, 0.05)") < LIMIT_S


def test_a_flock_is_no_obstacle(parties: tuple[Actor, Actor], path: Path) -> None:
    victim, attacker = parties
    attacker.ask("fcntl.flock(fd, fcntl.LOCK_EX)")
    found = victim.ask("enter()")
    assert (found["scope"], found["threads"], found["said"]) == ("container", 2, [])


def test_a_lease_on_the_file(parties: tuple[Actor, Actor], path: Path) -> None:
    """Whoever opens it waits up to 45 s for the one who has the lease, unless told not to."""
    victim, attacker = parties
    victim.ask("ct.configure(scope='process', cores=2)")
    attacker.ask("os.close(fd); fd = os.open(P, os.O_RDWR | os.O_CREAT, 0o600)")
    attacker.ask("signal.signal(signal.SIGIO, signal.SIG_IGN); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)")
    found = victim.ask("enter()")
    assert found["took"] < LIMIT_S
    assert found["scope"] == "process"
    assert found["said"][0][1].endswith("Resource temporarily unavailable")


CHURN = """
running = True
def churn():
    while running:
        try: ACT
        except OSError: pass
thread = threading.Thread(target=churn, daemon=True)
thread.start()
"""
ACTS = {
    "cut": "os.truncate(P, 0)",
    "grown": "os.truncate(P, random.choice((0, 1, 100, 1 << 40)))",
    "removed": "os.unlink(P)",
    "made again": "os.unlink(P); os.close(os.open(P, os.O_CREAT | os.O_WRONLY, 0o600))",
    "opened to all": "os.chmod(P, random.choice((0o600, 0o666, 0)))",
    "forged": "os.pwrite(fd, os.urandom(64) * 128, 0)",
}


@pytest.mark.parametrize("name", ACTS)
def test_a_file_that_is_changed_all_the_time(name: str, parties: tuple[Actor, Actor], path: Path) -> None:
    victim, attacker = parties
    descriptors = victim.ask("len(os.listdir('/proc/self/fd'))")
    attacker.ask(CHURN.replace("ACT", ACTS[name]))
    try:
        for _ in range(4):
            assert victim.ask("again(100, 0.1)") < LIMIT_S
            found = victim.ask("enter(0.1)")
            assert found["took"] < LIMIT_S
            assert all("\n" not in message for _, message, _ in found["said"])
    finally:
        attacker.ask("running = False; thread.join()")
    victim.ask("enter()")
    assert victim.ask("len(os.listdir('/proc/self/fd'))") <= descriptors + 8  # a few for budgets that were left


def test_a_file_that_is_always_removed(tmp_path: Path) -> None:
    """Slots that could never be entered are none: they would have no core to give."""
    script = """
import cgroup_threads.governor.slots as slots
slots.has_moved = lambda file: True
try: slots.open_slots("k", directory=sys.argv[1])
except slots.SlotsUnavailable as error: print(error.reason)
"""
    done = run([sys.executable, "-c", f"import sys\n{script}", str(tmp_path)])
    assert (done.stdout, done.stderr) == ("it is removed again and again\n", "")


def test_a_storm_of_wakes(parties: tuple[Actor, Actor], path: Path) -> None:
    """The names of abstract sockets are no secret, and any user can send to them."""
    victim, attacker = parties
    name = "next(line.split()[-1] for line in open('/proc/net/unix') if line.rstrip().endswith(TOKEN))"
    with actor(OTHER if os.geteuid() == 0 else os.geteuid()) as stranger:
        token = f"{victim.ask('core_budget().budget.slots._token'):016x}"
        stranger.ask(f"TOKEN = {token!r}")
        assert stranger.ask(name) == f"@cgroup_threads-{token}"
        stranger.ask(
            """
sent = 0
running = True
def storm():
    global sent
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)
    while running:
        try: sent += bool(sender.sendto(b"x" * 1000, b"\\0cgroup_threads-" + TOKEN.encode()))
        except OSError: pass
thread = threading.Thread(target=storm, daemon=True)
thread.start()
"""
        )
        become(lambda: stranger.ask("sent") > 0, "nothing arrives")
        for _ in range(5):
            assert victim.ask("again(100)") < LIMIT_S
        attacker.ask("lock(fd, 1, 0, 1024)")
        assert 0.2 <= victim.ask("again(1, 0.2)") < LIMIT_S
        assert stranger.ask("sent") > 100
        attacker.ask("lock(fd, 2, 0, 1024)")


class Endless:
    """A socket that somebody fills faster than it is read."""

    def __init__(self) -> None:
        self.taken = 0

    def recv(self, size: int) -> bytes:
        self.taken += 1
        assert self.taken < 1_000_000, "it is read for ever"
        return bytes(size)


def test_a_storm_that_is_faster_than_we_are() -> None:
    storm = Endless()
    drain(storm)  # type: ignore[arg-type]
    assert storm.taken == MAX_WAKES


def test_a_socket_that_takes_no_wake(parties: tuple[Actor, Actor], path: Path) -> None:
    """A row names a socket that is full, or none at all: who wakes it does not wait."""
    victim, attacker = parties
    attacker.ask(
        """
full = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
full.bind(b"\\0cgroup_threads-%016x" % 1)
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.setblocking(False)
try:
    while True: sender.sendto(b"", b"\\0cgroup_threads-%016x" % 1)
except BlockingIOError: pass
"""
    )
    victim.ask(
        """
page = b"".join(pack_row(token, 0, 1, 0.001, time.monotonic(), 0) for token in (1, 2) * 64)
began = time.monotonic()
slots = core_budget().budget.slots
os.pwrite(slots._descriptor, page, 0)
for row in range(128): slots.wake(row)
took = time.monotonic() - began
"""
    )
    assert victim.ask("took") < LIMIT_S
    assert victim.ask("again(100, 0.1)") < LIMIT_S
    attacker.ask("full.close()")
