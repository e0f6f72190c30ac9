"""Readers of what users, programs and earlier runs wrote: settings, command lines, files, logs. Any input is taken."""

from __future__ import annotations

import argparse
import io
import json
import math
import shlex
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cgroup_threads.commands import parsing
from cgroup_threads.comparing.arrays import compare_arrays
from cgroup_threads.comparing.llama_reading import read_llama_summary
from cgroup_threads.comparing.llama_summary import MAX_SUMMARIES, parse_facts, parse_summaries
from cgroup_threads.comparing.numbers import take_apart
from cgroup_threads.errors import InvalidArgumentError
from cgroup_threads.integrations.prometheus_workers import parse_row
from cgroup_threads.marker import MAX_VALUE, Marker, Origin, read_marker, write_marker
from cgroup_threads.profiles import format as profile_format
from cgroup_threads.profiles.identity import clean_name, cpu_model
from cgroup_threads.programs import Program, find_option, recognise
from cgroup_threads.reporting.since import SinceError, read_report
from cgroup_threads.settings import MAX_COUNT, parse_cores, parse_count, parse_seconds, read_settings
from cgroup_threads.shells import format_statement
from cgroup_threads.tuning.command_subject import PLACE, check_command
from cgroup_threads.tuning.weights import measure_weights
from cgroup_threads.variables import BY_NAME, parse_threads

NOISE = st.text(st.characters(codec=None, categories=None), max_size=60)
LIKELY = st.text(alphabet="0123456789.ms +-_,;=:{}()/\\'\"\n\0\u0663\u00b2ex", max_size=40)
TEXTS = NOISE | LIKELY
FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example writes it anew
LONG = 1 << 20


# Numbers in variables and arguments.


@given(TEXTS)
@example("9" * 5000)
@example("1" * 20)
@example(" 7 ")
def test_numbers_are_in_their_ranges(text: str) -> None:
    count, cores, seconds = parse_count(text), parse_cores(text), parse_seconds(text)
    assert count is None or 1 <= count <= MAX_COUNT
    assert cores is None or 0 < cores <= MAX_COUNT
    assert seconds is None or (seconds >= 0 and math.isfinite(seconds))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = parse_threads(name, text)
        assert threads is None or threads >= 1
    if count is not None:
        assert cores == count
        assert parse_threads("MKL_NUM_THREADS", text) == count


@given(st.integers(1, MAX_COUNT), st.integers(0, 999))
def test_numbers_come_back(whole: int, thousandths: int) -> None:
    milli = 1000 * whole + thousandths
    assert parse_count(f" {whole}\n") == whole
    if milli <= 1000 * MAX_COUNT:
        assert parse_cores(f"{whole}.{thousandths:03d}") == parse_cores(f"{milli}m") == pytest.approx(milli / 1000)
    assert parse_seconds(f"{whole}.{thousandths:03d}s") == pytest.approx(milli / 1000)
    assert parse_seconds(f"{milli}ms") == pytest.approx(milli / 1000)


ARGUMENTS: dict[str, tuple[Callable[[str], Any], Callable[[Any], bool]]] = {
    "seconds": (parsing.seconds, lambda value: 0 <= value <= 3600),
    "whole": (parsing.whole, lambda value: 1 <= value <= parsing.MAX_CALLERS),
    "quota": (parsing.quota, lambda value: 0.01 <= value <= 4096),
    "modules": (parsing.module_names, lambda value: all(name and "\0" not in name for name in value)),
    "workers": (parsing.worker_count, lambda value: 1 <= value <= MAX_COUNT),
    "confidence": (parsing.confidence, lambda value: 0.5 <= value <= 0.999),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@given(TEXTS)
@example("\u0661")
@example("9" * 5000)
def test_an_argument_is_read_or_refused_on_one_line(name: str, text: str) -> None:
    parse, sound = ARGUMENTS[name]
    refused = ""
    try:
        value = parse(text)
    except argparse.ArgumentTypeError as error:
        refused = str(error)
    assert refused.isprintable() if refused else sound(value)


@given(st.dictionaries(st.sampled_from(["WEB_CONCURRENCY", "LOCAL_WORLD_SIZE", "CGROUP_THREADS_PROFILES"]), TEXTS))
def test_settings_say_what_they_ignore_on_one_line(environ: dict[str, str]) -> None:
    found = read_settings(environ)
    assert all(notice.message.isprintable() for notice in found.notices)
    assert found.profiles is None or "\0" not in found.profiles


# The marker, and statements of a shell.

VALUES = st.dictionaries(st.sampled_from(sorted(BY_NAME)), st.integers(0, 10**MAX_VALUE - 1).map(str))


@given(st.from_regex(r"[0-9]{1,10}:[0-9]{1,10}|-", fullmatch=True), st.uuids().map(str) | st.just("-"), VALUES)
def test_a_marker_comes_back(group: str, boot: str, values: dict[str, str]) -> None:
    marker = Marker(Origin(group, boot), values)
    assert read_marker(write_marker(marker)) == (marker, None)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30), min_size=1))
