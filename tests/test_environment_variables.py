"""The table of variables and the verdicts on a user's values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.variables import BY_NAME, VARIABLES, judge, parse_threads


def test_the_table_names_each_variable_once() -> None:
    assert len(BY_NAME) == len(VARIABLES)


@pytest.mark.parametrize(
    ("raw", "threads"),
    [("4", 4), (" 4 ", 4), ("4,3,2", 4), (" 5 , 1 ", 5), ("5 ,10", 5), ("99999999999", 99999999999), ("007", 7)]
    + [(raw, None) for raw in ("500m", "1.0", "0", "2,x", "2,", ",2", "0,2", "2,0", "-1", "+2", "x", "²", "1" * 2000)],
)
def test_omp_num_threads_as_libgomp_reads_it(raw: str, threads: int | None) -> None:
    assert parse_threads("OMP_NUM_THREADS", raw) == threads


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "OMP_NUM_THREADS"])
def test_no_other_variable_takes_a_list(name: str) -> None:
    assert parse_threads(name, "4,2") is None
    assert parse_threads(name, " 4") == 4


@pytest.mark.parametrize("raw", ["500m", "1.0", "4,2", "0", "junk", "\udcff", "9" * 1001])
def test_malformed(raw: str) -> None:
    verdict = judge("MKL_NUM_THREADS", raw, 8)
    assert (verdict.state, verdict.threads) == ("malformed", None)
    assert verdict.notice is not None
    assert (verdict.notice.code, verdict.notice.level) == ("variable-malformed", "problem")
    assert "usable cores 8" in verdict.notice.message
    assert verdict.notice.message.isascii()
    assert len(verdict.notice.message) < 300
    assert "8" in verdict.notice.fix


@pytest.mark.parametrize("raw", ["", " ", "\t"])
def test_blank(raw: str) -> None:
    verdict = judge("OMP_NUM_THREADS", raw, 8)
    assert (verdict.state, verdict.threads) == ("blank", None)
    assert verdict.notice is not None
    assert (verdict.notice.code, verdict.notice.level) == ("variable-blank", "info")


def test_harmful_says_what_is_kept_and_what_there_is() -> None:
    verdict = judge("OMP_NUM_THREADS", "512 ,1024", 1)
    assert (verdict.state, verdict.threads) == ("harmful", 512)
    assert verdict.notice is not None
    assert verdict.notice.message == "OMP_NUM_THREADS=512,1024 kept; usable cores 1"
    assert (verdict.notice.code, verdict.notice.level) == ("variable-harmful", "problem")
    assert verdict.notice.fix == "unset OMP_NUM_THREADS, set it to 1, or set CGROUP_THREADS_OVERRIDE=1"


def test_absurd_is_measured_by_the_host() -> None:
    for raw, absurd in (("64", False), ("65", True), ("99999999999", True)):
        notice = judge("OMP_NUM_THREADS", raw, 2, host_cpus=16).notice
        assert notice is not None
        assert notice.message.endswith("; more than 4 times the host's 16 CPUs") == absurd


def test_wasteful_is_measured_by_the_share() -> None:
    notice = judge("OMP_NUM_THREADS", "1", 10).notice
    assert notice is not None
    assert (notice.code, notice.level) == ("variable-wasteful", "warning")
    assert notice.message == "OMP_NUM_THREADS=1 kept; usable cores 10 (left by torchrun, Ray or an old fix?)"
    assert judge("OMP_NUM_THREADS", "1", 10, share=1).state == "fine"
    assert judge("OMP_NUM_THREADS", "2", 10).state == "fine"
    assert judge("OMP_NUM_THREADS", "1", 1).state == "fine"
    assert judge("TF_NUM_INTEROP_THREADS", "1", 10).state == "fine"


def test_a_limit_caps_what_comes_of_a_value() -> None:
    verdict = judge("OMP_NUM_THREADS", "8", 4, limit=3)
    assert (verdict.threads, verdict.state) == (3, "fine")
    assert judge("OMP_NUM_THREADS", "8", 2, limit=3).state == "harmful"


def test_an_upper_bound_is_never_harmful() -> None:
    assert judge("NUMEXPR_MAX_THREADS", "64", 2).state == "fine"
    assert judge("OMP_THREAD_LIMIT", "64", 2).state == "fine"
    assert judge("GOMP_SPINCOUNT", "INFINITE", 2).state == "fine"


@given(st.sampled_from(sorted(BY_NAME)), st.text(), st.integers(1, 512))
def test_no_text_raises_and_every_verdict_but_fine_says_why(name: str, raw: str, usable: int) -> None:
    verdict = judge(name, raw, usable, host_cpus=usable)
    assert (verdict.notice is None) == (verdict.state == "fine")
    assert verdict.threads is None or verdict.threads >= 1
