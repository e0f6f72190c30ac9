"""CGROUP_THREADS_APPLIED as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.marker import MARKER, MAX_LENGTH, Marker, Origin, computed_values, read_marker, write_marker
from cgroup_threads.variables import BY_NAME


def test_what_is_written_is_read() -> None:
    marker = Marker(Origin("35:4711", "0b-1c"), {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "2000"})
    text = write_marker(marker)
    assert text == "1;35:4711;0b-1c;OMP_NUM_THREADS=2,GOMP_SPINCOUNT=2000"
    assert read_marker(text) == (marker, None)
    assert read_marker(write_marker(Marker(Origin(), {}))) == (Marker(Origin(), {}), None)


def test_the_whole_table_fits() -> None:
    marker = Marker(Origin("9" * 40, "f" * 36), dict.fromkeys(BY_NAME, "9" * 7))
    assert len(write_marker(marker)) < MAX_LENGTH / 2
    assert read_marker(write_marker(marker)) == (marker, None)


@pytest.mark.parametrize("text", [None, "", "  "])
def test_no_marker(text: str | None) -> None:
    assert read_marker(text) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "junk",
        "2;-;-;OMP_NUM_THREADS=2",
        "1;-;OMP_NUM_THREADS=2",
        "1;-;-;a=1;b=2",
        "1;-;-;\udcff",
        "1;-;-;\n",
        "=",
        ";;;",
        "1;-;-;OMP_NUM_THREADS=2" + "," * 1_000_000,
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_junk_is_ignored_with_a_notice(text: str) -> None:
    marker, notice = read_marker(text)
    assert marker is None
    assert notice is not None
    assert notice.code == "marker-invalid"
    assert notice.message.isascii()
    assert len(notice.message) < 200


def test_names_outside_the_table_and_odd_values_are_ignored() -> None:
    text = "1;-;-;PATH=1,LD_PRELOAD=1,OMP_NUM_THREADS=2,MKL_NUM_THREADS=x,BLIS_NUM_THREADS=,=3,NPROC,RAYON_NUM_THREADS="
    text += "1" * 10 + ",CGROUP_THREADS_CORES=1"
    assert read_marker(text) == (Marker(Origin(), {"OMP_NUM_THREADS": "2"}), None)


def test_a_value_that_differs_is_the_users() -> None:
    values = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "NPROC": "2"}
    assert computed_values({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": " 2"}, values) == {"OMP_NUM_THREADS": "2"}


@given(st.text())
def test_no_text_raises(text: str) -> None:
    for candidate in (text, f"1;-;-;{text}"):
        marker, _ = read_marker(candidate)
        assert marker is None or set(marker.values) <= set(BY_NAME)


def test_the_name_is_ours() -> None:
    assert MARKER == "CGROUP_THREADS_APPLIED"
