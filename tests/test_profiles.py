"""Profile files: the format, hostile directories, writers at once and killed ones; and which profile holds here."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.notices import Notice
from cgroup_threads.profiles import format as text
from cgroup_threads.profiles import identity, location, lookup
from cgroup_threads.profiles.files import ProfileError, check_directory, load_profile, save_profile
from cgroup_threads.profiles.lookup import Tuned, find_counts
from cgroup_threads.profiles.records import Identity, Profile, differences, new_profile, write_quota
from cgroup_threads.settings import read_settings
from cgroup_threads.state import ProcessState, process
from tests.lab import require

ROOT = Path(__file__).parents[1]
LIBRARY = "pytest"
"""A distribution that is installed."""
HERE = Identity("gguf gemma 0123456789abcdef", "llama-cpp-python 0.3.36", "Some CPU @ 2.00GHz", 2, 1.5)


def make_profile(which: Identity = HERE, **counts: int) -> Profile:
    counts = counts or {"n_threads": 1, "n_threads_batch": 2}
    return new_profile(which, counts, 0.97, {name: 12.5 * count for name, count in counts.items()})


def data_of(profile: Profile) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text.write(profile))
    return data


# --- the format ---

printable = st.text(st.characters(categories=("L", "N", "P", "S")), max_size=20)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,20}", fullmatch=True)
profiles = st.builds(
    Profile,
    identity=st.builds(
        Identity,
        model=printable,
        library=printable,
        cpu=printable,
        usable=st.integers(1, 4096),
        quota=st.none() | st.floats(0.001, 4096),
    ),
    counts=st.dictionaries(names, st.integers(1, 4096), min_size=1, max_size=4),
    confidence=st.floats(0, 1),
    rates=st.dictionaries(names, st.floats(0, 1e300), max_size=4),
    created=printable,
    version=printable,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


def read_or_reason(content: bytes) -> Profile | str:
    """Nothing but a profile or a ValueError comes out of the reader."""
    try:
        return text.read(content)
    except ValueError as error:
        return str(error)


@given(profiles)
def test_what_is_written_is_read(profile: Profile) -> None:
    assert text.read(text.write(profile)) == profile


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    assert isinstance(read_or_reason(content), str)


@given(st.data())
def test_any_value_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    changed = data_of(make_profile())
    place: dict[str, Any] = data.draw(st.sampled_from([changed, changed["identity"], changed["counts"]]))
    place[data.draw(st.sampled_from([*place, "more"]))] = data.draw(values)
    found = read_or_reason(json.dumps(changed).encode())
    if isinstance(found, Profile):  # then it means just what is in the file
        assert json.loads(text.write(found)) == changed
        assert all(type(count) is int and 1 <= count <= 4096 for count in found.counts.values())


def test_every_truncation_is_refused() -> None:
    content = text.write(make_profile())
    whole = content.rstrip()
    for length in range(len(whole)):
        assert isinstance(read_or_reason(content[:length]), str), length
    assert isinstance(read_or_reason(whole), Profile)


def changed(**changes: Any) -> bytes:
    return json.dumps({**data_of(make_profile()), **changes}).encode()


def identified(**changes: Any) -> bytes:
    data = data_of(make_profile())
    return json.dumps({**data, "identity": {**data["identity"], **changes}}).encode()


REFUSED: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "a list": (b"[1]", "not a profile"),
    "another program's": (b'{"version": 1, "counts": {"threads": 2}}', "not a profile"),
    "another format": (changed(format="profile"), "not a profile"),
    "a later version": (changed(version=2), "its version is not 1"),
    "a version in text": (changed(version="1"), "its version is not 1"),
    "true for a version": (changed(version=True), "its version is not 1"),
    "1.0 for a version": (changed(version=1.0), "its version is not 1"),
    "a name more": (changed(more=1), "the names in the profile"),
    "an identity's name more": (identified(more=1), "the names in identity"),
    "no identity": (changed(identity=None), "identity is no object"),
    "a name twice": (text.write(make_profile()).replace(b"{", b'{"version": 1,', 1), "not JSON"),
    "NaN": (changed(confidence=float("nan")), "not JSON"),
    "Infinity": (changed(confidence=float("inf")), "not JSON"),
    "an overflow": (changed(confidence="?").replace(b'"?"', b"1e999"), "confidence"),
    "a huge whole number": (changed(rates={"threads": 10**400}), "threads"),
    "thousands of digits": (b"1" * 6000, "not a profile" if sys.version_info < (3, 10, 7) else "not JSON"),
    "thousands of brackets": (b"[" * 60_000, "not JSON"),
    "no counts": (changed(counts={}), "counts is empty"),
    "a list of counts": (changed(counts=[1]), "counts is no object"),
    "too many counts": (changed(counts={f"n{i}": 1 for i in range(17)}), "counts is no object"),
    "0 threads": (changed(counts={"threads": 0}), "threads is no whole number"),
    "4097 threads": (changed(counts={"threads": 4097}), "threads is no whole number"),
    "true threads": (changed(counts={"threads": True}), "threads is no whole number"),
    "2.0 threads": (changed(counts={"threads": 2.0}), "threads is no whole number"),
    "'2' threads": (changed(counts={"threads": "2"}), "threads is no whole number"),
    "no argument's name": (changed(counts={"the threads": 2}), "a name that no argument has"),
    "a long name": (changed(counts={"n" * 65: 2}), "a name that no argument has"),
    "a negative confidence": (changed(confidence=-0.1), "confidence"),
    "a confidence above 1": (changed(confidence=1.01), "confidence"),
    "a true confidence": (changed(confidence=True), "confidence"),
    "a quota of 0": (identified(quota=0), "quota is 0"),
    "a negative quota": (identified(quota=-1), "quota"),
    "0 cores": (identified(usable=0), "usable"),
    "a long text": (identified(cpu="x" * 501), "cpu is no printable text"),
    "two lines": (identified(cpu="a\nb"), "cpu is no printable text"),
    "a lone surrogate": (identified(cpu="\ud800"), "cpu is no printable text"),
    "a terminal's command": (changed(created="\x1b[2J"), "created is no printable text"),
    "a byte order mark": (b"\xef\xbb\xbf" + text.write(make_profile()), "not JSON"),
    "UTF-16": (text.write(make_profile()).decode().encode("utf-16"), "not JSON"),
    "64 KiB and more": (text.write(make_profile()) + b" " * text.MAX_BYTES, "larger than 64 KiB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_profile_is_refused_with_its_cause(name: str) -> None:
    content, cause = REFUSED[name]
    with pytest.raises(ValueError, match=cause):
        text.read(content)


def test_a_profile_that_the_reader_would_refuse_is_not_written(tmp_path: Path) -> None:
    for profile in (
        make_profile(n_threads=0),
        make_profile()._replace(confidence=2),
        make_profile(HERE._replace(cpu="\n")),
    ):
        with pytest.raises(ProfileError, match="not be readable"):
            save_profile(profile, tmp_path)
    with pytest.raises(ProfileError, match="not be readable"):
        save_profile(make_profile()._replace(created=object()), tmp_path)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


# --- files ---


def test_a_profile_is_saved_and_loaded(tmp_path: Path) -> None:
    where = tmp_path / "a" / "b"
    profile = make_profile()
    path = save_profile(profile, where)
    assert os.listdir(where) == [os.path.basename(path)] == [location.file_name(HERE)]
    assert load_profile(path) == profile
    data = json.loads(Path(path).read_text())
    assert (data["format"], data["version"]) == ("cgroup_threads-profile", 1)
    again = make_profile(n_threads=2, n_threads_batch=1)
    assert save_profile(again, where) == path
    assert load_profile(path) == again
    assert len(os.listdir(where)) == 1


def test_a_profile_of_one_count_keeps_the_other(tmp_path: Path) -> None:
    """Decoding and prompts may be measured one after the other."""
    save_profile(make_profile(n_threads=1, n_threads_batch=4)._replace(confidence=0.5), tmp_path)
    path = save_profile(make_profile(n_threads_batch=2), tmp_path)
    found = load_profile(path)
    assert found.counts == {"n_threads": 1, "n_threads_batch": 2}
    assert found.rates == {"n_threads": 12.5, "n_threads_batch": 25.0}
    assert found.confidence == 0.5


def test_a_profile_in_anothers_place_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = save_profile(make_profile(HERE._replace(quota=4.0), n_threads=4), tmp_path)
    os.rename(path, tmp_path / location.file_name(HERE))
    assert load_profile(save_profile(make_profile(n_threads_batch=2), tmp_path)).counts == {"n_threads_batch": 2}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o644), (0, 0o644), (0o077, 0o600)])
def test_no_umask_makes_it_a_file_that_others_may_write(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        path = save_profile(make_profile(), tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode
    assert load_profile(path) == make_profile()._replace(created=load_profile(path).created)


def test_a_profile_of_no_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no model"):
        save_profile(make_profile(HERE._replace(model="")), tmp_path)


def symlink(path: Path) -> None:
    real = path.with_suffix(".real")
    real.write_bytes(text.write(make_profile()))
    path.symlink_to(real)


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(text.write(make_profile()))
        file.truncate(1 << 40)


def own(path: Path, uid: int) -> None:
    require(os.geteuid() == 0, "only root can give files away")
    path.write_bytes(text.write(make_profile()))
    os.chown(path, uid, -1)


def writable(path: Path, mode: int) -> None:
    path.write_bytes(text.write(make_profile()))
    path.chmod(mode)


HOSTILE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "a symbolic link": (symlink, "symbolic link"),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "symbolic link"),
    "a FIFO": (lambda path: os.mkfifo(path), "not a regular file"),
    "a directory": (lambda path: path.mkdir(), "not a regular file"),
    "another user's": (lambda path: own(path, 12345), "belongs to user 12345"),
    "a file that the group may write": (lambda path: writable(path, 0o664), "others may write to it .mode 664."),
    "a file that all may write": (lambda path: writable(path, 0o646), "others may write to it"),
    "a huge file": (huge, "larger than 64 KiB"),
    "a foreign file": (lambda path: path.write_text("[1, 2]"), "not a profile"),
    "a cut profile": (lambda path: path.write_bytes(text.write(make_profile())[:100]), "not JSON"),
    "a later version's": (lambda path: path.write_bytes(changed(version=2)), "its version is not 1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_could_be_anothers_is_not_read_nor_overwritten(name: str, tmp_path: Path) -> None:
    make, cause = HOSTILE[name]
    path = tmp_path / location.file_name(HERE)
    make(path)
    before = os.lstat(path)
    with pytest.raises(ProfileError, match=cause) as caught:
        load_profile(path)
    assert caught.value.path == str(path)
    with pytest.raises(ProfileError, match=f"{cause}.*left as it is"):
        save_profile(make_profile(), tmp_path)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert not [entry for entry in os.listdir(tmp_path) if entry.endswith(".tmp")]


def test_roots_profile_is_read_by_others() -> None:
    require(os.geteuid() == 0, "only root can become another user")
    with tempfile.TemporaryDirectory() as directory:  # pytest's own are for one user
        os.chmod(directory, 0o755)
        path = save_profile(make_profile(), directory)
        with user(65534):
            assert load_profile(path).counts == make_profile().counts


def test_a_device_is_not_opened() -> None:
    with pytest.raises(ProfileError, match="not a regular file"):
        load_profile("/dev/zero")


def test_a_device_is_not_even_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    with pytest.raises(ProfileError):
        load_profile("/dev/zero")
    assert opened == []


def test_a_file_that_was_changed_for_a_fifo_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes to it: a read that waits would wait for ever."""
    regular = os.lstat(save_profile(make_profile(), tmp_path))
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(os, "lstat", lambda path: regular)
    with pytest.raises(ProfileError, match="not a regular file"):
        load_profile(tmp_path / "fifo")


