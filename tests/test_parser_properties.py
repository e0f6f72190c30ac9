"""Every reader of the kernel's and schedulers' texts: any text or bytes are taken, in linear time, to a sane value."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cgroup_threads.conflicts import parse_cpus
from cgroup_threads.detection import macos, windows
from cgroup_threads.detection.cgroup import parse_cfs, parse_cpu_max
from cgroup_threads.detection.cpulist import MAX_CPUS, format_cpulist, parse_cpulist, parse_mask, parse_number
from cgroup_threads.detection.placement import place_groups
from cgroup_threads.detection.procfs import (
    SMALL,
    Files,
    Reading,
    find_hidden,
    parse_all_tasks,
    parse_membership,
    parse_mounts,
    parse_soft_limit,
    parse_status_cpus,
    parse_tree,
    unescape,
)
from cgroup_threads.detection.schedulers import read_grants
from cgroup_threads.detection.tasks import parse_owner, parse_stack_size
from cgroup_threads.detection.throttling import parse_cpu_stat, parse_pressure
from cgroup_threads.detection.topology import CPU_DIRECTORY, read_topology
from cgroup_threads.governor.sampling import parse_idle, parse_schedstat
from cgroup_threads.governor.slot_rows import parse_page, used_rows
from cgroup_threads.notices import Notice
from cgroup_threads.pools.maps import native_name
from cgroup_threads.profiles.gguf import parse_header
from cgroup_threads.reporting.counters import group_threads, parse_task_stat
from cgroup_threads.reporting.inspecting.tasks import (
    parse_environ,
    parse_maps,
    parse_stat,
    parse_status,
    parse_syscall,
    printable,
)
from cgroup_threads.reporting.since import parse_pressure_total
from cgroup_threads.tuning.memory import parse_size

# Noise with what /proc can bring (undecodable bytes are surrogates), and pieces of the real thing in odd orders.
NOISE = st.text(st.characters(codec=None, categories=None), max_size=80)
PIECES = st.lists(
    st.sampled_from(
        [
            *("0", "1", "7", "18446744073709551615", "9" * 400, "-1", "+1", "1_0", "\u0663", "\u00b2", "0x10", "1.5"),
            *("max", "some ", "full ", "avg10=", "avg60=", "total=", "nan", "inf", "1e400", "cpu", "cpu0", "intr"),
            *(
                " ",
                "\t",
                "\n",
                "\r\n",
                "\0",
                ",",
                "-",
                ":",
                "/",
                "..",
                "\\040",
                "\\134",
                "\\777",
                "(",
                ")",
                " - ",
                "{",
                "}",
            ),
            *("cgroup2", "cgroup", "cpuset", "cpu,cpuacct", "0::", "4:cpu:/a", "\udcff", "\ud800", "\U0001f600", "|"),
            *("nr_periods ", "nr_throttled ", "throttled_usec ", "Uid:\t", "CapEff:\t", "Threads:\t", "Max processes"),
        ]
    ),
    max_size=30,
).map("".join)
TEXTS = NOISE | PIECES
BYTES = st.binary(max_size=200) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))

PARSERS: dict[str, Callable[[str], Any]] = {
    "cpu.max": parse_cpu_max,
    "cfs": lambda text: (parse_cfs(text, text), parse_cfs(text, None), parse_cfs("1", text)),
    "cpulist": parse_cpulist,
    "mask": parse_mask,
    "number": parse_number,
    "membership": parse_membership,
    "mounts": parse_mounts,
    "tree": parse_tree,
    "octal": unescape,
    "groups": lambda text: place_groups(Reading(text), Reading("30 1 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n")),
    "places": lambda text: place_groups(Reading("0::/a\n"), Reading(text)),
    "limits": lambda text: parse_soft_limit("Max processes" + text, "Max processes"),
    "loadavg": parse_all_tasks,
    "allowed": parse_status_cpus,
    "grants": lambda text: read_grants(dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_NNODES", "NSLOTS"), text)),
    "owner": parse_owner,
    "stack": parse_stack_size,
    "cpu.stat": lambda text: parse_cpu_stat(text, "f"),
    "pressure": lambda text: (parse_pressure("some " + text, "f"), parse_pressure(text, "f")),
    "total": lambda text: parse_pressure_total("some " + text),
    "schedstat": parse_schedstat,
    "idle": lambda text: parse_idle("cpu0 " + text, frozenset({0, 1}), 100),
    "task": lambda text: group_threads([(found[0], True)] if (found := parse_task_stat(text[:SMALL])) else []),
    "bindings": parse_cpus,
    "cache": parse_size,
    "library": native_name,
}
BINARY: dict[str, Callable[[bytes], Any]] = {
    "stat": lambda data: (parse_stat(data), parse_stat(b"1 (" + data + b") S " + b"1 " * 20)),
    "status": parse_status,
    "environ": parse_environ,
    "maps": parse_maps,
    "syscall": parse_syscall,
    "printable": printable,
    "page": lambda data: (parse_page(data, 0, 1.0), used_rows(data)),
    "gguf": lambda data: parse_header(b"GGUF\3\0\0\0" + data),
}
LONG = 1 << 20


@pytest.mark.parametrize("name", PARSERS)
@given(TEXTS)
def test_no_text_raises(name: str, text: str) -> None:
    PARSERS[name](text)


@pytest.mark.parametrize("name", BINARY)
@given(BYTES)
def test_no_bytes_raise(name: str, data: bytes) -> None:
    BINARY[name](data)


def seconds(call: Callable[[], object]) -> float:
    """Of this thread's CPU time, so that neighbours do not count."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


