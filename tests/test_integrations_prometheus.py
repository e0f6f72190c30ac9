"""The metrics: what they say, that a scrape is cheap and never fails, and that worker processes are added up."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cgroup_threads as ct
from cgroup_threads.detection.records import CgroupLevel
from cgroup_threads.errors import MissingExtraError
from cgroup_threads.integrations import prometheus, prometheus_activity, prometheus_workers
from cgroup_threads.integrations.prometheus import FAMILIES, CgroupThreadsCollector, register
from cgroup_threads.integrations.prometheus_activity import Activity, count_runnable
from cgroup_threads.integrations.prometheus_workers import MAX_WORKERS, ROW_SIZE, Workers, add, pack_row, parse_row
from cgroup_threads.reporting.counters import read_text, read_throttling
from cgroup_threads.reporting.since import read_pressure_counter
from tests.lab import require, require_module
from tests.lab.commands import ROOT, clean_environ, hidden, inside, quota_group, run, run_python
from tests.lab.prometheus import Scrape, Served, fetch, promtool, served, until
from tests.lab.prometheus import prometheus as prometheus_server

PAGE = ROOT / "docs" / "metrics.md"
ALWAYS = {"usable_cores", "affinity_cpus", "leases_active", "leases_waiting", "leased_cores", "leases_total"}
ALWAYS |= {"lease_waits_total", "lease_overcommits_total", "lease_core_seconds_total", "processes"}


def scrape(collector: Any = None) -> Scrape:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(CgroupThreadsCollector() if collector is None else collector)
    return Scrape(generate_latest(registry).decode())


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("prometheus_client")
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        monkeypatch.delenv(name, raising=False)


# One process.


def test_limits_are_those_of_detect() -> None:
    limits = ct.detect()
    seen = scrape()
    assert seen.keys() >= ALWAYS
    assert seen["usable_cores"] == ct.usable_cores()
    assert seen["affinity_cpus"] == len(limits.affinity)
    assert seen.get("quota_cores") == limits.quota
    assert seen[f'limits_info{{bound_by="{limits.bound_by}",status="{limits.status}"}}'] == 1


def test_register_is_idempotent_and_puts_back() -> None:
    from prometheus_client import CollectorRegistry

    first, second = CollectorRegistry(), CollectorRegistry(auto_describe=True)
    collector = register(first)
    assert register(first) is collector
    assert register(second) is not collector
    assert first.get_sample_value("cgroup_threads_usable_cores") == ct.usable_cores()
    first.unregister(collector)
    assert first.get_sample_value("cgroup_threads_usable_cores") is None
    assert register(first) is collector
    assert first.get_sample_value("cgroup_threads_usable_cores") == ct.usable_cores()


def test_the_default_registry_is_the_library_s() -> None:
    from prometheus_client import REGISTRY

    collector = register()
    try:
        assert REGISTRY.get_sample_value("cgroup_threads_usable_cores") == ct.usable_cores()
    finally:
        REGISTRY.unregister(collector)


def test_a_name_that_is_taken_is_an_error() -> None:
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    Gauge("cgroup_threads_usable_cores", "Another's.", registry=registry)
    with pytest.raises(ValueError, match="usable_cores"):
        register(registry)


def test_without_the_library_the_extra_is_named() -> None:
    script = """
import sys
sys.modules["prometheus_client"] = None
from cgroup_threads.errors import MissingExtraError
from cgroup_threads.integrations.prometheus import CgroupThreadsCollector, register
for call in (register, CgroupThreadsCollector):
    try: call()
    except MissingExtraError as error: print(error)
"""
    message = "prometheus-client is not installed: pip install 'cgroup-threads[prometheus]'\n"
    assert run_python(script).stdout == 2 * message
    assert issubclass(MissingExtraError, ImportError)


LEASES = """
import threading
import cgroup_threads as ct
from prometheus_client import CollectorRegistry, generate_latest
from cgroup_threads.integrations.prometheus import register
registry = CollectorRegistry()
register(registry)
def show():
    print(generate_latest(registry).decode(), end="# next\\n")
