"""What a measurement belongs to: models by their content, libraries, CPUs; hostile files."""

from __future__ import annotations

import json
import os
import struct
import time
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cgroup_threads as ct
from cgroup_threads.profiles.gguf import HEADER_BYTES, embeds_alone, parse_header
from cgroup_threads.profiles.identity import (
    clean_name,
    cpu_model,
    identify_model,
    library_version,
    present_identity,
)
from tests.lab import models

U32, BOOL, STRING, ARRAY = 4, 7, 8, 9


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(*entries: bytes, version: int = 3, count: int | None = None) -> bytes:
    """The beginning of a GGUF file with these entries."""
    number = len(entries) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", version, 0, number) + b"".join(entries)


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


NAMED = gguf(
    entry("general.architecture", STRING, text("llama")),
    entry("general.tags", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("b")),
    entry("numbers", ARRAY, struct.pack("<IQ4I", U32, 4, 1, 2, 3, 4)),
    entry("general.name", STRING, text("Some Model")),
    entry("llama.context_length", U32, struct.pack("<I", 4096)),
    entry("llama.attention.causal", BOOL, b"\1"),
)


# GGUF headers.


def test_single_values_are_read_and_lists_passed_over() -> None:
    assert parse_header(NAMED) == {
        "general.architecture": "llama",
        "general.name": "Some Model",
        "llama.context_length": 4096,
        "llama.attention.causal": True,
    }


def test_what_comes_before_the_end_stands() -> None:
    found = parse_header(NAMED[:-5])
    assert found["llama.context_length"] == 4096
    assert "llama.attention.causal" not in found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"GGML" + NAMED[4:],
        gguf(entry("a", U32, b"\0" * 4), version=1),
        gguf(entry("a", U32, b"\0" * 4), version=0x03000000),  # the other byte order
        gguf(text("a") + struct.pack("<I", 77), count=1 << 60),
        gguf(struct.pack("<Q", 1 << 63), count=1 << 60),
        gguf(entry("a", ARRAY, struct.pack("<IQ", STRING, 1 << 62)), count=9),
        gguf(entry("a", ARRAY, struct.pack("<IQ", 12, (1 << 64) - 1)), entry("b", U32, b"")),
        gguf(entry("a", ARRAY, struct.pack("<IQ", ARRAY, 3)), entry("b", U32, b"\0" * 4)),
    ],
)
def test_junk_gives_nothing(data: bytes) -> None:
    assert parse_header(data) == {}


@given(st.binary(max_size=300), st.integers(0, len(NAMED) - 1))
def test_any_bytes_are_borne(junk: bytes, place: int) -> None:
    for data in (junk, gguf(junk, count=5), NAMED[:place] + junk + NAMED[place + len(junk) :]):
        assert all(isinstance(value, (str, int, float)) for value in parse_header(data).values())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"general.architecture": "llama", "llama.attention.causal": True}, False),
        ({"general.architecture": "llama"}, False),
        ({"general.architecture": "llama", "llama.attention.causal": False}, True),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, True),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 0}, False),
        ({"general.architecture": "nomic-bert"}, True),
        ({"general.architecture": "gemma-embedding"}, True),
        ({}, False),
    ],
)
def test_which_models_embed_alone(settings: dict[str, str | int | float | bool], expected: bool) -> None:
    assert embeds_alone(settings) is expected


# Models.


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    first, copy, other = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    first.write_bytes(NAMED + bytes(200_000))
    copy.write_bytes(NAMED + bytes(200_000))
    other.write_bytes(NAMED + bytes(199_999) + b"\1")
    longer = tmp_path / "d.gguf"
    longer.write_bytes(NAMED + bytes(200_001))
    names = [identify_model(path) for path in (first, copy, other, longer)]
    assert names[0].startswith("gguf llama Some Model ")
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_real_models_are_told_apart_in_milliseconds() -> None:
    paths = [models.tiny_gguf(), models.minilm_gguf(), models.gemma_gguf(), models.minilm_directory()]
    begin = time.process_time()
    names = [identify_model(path) for path in paths]
    assert time.process_time() - begin < 0.2
    assert [name.rsplit(" ", 1)[0] for name in names] == [
        "gguf bert tiny-bert",
        "gguf bert all-MiniLM-L6-v2",
        names[2].rsplit(" ", 1)[0],
        "model bert",
    ]
    assert names[2].startswith("gguf gemma3 ")
    assert len(set(names)) == 4
    headers = []
    for path in paths[:3]:
        with open(path, "rb") as file:
            headers.append(parse_header(file.read(HEADER_BYTES)))
    assert [embeds_alone(header) for header in headers] == [True, True, False]


