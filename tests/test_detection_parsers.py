"""Parsers of the kernel's texts: any text is taken, sound ones come back as they went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.detection.cgroup import parse_cfs, parse_cpu_max
from cgroup_threads.detection.cpulist import MAX_CPUS, format_cpulist, parse_cpulist, parse_mask
from cgroup_threads.detection.placement import place_groups
from cgroup_threads.detection.procfs import Reading, parse_membership, parse_mounts, unescape
from cgroup_threads.detection.schedulers import read_grants

# Text that looks like the real thing gets further into a parser than noise does.
LIKELY = st.text(alphabet="0123456789-,:/x max\n\\", max_size=60) | st.text(max_size=80)
LINES = st.lists(
    st.sampled_from(
        [
            "0::/a/b",
            "4:cpu,cpuacct:/a",
            "3:cpuset:/../x",
            "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 c rw",
            "30 30 0:26 /../.. /m rw - cgroup c rw,cpu",
            "31 30 0:27 /a /sys rw - cgroup c rw,cpuset",
            "32 31 0:28 / / rw - tmpfs t rw",
            " - cgroup2 ",
            "",
        ]
    )
    | LIKELY,
    max_size=8,
).map("\n".join)


@given(LIKELY)
def test_any_text_is_taken(text: str) -> None:
    for value in (parse_cpu_max(text), parse_cfs(text, "100000"), parse_cfs("100000", text), parse_cfs(text, None)):
        assert value is None or value > 0
    for cpus in (parse_cpulist(text), parse_mask(text)):
        assert cpus is None or all(0 <= cpu < MAX_CPUS for cpu in cpus)
    grant, _ = read_grants(dict.fromkeys(("SLURM_CPUS_PER_TASK", "NSLOTS", "CPU_LIMIT", "SLURM_TASKS_PER_NODE"), text))
    assert grant is None or grant.cores > 0


@given(LINES, LINES)
def test_groups_are_placed_below_mounts_or_nowhere(lines: str, table: str) -> None:
    found = place_groups(Reading(lines), Reading(table))
    for place in (found.cpu, found.cpuset):
        if place is not None:
            points = [mount.point.rstrip("/") for mount in parse_mounts(table)]
            for chain in place.chains:
                assert ".." not in chain.directories[0].removeprefix(chain.directories[-1]).split("/")
                assert chain.directories[-1] in points
            assert place.chains or place.notices


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_quota_is_its_ratio(quota: int, period: int) -> None:
    assert parse_cpu_max(f"{quota} {period}\n") == pytest.approx(quota / period)
    assert parse_cfs(f"{quota}\n", f"{period}\n") == pytest.approx(quota / period)


@given(st.frozensets(st.integers(0, 5000), min_size=1, max_size=40))
def test_cpu_lists_go_round(cpus: frozenset[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus) + "\n") == cpus


@given(st.frozensets(st.integers(0, 5000), min_size=1, max_size=40))
def test_masks_go_round(cpus: frozenset[int]) -> None:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    words = [digits[at : at + 8] for at in range(0, len(digits), 8)]
    assert parse_mask(",".join(words) + "\n") == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", set()),
        ("1-4", {1, 2, 3, 4}),  # D11
        ("1,3-5\n", {1, 3, 4, 5}),
        ("0-6:2/3", {0, 1, 3, 4, 6}),
        ("0-1023", set(range(1024))),
        ("3-1", None),
        ("0-", None),
        ("1.5", None),
        ("0-99999999", None),
        ("0-6:3/2", None),
        ("+1", None),
        ("1_0", None),
        (",".join(["0-60000"] * 9), None),  # bounded work
    ],
)
def test_cpu_lists(text: str, cpus: set[int] | None) -> None:
    assert parse_cpulist(text) == cpus


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
def test_octal_escapes_go_round(text: str) -> None:
    """Blanks, tabs, newlines, backslashes and hashes are escaped, once."""
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\#" else c for c in text)
    assert unescape(escaped) == text


def test_paths_in_membership_keep_colons_and_backslashes() -> None:
    members = parse_membership("4:cpu,cpuacct:/a:b\\040c\n0::/x:y\n1:name=systemd:/z\njunk\n")
    assert members.controllers["cpu"] == "/a:b\\040c"
    assert members.unified == "/x:y"
    assert members.malformed == ("junk",)
