"""Outputs of two arms: equal, equal within a tolerance, different by themselves, or different."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import struct
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.comparing import outputs, places
from cgroup_threads.comparing.numbers import (
    furthest,
    largest_error,
    relative_error,
    root_mean_square,
    scales,
    take_apart,
)
from cgroup_threads.comparing.outputs import MAX_TEXT, compare_outputs
from cgroup_threads.comparing.records import CompareError, Difference, Output, OutputVerdict
from tests.lab import require_module


def output(data: str | bytes, *, kept: bool = True) -> Output:
    data = data.encode() if isinstance(data, str) else data
    return Output(hashlib.sha256(data).hexdigest(), len(data), data if kept else None)


def compared(plain: list[str], governed: list[str], **options: Any) -> OutputVerdict:
    return compare_outputs([*map(output, plain)], [*map(output, governed)], **options)


def f32(value: float) -> float:
    """The next float32, as an embedding would be printed."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_equal_bytes_are_equal_whatever_they_are() -> None:
    for data in ("", "text\n", b"\0\xff\xfe", b"\x93NUMPY junk"):
        found = compare_outputs([output(data)] * 3, [output(data)] * 2)
        assert (found.state, found.runs) == ("equal", 5)


def test_leaving_out_every_line_is_no_equality() -> None:
    found = compared(["1\n"], ["2\n"], ignored=["^"])
    assert (found.state, found.reason) == ("unknown", "no line is left to compare (--ignore leaves out all)")
    assert compared(["1\nx"], ["2\nx"], ignored=["[0-9]"]).state == "equal"


def test_many_lines_are_not_held_apart() -> None:
    text = "\n" * 50_000
    tracemalloc.start()
    try:
        found = compared([f"{text}{n}" for n in range(4)], [f"{text}{n}" for n in range(4, 8)])
        assert found.state == "varies"
        assert tracemalloc.get_traced_memory()[1] < 8 * 4 * len(text)  # as lists they take 10 times that
    finally:
        tracemalloc.stop()


def test_large_equal_outputs_need_no_contents() -> None:
    assert compare_outputs([output("x", kept=False)], [output("x", kept=False)]).state == "equal"
    apart = compare_outputs([output("x", kept=False)] * 2, [output("y", kept=False)] * 2)
    assert (apart.state, apart.reason) == ("differ", "too large to be looked into")
    several = compare_outputs([output("x", kept=False), output("z", kept=False)], [output("y", kept=False)] * 2)
    assert (several.state, several.varying) == ("varies", (0, 1, 0))


