"""Hidden limits: what is said from which counters, what a budget that follows does, and what is read from where."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.detection.procfs import Files
from cgroup_threads.detection.throttling import Throttling
from cgroup_threads.governor.following import AGREEING, Following, follow
from cgroup_threads.governor.hidden import (
    CONSECUTIVE,
    WINDOW,
    HiddenLimit,
    Look,
    Sample,
    ThreadTimes,
    complain,
    difference,
    estimate,
    says_something,
)
from cgroup_threads.governor.sampling import parse_idle, parse_schedstat, read_idle, read_threads
from cgroup_threads.reporting.judge import find_problems
from cgroup_threads.reporting.render import render
from cgroup_threads.reporting.values import to_dict
from tests.report_samples import make_evidence


def make_sample(got: float = 0.3, waited: float = 0.7, idle: float | None = 1.7, **changes: Any) -> Sample:
    """One second of one thread on 2 CPUs, leased all the time."""
    return Sample(
        at_s=1.0,
        wall_s=1.0,
        cpu_s=got,
        run_s=got,
        delay_s=waited,
        longest_s=waited,
        longest=7,
        waits=10,
        threads=1,
        idle_s=idle,
        width=2,
        budget=2,
        leased_s=1.0,
    )._replace(**changes)


def kind(*samples: Sample) -> str | None:
    found = estimate(samples)
    return None if found is None else found.kind


def test_idle_cpus_while_threads_wait_are_a_hidden_limit() -> None:
    found = estimate([make_sample()] * 5)
    assert found is not None
    assert (found.kind, found.budget) == ("hidden limit", 2)
    assert (found.cores, found.wanted, found.delay_share) == pytest.approx((0.3, 1.0, 0.7))
    assert "\n" not in found.why
    assert "0.30 of 1.00 cores" in found.why


@pytest.mark.parametrize(
    ("what", "sample", "expected"),
    [
        ("two threads stopped together", make_sample(0.3, 1.7, 1.7, longest_s=0.85, threads=2), "hidden limit"),
        ("1.5 of 2 CPUs", make_sample(1.5, 0.75, 0.5, longest_s=0.26, threads=2, leased_s=2.0), "hidden limit"),
        ("the request moves among 8 threads", make_sample(0.3, 0.7, 1.7, longest_s=0.1, threads=8), "hidden limit"),
        ("8 threads, 3 cores, a host of 64", make_sample(3, 5, 61, longest_s=0.63, threads=8, width=64, budget=8),
         "hidden limit"),
        ("no CPU was idle", make_sample(0.5, 0.5, 0.0, waits=100), "busy neighbour"),
        ("no CPU was idle, but waits are as long as a quota's", make_sample(0.3, 0.7, 0.0, waits=10), "unclear"),
        # The neighbour runs 4 threads a CPU in half of the time, in bursts: in the other half a CPU is idle.
        ("bursts of a neighbour", make_sample(0.6, 0.4, 0.5, waits=100), "unclear"),
        ("idle time not known", make_sample(idle=None), "unclear"),
        ("a little short of what it wants", make_sample(0.95, 0.4, 0.0), "unclear"),
        ("the whole budget, more threads than it", make_sample(1.95, 6.0, 0.0, threads=8), None),
        ("a budget of 1, got it", make_sample(0.99, 3.0, 0.9, budget=1, threads=4), None),
        ("hardly any waiting", make_sample(0.8, 0.2, 1.0), None),
        ("hardly any demand", make_sample(0.03, 0.05, 1.9), None),
        ("no waiting, no running", make_sample(0.0, 0.0, 2.0), None),
        ("the visible quota stops us", make_sample(throttled=0.5), None),
        ("no leases", make_sample(leased_s=0.1), None),
    ],
)  # fmt: skip
def test_what_samples_say(what: str, sample: Sample, expected: str | None) -> None:
    assert kind(*[sample] * 5) == expected, what


def test_it_takes_several_samples_in_a_row() -> None:
    short, fine, silent = make_sample(), make_sample(1.0, 0.0, 1.0), make_sample(leased_s=0.0)
    assert kind(*[short] * (CONSECUTIVE - 1)) is None
    assert kind(*[short] * CONSECUTIVE) == "hidden limit"
    assert kind(*[short] * 9, fine) is None
    assert kind(fine, *[short] * CONSECUTIVE) == "hidden limit"
    assert kind(short, silent, short, silent, short, silent) == "hidden limit"  # samples without leases say nothing
    assert kind() is None


def test_only_the_latest_samples_count() -> None:
    found = estimate([*[make_sample(0.6, 0.4, 1.4)] * 20, *[make_sample()] * WINDOW])
    assert found is not None
    assert found.cores == pytest.approx(0.3)


def test_a_burst_of_a_neighbour_is_never_called_a_limit() -> None:
    """Whatever the shares: while a neighbour makes one of ours wait, it keeps all CPUs busy."""
    for width in (1, 2, 4, 16):
        for ours in range(1, width + 1):
            for on in (0.3, 0.5, 0.9):
                for share in (0.1, 0.3, 0.6):  # what we get of each of our CPUs while the neighbour runs
                    got = ours * ((1 - on) + on * share)
                    waited = ours * on * (1 - share)
                    sample = make_sample(got, waited, (width - ours) * (1 - on), longest_s=on * (1 - share))
                    sample = sample._replace(threads=ours, width=width, budget=width, leased_s=float(ours))
                    assert kind(*[sample] * 5) != "hidden limit", (width, ours, on, share)


numbers = st.one_of(
    st.floats(), st.integers(-3, 3), st.floats(0, 10), st.sampled_from([0, 1e308, float("inf"), float("nan")])
)
junk = st.builds(Sample, *[numbers] * 9, st.one_of(st.none(), numbers), *[numbers] * 4)


@given(st.lists(st.one_of(junk, st.just(make_sample())), max_size=12))
def test_estimates_never_raise(samples: list[Sample]) -> None:
    found = estimate(samples)
    if found is not None:
        assert 0 <= found.delay_share < 1
        assert complain(found, 1).message


@given(
    st.lists(
        st.builds(lambda waited, idle, cpu: (waited, idle, cpu), st.floats(0, 2), st.floats(0, 2), st.floats(0.01, 2)),
        min_size=3,
        max_size=12,
    )
)
def test_estimates_lie_between_what_was_got(values: list[tuple[float, float, float]]) -> None:
    found = estimate([make_sample(cpu, waited, idle) for waited, idle, cpu in values])
    if found is not None:
        assert min(cpu for _, _, cpu in values) - 1e-9 <= found.cores <= max(cpu for _, _, cpu in values) + 1e-9
        assert found.cores <= found.wanted


def make_look(at_s: float, threads: dict[int, ThreadTimes], **changes: Any) -> Look:
    return Look(at_s, at_s / 2, threads, at_s, frozenset({0, 1}), (), at_s, 2)._replace(**changes)


def test_differences_compare_thread_by_thread() -> None:
    before = make_look(10, {1: ThreadTimes(5, 1, 100), 2: ThreadTimes(9, 9, 900), 3: ThreadTimes(4, 4, 400)})
    after = make_look(
        12,
        {
            1: ThreadTimes(5.5, 1.5, 110),
            3: ThreadTimes(0.25, 0.75, 5),  # the number of a thread that has ended, given again
            4: ThreadTimes(0.125, 0.0, 1),
        },
    )
    found = difference(before, after)
    assert found is not None
    assert (found.wall_s, found.cpu_s, found.leased_s, found.idle_s) == (2, 1, 2, 2)
    assert (found.run_s, found.delay_s) == (0.875, 1.25)
    assert (found.longest, found.longest_s, found.waits, found.threads) == (3, 0.75, 5, 3)


def test_differences_know_what_they_do_not_know() -> None:
    threads = {1: ThreadTimes(0, 0, 0)}
    look = make_look(1, threads)
    assert difference(look, look) is None
    assert difference(make_look(2, threads), look) is None
    moved = difference(look, make_look(2, threads, cpus=frozenset({3})))
    assert moved is not None
    assert moved.idle_s is None
    unknown = difference(look, make_look(2, threads, idle_s=None))
    assert unknown is not None
    assert unknown.idle_s is None


def test_the_worst_visible_throttling_counts() -> None:
    threads = {1: ThreadTimes(0, 0, 0)}
    before = (Throttling("a", 100, 10, 1.0), Throttling("b", 100, 10, 1.0))
    after = (Throttling("b", 110, 15, 2.0), Throttling("a", 110, 11, 1.0), Throttling("new", 9, 9, 9.0))
    found = difference(make_look(1, threads, throttling=before), make_look(2, threads, throttling=after))
    assert found is not None
    assert found.throttled == 0.5


# Following


def limit(cores: float, budget: int = 8, kind: Any = "hidden limit") -> HiddenLimit:
    return HiddenLimit(cores, 8.0, budget, 0.7, kind, "because")


def run(state: Following, *steps: tuple[HiddenLimit | None, int], start: float = 0.0) -> tuple[Following, list[int]]:
    """Follow estimates for so many seconds each; the caps it went through (0: none)."""
    caps = [state.cap or 0]
    now = start
    for found, seconds in steps:
        for _ in range(seconds):
            now += 1
            state = follow(state, found, now)
            if (state.cap or 0) != caps[-1]:
                caps.append(state.cap or 0)
    return state, caps


def test_it_lowers_after_agreeing_estimates_only() -> None:
    assert run(Following(), (limit(2.7), AGREEING - 1))[1] == [0]
    assert run(Following(), (limit(2.7), AGREEING))[1] == [0, 2]
    assert run(Following(), (limit(2.7), AGREEING - 1), (None, 1), (limit(2.7), AGREEING - 1))[1] == [0]
    assert run(Following(), (limit(0.3), AGREEING))[1] == [0, 1]
    assert run(Following(), (limit(0.3, budget=1), 100))[1] == [0]
    assert run(Following(), (limit(2.7, kind="busy neighbour"), 100), (limit(2.7, kind="unclear"), 100))[1] == [0]


def test_the_highest_of_disagreeing_estimates_wins() -> None:
    state, caps = run(Following(), (limit(2.0), 2), (limit(4.1), 1), (limit(1.0), 2))
    assert caps == [0, 4]
    assert state.cause is not None


def test_it_probes_by_doubling_up_to_where_it_began() -> None:
    state, caps = run(Following(), (limit(1.5), AGREEING), (None, 300))
    assert caps == [0, 1, 2, 4, 0]
    assert state.cause is None


def test_failing_probes_become_rare() -> None:
    """A limit of 2.5 cores that stays: budgets above it fall short, others do not."""
    changes = simulate(3600, lambda _: 2.5)
    raised = [when for when, before, after in changes if after > before]
    pauses = [after - before for before, after in pairwise(raised)]
    assert min(pauses) >= 30
    assert pauses[-1] >= 300
    assert len(changes) <= 2 * (3600 // 300 + 4)


def simulate(seconds: int, true_limit: Any, budget: int = 8) -> list[tuple[int, int, int]]:
    """An hour of a process that wants all its budget; the estimate needs CONSECUTIVE short samples in a row.

    Returns the changes: when, from, to.
    """
    state = Following()
    changes = []
    short = 0
    for now in range(1, seconds + 1):
        cores = budget if state.cap is None else min(budget, state.cap)
        got = min(cores, true_limit(now))
        short = short + 1 if got < 0.9 * cores else 0
        after = follow(state, limit(got, cores) if short >= CONSECUTIVE else None, float(now))
        if after.cap != state.cap:
            changes.append((now, state.cap or budget, after.cap or budget))
        state = after
    return changes


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20), st.integers(1, 900), st.integers(2, 64))
def test_it_never_swings_whatever_the_limit_does(limits: list[float], hold: int, budget: int) -> None:
    """Raising is rare (30 s apart at least), and between two raises it can only be lowered, each time by a core."""
    changes = simulate(3600, lambda now: limits[(now // hold) % len(limits)], budget)
    raised = [when for when, before, after in changes if after > before]
    assert all(later - earlier >= 30 for earlier, later in pairwise(raised))
    lowered = len(changes) - len(raised)
    assert len(raised) <= 3600 // 30
    assert lowered <= 3600 // AGREEING
    assert all(1 <= after <= budget for _, _, after in changes)


@given(st.floats(0.1, 20), st.integers(2, 64))
def test_it_settles_under_a_limit_that_stays(cores: float, budget: int) -> None:
    changes = simulate(3600, lambda _: cores, budget)
    assert len(changes) <= 32
    if cores >= budget:
        assert changes == []


@given(st.lists(st.one_of(st.none(), st.builds(limit, st.floats(0, 100), st.integers(1, 64))), max_size=400))
def test_following_is_bounded_for_any_estimates(estimates: list[HiddenLimit | None]) -> None:
    state = Following()
    raised = 0
    for now, found in enumerate(estimates):
        after = follow(state, found, float(now))
        assert after.cap is None or after.cap >= 1
        raised += (after.cap or 1 << 20) > (state.cap or 1 << 20)
        state = after
    assert raised <= len(estimates) // 30 + 1


# Reading


def test_schedstat() -> None:
    assert parse_schedstat("1500000000 250000000 12\n") == ThreadTimes(1.5, 0.25, 12)
    for text in ("", "1 2", "a b c", "-1 2 3", "1e9 2 3", "1 2 " + "9" * 30, "\0"):
        assert parse_schedstat(text) is None


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    parse_schedstat(text)
    parse_idle(text, frozenset({0}), 100)
    parse_idle("cpu0 " + text, frozenset({0}), 100)


STAT = "cpu  9 9 9 900 90 0 0 0\ncpu0 1 2 3 400 40 0 0 0\ncpu1 1 2 3 500 50 0 0 0\nintr 5\ncpu7 1 2 3 4 5\n"


def test_idle_time_of_the_mask() -> None:
    assert parse_idle(STAT, frozenset({0, 1}), 100) == 9.9
    assert parse_idle(STAT, frozenset({1}), 100) == 5.5
    assert parse_idle(STAT, frozenset({1, 2}), 100) is None
    assert parse_idle(STAT, frozenset({7}), 100) is None
    assert parse_idle("cpu0 1 2 3\n", frozenset({0}), 100) is None
    assert parse_idle("cpu0 1 2 3 x 4\n", frozenset({0}), 100) is None


def make_tree(root: Path, schedstats: dict[str, bytes], stat: str = STAT) -> Files:
    (root / "proc" / "self" / "task").mkdir(parents=True)
    (root / "proc" / "stat").write_text(stat)
    for name, text in schedstats.items():
        (root / "proc" / "self" / "task" / name).mkdir()
        (root / "proc" / "self" / "task" / name / "schedstat").write_bytes(text)
    return Files(str(root))


def test_hostile_task_directories(tmp_path: Path) -> None:
    good = b"1000000000 2000000000 3\n"
    files = make_tree(tmp_path, {"12": good, "13": b"", "14": b"\xff\xfe", "15": b"9" * 100_000, "..x": good})
    (tmp_path / "proc" / "self" / "task" / "16").mkdir()
    os.mkfifo(tmp_path / "proc" / "self" / "task" / "16" / "schedstat")
    (tmp_path / "proc" / "self" / "task" / "17").mkdir()
    (tmp_path / "proc" / "self" / "task" / "17" / "schedstat").symlink_to("schedstat")
    assert read_threads(files) == {12: ThreadTimes(1.0, 2.0, 3)}
    assert read_threads(Files(str(tmp_path / "nowhere"))) == {}


def test_idle_time_needs_the_kernels_own_file(tmp_path: Path) -> None:
    files = make_tree(tmp_path, {})
    assert read_idle(files, frozenset({0, 1})) == pytest.approx(990 / os.sysconf("SC_CLK_TCK"))
    assert read_idle(files, frozenset()) is None

    class Lxcfs(Files):
        def identify(self, path: str) -> tuple[int, int] | None:
            found = super().identify(path)
            return found if path == "/proc" or found is None else (found[0] + 1, found[1])

    assert read_idle(Lxcfs(str(tmp_path)), frozenset({0, 1})) is None
    assert read_idle(Files(str(tmp_path / "nowhere")), frozenset({0})) is None


def test_own_threads_are_seen() -> None:
    """Run time as the kernel counts it for a thread, and its end."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel has no schedstat")
    burnt, done = threading.Event(), threading.Event()
    tids: list[int] = []

    def burn() -> None:
        tids.append(threading.get_native_id())
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        burnt.set()
        done.wait(30)

    thread = threading.Thread(target=burn)
    thread.start()
    assert burnt.wait(30)
    seen = read_threads(Files())
    done.set()
    thread.join()
    assert seen[tids[0]].run_s >= 0.04
    assert threading.get_native_id() in seen


