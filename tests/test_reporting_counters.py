"""Kernel counters: parsers on the kernel's formats and on junk, readers on this process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cgroup_threads.reporting import counters
from cgroup_threads.reporting.counters import (
    ThreadGroup,
    Throttling,
    binding_level,
    group_threads,
    parse_cpu_stat,
    parse_pressure,
    parse_task_stat,
    read_threads,
    read_throttling,
    throttling_between,
)
from tests.lab import require
from tests.report_samples import POD, make_level

V1 = "nr_periods 116\nnr_throttled 56\nthrottled_time 5374186902\nnr_bursts 0\nburst_time 0\n"
V2 = "usage_usec 9000\nuser_usec 1\nsystem_usec 2\nnr_periods 200\nnr_throttled 80\nthrottled_usec 1500000\n"


def test_cpu_stat_units_differ_between_v1_and_v2() -> None:
    assert parse_cpu_stat(V1, "f") == Throttling("f", 116, 56, pytest.approx(5.374186902))
    assert parse_cpu_stat(V2, "f") == Throttling("f", 200, 80, pytest.approx(1.5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "usage_usec 9\n",
        "nr_periods\nnr_throttled\n",
        "nr_periods -1\nnr_throttled 1\n",
        "nr_periods 1_0\n",
        "\0\n\n",
    ],
)
def test_cpu_stat_without_counters_is_none(text: str) -> None:
    assert parse_cpu_stat(text, "f") is None


def test_cpu_stat_junk_never_gives_a_share_above_one() -> None:
    stat = parse_cpu_stat("nr_periods 1\nnr_throttled 99999999999999999999\nthrottled_usec x\n", "f")
    assert stat == Throttling("f", 1, 1, 0.0)
    assert Throttling("f", 0, 0, 0.0).share == 0.0


def test_d06_counters_come_from_the_leaf_not_from_the_mount_point(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 9\nthrottled_usec 9\n")
    leaf = tmp_path / "pod1.slice"
    leaf.mkdir()
    (leaf / "cpu.stat").write_text(V2)
    levels = (make_level(1.5, str(leaf)), make_level(None, str(tmp_path)))
    level = binding_level(levels)
    assert level is not None
    found = read_throttling(level.path)
    assert found is not None
    assert (found.file, found.throttled) == (f"{leaf}/cpu.stat", 80)


def test_counters_come_from_the_level_that_limits() -> None:
    own, parent = make_level(4.0, POD), make_level(2.0, "/sys/fs/cgroup/kubepods.slice")
    assert binding_level((own, parent)) is parent
    assert binding_level((make_level(2.0), parent)) == make_level(2.0), "the own group wins a tie"
    assert binding_level((make_level(None), make_level(None, "/sys/fs/cgroup"))) == make_level(None)
    assert binding_level(()) is None


def test_e23_throttling_over_an_interval() -> None:
    between = throttling_between(Throttling("f", 100, 2, 1.0), Throttling("f", 200, 80, 3.0))
    assert between == Throttling("f", 100, 78, 2.0)
    assert between.share == pytest.approx(0.78)


def test_an_interval_across_a_new_group_is_none() -> None:
    assert throttling_between(Throttling("f", 100, 2, 1.0), Throttling("f", 5, 1, 0.1)) is None
    assert throttling_between(Throttling("f", 1, 0, 0.0), Throttling("g", 2, 0, 0.0)) is None
    assert throttling_between(None, Throttling("f", 1, 0, 0.0)) is None


def test_pressure() -> None:
    text = "some avg10=12.50 avg60=3.00 avg300=1.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    pressure = parse_pressure(text, "f")
    assert pressure is not None
    assert (pressure.avg10, pressure.avg60) == (12.5, 3.0)
    for junk in ("", "some\n", "some avg10=x avg60=1\n", "full avg10=1 avg60=1\n"):
        assert parse_pressure(junk, "f") is None


def test_task_stat_with_brackets_and_blanks_in_the_name() -> None:
    assert parse_task_stat("12 (a) b (c) R 1 2 3") == ("a) b (c", "R")
    assert parse_task_stat("12 (python3) S 1 2 3") == ("python3", "")
    assert parse_task_stat("12 python3 S 1") is None
    assert parse_task_stat("") is None


def test_o04_threads_are_grouped_by_name() -> None:
    tasks = [("openblas", True), ("AwsEventLoop 1", False), ("AwsEventLoop 2", True), ("tokio-runtime-w", False)]
    tasks += [("python3.11", False), ("42", False)]
    assert group_threads(tasks) == (
        ThreadGroup("AwsEventLoop", 2, 1),
        ThreadGroup("42", 1, 0),
        ThreadGroup("openblas", 1, 1),
        ThreadGroup("python3.11", 1, 0),
        ThreadGroup("tokio-runtime-w", 1, 0),
    )


def test_o04_real_threads_are_counted() -> None:
    require(counters.count_threads(1) > 0, "/proc is not mounted")
    release = threading.Event()
    before = sum(group.threads for group in read_threads())
    helpers = [threading.Thread(target=release.wait) for _ in range(5)]
    try:
        for helper in helpers:
            helper.start()
        assert sum(group.threads for group in read_threads()) >= before + 5
    finally:
        release.set()
        for helper in helpers:
            helper.join()


def test_unreadable_files_give_nothing(tmp_path: Path) -> None:
    assert read_throttling(str(tmp_path)) is None
    (tmp_path / "cpu.stat").mkdir()
    assert read_throttling(str(tmp_path)) is None
    assert read_threads("no-such-process") == ()
    assert counters.count_threads(2**22 + 1) == 0
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge" / "cpu.stat").write_bytes(b"\xff" * 10_000_000)
    assert read_throttling(str(tmp_path / "huge")) is None