def test_odd_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_profile(tmp_path / "missing")
    with pytest.raises(ProfileError):
        load_profile("a\0b")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ProfileError):
        load_profile(file / "below")
    for directory in (file, f"{tmp_path}/a\0b", "/proc/nowhere"):
        with pytest.raises(ProfileError):
            save_profile(make_profile(), directory)


@contextmanager
def user(uid: int) -> Iterator[None]:
    before = os.geteuid()
    if before != 0:
        yield
        return
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_directory_without_write_permission() -> None:
    directory = tempfile.mkdtemp()
    os.chmod(directory, 0o555)
    try:
        with user(65534), pytest.raises(ProfileError, match="Permission denied"):
            save_profile(make_profile(), directory)
        assert os.listdir(directory) == []
    finally:
        os.rmdir(directory)


def test_what_could_not_be_written_is_known_before_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_directory(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "file/inside", "link"):
        with pytest.raises(ProfileError, match="Not a directory"):
            check_directory(tmp_path / place)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ProfileError, match="Permission denied"):
        check_directory(tmp_path)
    monkeypatch.setattr(process, "_settings", process.settings._replace(profiles=""))
    with pytest.raises(ProfileError, match="switched off"):
        check_directory()


def test_a_file_system_without_room_leaves_nothing(tmp_path: Path) -> None:
    """The limit of a file's size stops the write after its first bytes, as a full disk would."""
    profile = make_profile()
    path = save_profile(profile, tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(ProfileError, match="File too large"):
            save_profile(make_profile(n_threads=2), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load_profile(path) == profile
    assert len(os.listdir(tmp_path)) == 1


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_profile(make_profile(), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_file_system_that_gives_all_files_to_all_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vfat and SMB have one mode for all files: what could not be read back is not left there."""
    sync = os.fsync

    def change(descriptor: int) -> None:
        os.fchmod(descriptor, 0o777)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", change)
    with pytest.raises(ProfileError, match="others may write"):
        save_profile(make_profile(), tmp_path)
    assert os.listdir(tmp_path) == []


WRITER = """
import os, sys
from cgroup_threads.profiles.files import save_profile
from cgroup_threads.profiles.records import Identity, new_profile
directory, number = sys.argv[1], int(sys.argv[2])
def save(count):
    which = Identity("gguf gemma 0123456789abcdef", "llama-cpp-python 0.3.36", "Some CPU @ 2.00GHz", 2, 1.5)
    names = ["n_threads", "n_threads_batch"]
    rates = {f"writer_{number}": float(count), **{f"more_{i}": 1 / 3 for i in range(number)}}
    save_profile(new_profile(which, dict.fromkeys(names, number + 1), 0.9, rates), directory)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CGROUP_THREADS_AUTO": "0"}
    command = [sys.executable, "-c", WRITER + script, *map(str, arguments)]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_writers_at_once_never_show_half_a_file(tmp_path: Path) -> None:
    script = "print('ready', flush=True); input()\nfor count in range(40): save(count)"
    writers = [start(script, tmp_path, number) for number in range(4)]
    path = tmp_path / location.file_name(HERE)
    seen = set()
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        while any(writer.poll() is None for writer in writers):
            try:
                profile = load_profile(path)
            except FileNotFoundError:
                assert not seen, "it was there before"
                continue
            (number,) = {int(name.removeprefix("writer_")) for name in profile.rates if name.startswith("writer_")}
            assert len(profile.rates) == number + 1
            assert set(profile.counts.values()) == {number + 1}
            seen.add(next(iter(profile.rates.items())))
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    assert len(seen) > 1
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_writer_that_is_killed_leaves_the_earlier_profile(moment: str, tmp_path: Path) -> None:
    profile = make_profile()
    path = save_profile(profile, tmp_path)
    script = f"""
real = os.write
def stop(descriptor, *data):
    if {moment!r} == "write":
        real(descriptor, data[0][:100])
    print("there", flush=True)
    input()
os.{moment} = stop
save(1)
"""
    writer = start(script, tmp_path, 3)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "there\n"
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert load_profile(path) == profile
    rest = [name for name in os.listdir(tmp_path) if name != os.path.basename(path)]
    assert len(rest) == 1
    assert not location.is_name(rest[0]), "it would be looked at"
    again = make_profile(n_threads=2, n_threads_batch=1)
    save_profile(again, tmp_path)
    assert load_profile(path) == again


# --- where they are ---


def test_the_setting() -> None:
    name = "CGROUP_THREADS_PROFILES"
    assert [read_settings({name: value}).profiles for value in ("", " ", "0", "off", "No", " /var/p ")] == [
        None,
        None,
        "",
        "",
        "",
        "/var/p",
    ]
    for junk in ("profiles", "./p", "1", "~/p", "/a\0b"):
        settings = read_settings({name: junk})
        assert settings.profiles is None
        assert [notice.code for notice in settings.notices] == ["setting-invalid"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CGROUP_THREADS_PROFILES": "/data/p", "XDG_CACHE_HOME": "/cache"}, "/data/p"),
        ({"CGROUP_THREADS_PROFILES": "off", "XDG_CACHE_HOME": "/cache"}, None),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/cgroup_threads/profiles"),
        ({"XDG_CACHE_HOME": "cache"}, "/nowhere/home/.cache/cgroup_threads/profiles"),
        ({"XDG_CACHE_HOME": ""}, "/nowhere/home/.cache/cgroup_threads/profiles"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="its directories are others")
def test_the_directory(environ: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ProcessState()
    state.environ_before = environ
    monkeypatch.setattr(location, "process", state)
    monkeypatch.setenv("HOME", "/nowhere/home")
    assert location.directory() == expected


def test_no_home_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ProcessState()
    state.environ_before = {}
    monkeypatch.setattr(location, "process", state)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it returns for a user whom nobody knows
    assert location.directory() is None
    with pytest.raises(ProfileError, match="no home directory"):
        save_profile(make_profile())


def test_each_model_and_machine_has_a_name_of_its_own() -> None:
    others = [
        HERE,
        HERE._replace(model="other"),
        HERE._replace(library="llama-cpp-python 0.3.37"),
        HERE._replace(cpu="other"),
        HERE._replace(usable=3),
        HERE._replace(quota=None),
        HERE._replace(quota=1.501),
    ]
    found = [location.file_name(which) for which in others]
    assert len(set(found)) == len(found)
    assert all(map(location.is_name, found))
    assert len({name[:17] for name in found}) == 2
    assert not any(
        map(location.is_name, ("", "a.json", f".{found[0]}", found[0] + "~", found[0][1:], "x" + found[0][1:]))
    )


def test_quotas_are_written_for_people() -> None:
    assert [write_quota(quota) for quota in (None, 4, 0.5, 7.65, 10.0, 1.9999999, 0.001)] == [
        "none",
        "4",
        "0.5",
        "7.65",
        "10",
        "2",
        "0.001",
    ]


def test_differences_are_named() -> None:
    there = Identity("other", "llama-cpp-python 0.3.35", "", 4, None)
    assert differences(HERE, HERE) == ()
    assert differences(HERE, HERE._replace(quota=1.5 + 1e-9)) == ()
    assert differences(there, HERE) == (
        "another model",
        "llama-cpp-python 0.3.35, here llama-cpp-python 0.3.36",
        "CPU unknown, here Some CPU @ 2.00GHz",
        "4 usable cores, here 2",
        "quota none, here 1.5",
    )


# --- which one holds ---


class Place:
    """A model's file and a directory of profiles that the process looks in, and what it notes."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "profiles"
        self.model = tmp_path / "model.bin"
        self.model.write_bytes(b"weights" * 1000)
        self.here = identity.present_identity(identity.identify_model(self.model), identity.library_version(LIBRARY))

    def save(self, which: Identity | None = None, **counts: int) -> str:
        return save_profile(make_profile(which or self.here, **(counts or {"threads": 1})), self.directory)

    def find(self, *names: str) -> Tuned:
        return find_counts(self.model, LIBRARY, names or ("threads",))

    @property
    def notices(self) -> list[Notice]:
        return [notice for notice in process.notices if notice.code.startswith("profile-")]

    @property
    def codes(self) -> list[str]:
        return [notice.code for notice in self.notices]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)
    monkeypatch.setattr(process, "_settings", process.settings._replace(profiles=str(found.directory)))
    monkeypatch.setattr(process, "_notices", {})
    return found


def more(which: Identity, usable: int = 8) -> Identity:
    return which._replace(usable=usable)


def test_a_profile_of_here_is_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = place.here.usable
    path = place.save(threads=usable, n_threads=1)
    found = place.find("threads", "n_threads", "other")
    assert found.counts == {"threads": usable, "n_threads": 1}
    assert found.tops == ({"n_threads": 1} if usable > 1 else {})
    (notice,) = place.notices
    assert (notice.code, notice.level) == ("profile-used", "info")
    assert path in notice.message
    assert f"threads={usable}, n_threads=1" in notice.message


def test_all_the_cores_is_no_top(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured with 8 cores and is fastest there with 8 may be faster still with more."""
    place.here = more(place.here)
    monkeypatch.setattr(identity, "present_identity", lambda model, library: place.here)
    place.save(threads=8, n_threads=3)
    assert place.find("threads", "n_threads").tops == {"n_threads": 3}


@pytest.mark.parametrize(("usable", "workers", "expected"), [(8, 1, 3), (2, 1, 2), (8, 4, 2), (2, 4, 1)])
def test_counts_are_cut_to_the_cores(
    usable: int, workers: int, expected: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cgroup_threads.planning import current_plan

    plan = current_plan()._replace(usable=usable, workers=workers)
    monkeypatch.setattr(lookup, "current_plan", lambda: plan)
    place.save(threads=3)
    assert place.find().counts == {"threads": expected}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("library", "pytest 1.0", "measured with pytest 1.0, here pytest "),
        ("cpu", "An older CPU", "measured with CPU An older CPU, here "),
        ("usable", 77, "measured with 77 usable cores, here "),
        ("quota", 77.5, "measured with quota 77.5, here "),
    ],
)
def test_a_profile_of_elsewhere_is_named_and_not_used(field: str, value: Any, said: str, place: Place) -> None:
    place.save(place.here._replace(**{field: value}))
    assert place.find() == Tuned()
    (notice,) = place.notices
    assert (notice.code, notice.level) == ("profile-other-machine", "info")
    assert said in notice.message
    assert notice.fix


def test_the_nearest_profile_is_named(place: Place) -> None:
    for number in range(12):
        place.save(place.here._replace(quota=77.5, usable=77, cpu=f"CPU {number}"))
    place.save(place.here._replace(quota=66.5))
    assert place.find() == Tuned()
    (notice,) = place.notices
    assert "quota 66.5" in notice.message


def test_several_machines_share_a_directory(place: Place) -> None:
    for usable in range(100, 160):
        place.save(more(place.here, usable), threads=2)
    place.save(threads=1)
    assert place.find().counts == {"threads": 1}
    assert place.codes == ["profile-used"]


def test_a_profile_of_another_model_says_nothing(place: Place) -> None:
    place.save(place.here._replace(model="file other"))
    assert place.find() == Tuned()
    assert place.codes == []


def test_a_renamed_profile_is_judged_by_its_content(place: Place) -> None:
    path = place.save(place.here._replace(model="file other"))
    os.rename(path, place.directory / location.file_name(place.here))
    assert place.find() == Tuned()
    (notice,) = place.notices
    assert "another model" in notice.message


def test_another_model_in_the_same_file_is_noticed(place: Place) -> None:
    place.save()
    place.model.write_bytes(b"weighty" * 1000)
    assert place.find() == Tuned()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_stands_in_its_place_is_ignored_with_a_notice(name: str, place: Place) -> None:
    make, cause = HOSTILE[name]
    place.directory.mkdir()
    path = place.directory / location.file_name(place.here)
    make(path)
    before = os.lstat(path)
    assert place.find() == Tuned()
    (notice,) = place.notices
    assert (notice.code, notice.level) == ("profile-ignored", "warning")
    assert notice.fix
    assert os.lstat(path).st_ino == before.st_ino
    import re

    assert re.search(cause, notice.message)


def test_files_of_other_names_are_not_looked_at(place: Place) -> None:
    place.directory.mkdir()
    (place.directory / "notes.json").write_text("{}")
    os.mkfifo(place.directory / "fifo")
    assert place.find() == Tuned()
    assert place.codes == []


def test_without_a_profile_nothing_is_identified(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise AssertionError("it was read")

    monkeypatch.setattr(identity, "identify_model", fail)
    assert place.find() == Tuned()
    place.directory.mkdir()
    (place.directory / "other").touch()
    assert place.find() == Tuned()
    assert find_counts(place.model, LIBRARY, ()) == Tuned()
    assert place.codes == []


def test_switched_off(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.save()
    monkeypatch.setattr(process, "_settings", process.settings._replace(profiles=""))
    assert place.find() == Tuned()
    assert place.codes == []
    with pytest.raises(ProfileError, match="switched off"):
        save_profile(make_profile())


@pytest.mark.parametrize("model", [None, b"bytes", 3, "", "/nowhere/model.gguf", "a\0b", b"\xff", Path("/nowhere")])
def test_no_model_no_profile(model: object, place: Place) -> None:
    place.save()
    assert find_counts(model, LIBRARY, ("threads",)) == Tuned()
    assert set(place.codes) <= {"profile-failed"}
    assert place.codes == []


def test_an_error_of_ours_is_a_notice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("by 0")

    place.save()
    monkeypatch.setattr(identity, "identify_model", fail)
    assert place.find() == Tuned()
    (notice,) = place.notices
    assert (notice.code, notice.level) == ("profile-failed", "warning")
    assert "ZeroDivisionError: by 0" in notice.message


def test_a_directory_that_cannot_be_read(place: Place) -> None:
    place.directory.touch()
    assert place.find() == Tuned()
    assert place.codes == ["profile-ignored"]


def test_a_directory_without_end_is_not_read_to_its_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_MAX_ENTRIES", 5)
    for usable in range(100, 130):
        place.save(more(place.here, usable))
    place.save()
    assert place.find().counts == {"threads": 1}, "its own is found by name"


def test_importing_the_package_reads_and_loads_nothing_of_it() -> None:
    script = "import cgroup_threads, sys; print([name for name in sys.modules if 'profiles' in name])"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