# Reporting


def test_reports_show_it() -> None:
    found = estimate([make_sample()] * 5)
    evidence = make_evidence(hidden=found)
    findings = find_problems(evidence)
    notice = next(notice for notice in findings if notice.code == "hidden-limit")
    assert notice.level == "warning"
    assert "CGROUP_THREADS_CORES=1" in notice.fix
    assert "about 0.3 cores" in " ".join(render(evidence, findings).split())
    assert to_dict(evidence, findings)["hidden_limit"]["cores"] == pytest.approx(0.3)
    assert to_dict(make_evidence(), ())["hidden_limit"] is None


@pytest.mark.parametrize(("kind", "code"), [("busy neighbour", "busy-neighbour"), ("unclear", "cpu-shortfall")])
def test_other_causes_are_notes(kind: Any, code: str) -> None:
    notice = complain(limit(1.2, kind=kind))
    assert (notice.code, notice.level) == (code, "info")
    assert "cannot be told" in notice.message


def test_a_budget_that_follows_is_named() -> None:
    assert "the budget follows: 2" in complain(limit(2.4), 2).message


def test_no_says_something_of_nonsense() -> None:
    assert not says_something(make_sample(wall_s=float("nan")))
    assert not says_something(make_sample(leased_s=float("inf")))
    assert not says_something(make_sample(wall_s=-1.0))
