"""limit_threads() as a block: what holds inside, what is there after."""

from __future__ import annotations

import pytest

import cgroup_threads as ct
from cgroup_threads.errors import InvalidArgumentError, InvalidThreadsError, LeaseError
from tests.lab.limits import limits_script


def test_a_block_lowers_and_gives_back() -> None:
    script = """
see()
with ct.limit_threads(1) as lease:
    see(); seen.append([lease.threads, lease.active, lease.waited_s])
see(); seen.append(lease.active)
with ct.limit_threads() as lease:
    see(); seen.append(lease.threads)
see()
"""
    assert limits_script(script) == [[4, 4], [1, 1], [1, True, 0], [4, 4], False, [3, 3], 3, [4, 4]]


def test_it_never_raises_a_count() -> None:
    script = """
gomp.omp_set_num_threads(2)
with ct.limit_threads(3): see()
see()
with ct.limit_threads(100): see()
see()
"""
    # The budget is 3 cores: a block that asks for more gets those.
    assert limits_script(script) == [[2, 3], [2, 4], [2, 3], [2, 4]]


def test_nested_blocks_never_widen() -> None:
    script = """
with ct.limit_threads(2) as outer:
    with ct.limit_threads(3) as inner:
        see(); seen.append(inner.threads)
    see()
    with ct.limit_threads(1):
        see()
        with ct.limit_threads():
            see()
    see()
see()
"""
    assert limits_script(script) == [[2, 2], 2, [2, 2], [1, 1], [1, 1], [2, 2], [4, 4]]


def test_an_exception_ends_the_limit() -> None:
    script = """
try:
    with ct.limit_threads(1):
        raise ValueError("x")
except ValueError as error:
    seen.append(str(error))
see()
"""
    assert limits_script(script) == ["x", [4, 4]]


def test_one_object_serves_again_and_within_itself() -> None:
    script = """
limit = ct.limit_threads(1)
for _ in range(2):
    with limit as first:
        with limit as second:
            seen.append(first is second)
        see()
    see()
"""
    assert limits_script(script) == [False, [1, 1], [4, 4]] * 2


def test_blocks_may_end_in_any_order() -> None:
    script = """
a, b = ct.limit_threads(1), ct.limit_threads(2)
a.__enter__(); b.__enter__()
a.__exit__(None, None, None); see()
b.__exit__(None, None, None); see()
b.__enter__(); a.__enter__()
b.__exit__(None, None, None); see()
a.__exit__(None, None, None); see()
"""
    # The inner one was told 1 as it began inside the other, and keeps to it.
    assert limits_script(script) == [[1, 1], [4, 4], [1, 1], [4, 4]]


def test_a_count_the_user_changes_inside_is_undone_to_the_baseline() -> None:
    script = """
with ct.limit_threads(2):
    gomp.omp_set_num_threads(1)
    blas_library.set_num_threads(1)
see()
gomp.omp_set_num_threads(3)
with ct.limit_threads(1): pass
see()
"""
    assert limits_script(script) == [[4, 4], [3, 4]]


def test_leaving_what_was_not_entered_is_an_error() -> None:
    script = """
limit = ct.limit_threads(1)
for _ in range(2):
    try: limit.__exit__(None, None, None)
    except ct.CgroupThreadsError as error: seen.append(str(error))
    with limit: pass
see()
"""
    message = "limit_threads(1) was left more often than entered"
    assert limits_script(script) == [message, message, [4, 4]]
    with pytest.raises(LeaseError):
        ct.limit_threads(2).__exit__(None, None, None)


@pytest.mark.parametrize("threads", [0, -1, True, 1.0, "2", [1], 10.5])
def test_what_is_no_count_is_rejected(threads: object) -> None:
    with pytest.raises(InvalidThreadsError, match="threads must be a positive integer"):
        ct.limit_threads(threads)  # type: ignore[call-overload]  # the point of the test


@pytest.mark.parametrize("patience", [-1, True, "1"])
def test_what_is_no_patience_is_rejected(patience: object) -> None:
    with pytest.raises(InvalidArgumentError, match="patience"):
        ct.limit_threads(1, patience=patience)  # type: ignore[call-overload]  # the point of the test


def test_without_an_applied_plan_the_plan_is_computed() -> None:
    script = """
with ct.limit_threads() as lease: see(); seen.append(lease.threads)
see()
"""
    assert limits_script(script, CGROUP_THREADS_AUTO="0") == [[3, 3], 3, [4, 4]]


def test_a_thread_that_did_nothing_before_is_limited_too() -> None:
    script = """
def work():
    before = look()
    with ct.limit_threads(1): inside = look()
    return before, inside, look()
seen.append(in_thread(work))
"""
    assert limits_script(script) == [[[4, 4], [1, 1], [4, 4]]]