def test_text_too_long_to_be_looked_into() -> None:
    long = "1.5\n" * (MAX_TEXT // 4 + 1)
    found = compared([long + "1.0"], [long + "1.00"])
    assert (found.state, found.reason) == ("differ", "too large to be looked into")


def test_nothing_to_compare() -> None:
    assert compare_outputs([], [output("x")]).state == "unknown"


def test_numbers_within_the_tolerance() -> None:
    found = compared(["loss 0.2500000 after 10 steps\n"], ["loss 0.2500001 after 10 steps\n"])
    assert found.state == "close"
    assert found.error == pytest.approx(4e-7, rel=1e-3)
    assert compared(["loss 0.25"], ["loss 0.2501"]).state == "differ"
    assert compared(["loss 0.25"], ["loss 0.2501"], tolerance=1e-3).state == "close"


def test_where_it_differs() -> None:
    found = compared(["a\nscores 1.0 2.0 3.0 ok\nb"], ["a\nscores 1.0 2.5 3.0 ok\nb"])
    assert found.state == "differ"
    assert found.differences == (Difference("line 2, number 2", "2.0", "2.5"),)
    words = compared(["label: cat 1.0"], ["label: dog 1.0"])
    assert words.differences == (Difference("line 1", "label: cat 1.0", "label: dog 1.0"),)


def test_a_line_more_differs() -> None:
    found = compared(["a\nb\n"] * 3, ["a\n"] * 3)
    assert (found.state, found.reason) == ("differ", "3 lines as it is, 2 governed")


def test_whole_numbers_are_measured_by_themselves() -> None:
    """A token that is another one is another answer, however large its neighbours are."""
    assert compared(["[1, 1000000]"], ["[2, 1000000]"]).state == "differ"
    assert compared(["[1000000]"], ["[1000001]"]).state == "close"


def test_a_small_component_is_measured_by_its_vector() -> None:
    """A sum in another order moves every component by about the same: near zero that is much of it."""
    vector = [0.05, -0.06, 1e-7, 0.04]
    moved = [value + 2e-8 for value in vector]
    assert compared([json.dumps(vector)], [json.dumps(moved)]).state == "close"
    assert compared(["a 0.05 b 1e-7"], ["a 0.05 b 1.2e-7"]).state == "differ"


def test_a_count_beside_a_vector_lends_it_no_tolerance() -> None:
    texts = [json.dumps({"tokens": 512000, "vector": [first, 0.02]}) for first in (0.01, 0.011)]
    assert compared([texts[0]], [texts[1]]).state == "differ"


def test_what_varies_by_itself_is_not_blamed() -> None:
    plain = ["result 0.5\ntook 1.20 s\n", "result 0.5\ntook 1.31 s\n"]
    governed = ["result 0.5\ntook 0.11 s\n", "result 0.5\ntook 0.12 s\n"]
    found = compared(plain, governed)
    assert (found.state, found.varying) == ("varies", (1, 0, 0))
    assert found.differences[0].place == "line 2"


def test_a_time_on_the_line_of_the_result_hides_no_difference() -> None:
    def told(seconds: float, value: float) -> str:
        return json.dumps({"seconds": seconds, "vector": [value, 0.25]})

    plain = [told(1.25, 0.5), told(1.5, 0.5)]
    same = compared(plain, [told(0.25, 0.5), told(0.5, 0.5)])
    assert (same.state, same.varying) == ("varies", (1, 0, 0))
    other = compared(plain, [told(0.25, 0.6), told(0.5, 0.6)])
    assert other.state == "differ"
    assert other.differences == (Difference("line 1, number 2", "0.5", "0.6"),)


def test_who_varies() -> None:
    assert compared(["1.0", "2.0"], ["1.0", "1.0"]).varying == (0, 1, 0)
    assert compared(["1.0", "1.0"], ["1.0", "2.0"]).varying == (0, 0, 1)
    assert compared(["a1x", "a2x"], ["a3x", "a4x"]).varying == (1, 0, 0)


def test_words_that_are_steady_in_each_arm_differ_between_them() -> None:
    found = compared(["took 1.2 s: slow", "took 1.3 s: slow"], ["took 0.2 s: fast", "took 0.3 s: fast"])
    assert found.state == "differ"


def test_a_number_of_lines_that_varies() -> None:
    found = compared(["a\n", "a\nb\n"], ["a\n", "a\n"])
    assert (found.state, found.varying) == ("varies", (0, 1, 0))


def test_ignored_lines_are_left_out_and_numbered_as_they_were() -> None:
    plain, governed = "threads 8\nx 1.0\ny 2.0", "threads 1\nx 1.0\ny 3.0"
    found = compared([plain], [governed], ignored=["^threads"])
    assert [difference.place for difference in found.differences] == ["line 3"]
    rest = compared([plain], [governed], ignored=["^threads", "^y"])
    assert (rest.state, rest.reason) == ("equal", "apart from the lines left out")


def test_a_search_that_does_not_end_is_ended_and_its_pattern_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "IGNORE_SECONDS", 0.5)
    plain, governed = (f"{'a' * 60}{end}" for end in "bc")
    with pytest.raises(CompareError) as caught:
        compared([plain], [governed], ignored=["^threads", "(a+)+$", "^x"])
    assert str(caught.value) == "compare: --ignore '(a+)+$': the search did not end within 0.5 s"


def test_a_search_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompareError, match=r"--ignore: the search failed: .*unterminated subpattern"):
        compared(["a"], ["b"], ignored=["("])
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(CompareError, match="--ignore: the search failed: No such file"):
        compared(["a"], ["b"], ignored=["x"])