show()
left, inside = threading.Event(), threading.Semaphore(0)
def work(patience):
    with ct.limit_threads(1, patience=patience):
        inside.release()
        left.wait()
def start(patience):
    thread = threading.Thread(target=work, args=(patience,))
    thread.start()
    return thread
threads = [start(60), start(60)]
for _ in threads: inside.acquire()
threads.append(start(0))  # has no patience
inside.acquire()
threads.append(start(60))  # waits
while ct.statistics().waiting != 1: pass
show()
left.set()
for thread in threads: thread.join()
show()
"""


def test_leases_are_counted() -> None:
    shown = run_python(LEASES, CGROUP_THREADS_CORES="2", CGROUP_THREADS_SCOPE="process").stdout.split("# next\n")
    before, during, after = (Scrape(text) for text in shown[:3])
    counts = ("leases_active", "leases_waiting", "leased_cores", "leases_total", "lease_overcommits_total")
    assert [before[name] for name in counts] == [0, 0, 0, 0, 0]
    assert [during[name] for name in counts] == [3, 1, 2, 3, 1]
    assert [after[name] for name in counts] == [0, 0, 0, 4, 1]
    waits = [one["lease_waits_total"] for one in (before, during, after)]
    assert waits[0] == 0
    assert waits[2] == waits[1] + 1, "the fourth waited"
    assert after["lease_core_seconds_total"] > during["lease_core_seconds_total"]
    assert not any(name.startswith("budget_cores") for name in before), "nothing has leased yet"
    assert during['budget_cores{scope="process"}'] == 2
    assert after["lease_wait_seconds_total"] > during["lease_wait_seconds_total"] >= 0


def test_throttling_and_quota_are_the_kernel_s(tmp_path: Path) -> None:
    busy = """
import threading, time
end = time.monotonic() + 1.0
def spin():
    while time.monotonic() < end: pass
spin()
from cgroup_threads.reporting.counters import read_throttling
from prometheus_client import CollectorRegistry, generate_latest
from cgroup_threads.integrations.prometheus import register
registry = CollectorRegistry()
register(registry)
print(generate_latest(registry).decode())
"""
    with quota_group(0.5) as group:
        before = read_throttling(group.directory)
        seen = Scrape(run(inside(group, [sys.executable, "-c", busy])).stdout)
        after = read_throttling(group.directory)
    assert before is not None
    assert after is not None
    assert (seen["quota_cores"], seen["usable_cores"]) == (0.5, 1)
    assert before.periods < seen["cgroup_periods_total"] <= after.periods
    assert before.throttled < seen["cgroup_throttled_periods_total"] <= after.throttled
    assert before.seconds < seen["cgroup_throttled_seconds_total"] <= after.seconds


def test_cpu_pressure_is_the_machine_s_or_the_own_group_s(tmp_path: Path) -> None:
    text = read_text("/proc/pressure/cpu")
    require(text, "the kernel does not count CPU pressure")

    def total(text: str) -> float:
        found = re.search(r"^some .* total=(\d+)$", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1e6

    before = total(text or "")
    limits = ct.detect()
    own = Path(limits.levels[0].path) if limits.levels and limits.levels[0].version == 2 else None
    if own is None or not (own / "cpu.pressure").exists():
        seen = scrape()['cpu_pressure_seconds_total{source="machine"}']
        assert before <= seen <= total(read_text("/proc/pressure/cpu") or "")
    # A group of cgroup v2 has a file of its own.
    (tmp_path / "cpu.pressure").write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=2500000\nfull total=7\n")
    found = read_pressure_counter((CgroupLevel(2, str(tmp_path), "", None, None),))
    assert found is not None
    assert (found.file, found.seconds) == (f"{tmp_path}/cpu.pressure", 2.5)
    status = tmp_path.stat()
    assert found.cgroup == f"{status.st_dev}:{status.st_ino}"


def test_runnable_threads_are_counted_without_the_one_that_counts() -> None:
    require(count_runnable() is not None, "/proc is not mounted")
    script = """
