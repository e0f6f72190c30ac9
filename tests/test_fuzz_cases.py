"""The fuzzer's inputs without the fuzzer: sound ones, and every case that once broke a promise, through all targets."""

from __future__ import annotations

import os
import resource
import struct
import time
from pathlib import Path

import pytest

from cgroup_threads.tuning.weights import Weights, measure_weights
from tests.fuzz.seeds import CASES, cases, seeds
from tests.fuzz.targets import SECONDS, TARGETS, try_input

GROWTH = 256 << 20
"""Bytes by which all inputs of a target may raise the most memory this process ever had."""


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_keeps_the_promises(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in seeds(name):
        try_input(name, data)
        try_input(name, data[: len(data) // 2])
    for case, data in cases(name):
        try:
            try_input(name, data)
        except Exception as error:
            raise AssertionError(f"the case {name}/{case} is back: {error}") from error
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < GROWTH


def test_each_case_has_its_target() -> None:
    assert {path.name for path in CASES.iterdir()} <= set(TARGETS)
    assert list(CASES.glob("*/*"))


@pytest.mark.parametrize(
    ("tensors", "settings", "rest"),
    [
        (0, 1 << 60, b""),
        (1 << 60, 0, b""),
        (0, 1, struct.pack("<QIIQ", 0, 9, 8, (1 << 21) - 8)),  # as many strings as are read
        (0, 1, struct.pack("<QIIQ", 0, 9, 8, 1 << 60)),
        (1, 0, struct.pack("<QI", 0, 1 << 28)),  # dimensions
        (0, 1, struct.pack("<Q", 1 << 31)),  # a name of 2 GiB
    ],
)
def test_a_header_without_end(tensors: int, settings: int, rest: bytes, tmp_path: Path) -> None:
    """Zeros are empty names and small numbers, and a file full of them takes no room."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, settings) + rest)
    os.truncate(path, 4 << 30)
    begin = time.thread_time()
    assert measure_weights(str(path)) == Weights(4 << 30, "file")
    assert time.thread_time() - begin < SECONDS


def test_a_model_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # to open it would wait for ever
    for path in (str(tmp_path / "fifo"), str(tmp_path), "a\0b"):
        assert measure_weights(path) is None
