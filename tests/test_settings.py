"""CGROUP_THREADS_*: every value is hostile input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.settings import MAX_COUNT, Settings, parse_cores, parse_count, parse_seconds, read_settings

NAMES = [name.upper() for name in Settings._fields if name not in ("workers_source", "notices")]
JUNK = ("junk", "-1", "1e3", "0x10", "nan", "inf", "٣", "\udcff\udc80", "=", "1" * 30, "x" * 1_000_000)


def test_nothing_set_is_the_default() -> None:
    assert read_settings({}) == Settings()


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_blank_is_unset(blank: str) -> None:
    assert read_settings({f"CGROUP_THREADS_{name}": blank for name in NAMES}) == Settings()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("junk", JUNK, ids=lambda text: ascii(text[:12]))
def test_junk_is_a_notice_and_the_default(name: str, junk: str) -> None:
    settings = read_settings({f"CGROUP_THREADS_{name}": junk})
    assert settings._replace(notices=()) == Settings()
    (notice,) = settings.notices
    assert (notice.code, notice.level) == ("setting-invalid", "warning")
    assert f"CGROUP_THREADS_{name}=" in notice.message
    assert len(notice.message) < 250
    assert notice.message.isascii()


def test_every_setting_is_read() -> None:
    environ = {
        "CGROUP_THREADS_AUTO": "0",
        "CGROUP_THREADS_CORES": "1500m",
        "CGROUP_THREADS_MAX_CORES": "7.65",
        "CGROUP_THREADS_ROUNDING": "CEIL",
        "CGROUP_THREADS_WORKERS": " 3 ",
        "CGROUP_THREADS_SCOPE": "process",
        "CGROUP_THREADS_PATIENCE": "500ms",
        "CGROUP_THREADS_SMT": "yes",
        "CGROUP_THREADS_OVERRIDE": "on",
        "CGROUP_THREADS_PATCH": "False",
        "CGROUP_THREADS_OMP_LIMIT": "1",
        "CGROUP_THREADS_VERBOSE": "true",
    }
    expected = Settings(
        auto=False,
        cores=1.5,
        max_cores=7,
        rounding="ceil",
        workers=3,
        workers_source="CGROUP_THREADS_WORKERS",
        scope="process",
        patience=0.5,
        smt=True,
        override=True,
        patch=False,
        omp_limit=True,
        verbose=True,
    )
    assert read_settings(environ) == expected


def test_workers_come_from_the_strongest_valid_variable() -> None:
    environ = {"CGROUP_THREADS_WORKERS": "2", "LOCAL_WORLD_SIZE": "3", "WEB_CONCURRENCY": "4"}
    assert read_settings(environ)[4:6] == (2, "CGROUP_THREADS_WORKERS")
    environ["CGROUP_THREADS_WORKERS"] = "two"
    assert read_settings(environ)[4:6] == (3, "LOCAL_WORLD_SIZE")
    environ["LOCAL_WORLD_SIZE"] = ""
    assert read_settings(environ)[4:6] == (4, "WEB_CONCURRENCY")
    environ["WEB_CONCURRENCY"] = ""
    assert read_settings(environ)[4:6] == (None, "")


@pytest.mark.parametrize(
    ("text", "cores"),
    [("2", 2.0), ("0.5", 0.5), (".5", 0.5), ("1.", 1.0), ("1500m", 1.5), ("500m", 0.5), (" 4 ", 4.0), ("007", 7.0)]
    + [(text, None) for text in ("0", "0m", "0.0", "m", ".", "", "1.5.2", "+2", "-1", "1_0", "2 m", "1e2", "5mm")]
    + [(str(MAX_COUNT), float(MAX_COUNT)), (str(MAX_COUNT + 1), None)],
)
def test_cores(text: str, cores: float | None) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("0.00", 0.0), ("2", 2.0), ("0.5s", 0.5), ("250ms", 0.25), ("5m", None), ("s", None), ("-1", None)],
)
def test_seconds(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), (" 12\n", 12), ("0", None), ("+4", None), ("4.0", None), ("٣", None), ("²", None), ("", None)],
)
def test_counts(text: str, count: int | None) -> None:
    assert parse_count(text) == count


@given(st.dictionaries(st.sampled_from([f"CGROUP_THREADS_{name}" for name in NAMES]), st.text()))
def test_no_text_raises(environ: dict[str, str]) -> None:
    settings = read_settings(environ)
    assert settings.cores is None or settings.cores > 0
    assert settings.max_cores is None or settings.max_cores >= 1
    assert settings.workers is None or settings.workers >= 1