import hashlib, threading
from cgroup_threads.integrations.prometheus_activity import count_runnable
print(count_runnable())
data, end = bytes(1 << 24), threading.Event()
def spin():
    while not end.is_set(): hashlib.sha256(data).digest()  # without the interpreter lock
threads = [threading.Thread(target=spin) for _ in range(3)]
for thread in threads: thread.start()
print(max(count_runnable() for _ in range(200)))
end.set()
for thread in threads: thread.join()
print(min(count_runnable() for _ in range(2000)))  # what has been joined may still be ending
"""
    assert run_python(script).stdout.split() == ["0", "3", "0"]


def test_too_many_threads_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    require(count_runnable() is not None, "/proc is not mounted")
    monkeypatch.setattr(prometheus_activity, "MAX_SCANNED", 8)
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(8)]
    looked: list[str] = []

    def look(path: str) -> str | None:
        looked.append(path)
        return read_text(path)

    monkeypatch.setattr(prometheus_activity, "read_text", look)
    try:
        for thread in threads:
            thread.start()
        seen = scrape()
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert seen.keys() >= ALWAYS
    assert "runnable_threads" not in seen
    assert "oversubscription_ratio" not in seen
    assert looked == []


def test_the_ratio_is_of_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_activity, "count_runnable", lambda: 3)
    seen = scrape()
    assert seen["oversubscription_ratio"] == 3 / ct.usable_cores()


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("detect", {"usable_cores", "affinity_cpus", "oversubscription_ratio"}),
        ("read_throttling", {"cgroup_periods_total"}),
        ("read_pressure_counter", set()),
        ("read_activity", {"leases_total", "processes"}),
    ],
)
def test_a_scrape_never_raises(name: str, missing: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise OSError("broken on purpose")

    whole = scrape()
    monkeypatch.setattr(prometheus, name, fail)
    seen = scrape()
    assert not missing & seen.keys()
    assert seen.keys() < whole.keys()
    assert any("broken on purpose" in notice.message for notice in ct.report().notices)


def test_what_cannot_be_read_is_left_out() -> None:
    script = """