def test_a_million_numbers_cost_little_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact search for the furthest pair is for the few examples that are shown."""
    looked: list[object] = []

    def counted(*arguments: Any) -> Any:
        looked.append(arguments)
        return furthest(*arguments)

    monkeypatch.setattr(places, "furthest", counted)
    rows = [" ".join(f"{(7 * n + row) % 10}.5" for n in range(5000)) for row in (0, 3, 5, 6)]
    found = compared(rows[:1], rows[3:])
    assert (found.state, len(found.differences)) == ("differ", 3)
    assert compared(rows[:2], rows[2:]).varying == (5000, 0, 0)
    assert 6 <= len(looked) < 50  # three times for each; a few more where a larger error follows


def test_a_line_too_long_is_compared_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (" ".join(f"0.{(7 * n + add) % 10}" for n in range(1000)) for add in (0, 1))
    monkeypatch.setattr(places, "MAX_LINE", 2 * len(one))
    assert compared([f"a\n{one}"], [f"a\n{other}"]).differences[0].place.startswith("line 2, number ")
    monkeypatch.setattr(places, "MAX_LINE", 2 * len(one) - 1)
    found = compared([f"a\n{one}"], [f"a\n{other}"])
    assert found.state == "differ"
    assert found.differences == (
        Difference("line 2, too long to be looked into", f"{one[:60]}...", f"{other[:60]}..."),
    )
    assert compared([one, other], [one]).varying == (0, 1, 0)


def test_padding_of_columns_is_no_difference() -> None:
    assert compared([" 9.9999999 |  1"], ["10.0000000 |  1"]).state == "close"
    assert compared(["a  b"], ["a b"]).state == "differ"


def test_what_is_not_finite() -> None:
    assert compared(["nan 1.0"], ["nan 1.00"]).state == "close"
    assert compared(["nan"], ["1.0"]).state == "differ"
    assert compared(["inf"], ["-inf"]).state == "differ"
    assert compared(["1e400 x"], ["1e401 x"]).state == "differ"


def test_binary_is_compared_by_digest() -> None:
    found = compare_outputs([output(b"\0a")] * 2, [output(b"\0b")] * 2)
    assert (found.state, found.reason) == ("differ", "not text")
    assert compare_outputs([output(b"\xff1")], [output(b"\xff2")]).reason == "not text"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("took 0.5s.", ["0.5"]),
        ("3.5. Then -2e-3, +7 and .5", ["3.5", "-2e-3", "+7", ".5"]),
        ("v1.2.3 layer2 0x7f 12ab34 192.168.0.1", []),
        ("2026-01-02 10:20:30", ["2026", "01", "02", "10", "20", "30"]),
        ("x=-1 5-3", ["-1", "5", "3"]),
        ("[1.,2.]", ["1.", "2."]),
        ("inf tokens, nano, nan", ["inf", "nan"]),
        ("", []),
    ],
)
def test_what_counts_as_a_number(text: str, numbers: list[str]) -> None:
    assert list(take_apart(text).numbers) == numbers


def test_a_vector_ends_at_a_word() -> None:
    assert take_apart("a 1 2,[3] b 4").vectors == (0, 0, 0, 1)


def test_long_digits_take_no_long_time() -> None:
    """Quadratic matching of 200 000 digits before a letter would meet the test's time limit."""
    text = "1" * 200_000 + "a1"
    assert take_apart(text).numbers == ()


@given(st.text(max_size=60))
def test_any_text_is_taken_apart_and_equal_to_itself(text: str) -> None:
    line = take_apart(text)
    assert len(line.words) == len(line.numbers) + 1
    assert all(isinstance(float(number), float) for number in line.numbers)
    assert len(scales(line.numbers, line.vectors)) == len(line.numbers)


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_two_texts_have_a_verdict(one: str, other: str) -> None:
    found = compare_outputs([output(one.encode("utf-8", "replace"))], [output(other.encode("utf-8", "replace"))])
    back = compare_outputs([output(other.encode("utf-8", "replace"))], [output(one.encode("utf-8", "replace"))])
    assert found.state == back.state


@given(st.lists(st.floats(-1, 1).filter(lambda x: abs(x) > 1e-30), min_size=8, max_size=64))
def test_rounding_to_single_precision_is_always_close(values: list[float]) -> None:
    one, other = (
        [f"{x:.17g}" if "." in f"{x:.17g}" else f"{x:.1f}" for x in row] for row in (values, map(f32, values))
    )
    assert compared([" ".join(one)], [" ".join(other)]).state in ("equal", "close")


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_the_relative_error_is_symmetric_and_bounded(one: float, other: float) -> None:
    error = relative_error(one, other, 0.0)
    assert error == relative_error(other, one, 0.0)
    assert error == math.inf or 0 <= error <= 2


NUMBERS = st.lists(
    st.sampled_from(["nan", "inf", "-inf", "1e400", "1e401", "-1e400", "0", "-0.0"]) | st.floats().map(repr),
    min_size=1,
    max_size=4,
)


