"""Slots under attack by other users: nobody waits, nothing of somebody else's is touched, and the report tells.

Each victim is a real process that has given up root's rights, or has not; the attacker is one of another user.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import require
from tests.lab.actors import OTHER, VICTIM, Actor, actor, state
from tests.lab.slots import become

LIMIT_S = 1.0
"""Generous: the aim is 50 ms, and machines of CI are slow."""
PATH = "core_budget().budget.slots.path"


@pytest.fixture(scope="module", params=[VICTIM, 0], ids=["a user", "root"])
def victim(request: pytest.FixtureRequest) -> Iterator[Actor]:
    with actor(request.param, "victim") as found:
        yield found


@pytest.fixture(scope="module")
def attacker() -> Iterator[Actor]:
    with actor(OTHER) as found:
        yield found


@pytest.fixture
def path(victim: Actor) -> Iterator[Path]:
    """Where the victim's file will be: in a directory that all may write to, as /dev/shm, but of its own."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    directory.chmod(0o1777)
    victim.ask(f"open_slots.__kwdefaults__.update(directory={str(directory)!r})")
    assert victim.ask("enter()")["scope"] == "container", "no cgroup is visible"
    found = Path(victim.ask(PATH))
    victim.ask("ct.configure(scope='process', cores=2)")
    assert found.parent == directory
    assert not found.exists(), "the last one to leave takes the file along"
    yield found
    victim.ask("ct.configure(scope='process', cores=2)")
    shutil.rmtree(directory)


@pytest.fixture
def precious(victim: Actor) -> Iterator[Path]:
    """A file of the victim's that is none of ours, on the same file system."""
    descriptor, name = tempfile.mkstemp(dir="/dev/shm")
    os.write(descriptor, b"precious")
    os.close(descriptor)
    os.chown(name, victim.uid, victim.uid)
    yield Path(name)
    os.unlink(name)