from prometheus_client import CollectorRegistry, generate_latest
from cgroup_threads.integrations.prometheus import register
registry = CollectorRegistry()
register(registry)
print(generate_latest(registry).decode())
"""
    done = run(hidden("/proc", [sys.executable, "-c", script]))
    assert done.returncode == 0, done.stderr
    seen = Scrape(done.stdout)
    assert seen.keys() >= ALWAYS
    gone = ("quota_cores", "cgroup_", "cpu_pressure", "runnable", "oversubscription")
    assert [name for name in seen if name.startswith(gone)] == []


def test_a_scrape_is_cheap() -> None:
    """Measured beside the sampling, which is bounded: a hundredth of a core."""
    collector = CgroupThreadsCollector()
    for _ in range(3):
        list(collector.collect())
    times = []
    for _ in range(50):
        began = time.thread_time()
        list(collector.collect())
        times.append(time.thread_time() - began)
    times.sort()
    print(f"a scrape costs {1000 * times[25]:.2f} ms of CPU time, at most {1000 * times[-1]:.2f} ms")
    assert times[25] < 0.01


def test_prometheus_own_linter_has_nothing_to_say() -> None:
    shown = run_python(LEASES, CGROUP_THREADS_CORES="2", CGROUP_THREADS_SCOPE="process").stdout.split("# next\n")
    assert promtool("check", "metrics", text=shown[1]) == ""


def test_every_metric_is_documented_and_no_other() -> None:
    suffixes = {"gauge": "", "counter": "_total", "info": "_info"}
    names = {family.name + suffixes[family.kind] for family in FAMILIES}
    table = PAGE.read_text().partition("<!-- metrics -->")[2].partition("<!-- end -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    documented = {row.split("`")[1]: row.split("|")[2].strip() for row in rows}
    assert documented.keys() == names
    kinds = {family.name + suffixes[family.kind]: family.kind for family in FAMILIES}
    assert documented == kinds
    mentioned = set(re.findall(r"cgroup_threads_[a-z_]+", PAGE.read_text())) - {"cgroup_threads_"}
    assert mentioned <= names, "an example names a metric that is not there"


def test_the_documented_alerts_are_rules_of_prometheus(tmp_path: Path) -> None:
    rules = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "rules.yml").write_text(rules)
    assert "SUCCESS: 5 rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


# Worker processes: rows of a shared file.

counts = st.integers(0, 2**31 - 1)
amounts = st.floats(0, 1e14)
activities = st.builds(
    Activity,
    counts,
    counts,
    counts,
    counts,
    st.sampled_from(["", "process", "container"]),
    st.none() | counts,
    amounts,
    amounts,
    amounts,
    amounts,
    amounts,
)


@given(activities)
def test_rows_come_back(activity: Activity) -> None:
    assert parse_row(pack_row(activity)) == activity


@given(activities, st.integers(0, 75), st.integers(1, 255))
def test_a_row_that_was_changed_is_none(activity: Activity, place: int, change: int) -> None:
    row = bytearray(pack_row(activity))
    row[place] ^= change
    assert parse_row(bytes(row)) is None


@given(st.binary(max_size=2 * ROW_SIZE))
def test_junk_is_no_row(data: bytes) -> None:
    assert parse_row(data) is None
    assert parse_row(b"ctprom01" + data) is None


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 1e300])
def test_numbers_that_no_counter_has_are_refused(number: float) -> None:
    row = bytearray(pack_row(Activity()))
    row[32:40] = struct.pack("<d", number)
    row[72:76] = struct.pack("<I", zlib.crc32(bytes(row[:72])))
    assert parse_row(bytes(row)) is None


def test_gauges_are_of_the_living_and_counters_of_all() -> None:
    total = add(
        [
            (Activity(active=1, waiting=2, leased=1, cores=2, scope="process", runnable=3, granted=10), True),
            (Activity(active=4, waiting=5, leased=6, cores=4, scope="process", runnable=1, granted=20), True),
            (Activity(active=9, waiting=9, leased=9, cores=9, scope="process", runnable=9, granted=40), False),
            (Activity(cores=3, scope="container", granted=1), True),
            (Activity(cores=3, scope="container", runnable=1), True),
        ]
    )
    assert (total.alive, total.sums.active, total.sums.waiting, total.sums.leased) == (4, 5, 7, 7)
    assert total.sums.granted == 71
    assert total.budgets == {"process": 6, "container": 3}
    assert total.sums.runnable is None, "one of them does not know"


def told(workers: Workers, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Activity:
    """What the sum says while this process's own activity is this."""
    monkeypatch.setattr(prometheus_workers, "read_activity", lambda runnable: Activity(**changes))
    total = workers.total()
    assert total is not None
    return total.sums


def test_rows_of_ended_processes_are_counted_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(sys.platform == "linux", "Linux only")
    first = Workers(str(tmp_path))
    assert told(first, monkeypatch, granted=5, active=1)[:1] == (1,)
    second = Workers(str(tmp_path))
    seen = told(second, monkeypatch, granted=7, active=2)
    assert (seen.active, seen.granted) == (3, 12)
    first.end()
    seen = told(second, monkeypatch, granted=7, active=2)
    assert (seen.active, seen.granted) == (2, 14), "its last look said 7, too"
    third = Workers(str(tmp_path))
    seen = told(third, monkeypatch, granted=1)
    assert (seen.active, seen.granted) == (2, 15)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 2 * ROW_SIZE, "the third has the first one's row"
    assert file.stat().st_mode & 0o777 == 0o600
    second.end()
    third.end()
    assert second.total() is None


def test_a_budget_made_anew_does_not_take_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(sys.platform == "linux", "Linux only")
    workers = Workers(str(tmp_path))
    numbers = [told(workers, monkeypatch, granted=granted).granted for granted in (3, 5, 1, 1, 4)]
    workers.end()
    assert numbers == [3, 5, 6, 6, 9]


def test_a_directory_that_was_emptied_is_used_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(sys.platform == "linux", "Linux only")
    workers = Workers(str(tmp_path))
    told(workers, monkeypatch, granted=3)
    for file in tmp_path.iterdir():
        file.unlink()
    assert told(workers, monkeypatch, granted=4).granted == 4
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [ROW_SIZE]
    workers.end()


