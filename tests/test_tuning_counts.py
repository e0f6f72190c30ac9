"""Which thread counts a sweep measures."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.errors import InvalidThreadsError
from cgroup_threads.tuning.counts import sweep_counts

CORES = st.integers(1, 1024)


@pytest.mark.parametrize(
    ("width", "usable", "counts"),
    [
        (1, 1, (1,)),
        (2, 1, (1, 2)),
        (2, 2, (1, 2)),
        (4, 1, (1, 2, 3)),
        (256, 8, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
        (16, 16, tuple(range(1, 17))),
        (64, 16, (*tuple(range(1, 17)), 18)),
        (64, 19, (*tuple(range(1, 17)), 19, 20, 21)),
        (64, 64, (*tuple(range(1, 17)), 20, 24, 28, 32, 40, 48, 56, 64)),
        (256, 64, (*tuple(range(1, 17)), 20, 24, 28, 32, 40, 48, 56, 64, 66)),
        (192, 192, (*tuple(range(1, 17)), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192)),
    ],
)
def test_the_counts_of_common_machines(width: int, usable: int, counts: tuple[int, ...]) -> None:
    assert sweep_counts(width, usable) == counts


def test_max_threads_lowers_the_top() -> None:
    assert sweep_counts(64, 64, 3) == (1, 2, 3)
    assert sweep_counts(64, 64, 50)[-3:] == (40, 48, 50)
    assert sweep_counts(8, 4, 5) == (1, 2, 3, 4, 5)
    assert sweep_counts(4, 4, 1000) == (1, 2, 3, 4)


@given(CORES, CORES, st.none() | CORES)
def test_counts_ascend_from_one_to_the_top_by_a_quarter_at_most(width: int, usable: int, most: int | None) -> None:
    counts = sweep_counts(width, usable, most)
    top = min(width, usable + 2, most or width)
    assert counts[0] == 1
    assert counts[-1] == top
    assert min(usable, top) in counts
    assert all(low < high for low, high in itertools.pairwise(counts))
    for low, high in itertools.pairwise(counts):
        assert high == low + 1 or high <= 1.25 * low
    assert sum(count > usable for count in counts) <= 2


@given(CORES, CORES)
def test_the_number_of_counts_grows_with_the_logarithm(width: int, usable: int) -> None:
    octaves = max(0, min(width, usable + 2).bit_length() - 4)
    assert len(sweep_counts(width, usable)) <= 16 + 4 * octaves + 2


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "4"])
@pytest.mark.parametrize("argument", ["width", "usable", "max_threads"])
def test_wrong_arguments_are_refused_by_name(argument: str, wrong: object) -> None:
    arguments = {"width": 4, "usable": 4, "max_threads": 4, argument: wrong}
    with pytest.raises(InvalidThreadsError, match=argument):
        sweep_counts(**arguments)  # type: ignore[arg-type]