@settings(max_examples=20)
def test_a_real_shell_reads_back_any_value(values: list[str]) -> None:
    lines = [format_statement("sh", f"V{at}", value) for at, value in enumerate(values)]
    lines += [format_statement("sh", "GONE", None), *(f"printf '%s\\0' \"$V{at}\"" for at in range(len(values)))]
    done = subprocess.run(["/bin/sh", "-c", "\n".join(lines)], capture_output=True, check=True, env={"GONE": "1"})
    assert done.stdout.decode().split("\0")[:-1] == values
    assert done.stderr == b""


@given(st.text(st.characters(exclude_characters="\0"), max_size=40))
def test_fish_reads_back_any_value(value: str) -> None:
    """By its rule: in single quotes a backslash escapes itself and the quote."""
    text = format_statement("fish", "V", value).removeprefix("set -gx V '").removesuffix("';")
    found, at = [], 0
    while at < len(text):
        assert text[at] != "'", "the quotes end too early"
        at += text[at] == "\\" and text[at + 1 : at + 2] in ("\\", "'")
        found.append(text[at])
        at += 1
    assert "".join(found) == value


# Command lines.

WORDS = st.sampled_from(
    [
        *("python", "python3.12", "/usr/bin/gunicorn", "uvicorn", "celery", "worker", "env", "nice", "tini", "fastapi"),
        *("-m", "-c", "-u", "-n", "--", "-", "-w", "-w4", "--workers=2", "--workers", "-x", "-X", "-Xa", "-i", "-S"),
        *("A=1", "=", "=x", "a=b=c", "", "run", "app:app", "llama-server", "taskset", "hypercorn", "--autoscale", "-P"),
        *("9" * 400, "0", "4,2", "\u0663", "--check-hash-based-pycs", "nohup", "ionice", "gunicorn.exe", "\\"),
    ]
)
COMMANDS = st.lists(WORDS | NOISE, min_size=1, max_size=10)


@given(
    COMMANDS, st.dictionaries(st.sampled_from(["WEB_CONCURRENCY", "GUNICORN_CMD_ARGS"]), TEXTS | WORDS), st.booleans()
)
@example(["python", "-m"], {}, False)
@example(["env"], {}, False)
@example(["env", "-u"], {}, False)
@example(["gunicorn"], {"GUNICORN_CMD_ARGS": "'"}, True)
def test_any_command_line_is_taken(command: list[str], environ: dict[str, str], there: bool) -> None:
    found = recognise(command, environ, lambda _: there)
    assert isinstance(found, Program)
    assert 0 <= found.position <= len(command)
    assert found.arguments == tuple(command[found.position :])
    assert found.workers is None or 1 <= found.workers <= MAX_COUNT
    assert (found.workers is None) or found.workers_source


@given(st.lists(WORDS | NOISE, max_size=8), st.integers(1, 999))
def test_an_option_is_found_in_each_of_its_spellings(words: list[str], number: int) -> None:
    words = [word for word in words if word != "--"]
    for spelled in (["--workers", f"{number}"], [f"--workers={number}"], ["-w", f"{number}"], [f"-w{number}"]):
        assert find_option([*words, *spelled], "-w", "--workers", attached=True) == str(number)
        assert find_option(["--", *words, *spelled], "-w", "--workers", attached=True) is None


@given(st.lists(TEXTS | st.just(PLACE), max_size=5))
def test_a_command_to_measure_has_its_place(command: list[str]) -> None:
    sound = any(PLACE in word for word in command) and not any("\0" in word for word in command)
    if sound:
        check_command(command)
    else:
        with pytest.raises(InvalidArgumentError):
            check_command(command)


# Logs and outputs.

numbers = st.integers(0, 10**9)


@given(numbers, numbers, numbers, st.booleans())
def test_a_summary_of_llama_cpp_comes_back(load: int, prompt: int, tokens: int, old: bool) -> None:
    name = "llama_print_timings" if old else "llama_perf_context_print"
    text = (
        f"{name}:        load time = {load / 100:10.2f} ms\n"
        f"{name}: prompt eval time = {prompt / 100:10.2f} ms / {tokens:5d} tokens (    1.00 ms per token)\n"
    )
    (found,) = parse_summaries(text)
    assert found.load_ms == pytest.approx(load / 100, abs=0.006)
    assert found.prompt_ms == pytest.approx(prompt / 100, abs=0.006)
    assert found.prompt_tokens == tokens


@given(
    st.lists(
        st.sampled_from(["load time =", " 1.5 ms", " / 4 tokens", "prompt eval time =", "eval time = ", "\n"]) | LIKELY
    )
)
def test_a_summary_has_numbers_that_can_be_told(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = read_llama_summary(text)
    assert len(found.summaries) <= MAX_SUMMARIES
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found)


