"""Directories of profiles and metrics, and an environment, that somebody made hostile: nobody waits or raises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgroup_threads.profiles import location
from cgroup_threads.profiles.records import Identity
from tests.lab import require
from tests.lab.actors import OTHER, VICTIM, Actor, actor
from tests.lab.commands import clean_environ
from tests.test_exec_characters import READ

LIMIT_S = 1.0
IDENTITY = Identity("a model", "a library", "a CPU", 2, 1.5)
PROFILE = f"Profile({IDENTITY!r}, {{'threads': 1}}, 0.9, {{}}, 'today', '1')"
PREPARE = f"""
profile = {PROFILE}
def timed(act):
    began = time.monotonic()
    try: said = act()
    except ProfileError as error: said = error.reason
    except FileNotFoundError: said = "missing"
    return [time.monotonic() - began, said]
def metrics(directory):
    process._notices.clear()
    workers = Workers(directory)
    began = time.monotonic()
    total = workers.total()
    workers.end()
    return [time.monotonic() - began, total is None, [n.message for n in process.notices]]
"""


@pytest.fixture(scope="module")
def victim() -> Iterator[Actor]:
    with actor(VICTIM if os.geteuid() == 0 else os.geteuid(), "victim") as found:
        found.ask(PREPARE)
        yield found


@pytest.fixture(scope="module", params=["another user", "the same user"])
def attacker(request: pytest.FixtureRequest) -> Iterator[Actor]:
    same = VICTIM if os.geteuid() == 0 else os.geteuid()
    with actor(same if request.param == "the same user" else OTHER) as found:
        yield found


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that all may write to, without a sticky bit."""
    found = Path(tempfile.mkdtemp(dir="/dev/shm"))
    found.chmod(0o777)
    yield found
    shutil.rmtree(found)


def status(path: Path) -> tuple[int, ...]:
    """What writing, cutting, replacing or chmod would change; the file is not opened, which a lease would delay."""
    found = path.lstat()
    return (found.st_ino, found.st_size, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns)


LEASE = "signal.signal(signal.SIGIO, signal.SIG_IGN); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
OPEN = "fd = os.open(P, os.O_RDWR | os.O_CREAT, MODE); os.write(fd, b'precious')"
PLANTS = {
    "a file": OPEN.replace("MODE", "0o600"),
    "a file all may write": OPEN.replace("MODE", "0o666"),
    "a file with a lease": f"{OPEN.replace('MODE', '0o600')}; {LEASE}",
    "an open file with a lease": f"{OPEN.replace('MODE', '0o666')}; {LEASE}",
    "a sparse file": f"{OPEN.replace('MODE', '0o644')}; os.ftruncate(fd, 1 << 40)",
    "a link": "open(P + '-b', 'w').write('precious'); os.symlink(P + '-b', P)",
    "a link to /dev/zero": "os.symlink('/dev/zero', P)",
    "a loop": "os.symlink(P, P)",
    "a FIFO": "os.mkfifo(P, 0o666)",
    "a socket": "socket.socket(socket.AF_UNIX).bind(P)",
    "a directory": "os.mkdir(P, 0o777)",
}


@pytest.mark.parametrize("name", PLANTS)
def test_in_the_place_of_a_profile(name: str, victim: Actor, attacker: Actor, directory: Path) -> None:
    """It is not read, not written to, and left where it is; nothing waits for it."""
    path = directory / location.file_name(IDENTITY)
    attacker.ask(f"P = {str(path)!r}")
    attacker.ask(PLANTS[name])
    before = status(path)
    for act in (f"load_profile({str(path)!r})", f"save_profile(profile, {str(directory)!r})"):
        took, said = victim.ask(f"timed(lambda: {act})")
        assert took < LIMIT_S
        assert isinstance(said, str)
        assert said != "missing"
        assert ("symbolic link" in said) is (name in ("a link", "a link to /dev/zero", "a loop"))
        assert not said.startswith("/")
    assert status(path) == before
    assert not [entry for entry in os.listdir(directory) if entry.endswith(".tmp")]