def test_other_files_and_what_is_none(tmp_path: Path) -> None:
    plain = tmp_path / "model.onnx"
    plain.write_bytes(b"weights")
    assert identify_model(plain).startswith("file ")
    assert identify_model(tmp_path / "missing") == ""
    assert identify_model(str(tmp_path / "nul\0")) == ""
    assert identify_model("/dev/zero") == ""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert identify_model(pipe) == ""


def write_directory(path: Path, config: bytes = b'{"model_type": "bert"}', size: int = 100) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_bytes(config)
    (path / "model.safetensors").write_bytes(bytes(size))
    return path


def test_a_directory_is_known_by_its_configuration_and_weights(tmp_path: Path) -> None:
    first = write_directory(tmp_path / "a")
    name = identify_model(first)
    assert name.startswith("model bert ")
    assert identify_model(str(write_directory(tmp_path / "b"))) == name
    assert identify_model(write_directory(tmp_path / "c", size=101)) != name
    assert identify_model(write_directory(tmp_path / "d", config=b'{"model_type": "bert", "x": 1}')) != name
    # Copies of the weights for other back ends, and papers, change nothing.
    (first / "pytorch_model.bin").write_bytes(b"x")
    (first / "README.md").write_bytes(b"x")
    (first / "onnx").mkdir()
    (first / "onnx" / "model.onnx").write_bytes(b"x")
    assert identify_model(first) == name


def test_an_older_directory_keeps_its_transformer_inside(tmp_path: Path) -> None:
    write_directory(tmp_path / "a" / "0_Transformer")
    assert identify_model(tmp_path / "a").startswith("model bert ")


@pytest.mark.parametrize("config", [b"", b"[", b"[]", b'{"model_type": 3}', b"[" * 100_000, b"\xff"])
def test_odd_configurations(tmp_path: Path, config: bytes) -> None:
    assert len(identify_model(write_directory(tmp_path / "a", config)).split()) == 2


def test_directories_without_a_model(tmp_path: Path) -> None:
    assert identify_model(tmp_path) == ""
    (tmp_path / "config.json").write_text("{}")
    assert identify_model(tmp_path) == ""  # no weights
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    os.mkfifo(hostile / "config.json")
    (hostile / "model.bin").write_bytes(b"x")
    assert identify_model(hostile) == ""


# Libraries and CPUs.


def test_library_versions() -> None:
    assert library_version("pytest") == f"pytest {metadata.version('pytest')}"
    assert library_version("no-such-distribution") == ""


CPUINFO = {
    "x86": (
        "processor\t: 0\nmodel\t: 85\nmodel name\t: Some(R)  CPU @ 2.0GHz\n\nmodel name\t: other\n",
        "Some(R) CPU @ 2.0GHz",
    ),
    "arm": ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "0x41 0xd0c"),
    "power": ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
    "hostile": ("model name\t: " + "\x1b[31mred\n", "[31mred"),
}


@pytest.mark.parametrize(("content", "expected"), CPUINFO.values(), ids=CPUINFO)
def test_cpu_models(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(content)
    assert cpu_model(str(path)) == expected


def test_without_cpuinfo_the_machine_is_named(tmp_path: Path) -> None:
    assert cpu_model(str(tmp_path / "missing")) != ""


def test_foreign_names_are_one_short_line() -> None:
    assert clean_name(" a\n\x00b\u00e9 " + "c" * 5000) == "a b " + "c" * 56


def test_the_present_identity() -> None:
    limits = ct.detect()
    found = present_identity("gguf x", "lib 1")
    assert found == ("gguf x", "lib 1", cpu_model(), limits.usable(), limits.quota)
    assert json.loads(json.dumps(found)) == list(found)