FOREIGN = f"it belongs to user {OTHER}"
LINK = "it is a symbolic link"
ODD = "it is not a regular file"
MAKE = "fd = os.open(P, os.O_RDWR | os.O_CREAT, MODE); os.fchmod(fd, MODE)\n"
# What the attacker does, with P for the place of the victim's file and F for the precious one; and what is said of it.
PLANTS = {
    "an empty file": (MAKE.replace("MODE", "0o600"), FOREIGN),
    "a file all may write": (MAKE.replace("MODE", "0o666"), FOREIGN),
    "a file of mode 0": (MAKE.replace("MODE", "0"), FOREIGN),
    "a set-user-id file": (MAKE.replace("MODE", "0o6777"), FOREIGN),
    "noise": (MAKE.replace("MODE", "0o666") + "os.write(fd, os.urandom(1 << 16))", FOREIGN),
    "a sparse file of 1 TiB": (MAKE.replace("MODE", "0o666") + "os.ftruncate(fd, 1 << 40)", FOREIGN),
    "locks for ever": (MAKE.replace("MODE", "0o666") + "lock(fd, 1, 0, 0)", FOREIGN),
    "a flock for ever": (MAKE.replace("MODE", "0o666") + "fcntl.flock(fd, fcntl.LOCK_EX)", FOREIGN),
    # Whoever opens the file waits until the lease is given up, or 45 s.
    "a write lease": (
        MAKE.replace("MODE", "0o666")
        + "signal.signal(signal.SIGIO, signal.SIG_IGN); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)",
        FOREIGN,
    ),
    "a link to the victim's file": ("os.symlink(F, P)", LINK),
    "a link to /dev/zero": ("os.symlink('/dev/zero', P)", LINK),
    "a link to /dev/full": ("os.symlink('/dev/full', P)", LINK),
    "a dangling link": ("os.symlink(P + '-nowhere', P)", LINK),
    "a loop of links": ("os.symlink(P, P + '-b'); os.symlink(P + '-b', P)", LINK),
    "a FIFO": ("os.mkfifo(P, 0o666)", ODD),
    "a FIFO with a reader": ("os.mkfifo(P, 0o666); fd = os.open(P, os.O_RDONLY | os.O_NONBLOCK)", ODD),
    "a FIFO with a writer": ("os.mkfifo(P, 0o666); fd = os.open(P, os.O_RDWR); os.write(fd, bytes(9999))", ODD),
    "a directory": ("os.mkdir(P, 0o777)", ODD),
    "a socket": ("s = socket.socket(socket.AF_UNIX); s.bind(P); s.listen(0)", ODD),
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_another_user_put_there(name: str, victim: Actor, attacker: Actor, path: Path, precious: Path) -> None:
    """The first lease comes at once, in a budget of the process's own, and the report says why, with a way out."""
    attack, reason = PLANTS[name]
    attacker.ask(f"P, F = {str(path)!r}, {str(precious)!r}")
    attacker.ask(attack)
    planted, mine = path.lstat(), state(precious)
    found = victim.ask("enter()")
    assert found["took"] < LIMIT_S
    assert (found["threads"], found["scope"]) == (2, "process")
    ((code, message, fix),) = found["said"]
    assert code == "slots-unavailable"
    assert message.endswith(f"{str(path)!r}: {reason}")
    assert message.isprintable()
    assert fix.startswith("make /dev/shm writable and let its owner or root remove what stands there")
    assert victim.ask("again(50)") < LIMIT_S
    assert state(precious) == mine
    after = path.lstat()
    assert after[:9] == planted[:9], "size, mode, owner or time of change"
    assert victim.ask("'slots' in json.dumps([n.message for n in ct.report().notices])") is not None
    attacker.ask("'fd' in globals() and globals().pop('fd') and None")


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_hard_links(mode: int, victim: Actor, attacker: Actor, path: Path, precious: Path) -> None:
    """The kernel may refuse a link to another's file (protected_hardlinks); where it does not, we refuse the file."""
    precious.chmod(mode)
    try:
        attacker.ask(f"os.link({str(precious)!r}, {str(path)!r})")
    except AssertionError:
        pass
    if not path.exists():
        os.link(precious, path)  # as if it had not
    before = state(precious)
    found = victim.ask("enter()")
    assert found["took"] < LIMIT_S
    assert found["said"][0][1].endswith("it has another name, too" if mode == 0o600 else "(mode 644)")
    assert state(precious) == before


def test_a_device(victim: Actor, path: Path) -> None:
    """Opening one can act: /dev/ptmx would make a terminal, a watchdog would reset the machine later."""
    require(os.geteuid() == 0, "only root can make devices")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(5, 2))
    path.chmod(0o666)
    terminals = len(os.listdir("/dev/pts")) if os.path.isdir("/dev/pts") else 0
    found = victim.ask("enter()")
    assert found["took"] < LIMIT_S
    assert found["said"][0][1].endswith(ODD)
    assert terminals == (len(os.listdir("/dev/pts")) if os.path.isdir("/dev/pts") else 0)


def test_another_user_cannot_reach_what_is_the_victims(victim: Actor, attacker: Actor, path: Path) -> None:
    """Neither open, cut, link, rename nor remove it; and its leases go on."""
    assert victim.ask("enter()")["scope"] == "container"
    before = path.stat()
    attacker.ask(f"P = {str(path)!r}")
    attacker.ask(
        """
def tried(act):
    try: act()
    except OSError as error: return errno.errorcode[error.errno]
    return ""
"""
    )
    for act in ("os.open(P, os.O_RDONLY)", "os.open(P, os.O_WRONLY)", "os.truncate(P, 0)", "os.chmod(P, 0o666)"):
        assert attacker.ask(f"tried(lambda: {act})") in ("EACCES", "EPERM")
    for act in ("os.unlink(P)", "os.rename(P, P + '-b')", "os.replace('/dev/null', P)"):
        assert attacker.ask(f"tried(lambda: {act})") in ("EPERM", "EACCES", "EXDEV")
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mode) == (before.st_ino, before.st_size, before.st_mode)
    assert victim.ask("again(50)") < LIMIT_S