@given(NUMBERS, NUMBERS, st.sampled_from([0.0, 1.0]))
def test_the_quick_way_to_the_largest_error_finds_the_same(ones: list[str], others: list[str], scale: float) -> None:
    assert largest_error(ones, others, scale) == furthest(ones, others, scale)[0]
    assert largest_error(ones, ones, scale) == furthest(ones, ones, scale)[0]


def test_the_root_mean_square_does_not_overflow() -> None:
    assert root_mean_square([1e300, -1e300]) == pytest.approx(1e300)
    assert root_mean_square([]) == root_mean_square([0.0]) == 0.0


# Arrays.


def npy(array: Any) -> Output:
    import numpy

    file = io.BytesIO()
    numpy.save(file, array)
    return output(file.getvalue())


def test_arrays_are_compared_by_number() -> None:
    require_module("numpy")
    import numpy

    generator = numpy.random.default_rng(7)
    array = generator.normal(size=(4, 8)).astype("float32")
    moved = array * numpy.float32(1 + 3e-7)
    found = compare_outputs([npy(array)] * 2, [npy(moved)] * 2)
    assert found.state == "close"
    assert 0 < found.error < 1e-6
    moved[2, 3] += 0.5
    found = compare_outputs([npy(array)], [npy(moved)])
    assert found.state == "differ"
    assert [difference.place for difference in found.differences] == ["element [2, 3]"]


def test_arrays_that_vary_by_themselves() -> None:
    require_module("numpy")
    import numpy

    def made(first: float, last: float) -> Output:
        return npy(numpy.array([first, 1.0, last]))

    same = compare_outputs([made(0.1, 5.0), made(0.2, 5.0)], [made(0.3, 5.0), made(0.4, 5.0)])
    assert (same.state, same.varying) == ("varies", (1, 0, 0))
    other = compare_outputs([made(0.1, 5.0), made(0.2, 5.0)], [made(0.3, 6.0), made(0.4, 6.0)])
    assert other.state == "differ"
    assert other.differences == (Difference("element [2]", "5.0", "6.0"),)


def test_arrays_of_other_shape_type_or_kind() -> None:
    require_module("numpy")
    import numpy

    assert compare_outputs([npy(numpy.zeros(2))], [npy(numpy.zeros(3))]).state == "differ"
    other = compare_outputs([npy(numpy.zeros(2))], [npy(numpy.zeros(2, "float32"))])
    assert (other.state, other.reason) == ("differ", "(2,) float64 as it is, (2,) float32 governed")
    words = compare_outputs([npy(numpy.array(["a"]))], [npy(numpy.array(["b"]))])
    assert words.state == "differ"
    odd = numpy.array([numpy.nan, numpy.inf, 1.0])
    assert compare_outputs([npy(odd)], [npy(odd * 1.0000001)]).state == "close"
    assert compare_outputs([npy(odd)], [npy(-odd)]).state == "differ"
    assert compare_outputs([npy(numpy.array(1.0))], [npy(numpy.array(1.5))]).differences[0].place == "element []"
    bits = numpy.array([True, False])
    assert compare_outputs([npy(bits)], [npy(~bits)]).state == "differ"


def test_pickles_in_arrays_are_not_loaded() -> None:
    require_module("numpy")
    import numpy

    objects = [npy(numpy.array([{"a": value}], dtype=object)) for value in (1, 2)]
    assert compare_outputs(objects[:1], objects[1:]).state == "differ"


def test_without_numpy_arrays_are_compared_by_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("numpy")
    import numpy

    pair = [npy(numpy.array([1.0])), npy(numpy.array([1.0 + 1e-12]))]
    assert compare_outputs(pair[:1], pair[1:]).state == "close"
    monkeypatch.setitem(sys.modules, "numpy", None)
    found = compare_outputs(pair[:1], pair[1:])
    assert (found.state, found.reason) == ("differ", "not text")


def test_sums_in_another_order_are_close() -> None:
    """What threads really do to results: the terms of a sum are grouped otherwise."""
    generator = random.Random(3)
    terms = [[generator.gauss(0, 1) for _ in range(1000)] for _ in range(32)]

    def added(row: list[float], parts: int) -> float:
        """float32 partial sums of so many threads."""
        sums = []
        for part in range(parts):
            total = 0.0
            for value in row[part::parts]:
                total = f32(total + f32(value))
            sums.append(total)
        return f32(sum(sums))

    one, four = (" ".join(f"{added(row, parts):.8f}" for row in terms) for parts in (1, 4))
    found = compared([one], [four])
    assert found.state == "close"
    assert 1e-9 < found.error < 1e-5
