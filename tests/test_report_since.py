"""``report --since``: the throttling of an interval, real ones and those of files that make no sense."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cgroup_threads as ct
from cgroup_threads.commands.report import since
from cgroup_threads.detection import detect
from cgroup_threads.reporting.counters import Throttling, read_throttling
from cgroup_threads.reporting.records import CounterSample, PressureCounter
from cgroup_threads.reporting.since import (
    MAX_FILE,
    Interval,
    SinceError,
    between,
    parse_pressure_total,
    read_counters,
    read_report,
)
from tests.lab.commands import COMMAND, clean_environ, inside, quota_group, run, run_cli

BUSY = "import time\nend = time.monotonic() + float(__import__('sys').argv[1])\nwhile time.monotonic() < end: pass"
QUICK = {"CGROUP_THREADS_AUTO": "0"}


def sample(
    periods: int = 0, throttled: int = 0, seconds: float = 0.0, uptime: float = 0.0, **changes: Any
) -> CounterSample:
    made = CounterSample("boot", uptime, "1:2", Throttling("cpu.stat", periods, throttled, seconds), None)
    return made._replace(**changes)


# The difference.


def test_the_interval_is_the_difference() -> None:
    found = between(
        sample(100, 10, 1.0, 50.0, pressure=PressureCounter("p", "1:2", 3.0)),
        sample(150, 30, 4.5, 60.0, pressure=PressureCounter("p", "1:2", 8.0)),
        2.0,
        "then",
    )
    assert found.seconds == 10.0
    assert found.throttling == Throttling("cpu.stat", 50, 20, 3.5)
    assert found.pressure_share == 0.5
    text = str(found)
    assert text.startswith("in 10.0 s: throttled in 40 % of the periods\n")
    assert "20 of 50 periods, 3.50 s stopped" in text
    assert "waited for a CPU in 50 % of the time, 5.00 s" in text
    told = json.loads(json.dumps(found.to_dict()))
    assert told["throttling"] == {"file": "cpu.stat", "periods": 50, "throttled": 20, "seconds": 3.5, "share": 0.4}
    assert told["pressure"] == {"file": "p", "seconds": 5.0, "share": 0.5}
    assert (told["seconds"], told["quota"], told["cgroup"], told["problem"]) == (10.0, 2.0, "1:2", True)


@pytest.mark.parametrize(
    ("periods", "throttled", "quota", "problem"),
    [
        (20, 5, 1.0, True),
        (20, 4, 1.0, False),
        (19, 19, 1.0, False),  # too few to say anything
        (100, 100, 0.5, False),  # one busy thread is more than that
        (100, 100, None, False),
    ],
)
def test_the_rule_is_the_report_s(periods: int, throttled: int, quota: float | None, problem: bool) -> None:
    assert Interval(9.0, "1:2", quota, Throttling("f", periods, throttled, 1.0), None).problem is problem


@pytest.mark.parametrize(("quota", "why"), [(None, "no quota"), (2.0, "nothing ran")])
def test_no_period_is_no_share(quota: float | None, why: str) -> None:
    text = str(Interval(9.0, "1:2", quota, Throttling("f", 0, 0, 0.0), None))
    assert text == f"in 9.0 s: no quota period was counted ({why}); f"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"boot": "another"}, "started anew"),
        ({"cgroup": "1:3"}, "another cgroup"),
        ({"uptime_s": 99.0}, "clock went back"),
        ({"throttling": Throttling("f", 11, 5, 1.0)}, "counters went back"),
        ({"throttling": Throttling("f", 10, 6, 1.0)}, "counters went back"),
        ({"throttling": Throttling("f", 10, 5, 1.5)}, "counters went back"),
        ({"throttling": None}, "neither"),
        ({"pressure": PressureCounter("p", "1:2", 9.0)}, "went back"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], words: str) -> None:
    now = sample(10, 5, 1.0, 60.0, pressure=PressureCounter("p", "1:2", 8.0))
    with pytest.raises(SinceError, match=words) as caught:
        between(sample(10, 5, 1.0, 50.0)._replace(**changes), now, 1.0, "before.json")
    assert str(caught.value).startswith("before.json: ")
    assert len(str(caught.value).splitlines()) == 1


def test_another_group_s_pressure_is_left_out() -> None:
    before = sample(1, 0, 0.0, 1.0, pressure=PressureCounter("p", "1:1", 1.0))
    after = sample(2, 0, 0.0, 2.0, pressure=PressureCounter("p", "1:2", 2.0))
    found = between(before, after, 1.0, "then")
    assert found.throttling is not None
    assert (found.pressure, found.pressure_share) == (None, None)
    assert "pressure" not in str(found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n", 2.5),
        ("full avg10=0.00 total=9\n", None),
        ("some avg10=0.00 total=\n", None),
        ("some avg10=0.00 total=-1\n", None),
        ("some avg10=0.00 total=" + "9" * 400, None),
        ("some\n", None),
        ("", None),
    ],
)
def test_pressure_totals(text: str, seconds: float | None) -> None:
    assert parse_pressure_total(text) == seconds


# The argument.


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("10s", 10), ("1m", 60), ("1.5m", 90), ("500ms", 0.5), ("60m", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert since(text) == seconds


def test_a_duration_is_no_file_and_a_path_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "10s").touch()
    assert since("10s") == 10
    assert since("./10s") == "./10s"


@pytest.mark.parametrize("text", ["", "0", "0s", "61m", "1h", "1sm", "m", "-1", "nan", "no/such.json", "3601"])
def test_what_is_neither_is_one_line(text: str) -> None:
    done = run_cli("report", f"--since={text}", **QUICK)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "neither a duration" in done.stderr


def test_options_that_have_no_effect_are_refused() -> None:
    for arguments in (["--interval", "1"], ["--import", "json"]):
        done = run_cli("report", "--since", "0.01", *arguments, **QUICK)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert arguments[0] in done.stderr


# Files.


def write(path: Path, value: object) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_a_report_carries_its_counters(tmp_path: Path) -> None:
    before = read_counters(detect())
    found = read_report(write(tmp_path / "report.json", ct.report().to_json()))
    after = read_counters(detect())
    assert (found.boot, found.cgroup) == (before.boot, before.cgroup)
    assert before.uptime_s <= found.uptime_s <= after.uptime_s
    if before.throttling is not None and after.throttling is not None:
        assert found.throttling is not None
        assert before.throttling.periods <= found.throttling.periods <= after.throttling.periods
    if before.pressure is not None and after.pressure is not None:
        assert found.pressure is not None
        assert before.pressure.seconds <= found.pressure.seconds <= after.pressure.seconds


GOOD = {
    "boot": "b",
    "uptime_s": 5.5,
    "cgroup": "1:2",
    "throttling": {"file": "f", "periods": 3, "throttled": 1, "seconds": 0.5},
    "pressure": {"file": "p", "cgroup": "", "seconds": 1},
}


def bad_counters() -> Iterator[object]:
    yield from ([], 1, "text", {})
    changes: dict[str, tuple[object, ...]] = {
        "boot": (1, None),
        "uptime_s": (-1, None, True, "1", float("nan"), float("inf"), 10**400),
        "cgroup": (None, 1),
        "throttling": ([], 1, {}, {**GOOD["throttling"], "periods": 0}, {**GOOD["throttling"], "seconds": -1}),  # type: ignore[dict-item]
        "pressure": ([], {}, {**GOOD["pressure"], "file": 1}),  # type: ignore[dict-item]
    }
    for key, values in changes.items():
        for value in values:
            yield {**GOOD, key: value}


@pytest.mark.parametrize("counters", [*bad_counters()])
def test_counters_that_make_no_sense(counters: object, tmp_path: Path) -> None:
    with pytest.raises(SinceError, match="make no sense"):
        read_report(write(tmp_path / "x", {"usable_cores": 1, "counters": counters}))
    good = read_report(write(tmp_path / "x", {"usable_cores": 1, "counters": GOOD}))
    assert good.throttling == Throttling("f", 3, 1, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not the JSON"),
        ("{", "not the JSON"),
        ("[" * 100_000, "not the JSON"),
        ("[]", "not the JSON"),
        ('{"seconds": 1}', "not the JSON"),
        ('{"usable_cores": 1}', "no counters"),
        ('{"usable_cores": 1, "counters": null}', "no counters"),
        ("9" * 5000, "not the JSON"),
        (" " * (MAX_FILE + 1), "larger than"),
    ],
)
def test_files_that_are_no_reports(text: str, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", text)
    with pytest.raises(SinceError, match=words):
        read_report(path)


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    done = run_cli("report", "--since", str(tmp_path), **QUICK)
    assert done.returncode == 2
    assert done.stderr == f"cgroup-threads: error: {tmp_path}: Is a directory\n"


@given(st.binary(max_size=200))
def test_junk_never_raises_anything_else(data: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    try:
        with pytest.raises(SinceError):
            read_report(f"/dev/fd/{reader}")
    finally:
        os.close(reader)


# The command.


def test_since_a_report_in_a_real_quota(tmp_path: Path) -> None:
    path = str(tmp_path / "before.json")
    with quota_group(1.0) as group:
        # Two busy loops for over 20 periods of 100 ms.
        script = (
            f'"$@" report --json > {path} && {{ {sys.executable} -c "$BUSY" 3 & {sys.executable} -c "$BUSY" 3; wait; }}'
            f' && "$@" report --since {path} --json --check; echo "$?"; "$@" report --since {path}'
        )
        before = read_throttling(group.directory)
        done = run(inside(group, ["/bin/sh", "-c", script, "sh", *COMMAND]), clean_environ(BUSY=BUSY, **QUICK))
        after = read_throttling(group.directory)
    assert done.returncode == 0, done.stderr
    assert before is not None
    assert after is not None
    text, _, rest = done.stdout.partition("\n}\n")
    code, *lines = rest.splitlines()
    found = json.loads(text + "}")
    throttling = found["throttling"]
    assert 20 <= throttling["periods"] <= after.periods
    assert 0 < throttling["throttled"] <= after.throttled
    assert 0 < throttling["seconds"] <= after.seconds
    assert throttling["share"] == throttling["throttled"] / throttling["periods"] >= 0.25
    assert found["seconds"] >= 3
    assert (found["problem"], code) == (True, "1")
    assert lines[0].startswith("in ")
    assert f"{group.directory}/cpu.stat" in lines[1]


def test_another_container_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    with quota_group(1.0) as group:
        path.write_text(run(inside(group, [*COMMAND, "report", "--json"]), clean_environ(**QUICK)).stdout)
    with quota_group(1.0) as group:  # of the same name
        done = run(inside(group, [*COMMAND, "report", "--since", str(path)]), clean_environ(**QUICK))
    assert (done.returncode, done.stdout) == (2, "")
    assert "another cgroup" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_next_seconds() -> None:
    with quota_group(1.0) as group:
        done = run(inside(group, [*COMMAND, "--since", "300ms", "--check"]), clean_environ(**QUICK))
        told = run(inside(group, [*COMMAND, "--since", "0.3", "--json"]), clean_environ(**QUICK))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("in 0.")
    found = json.loads(told.stdout)
    assert 0.3 <= found["seconds"] < 30
    assert found["quota"] == 1.0


def test_a_terminal_sees_a_progress_bar() -> None:
    master, terminal = pty.openpty()
    try:
        with quota_group(1.0) as group:
            command = inside(group, [*COMMAND, "--since", "300ms"])
            environ = clean_environ(**QUICK)
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, env=environ, timeout=60, check=True)
        shown = os.read(master, 4096).decode()
    finally:
        os.close(master)
        os.close(terminal)
    assert "0/1 seconds counted" in shown
    assert shown.endswith("\r\x1b[K"), "the bar is gone at the end"
    assert done.stdout.startswith(b"in ")
