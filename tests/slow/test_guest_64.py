"""A container with a quota of 8 cores on a host of 64 CPUs: one boot of an emulated one, kernel and counts real."""

from __future__ import annotations

import pytest

from tests.lab.guest import Boot, boot

DEADLINE_S = 900.0

pytestmark = [pytest.mark.slow, pytest.mark.where("guest: 64 CPUs, quota 8"), pytest.mark.timeout(DEADLINE_S + 120)]

HOST, QUOTA = 64, 8


@pytest.fixture(scope="session")
def guest() -> Boot:
    return boot(HOST, "guest_64.py", deadline=DEADLINE_S)


def test_counts(guest: Boot) -> None:
    found = guest.answer("facts")
    limits = found["limits"]
    assert (limits["host"], len(limits["affinity"]), limits["cpuset"]) == (HOST, HOST, [*range(HOST)])
    assert (limits["quota"], limits["status"], limits["bound_by"], limits["usable"]) == (8.0, "limited", "quota", QUOTA)
    assert found["plan"]["threads"] == QUOTA
    assert found["counts"] == [[QUOTA] * 2, [QUOTA] * 3, [1] * 3, [QUOTA] * 2]
    assert (found["scope"], found["cores"], found["first"], found["second"]) == ("container", QUOTA, QUOTA, 0)
    assert all(worst <= QUOTA and overcommitted == 0 for worst, overcommitted, _ in found["contended"])
    report = found["report"]
    assert (report["usable"], report["bound_by"], report["threads"], report["problems"]) == (QUOTA, "quota", QUOTA, [])


def test_six_processes_share_the_quota(guest: Boot) -> None:
    """All hold or wait; in sum never more than eight cores, and hardly fewer while somebody waits."""
    found = guest.answer("shared")
    assert len(found["leased"]) == 6
    assert all(1 <= leased <= QUOTA for leased in found["leased"])
    assert found["leased"][0] > QUOTA // 2
    assert found["ends"] == [[1, 0]] * 6


def test_64_calls_enter_at_once(guest: Boot) -> None:
    done, most, overcommitted = guest.answer("at once")
    assert (done, overcommitted) == (64, 0)
    assert 2 <= most <= QUOTA


def test_a_resize_reaches_all_of_the_host(guest: Boot) -> None:
    assert guest.answer("resized") == [[n, [n] * 3, [1] * 3] for n in (8, 32, 63, 64, 2)]


def test_numpy(guest: Boot) -> None:
    """By itself OpenBLAS starts a thread for each CPU of the host."""
    assert guest.answer("numpy") == {"default": [[HOST], HOST], "ours": [300.0**3, [QUOTA], QUOTA]}


def test_torch(guest: Boot) -> None:
    found = guest.answer("torch")
    assert (found["default"], found["library"]) == (HOST, QUOTA)
    assert found["ours"] == [QUOTA, 300.0**3]
    assert found["block"] == [2, 2]
    assert "pool-differs" not in found["codes"]


def test_a_process_with_too_many_threads_is_named(guest: Boot) -> None:
    found = guest.answer("inspected")["default"]
    assert (found["usable_cores"], found["bound_by"]) == (QUOTA, "quota")
    assert found["threads_total"] > HOST
    verdict = found["verdict"]
    assert (verdict["code"], verdict["level"]) == ("oversubscribed", "problem")
    assert f"on {QUOTA} usable cores" in verdict["message"]
    assert f"OMP_NUM_THREADS={QUOTA}" in verdict["fix"]


def test_one_with_our_counts_is_not(guest: Boot) -> None:
    """Eight busy threads under a quota of eight cores: stopped for moments, which is no problem."""
    found = guest.answer("inspected")
    assert found["ours"]["threads_total"] == QUOTA + 1
    assert found["ours"]["verdict"]["code"] == "healthy"
    text = found["text"]
    assert "8 usable cores, bound by quota (8 cores)" in text
    assert "64 physical cores" in text
    assert "openblas" in text