@pytest.mark.parametrize("name", PLANTS)
def test_in_the_place_of_the_metrics(name: str, victim: Actor, attacker: Actor, directory: Path) -> None:
    """The sum is left out, with a notice; a file of our own that says nothing is taken over, as after a crash."""
    path = directory / f"cgroup_threads-{victim.uid}.workers"
    attacker.ask(f"P = {str(path)!r}")
    attacker.ask(PLANTS[name])
    before = status(path)
    took, missing, notices = victim.ask(f"metrics({str(directory)!r})")
    assert took < LIMIT_S
    ours = attacker.uid == victim.uid and name == "a file"
    assert missing is not ours
    if not ours:
        assert len(notices) == 1
        assert notices[0].startswith("the metrics of worker processes cannot be added up: ")
        assert notices[0].isprintable()
        assert status(path) == before


def test_a_directory_of_many_files(victim: Actor, directory: Path) -> None:
    """The victim's own profile is found by its name; whatever else is there, a bounded part is looked at."""
    for number in range(100_000):
        os.symlink("x", directory / f"{number:016x}-{number:016x}.json")
    model = directory / "model.bin"
    model.write_bytes(b"weights" * 100)
    victim.ask(f"process._settings = process.settings._replace(profiles={str(directory)!r})")
    victim.ask(f"model = {str(model)!r}")
    assert victim.ask("find_counts(model, 'pytest', ('threads',))") == [{}, {}]
    victim.ask(
        "profile = profile._replace(identity=present_identity(identify_model(model), library_version('pytest')))"
    )
    took, path = victim.ask(f"timed(lambda: save_profile(profile, {str(directory)!r}))")
    assert took < LIMIT_S
    assert os.path.isfile(path)
    took, found = victim.ask("timed(lambda: find_counts(model, 'pytest', ('threads',)))")
    assert took < LIMIT_S
    assert found[0] == {"threads": 1}
    victim.ask(f"process._settings = None; profile = {PROFILE}")


SAVING = f"""
import json, os, sys, time
from cgroup_threads.profiles.files import ProfileError, save_profile, load_profile
from cgroup_threads.profiles.lookup import find_counts
from cgroup_threads.profiles.records import Identity, Profile
from cgroup_threads.integrations.prometheus_workers import Workers
import cgroup_threads as ct
began = time.monotonic()
try: said = save_profile({PROFILE})
except ProfileError as error: said = str(error)
find_counts(sys.executable, "pytest", ("threads",))
workers = Workers(os.environ["PROMETHEUS_MULTIPROC_DIR"])
workers.total(); workers.end()
lines = [n.message + n.fix for n in ct.report().notices]
print(json.dumps([said, time.monotonic() - began, all(line.isprintable() for line in lines)]))
"""
# What stands where the directory should be, and whether profiles can be kept there.
PLACES = {
    "a FIFO": (lambda path: os.mkfifo(path), False),
    "a file": (lambda path: path.write_text("precious"), False),
    "a loop": (lambda path: path.symlink_to(path), False),
    "a link to /proc": (lambda path: path.symlink_to("/proc/self/fd"), False),
    "a link to /dev/full": (lambda path: path.symlink_to("/dev/full"), False),
    "read-only": (lambda path: path.symlink_to("/sys"), False),
    "a link to a directory": (lambda path: path.symlink_to("."), True),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), False),
}
NAMES = ("new\nline \x1b[31m\udcff\u202e", "--help", "$(touch trap)", "x" * 255, "a=b;c'd\"e")