@pytest.mark.parametrize("unit", ["0", "0,", "/a", "\\040", "a ", "\n", "(", "{0:4},", "some avg10=1 ", "1:cpu:/a\n"])
def test_a_mebibyte_is_read_in_linear_time(unit: str) -> None:
    """A square would be 10**12 steps; what is linear takes some tenths of a second for all of them."""
    text = (unit * (LONG // len(unit) + 1))[:LONG]
    data = text.encode()
    for name, parse in PARSERS.items():
        took = seconds(partial(parse, text))
        assert took < 3, f"{name}: {took:.1f} s"
    for name, read in BINARY.items():
        took = seconds(partial(read, data))
        assert took < 3, f"{name}: {took:.1f} s"


# Values are in their ranges, and sound ones come back.


@given(TEXTS, TEXTS)
def test_quotas_are_positive_or_none(text: str, period: str) -> None:
    for found in (parse_cpu_max(text), parse_cfs(text, period)):
        assert found is None or found > 0
        assert not isinstance(found, float) or not math.isnan(found)


def set_of(text: str) -> set[int]:
    """The CPUs of a list of numbers and spans, by counting them out."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        span, _, stride = piece.partition(":")
        low, _, high = span.partition("-")
        used, _, group = stride.partition("/") if stride else ("1", "", "1")
        for cpu in range(int(low), int(high or low) + 1):
            if (cpu - int(low)) % int(group) < int(used):
                found.add(cpu)
    return found


SPANS = st.tuples(
    st.integers(0, 300), st.integers(0, 40), st.none() | st.tuples(st.integers(1, 8), st.integers(0, 8))
).map(
    lambda s: (
        f"{s[0]}-{s[0] + s[1]}" + (f":{s[2][0]}/{s[2][0] + s[2][1]}" if s[2] else "") if s[1] or s[2] else f"{s[0]}"
    )
)


@given(st.lists(SPANS, min_size=1, max_size=12).map(",".join))
@example("0-6:2/3")
def test_a_list_of_cpus_is_what_counting_gives(text: str) -> None:
    found = parse_cpulist(text)
    assert found is not None
    assert sorted(found) == sorted(set_of(text))
    assert parse_cpulist(format_cpulist(found)) == found


@given(TEXTS)
def test_a_list_that_is_taken_can_be_written(text: str) -> None:
    for found in (parse_cpulist(text), parse_mask(text)):
        if found is not None:
            assert all(0 <= cpu < MAX_CPUS for cpu in found)
            assert parse_cpulist(format_cpulist(found)) == found


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=5))
def test_places_are_what_counting_gives(places: list[tuple[int, int, int]]) -> None:
    """OMP_PLACES: first CPU, how many, how far apart."""
    text = ",".join(f"{{{first}:{number}:{stride}}}" for first, number, stride in places)
    counted = {first + step * stride for first, number, stride in places for step in range(number)}
    assert parse_cpus(text) == counted


@given(TEXTS)
def test_bindings_name_cpus(text: str) -> None:
    found = parse_cpus(text)
    assert found is None or all(0 <= cpu < 8192 for cpu in found)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\n\0", exclude_categories=["Cs"]), min_size=1, max_size=8
)
PATHS = st.lists(NAMES.filter(lambda name: name not in (".", "..")), max_size=5).map(
    lambda names: "/" + "/".join(names)
)


def escape(path: str) -> str:
    """As the kernel writes a path into mountinfo."""
    return "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in path)


@given(TEXTS | st.lists(st.sampled_from(["\\", "0", "1", "4", "7", "8", "a"]), max_size=12).map("".join))
@example("\\04")
@example("\\0400")
def test_octal_escapes_are_three_digits_and_decoded_once(text: str) -> None:
    assert unescape(text) == re.sub(r"\\([01][0-7]{2})", lambda found: chr(int(found[1], 8)), text)


@given(PATHS, PATHS)
@example("/a:b", "/with blank\\040")
def test_a_group_is_found_below_its_mount_whatever_its_name_is(own: str, point: str) -> None:
    if own.endswith("\r"):  # taken for a line's end
        return
    table = f"30 1 0:26 / {escape(point)} rw - cgroup2 c rw\n"
    place = place_groups(Reading(f"0::{own}\n"), Reading(table)).cpu
    assert place is not None
    directories = place.chains[0].directories
    assert directories[0] == point.rstrip("/") + (own if own != "/" else "")
    assert directories[-1] == point.rstrip("/")
    assert len(directories) == len([name for name in own.split("/") if name]) + 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), PATHS), max_size=12), PATHS)
def test_any_tree_of_mounts_is_walked_to_an_end(rows: list[tuple[int, int, str]], point: str) -> None:
    """Parents may be their own children."""
    table = "".join(f"{own} {parent} 0:26 / {escape(at)} rw - cgroup2 c rw\n" for own, parent, at in rows)
    mounts = parse_mounts(table)
    assert len(mounts) == len(rows)
    assert find_hidden(parse_tree(table), mounts) <= {mount.mount_id for mount in mounts}


@given(st.text(st.characters(max_codepoint=0x2FF), max_size=12), st.sampled_from("RSDZ"), TEXTS)
def test_a_name_and_a_state_come_back(name: str, state: str, rest: str) -> None:
    found = parse_task_stat(f"12 ({name}) {state} 1 2 {rest.replace(')', '')}")
    assert found == (name, "R" if state == "R" else "")


counters = st.integers(0, 2**64 - 1)


@given(counters, counters, counters, st.booleans())
def test_throttling_comes_back(periods: int, throttled: int, time_: int, first: bool) -> None:
    name, unit = ("throttled_time", 1e9) if first else ("throttled_usec", 1e6)
    found = parse_cpu_stat(f"nr_periods {periods}\nnr_throttled {throttled}\n{name} {time_}\n", "f")
    assert found is not None
    assert (found.periods, found.throttled) == (periods, min(throttled, periods))
    assert found.seconds == pytest.approx(time_ / unit)
    assert 0 <= found.share <= 1


@given(TEXTS)
def test_throttling_is_in_its_ranges(text: str) -> None:
    found = parse_cpu_stat(text, "f")
    assert found is None or (0 <= found.throttled <= found.periods and found.seconds >= 0)


@given(st.integers(0, 10000), st.integers(0, 10000), counters)
def test_pressure_comes_back(ten: int, sixty: int, total: int) -> None:
    line = f"some avg10={ten / 100:.2f} avg60={sixty / 100:.2f} avg300=0.00 total={total}\nfull avg10=1.00\n"
    found = parse_pressure(line, "f")
    assert found is not None
    assert (found.avg10, found.avg60) == (ten / 100, sixty / 100)
    assert parse_pressure_total(line) == pytest.approx(total / 1e6)


@given(TEXTS, TEXTS)
@example("nan", "1.00")
@example("inf", "1.00")
@example("-5", "1.00")
@example("100.01", "1.00")
def test_pressure_is_a_share(ten: str, sixty: str) -> None:
    """A number of per cent, or nothing: nan and infinity would be no JSON."""
    found = parse_pressure(f"some avg10={ten} avg60={sixty} avg300=0.00 total=1\n", "f")
    for share in (found.avg10, found.avg60) if found is not None else ():
        assert 0 <= share <= 100


@pytest.mark.parametrize("odd", ["nan", "inf", "-5", "100.01", "", "1.2.3", "9" * 400])
def test_what_is_no_share_is_no_pressure(odd: str) -> None:
    assert parse_pressure(f"some avg10={odd} avg60=0.00 avg300=0.00 total=1\n", "f") is None


@given(counters, counters, counters)
def test_the_times_of_a_thread_come_back(ran: int, waited: int, times: int) -> None:
    found = parse_schedstat(f"{ran} {waited} {times}\n")
    assert found is not None
    assert tuple(found) == (ran / 1e9, waited / 1e9, times)


@given(TEXTS)
def test_idle_time_is_no_debt(text: str) -> None:
    found = parse_idle("cpu0 " + text, frozenset({0}), 100)
    assert found is None or (found >= 0 and math.isfinite(found))


# Systems that answer with numbers instead of texts.

answers = st.none() | st.integers(1, 4096)


@given(answers, answers, answers, answers, answers)
def test_any_mac_is_taken(
    logical: int | None, physical: int | None, fast: int | None, cores: int | None, count: int | None
) -> None:
    told = {
        "hw.logicalcpu": logical,
        "hw.physicalcpu": physical,
        "hw.perflevel0.logicalcpu": fast,
        "hw.perflevel0.physicalcpu": cores,
    }
    found = macos.observe(told.get, lambda: count)
    assert len(found.affinity) == found.host_cpus == (logical or count or 1)
    assert 1 <= found.topology.physical_cores <= found.host_cpus
    assert found.topology.performance_cpus <= found.affinity
    assert found.quota is None


@given(
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.tuples(st.integers(0, 31), st.integers(0, 2**32 - 1)),
    st.none() | st.integers(0, 4096),
)
def test_any_windows_is_taken(mask: int | None, rate: tuple[int, int] | None, count: int | None) -> None:
    found = windows.observe(windows.Calls(lambda: mask, lambda: rate, lambda: count))
    assert found.affinity
    assert len(found.affinity) <= found.host_cpus
    assert found.quota is None or 0 < found.quota < found.host_cpus
    assert (found.status == "limited") is (found.quota is not None)
    assert (found.status == "unknown") is (rate is None)


class Made(Files):
    """Files that hold what a test says."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self.texts = texts

    def read(self, path: str, limit: int = SMALL) -> Reading:
        text = self.texts.get(path)
        return Reading(None, "missing") if text is None else Reading(text)


_SYS = [
    *(f"{CPU_DIRECTORY}/{name}" for name in ("smt/active", "offline", "isolated")),
    *(
        f"{CPU_DIRECTORY}/cpu{cpu}/{name}"
        for cpu in range(4)
        for name in ("topology/thread_siblings_list", "cpu_capacity")
    ),
    *(f"/sys/devices/{name}/cpus" for name in ("cpu_core", "cpu_atom")),
]


@given(
    st.dictionaries(st.sampled_from(_SYS), TEXTS | st.sampled_from(["0", "1", "0-1", "2-3", "0-3", "512", "1024"])),
    st.frozensets(st.integers(0, 5), min_size=1),
)
def test_any_topology_is_taken(texts: dict[str, str], mask: frozenset[int]) -> None:
    notices: list[Notice] = []
    found = read_topology(Made(texts), mask, mask, notices)
    assert 1 <= found.physical_cores <= len(mask)
    assert found.performance_cpus <= mask
    assert found.performance_cores <= found.physical_cores
    assert all(notice.message.isprintable() for notice in notices)