def test_a_relative_directory_stays_where_it_is(tmp_path: Path) -> None:
    require(sys.platform == "linux", "Linux only")
    (tmp_path / "shared").mkdir()
    script = f"""
import os
os.chdir({str(tmp_path)!r})
from prometheus_client import CollectorRegistry, generate_latest
from cgroup_threads.integrations.prometheus import register
registry = CollectorRegistry()
register(registry)
os.chdir("shared")
print(b"cgroup_threads_processes 1.0" in generate_latest(registry), os.listdir("."))
"""
    done = run_python(script, PROMETHEUS_MULTIPROC_DIR="shared")
    assert done.stdout.split(" ", 1) == ["True", f"['cgroup_threads-{os.geteuid()}.workers']\n"], done.stderr


def put_junk(path: Path) -> None:
    path.write_bytes(os.urandom(MAX_WORKERS * ROW_SIZE))


def put_row_likes(path: Path) -> None:
    rows = [b"ctprom01" + os.urandom(ROW_SIZE - 8) for _ in range(MAX_WORKERS)]
    path.write_bytes(b"".join(rows))


def put_hole(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("put", [put_junk, put_row_likes, put_hole])
def test_junk_in_the_file_changes_no_sum(put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(sys.platform == "linux", "Linux only")
    path = tmp_path / f"cgroup_threads-{os.geteuid()}.workers"
    put(path)
    path.chmod(0o600)
    workers = Workers(str(tmp_path))
    began = time.monotonic()
    seen = told(workers, monkeypatch, granted=3, active=1)
    assert (seen.granted, seen.active) == (3, 1)
    put(path)  # over the own row, too
    workers.total()
    assert told(workers, monkeypatch, granted=4, active=2).active in (0, 2)
    workers.end()
    assert time.monotonic() - began < 10


def put_link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"precious")
    path.symlink_to(target)


def put_open(path: Path) -> None:
    path.write_bytes(b"precious")
    path.chmod(0o666)


def put_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("put", [put_link, put_open, put_pipe, Path.mkdir])
def test_what_is_not_ours_is_not_used(put: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(sys.platform == "linux", "Linux only")
    path = tmp_path / f"cgroup_threads-{os.geteuid()}.workers"
    put(path)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    seen = scrape()
    assert seen["usable_cores"] == ct.usable_cores()
    assert "leases_total" not in seen, "a part of the sum is not the sum"
    assert any("cannot be added up" in notice.message for notice in ct.report().notices)
    if path.is_file():
        assert path.read_bytes() == b"precious"


FORK = """
import json, os, sys, threading, time
import cgroup_threads as ct
from cgroup_threads.integrations.prometheus import CgroupThreadsCollector
collector = CgroupThreadsCollector()
def seen():
    found = {s.name.removeprefix("cgroup_threads_"): s.value for m in collector.collect() for s in m.samples}
    return [found[name] for name in ("processes", "leases_active", "leases_total")]
with ct.limit_threads(1):
    before = seen()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        with ct.limit_threads(1): os.read(reader, 1)  # until the parent closes it
        os._exit(0)
    os.close(reader)
    deadline = time.monotonic() + 30
    while seen() != [2, 2, 2] and time.monotonic() < deadline: time.sleep(0.01)
    during = seen()
    os.close(writer)
    os.waitpid(child, 0)
    print(json.dumps([before, during, seen()]))
"""


def test_a_forked_child_counts_for_itself(tmp_path: Path) -> None:
    require(hasattr(os, "fork"), "no fork")
    environ = {"CGROUP_THREADS_CORES": "4", "CGROUP_THREADS_SCOPE": "process", "PYTHONWARNINGS": "ignore"}
    done = run_python(FORK, PROMETHEUS_MULTIPROC_DIR=str(tmp_path), **environ)
    assert json.loads(done.stdout) == [[1, 1, 1], [2, 2, 2], [1, 1, 2]]


PARENT = """
import os, sys
import cgroup_threads as ct
from cgroup_threads.integrations.prometheus import CgroupThreadsCollector
collector = CgroupThreadsCollector()
with ct.limit_threads(1):
    list(collector.collect())
    if not os.fork():
        os.read(0, 1)  # until the test closes it
        os._exit(0)
    os.wait()
"""


def test_a_dead_parent_is_not_kept_alive_by_its_child(tmp_path: Path) -> None:
    require(hasattr(os, "fork"), "no fork")
    workers = Workers(str(tmp_path))

    def seen() -> tuple[int, int]:
        total = workers.total()
        assert total is not None
        return total.alive, total.sums.active

    environ = clean_environ(PROMETHEUS_MULTIPROC_DIR=str(tmp_path), PYTHONWARNINGS="ignore")
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=environ, stdin=subprocess.PIPE)
    assert parent.stdin is not None
    try:
        until(seen, lambda found: found == (3, 1))
        parent.kill()
        parent.wait()
        until(seen, lambda found: found == (2, 0))
    finally:
        parent.stdin.close()
        parent.kill()
        parent.wait()
    until(seen, lambda found: found == (1, 0))
    workers.end()


# Real worker processes of gunicorn.

WORKERS = {"CGROUP_THREADS_CORES": "2", "CGROUP_THREADS_SCOPE": "process"}


@pytest.fixture
def shared(tmp_path: Path) -> str:
    directory = tmp_path / "metrics"
    directory.mkdir()
    return str(directory)


def sums(server: Served) -> list[float]:
    seen = server.scrape()
    return [seen[name] for name in ("processes", "leases_active", "leases_waiting", "leases_total")]


@pytest.mark.parametrize("options", [(), ("--preload",)])
def test_gunicorn_workers_are_added_up(options: tuple[str, ...], tmp_path: Path, shared: str) -> None:
    environ = {**WORKERS, "PROMETHEUS_MULTIPROC_DIR": shared}
    masters = len(options)  # with --preload the master has loaded the application, too
    with served(tmp_path, 3, *options, **environ) as server:
        pids = server.pids()
        until(lambda: sums(server), lambda seen: seen == [3 + masters, 0, 0, 0])
        for number, pid in enumerate(pids, 1):
            server.tell(pid, f"lease({number})")
            server.tell(pid, f"hold({number})")
        until(lambda: [server.tell(pid, "now()") for pid in pids], lambda now: now == [[1, 0, 2], [2, 0, 4], [2, 1, 5]])
        began = time.monotonic()
        until(lambda: sums(server), lambda seen: seen == [3 + masters, 5, 1, 11])
        print(f"all workers were up to date after {time.monotonic() - began:.2f} s")
        server.scraped.clear()
        until(lambda: (sums(server), len(server.scraped)), lambda seen: seen[1] == 3)
        assert [sums(server) for _ in range(20)] == 20 * [[3 + masters, 5, 1, 11]], "whichever worker is asked"
        own = server.scrape()
        assert own['budget_cores{scope="process"}'] == 6
        assert own["app_requests_total"] >= 24, "the application's own metrics are there, too"

        os.kill(pids[1], signal.SIGKILL)  # gunicorn replaces it
        seen = []

        def replaced() -> list[float]:
            seen.append(sums(server))
            return seen[-1]

        until(lambda: (replaced(), len(server.pids())), lambda found: found == ([3 + masters, 3, 1, 11], 3))
        assert {tuple(one[1:]) for one in seen} <= {(5, 1, 11), (3, 1, 11)}
        (newcomer,) = set(server.pids()) - set(pids)
        server.tell(newcomer, "lease(7)")
        until(replaced, lambda found: found == [3 + masters, 3, 1, 18])
        counters = [one[3] for one in seen]
        assert counters == sorted(counters), "no counter goes back"
        for pid in server.pids():
            server.tell(pid, "release()")
        until(lambda: sums(server), lambda found: found == [3 + masters, 0, 0, 19])
        (file,) = Path(shared).glob("*.workers")
        assert file.stat().st_size == (3 + masters) * ROW_SIZE


def test_without_a_directory_a_worker_tells_of_itself(tmp_path: Path) -> None:
    with served(tmp_path, 1, **WORKERS) as server:
        (pid,) = server.pids()
        server.tell(pid, "hold(3)")
        until(lambda: server.tell(pid, "now()"), lambda now: now == [2, 1, 2])
        assert sums(server) == [1, 2, 1, 2]
        server.tell(pid, "release()")


@pytest.mark.parametrize(
    ("language", "words", "command", "path"),
    [
        ("python", "make_asgi_app())", ["uvicorn", "--fd", "{}", "app:app"], "/metrics/"),
        ("python", "def metrics(", ["gunicorn", "-w", "2", "-b", "fd://{}", "app:metrics"], "/"),
    ],
)
def test_the_documented_applications_serve_metrics(
    language: str, words: str, command: list[str], path: str, tmp_path: Path, shared: str
) -> None:
    require_module(command[0])
    require_module("fastapi")
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if words in block]
    (tmp_path / "app.py").write_text(block)
    environ = clean_environ(**({"PROMETHEUS_MULTIPROC_DIR": shared} if "gunicorn" in command else {}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, number = listener.getsockname()[1], listener.fileno()
        options = [part.format(number) for part in command]
        server = subprocess.Popen(
            [sys.executable, "-m", *options], cwd=tmp_path, env=environ, pass_fds=(number,), stderr=subprocess.DEVNULL
        )
    try:
        status, text, _ = fetch(port, path)
        assert status == 200
        assert Scrape(text).keys() >= ALWAYS
    finally:
        server.terminate()
        server.wait(60)


# A real Prometheus.


def test_a_real_prometheus_reads_what_the_kernel_counts(tmp_path: Path, shared: str) -> None:
    with quota_group(1.0) as group:

        def join() -> None:
            Path(group.procs).write_text(str(os.getpid()))

        environ = {"PROMETHEUS_MULTIPROC_DIR": shared, "CGROUP_THREADS_CORES": "2"}
        with (
            served(tmp_path, 2, join=join, **environ) as server,
            prometheus_server(tmp_path, server.port) as database,
        ):
            end = threading.Event()

            def ask() -> None:
                while not end.is_set():
                    fetch(server.port, "/work")

            callers = [threading.Thread(target=ask) for _ in range(4)]
            for caller in callers:
                caller.start()
            try:
                until(lambda: database.value("cgroup_threads_leases_total") or 0, lambda seen: seen > 20)
                name = "cgroup_threads_cgroup_throttled_periods_total"
                until(lambda: database.value(name) or 0, lambda seen: seen >= 10)
                check_against_the_kernel(database, group.directory)
                share = database.value(f"increase({name}[10s]) / increase(cgroup_threads_cgroup_periods_total[10s])")
                assert share is not None
                assert 0 < share <= 1
                assert database.value("cgroup_threads_usable_cores") == 2
                assert database.value("cgroup_threads_quota_cores") == 1
                assert database.value("cgroup_threads_processes") == 2
                budgets = database.query("cgroup_threads_budget_cores")
                assert [(one["metric"]["scope"], one["value"][1]) for one in budgets] == [("container", "2")]
                assert database.value('cgroup_threads_limits_info{bound_by="override"}') == 1
                assert database.value("up") == 1
                assert "cgroup_threads_" not in promtool("check", "metrics", text=fetch(server.port, "/metrics")[1])
            finally:
                end.set()
                for caller in callers:
                    caller.join()


def check_against_the_kernel(database: Any, directory: str) -> None:
    """What was scraped between two looks at the kernel's file is between what stood there."""
    names = [f"cgroup_threads_cgroup_{name}_total" for name in ("periods", "throttled_periods", "throttled_seconds")]
    before = read_throttling(directory)
    began = time.time()
    until(lambda: database.value(f"timestamp({names[0]})") or 0, lambda at: at > began)
    values = [database.value(name) for name in names]
    after = read_throttling(directory)
    assert before is not None
    assert after is not None
    print(f"kernel before {before[1:]}, Prometheus {values}, kernel after {after[1:]}")
    for low, value, high in zip(before[1:], values, after[1:], strict=True):
        assert low <= value <= high