@pytest.mark.parametrize("name", PLACES)
def test_where_a_directory_should_be(name: str, tmp_path: Path) -> None:
    make, good = PLACES[name]
    place = tmp_path / "place"
    make(place)
    _saves(place, good, tmp_path)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_odd_names(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    place.mkdir()
    _saves(place, True, tmp_path)


@pytest.mark.parametrize(
    "name", ["relative", "../..", "", " ", "x" * 5000, "/" + "x" * 5000, "/proc/1/root/\udcff", "~"]
)
def test_variables_that_name_no_place(name: str, tmp_path: Path) -> None:
    """A relative XDG directory is ignored, as its specification says; the home directory's cache is used."""
    environ = clean_environ(CGROUP_THREADS_PROFILES="", XDG_CACHE_HOME=name, HOME=str(tmp_path))
    environ["PROMETHEUS_MULTIPROC_DIR"] = name
    work = tmp_path / "a" / "b"  # relative names stay inside of the test's directory
    work.mkdir(parents=True)
    command = [sys.executable, "-c", SAVING]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False, cwd=work)
    assert (done.returncode, done.stderr) == (0, "")
    said, _, printable = json.loads(done.stdout)
    assert printable
    assert said.startswith(f"{tmp_path}/.cache/") is not name.startswith("/")


def _saves(place: Path, good: bool, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    before = {path: status(path) for path in tmp_path.iterdir()}
    environ = clean_environ(XDG_CACHE_HOME=str(place), PROMETHEUS_MULTIPROC_DIR=str(place), HOME=f"{tmp_path}/home")
    environ["CGROUP_THREADS_PROFILES"] = ""
    done = subprocess.run(
        [sys.executable, "-c", SAVING], env=environ, capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert (done.returncode, done.stderr) == (0, "")
    said, took, printable = json.loads(done.stdout)
    assert took < 3
    assert printable
    assert said.startswith(f"{place}/cgroup_threads/profiles/") is good, said
    if not good:
        assert {path: status(path) for path in tmp_path.iterdir()} == before


IMPORT = """
import os, sys, time, warnings
value = {
    "long": b"9" * (1 << 20), "blank": b" " * (1 << 20), "noise": bytes(range(1, 256)) * 512,
    "list": b"1," * (1 << 19), "text": "\\u0661\\u00b2".encode() * 1000, "number": b"-1e999999",
    "marker": b"1;-;-;" + b"OMP_NUM_THREADS=4," * 60000, "signs": b"+\\t00000000000000000000004",
}[sys.argv[1]]
for name in sys.argv[2:]: os.environb[name.encode()] = value
os.environb[b"CGROUP_THREADS_VERBOSE"] = b"0" if sys.argv[1] != "number" else value
warnings.simplefilter("error")
import logging
records = []
logging.getLogger().addHandler(type("H", (logging.Handler,), {"emit": lambda self, record: records.append(record)})())
logging.getLogger().setLevel(0)
began = time.monotonic()
import cgroup_threads as ct
took = time.monotonic() - began
assert took < 20, took  # 1 MiB each is tens of MiB to decode
assert not records, records
notices = ct.report().notices
assert not [n for n in notices if n.code == "startup-failed"], notices
assert all(n.message.isprintable() and len(n.message) < 1000 for n in notices)
str(ct.report()), ct.report().to_json()
with ct.limit_threads(): pass
"""


@pytest.mark.parametrize("kind", ["long", "blank", "noise", "list", "text", "marker", "number", "signs"])
def test_importing(kind: str) -> None:
    """Each variable that is read has the value: nothing is raised, printed, logged or waited for."""
    schedulers = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NNODES", "PBS_NUM_PPN")
    names = (*READ, *schedulers, "NSLOTS", "LSB_DJOB_NUMPROC", "TORCHELASTIC_RUN_ID", "OMP_STACKSIZE", "KMP_AFFINITY")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, kind, *names, "OMP_PLACES", "OMP_DYNAMIC", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"],
        env=clean_environ(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_importing_with_an_environment_at_the_kernels_limit() -> None:
    """128 KiB for a value, and 2 MiB for all together."""
    names = READ[:14]
    require(len(names) == 14, "fewer variables than that are read")
    environ = {**clean_environ(), **dict.fromkeys(names, "9" * (100 << 10))}
    done = subprocess.run(
        [sys.executable, "-c", "import cgroup_threads as ct; print(ct.plan().threads >= 1)"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
