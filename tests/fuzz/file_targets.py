"""Targets: files that other programs or users may have written: slots, workers, profiles, models, arrays."""

from __future__ import annotations

import json
import math
import os
from functools import partial

from cgroup_threads.comparing.arrays import compare_arrays, is_array
from cgroup_threads.detection.throttling import Throttling
from cgroup_threads.governor.slot_rows import HINTED_SLOTS, MAX_CALLS, PAGE_SIZE, ROWS, parse_page, used_rows
from cgroup_threads.governor.slots import Slots, open_slots
from cgroup_threads.integrations.prometheus_workers import ROW_SIZE, Workers, parse_row
from cgroup_threads.profiles import format as profile_format
from cgroup_threads.profiles.files import ProfileError, load_profile
from cgroup_threads.profiles.gguf import embeds_alone, parse_header
from cgroup_threads.profiles.identity import cpu_model, identify_model
from cgroup_threads.profiles.records import Profile
from cgroup_threads.reporting.records import CounterSample, PressureCounter
from cgroup_threads.reporting.since import SinceError, between, read_report
from cgroup_threads.tuning.weights import find_parts, measure_weights

from .checks import check_line, halves, pieces, put, scratch, steady, text_of

_KEY = "fuzz"
_TOLERANCE = 1e-5


def check_slots(data: bytes) -> None:
    view = steady(lambda: parse_page(data, 0, 1000.0))
    assert 0 <= view.waiting <= view.calls <= 2 * MAX_CALLS * (len(data) // 64)
    assert (view.oldest_s is None) == (view.oldest_row is None)
    assert all(row < len(data) // 64 for row in used_rows(data))
    with scratch() as directory:
        path = put(directory, f"cgroup_threads-{_KEY}.slots", data)
        one = open_slots(_KEY, directory=directory)
        two = open_slots(_KEY, directory=directory)
        try:
            _share(one, two)
            assert os.path.getsize(path) >= PAGE_SIZE
        finally:
            one.close()
            two.close()
        assert not os.path.exists(path)


def _share(one: Slots, two: Slots) -> None:
    """Two processes lease all of eight cores, whatever the hints say."""
    for slots in (one, two):
        view = slots.look()
        assert 0 <= view.held < 1 << HINTED_SLOTS
        assert view.oldest_row is None or 0 <= view.oldest_row < ROWS
        slots.wake(0 if view.oldest_row is None else view.oldest_row)
        got = slots.take(4, 8, view.held)
        assert got.bit_count() == 4
        assert got < 1 << 8
        slots.publish(1, 1, 1.0, 1.0)
    assert not one.held & two.held
    assert one.locked(8) == two.held
    one.reap()
    two.reap()
    assert two.look().held & one.held == one.held
    assert two.take(1, 8, two.look().held) == 0
    one.give(one.held)
    two.give(two.held)
    assert not one.held | two.held


def check_workers(data: bytes) -> None:
    row = data[:ROW_SIZE].ljust(ROW_SIZE, b"\0")
    activity = steady(lambda: parse_row(row))
    if activity is not None:
        assert min(activity.active, activity.leased, activity.waiting, activity.cores) >= 0
    with scratch() as directory:
        put(directory, f"cgroup_threads-{os.geteuid()}.workers", data)
        workers = Workers(directory)
        try:
            total = workers.total()
        finally:
            workers.end()
    assert total is not None
    assert total.alive == 1
    assert all(0 <= counter < math.inf for counter in total.sums.counters)


def check_profile(data: bytes) -> None:
    found = _read_profile(data)
    with scratch() as directory:
        path = put(directory, "0.json", data)
        loaded: Profile | None = None
        try:
            loaded = load_profile(path)
        except ProfileError as error:
            check_line(error.reason)
    assert repr(loaded) == repr(found)
    if found is not None:
        assert _read_profile(profile_format.write(found)) == found
        assert 0 <= found.confidence <= 1
        assert all(1 <= count <= profile_format.MAX_COUNT for count in found.counts.values())
        assert all(0 <= rate < math.inf for rate in found.rates.values())
        assert found.identity.quota is None or 0 < found.identity.quota < math.inf


def _read_profile(data: bytes) -> Profile | None:
    try:
        return profile_format.read(data)
    except ValueError as error:
        check_line(str(error))
        return None


def check_header(data: bytes) -> None:
    settings = steady(lambda: parse_header(data))
    assert len(settings) <= 4096
    assert all(len(key) <= 1024 for key in settings)
    assert all(isinstance(value, (bool, int, float)) or len(value) <= 1024 for value in settings.values())
    assert embeds_alone(settings) in (True, False)


def check_weights(data: bytes) -> None:
    with scratch() as directory:
        path = put(directory, "model.gguf", data)
        weights = steady(lambda: measure_weights(path))
    assert weights is not None
    assert 0 <= weights.size <= len(data)
    assert weights.basis == "tensors" or weights.size == len(data)
    parts = find_parts(text_of(data[:100]))
    assert 1 <= len(parts) <= 999


def check_arrays(data: bytes) -> None:
    first, second = halves(data)
    if not (is_array(first) and is_array(second)):
        first, second = (b"\x93NUMPY" + part for part in (first, second))
    verdict = steady(lambda: compare_arrays([first], [second], _TOLERANCE))
    if verdict is not None:
        assert verdict.state in ("close", "differ")
        assert verdict.error >= 0.0
    itself = compare_arrays([first], [first], _TOLERANCE)
    assert itself is None or (itself.state == "close" and itself.error == 0.0)


def check_identity(data: bytes) -> None:
    """Names of the CPU and of a model that is a file or a directory."""
    cpuinfo, config = pieces(data, 2)
    with scratch() as directory:
        check_line(steady(partial(cpu_model, put(directory, "cpuinfo", cpuinfo))))
        for path in (put(directory, "config.json", config), put(directory, "model.safetensors", config), directory):
            check_line(steady(partial(identify_model, path)))


def check_earlier_report(data: bytes) -> None:
    """The JSON of a report, given back to count from."""
    now = CounterSample("b", 1e6, "1:2", Throttling("f", 900, 90, 9.0), PressureCounter("p", "1:2", 50.0))
    with scratch() as directory:
        path = put(directory, "report.json", data)
        try:
            before = steady(lambda: read_report(path))
            interval = between(before, now, 2.0, path)
        except SinceError as error:
            check_line(str(error))
            return
    json.dumps(interval.to_dict(), allow_nan=False)
    for line in str(interval).split("\n"):
        check_line(line)
    assert interval.throttling is None or 0.0 <= interval.throttling.share <= 1.0
    assert 0.0 <= (interval.pressure_share or 0.0) <= 1.0
