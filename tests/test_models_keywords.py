"""Keyword arguments of constructors, and thread counts among them."""

from __future__ import annotations

from typing import Any

import pytest

from cgroup_threads.errors import InvalidThreadsError, UnknownArgumentError
from cgroup_threads.models.keywords import is_unset, read_count, reject_unknown


class Swallower:
    """Like ``llama_cpp.Llama``: unknown names disappear in ``**kwargs``."""

    def __init__(
        self, model_path: str, *, n_threads: int | None = None, n_threads_batch: int | None = None, **kwargs: Any
    ) -> None:
        raise AssertionError("the check must not construct")


def test_known_names_pass() -> None:
    reject_unknown(["model_path", "n_threads", "n_threads_batch"], Swallower.__init__, "Swallower")
    reject_unknown(["renamed"], Swallower.__init__, "Swallower", ["renamed"])
    reject_unknown([], Swallower.__init__, "Swallower")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("n_thread_batch", "n_threads_batch"),
        ("n_thread", "n_threads"),
        ("nthreads", "n_threads"),
        ("model_pth", "model_path"),
        ("zzz", None),
    ],
)
def test_unknown_names_bring_the_nearest(name: str, suggestion: str | None) -> None:
    with pytest.raises(UnknownArgumentError) as caught:
        reject_unknown(["n_threads", name], Swallower.__init__, "Swallower")
    assert (caught.value.argument, caught.value.callee, caught.value.suggestion) == (name, "Swallower", suggestion)
    assert isinstance(caught.value, TypeError)
    expected = f"Swallower() has no argument '{name}'" + (f"; did you mean '{suggestion}'?" if suggestion else "")
    assert str(caught.value) == expected


@pytest.mark.parametrize("name", ["self", "kwargs"])
def test_names_that_are_no_keywords(name: str) -> None:
    with pytest.raises(UnknownArgumentError):
        reject_unknown([name], Swallower.__init__, "Swallower")


@pytest.mark.parametrize("value", [None, 0, -1])
def test_a_count_left_to_us(value: object) -> None:
    assert read_count({"n_threads": value}, "n_threads") is None
    assert read_count({}, "n_threads") is None


@pytest.mark.parametrize("value", [1, 4, 256])
def test_an_explicit_count(value: int) -> None:
    assert read_count({"n_threads": value}, "n_threads") == value


@pytest.mark.parametrize("value", [True, False, 2.0, 0.0, -1.0, "4", "", -2, [4]])
def test_a_rejected_count(value: object) -> None:
    with pytest.raises(InvalidThreadsError) as caught:
        read_count({"n_threads_batch": value}, "n_threads_batch")
    assert caught.value.argument == "n_threads_batch"
    assert caught.value.threads == value


class Index:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.mark.parametrize("value", [None, 0, -1, -7, False, Index(-1)])
def test_what_llama_replaces_or_cannot_use_counts_as_unset(value: object) -> None:
    assert is_unset(value)


@pytest.mark.parametrize("value", [1, 8, True, 2.5, "4", -1.0, Index(3), [1]])
def test_everything_else_is_the_callers(value: object) -> None:
    assert not is_unset(value)
