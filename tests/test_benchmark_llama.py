"""The llama benchmarks' own arithmetic, their tables from made-up records, and a child that is late."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gguf_qwen, llama_batch_table, llama_decode_cost, llama_serving_table
from benchmarks.llama_arms import Child, Counters, Failed, Killed, Neighbours, spread, table
from benchmarks.llama_batch_table import ARMS, Place, collect, difference
from benchmarks.llama_batch_threads import enough, lengths_for, text_of
from benchmarks.llama_serving_table import COLUMNS, OURS, Mark, best_of, figures, medians, near

ABOUT = {
    "kind": "about",
    "machine": {"cpus": 2},
    "versions": {"llama-cpp-python": "0"},
    "rounds": 1,
    "cap": 20.0,
    "seconds": 10.0,
    "believed": 0,
    "lengths": [8, 64],
}


def embedding(arm: str, length: int, seconds: float | None, value: float = 0.5, turn: int = 0) -> dict[str, Any]:
    """A measurement of the small model where eight CPUs are seen."""
    run = {"kind": "run", "model": "minilm", "believed": 8, "arm": arm, "round": turn, "length": length}
    run |= {"seconds": seconds, "calls": 2, "used": [4, 6, 10, 5], "counts": [1, 8], "parameters": 2e6}
    return run if seconds is None else {**run, "vector": [value, 1.0]}


RECORDS = [
    ABOUT,
    embedding("default", 8, None),
    embedding("default", 64, None),
    embedding("omp1", 8, 2.0, 0.25),
    embedding("omp1", 64, 2.2),
    embedding("both", 8, 0.01),
    embedding("both", 64, 0.05),
    embedding("both", 8, 0.03, turn=1),
]


def cells(title: str) -> list[str]:
    """The row of the batch table that begins with this arm."""
    rows = [[cell.strip() for cell in line.split("|")] for line in llama_batch_table.render(RECORDS).splitlines()]
    (found,) = [row for row in rows if len(row) > 2 and row[2] == title]
    return found[4:-1]


def test_a_killed_embedding_is_a_lower_bound() -> None:
    assert cells(ARMS[0].title) == ["> 20", "> 20", "> 1000 / > 400", "-", "50%", "> 2 + > 3", "none"]


def test_a_fixed_cost_and_a_different_output_are_named() -> None:
    assert cells("OMP_NUM_THREADS=1") == ["2", "2.2", "100 / 44", "1.1 flat", "50%", "2 + 3", "off by 0.25"]


def test_a_round_that_was_killed_is_named_beside_the_others() -> None:
    cell = collect([*RECORDS, embedding("omp1", 64, None, turn=1)])[Place("minilm", 8), "omp1"][64]
    assert (cell.seconds, cell.killed) == ((2.2,), 1)


def test_the_right_setting_is_its_own_measure() -> None:
    assert cells("Llama(n_threads=1, n_threads_batch=1)")[:4] == ["0.02 (0.01-0.03)", "0.05", "1 / 1", "2.5"]


def test_outputs_are_compared_at_every_length() -> None:
    arms = collect(RECORDS)
    assert [cell.off for cell in arms[Place("minilm", 8), "omp1"].values()] == [0.25, 0.0]
    assert [cell.off for cell in arms[Place("minilm", 8), "default"].values()] == [None, None]
    assert difference([1.0, -2.0], [1.5, -4.0]) == 2.0
    with pytest.raises(ValueError, match="longer"):
        difference([1.0], [1.0, 2.0])


def test_every_remedy_of_the_story_is_an_arm() -> None:
    names = [arm.name for arm in ARMS]
    assert names == ["default", "omp1", "ubatch32", "both", "factory", "backstop", "unhooked"]
    assert len({(arm.code, arm.environ, arm.ubatch) for arm in ARMS}) == len(ARMS)


def test_an_encoder_reads_no_more_than_its_ubatch() -> None:
    arm = next(arm for arm in ARMS if arm.name == "ubatch32")
    assert lengths_for(Place("minilm", 8), arm, [8, 16, 64]) == [8, 16]
    assert lengths_for(Place("qwen", 8), arm, [8, 16, 64]) == [8, 16, 64]
    assert lengths_for(Place("minilm", 8), ARMS[0], [8, 64]) == [8, 64]


def test_a_slow_embedding_is_not_repeated() -> None:
    assert not enough([], 1.5)
    assert enough([2.0], 1.5)
    assert not enough([1.0], 1.5)
    assert enough([1.0, 0.6], 1.5)
    assert not enough([0.1] * 14, 1.5)


def test_a_text_has_the_length_asked_for() -> None:
    class Words:
        def tokenize(self, text: bytes) -> list[bytes]:
            return [b"[", *text.split(), b"]"]

    texts = [text_of(Words(), 64, first) for first in range(4)]
    assert [len(text.split()) for text in texts] == [62] * 4
    assert len(set(texts)) == 4
    assert text_of(Words(), 4, 25) == "z a"


def test_the_large_model_has_the_shape_of_its_size() -> None:
    assert gguf_qwen.parameters() == 596_049_920  # what llama.cpp counts in the file
    assert gguf_qwen.parameters(2) < gguf_qwen.parameters(3)


def test_random_blocks_are_numbers_around_zero() -> None:
    gguf = pytest.importorskip("gguf.quants")
    numpy = pytest.importorskip("numpy")
    packed = gguf_qwen._q4_1(numpy.random.default_rng(0), 64, 1024)
    values = gguf.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
    assert values.shape == (64, 1024)
    assert abs(values.mean()) < 0.001
    assert values.std() == pytest.approx(1 / 32, rel=0.02)


def test_a_table_stands_in_columns() -> None:
    lines = table(["a", "head"], [["long cell", "1"], ["x", "2"]])
    assert lines[0] == "| a         | head |"
    assert lines[1] == "|-----------|------|"
    assert {len(line) for line in lines} == {len(lines[0])}
    assert spread([3.0, 1.0, 2.0]) == "2 (1-3)"


def test_throttled_periods_are_a_share_of_the_busy_ones() -> None:
    before, after = Counters(10, 20, 5, 1), Counters(14, 26, 15, 6)
    assert after.since(before) == Counters(4, 6, 10, 5)
    assert after.since(before).share == 0.5
    assert Counters(0, 0, 0, 0).share == 0.0


# Children.


def start(directory: Path, code: str) -> Child:
    """A child that runs ``code``, in a group that is a plain directory."""
    (directory / "scripted.py").write_text("import json, sys, threading\n" + code)
    (directory / "cpu.stat").write_text("nr_periods 8\nnr_throttled 2\n")
    return Child("scripted", {"number": 3}, directory, {"PYTHONPATH": str(directory)})


def test_a_child_is_in_its_group_and_says_what_it_found(tmp_path: Path) -> None:
    with start(tmp_path, "print(json.dumps(json.loads(sys.argv[2])))\nprint('{}')\n") as child:
        assert list(child.lines(60)) == [{"number": 3}, {}]
        assert (tmp_path / "cgroup.procs").read_text() == f"{child.process.pid}\n"


def test_a_child_that_is_late_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, "print('{}', flush=True)\nthreading.Event().wait()\n") as child:
        lines = child.lines(0.1)
        assert next(lines) == {}
        until = time.monotonic() + 60
        while not child.counters().voluntary:  # it waits for what never comes
            assert time.monotonic() < until
        assert child.counters().share == 0.25
        with pytest.raises(Killed):
            next(lines)
    assert child.process.returncode == -9


def test_a_child_that_fails_brings_its_message(tmp_path: Path) -> None:
    with start(tmp_path, "sys.exit('no such model')\n") as child, pytest.raises(Failed, match="1\nno such model"):
        list(child.lines(60))


def test_neighbours_are_what_this_process_did_not_use() -> None:
    neighbours = Neighbours()
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
    at, busy, own = neighbours.before
    neighbours.before = at, busy, own - 1000  # as if it had used a lot itself
    assert neighbours.cpus() == 0.0
    neighbours.before = at, busy - 1000, own
    assert neighbours.cpus() > 1.0


# Serving.


def serving(arm: str, tokens: float, gap95: float | None, embeddings: float) -> dict[str, Any]:
    run = {"kind": "run", "arm": arm, "round": 0, "tokens": tokens, "gap95": gap95, "embeddings": embeddings}
    run |= {
        "first": None,
        "embedding95": 1.0,
        "cpu": 1.5,
        "used": [1, 20, 4, 1],
        "leases": 30,
        "threads": 9,
        "others": 0.1,
    }
    return {**run, "counts": [1, 2]}


def test_figures_of_a_window() -> None:
    marks = [Mark(float(number), "next", number / 1000) for number in range(1, 101)]
    marks += [Mark(1.0, "first", 0.3), Mark(2.0, "first", 0.5), Mark(3.0, "embedding", 0.007)]
    found = figures(marks, 2.0)
    assert found == {"tokens": 51.0, "gap95": 95.0, "first": 400.0, "embeddings": 0.5, "embedding95": 7.0}
    assert figures([], 2.0) == {"tokens": 0, "gap95": None, "first": None, "embeddings": 0, "embedding95": None}


def test_the_best_of_each_column_is_marked_and_ours_is_compared_with_it() -> None:
    records = [
        ABOUT,
        serving("default", 50, 40, 9),
        serving("one", 60, 30, 5),
        serving("two", 10, None, 1),
        serving(OURS, 58, 33, 10),
    ]
    gap = COLUMNS[1]
    assert [best_of(medians(records, column), column) for column in COLUMNS] == ["one", "one", OURS]
    assert medians(records, gap)["two"] == math.inf
    found = near(records)
    assert [ratio for ratio, _, _ in found.values()] == pytest.approx([58 / 60, 1.1, 10 / 9])
    assert [best for _, best, _ in found.values()] == ["one", "one", "default"]
    assert [within for _, _, within in found.values()] == [True, False, True]  # 10 % more waiting is too much
    text = llama_serving_table.render(records)
    assert text.count(" *") == 3
    assert "p95 between tokens, ms: ours / one = 1.100  MISSED" in text
    assert "tokens/s: ours / one = 0.967\n" in text


def test_without_ours_nothing_is_compared() -> None:
    records = [ABOUT, serving("one", 60, 30, 5), serving("two", 10, 60, 1)]
    assert near(records) == {}
    assert "ours" not in llama_serving_table.render(records)


# The cost of a decode call.


def test_the_cost_is_a_difference_block_by_block() -> None:
    blocks = [("plain", 0.010), ("governed", 0.0101), ("again", 0.010)]
    blocks += [("governed", 0.0202), ("again", 0.0199), ("plain", 0.020)]
    lines: list[dict[str, Any]] = [
        {"mode": mode, "seconds": seconds, "digest": "d", "leases": 30 if mode == "governed" else 0}
        for mode, seconds in blocks
    ]
    lines.append({"mode": "stub", "plain": 2.0, "governed": 7.0})
    summary = llama_decode_cost.summarise(lines)
    assert summary["token"] == pytest.approx(15_000)
    assert summary["governed"][1] == pytest.approx(150)  # the median of 100 and 200
    assert summary["again"][1] == pytest.approx(-50)
    assert summary["lease"] == 5.0
    assert summary["equal"]
    assert "governed - released: +150.0 us (+1.000%)" in llama_decode_cost.render(summary, 1)
    lines[0]["digest"] = "another"
    assert not llama_decode_cost.summarise(lines)["equal"]