def test_a_directory_without_sticky_bit(victim: Actor, attacker: Actor, path: Path, precious: Path) -> None:
    """There another user can put anything in the place of the file in use: leases go on, and the report tells."""
    path.parent.chmod(0o777)
    assert victim.ask("enter()")["scope"] == "container"
    mine = state(precious)
    for plant in ("os.symlink(F, P)", "os.mkfifo(P, 0o666)", "os.mkdir(P)"):
        attacker.ask(f"P, F = {str(path)!r}, {str(precious)!r}")
        attacker.ask(f"os.rename(P, P + '-' + os.urandom(4).hex()); {plant}")
        victim.ask("process._notices.clear()")
        become(
            lambda: victim.ask("again(5)") < LIMIT_S and victim.ask("[n.code for n in process.notices]"),
            "it does not say that newcomers are apart",
        )
        assert victim.ask("[n.code for n in process.notices]") == ["slots-unavailable"]
        assert state(precious) == mine
    attacker.ask("os.rmdir(P)")
    become(lambda: victim.ask("again(5)") < LIMIT_S and path.is_file(), "it does not come back")


RACE = """
import itertools
def plant(turn):
    '''Another thing in P each time, by a rename: at no moment is there nothing for long.'''
    new = f"{P}-{turn}"
    kind = turn % 5
    if kind == 0: os.symlink(F, new)
    elif kind == 1: os.mkfifo(new, 0o666)
    elif kind == 2: os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o666))
    elif kind == 3:
        try: os.rename(P, new + "-gone")
        except OSError: pass
        return
    else:
        os.mkdir(new)
        try: os.unlink(P)
        except OSError: pass
    try: os.rename(new, P)
    except OSError:
        try: os.rmdir(P)
        except OSError: pass
running = True
def race():
    for turn in itertools.count():
        if not running: return
        plant(turn)
thread = threading.Thread(target=race, daemon=True)
thread.start()
"""


def test_a_race_for_the_name(victim: Actor, attacker: Actor, path: Path, precious: Path) -> None:
    path.parent.chmod(0o777)
    mine = state(precious)
    attacker.ask(f"P, F = {str(path)!r}, {str(precious)!r}")
    before = victim.ask("len(os.listdir('/proc/self/fd'))")
    attacker.ask(RACE)
    seen = [victim.ask(f"opened({path.name[15:-6]!r}, {str(path.parent)!r})") for _ in range(300)]
    attacker.ask("running = False; thread.join()")
    assert max(took for took, _ in seen) < LIMIT_S
    assert len({reason for _, reason in seen}) > 1, "there was no race"
    assert state(precious) == mine
    assert victim.ask("len(os.listdir('/proc/self/fd'))") == before


def test_a_race_for_the_directory(victim: Actor, attacker: Actor, path: Path, precious: Path) -> None:
    """The directory itself is swapped for a link to where the victim has a file of that name."""
    home = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        home.chmod(0o755)
        os.chown(home, victim.uid, victim.uid)
        other = home / path.name
        other.write_bytes(b"precious")
        os.chown(other, victim.uid, victim.uid)
        other.chmod(0o644)
        mine = state(other)
        shared = path.parent / "shared"
        attacker.ask(f"D, H = {str(shared)!r}, {str(home)!r}")
        attacker.ask(
            """
os.mkdir(D + "-real", 0o777)
running = True
def swap():
    while running:
        for target in (D + "-real", H):
            os.symlink(target, D + "-new")
            os.rename(D + "-new", D)
thread = threading.Thread(target=swap, daemon=True)
thread.start()
"""
        )
        become(shared.is_symlink, "no race")
        seen = [victim.ask(f"opened({path.name[15:-6]!r}, {str(shared)!r})") for _ in range(200)]
        attacker.ask("running = False; thread.join()")
        assert max(took for took, _ in seen) < LIMIT_S
        assert state(other) == mine
    finally:
        shutil.rmtree(home)