LOGS: dict[str, Callable[[str], Any]] = {
    "summaries": lambda text: read_llama_summary("eval time = " + text),
    "facts": parse_facts,
    "numbers": lambda text: take_apart(text[: LONG // 4]),
    "marker": read_marker,
    "settings": lambda text: read_settings(dict.fromkeys(("CGROUP_THREADS_CORES", "CGROUP_THREADS_PROFILES"), text)),
    "statement": lambda text: (format_statement("sh", "A", text), format_statement("fish", "A", text)),
    "command": lambda text: recognise(["env", text, "python", text], {}),
}


@pytest.mark.parametrize("unit", ["0", "1.", "-1 ", "time =  ", "n_threads = 1 / ", "'", "\\", "a=", "-b"])
def test_a_mebibyte_is_read_in_linear_time(unit: str) -> None:
    text = (unit * (LONG // len(unit) + 1))[:LONG]
    for name, read in LOGS.items():
        begin = time.thread_time()  # of this thread's CPU time, so that neighbours do not count
        read(text)
        took = time.thread_time() - begin
        assert took < 4, f"{name}: {took:.1f} s"


# Files.


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | TEXTS, lambda inner: st.lists(inner, max_size=3)
    )
)
def test_a_profile_is_read_or_refused(value: Any) -> None:
    whole = {"format": profile_format.FORMAT, "version": profile_format.VERSION, "identity": value, "counts": value}
    for data in (value, whole):
        with pytest.raises(ValueError, match=r"."):
            profile_format.read(json.dumps(data).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**30), 10**30) | NOISE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NOISE, inner, max_size=3),
)
THROTTLING = st.fixed_dictionaries(
    {name: JSON | st.integers(0, 100) for name in ("periods", "throttled", "seconds")}, optional={"file": JSON}
)


@FILES
@given(boot=JSON, uptime=JSON | st.floats(0, 1e9), throttling=JSON | THROTTLING, pressure=JSON)
def test_an_earlier_report_is_read_or_refused(
    boot: Any, uptime: Any, throttling: Any, pressure: Any, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    counters = {"boot": boot, "cgroup": "1:2", "uptime_s": uptime, "throttling": throttling, "pressure": pressure}
    path.write_text(json.dumps({"usable_cores": 1, "counters": counters}))
    try:
        found = read_report(str(path))
    except SinceError as error:
        refused = error.reason
    else:
        refused = ""
        assert 0 <= found.uptime_s < 2**64
        if found.throttling is not None:
            assert 0 <= found.throttling.throttled <= found.throttling.periods
            assert 0 <= found.throttling.seconds < 2**64
    assert not refused or refused.isprintable()


@FILES
@given(
    content=st.binary(max_size=300) | TEXTS.map(lambda text: b"model name\t: " + text.encode("utf-8", "surrogatepass"))
)
def test_the_name_of_a_cpu_is_one_short_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_bytes(content)
    name = cpu_model(str(path))
    assert name == clean_name(name)
    assert len(name) <= 60


@given(st.binary(max_size=400), st.integers(2, 3), st.integers(0, 5), st.integers(0, 2**64 - 1))
def test_any_model_file_has_its_weights_or_its_size(rest: bytes, version: int, tensors: int, settings_: int) -> None:
    for data in (rest, b"GGUF" + struct.pack("<IQQ", version, tensors, settings_) + rest):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(data)
            file.flush()
            found = measure_weights(file.name)
        assert found is not None
        assert 0 <= found.size <= len(data)


HEADERS = TEXTS | st.sampled_from(
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10**9, 10**9), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': 'O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f8', (2, 2**40))], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': 7, 'fortran_order': False, 'shape': (1L,), }",
        "(" * 900,
        "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }",
    ]
)


@given(HEADERS, st.integers(1, 3), st.binary(max_size=40))
def test_any_array_is_compared_or_left_alone(header: str, version: int, rest: bytes) -> None:
    text = header.encode("utf-8", "surrogatepass")
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    data = b"\x93NUMPY" + bytes([version, 0]) + size + text + rest
    found = compare_arrays([data], [data + b"x"], 1e-5)
    assert found is None or found.state in ("equal", "close", "differ", "varies")


@given(st.lists(st.floats(width=32), max_size=8))
def test_an_array_is_close_to_itself(values: list[float]) -> None:
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.array(values))
    found = compare_arrays([file.getvalue()], [file.getvalue()], 1e-5)
    assert found is not None
    assert (found.state, found.error) == ("close", 0.0)


@given(st.binary(min_size=72, max_size=72), st.booleans())
def test_a_row_of_a_worker_that_checks_is_in_its_ranges(body: bytes, scope: bool) -> None:
    """Whoever can write the file can write its checksum, too."""
    data = (b"ctprom01" + body)[:72]
    row = (data + struct.pack("<I", zlib.crc32(data))).ljust(128, b"\0")
    found = parse_row(row)
    if found is not None:
        assert min(found.active, found.leased, found.waiting, found.cores) >= 0
        assert all(math.isfinite(number) and number >= 0 for number in found.counters)


@given(st.lists(TEXTS.filter(lambda text: "\0" not in text), max_size=5))
def test_quoted_arguments_of_gunicorn_are_read_as_it_reads_them(words: list[str]) -> None:
    found = recognise(["gunicorn", "app"], {"GUNICORN_CMD_ARGS": shlex.join([*words, "--workers", "3"])})
    if "--" not in words:
        assert found.workers == 3
