"""Memory bandwidth: read for real, and what decoding uses of it."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cgroup_threads.detection import detect
from cgroup_threads.detection.procfs import Files
from cgroup_threads.errors import InvalidThreadsError
from cgroup_threads.tuning import bandwidth
from cgroup_threads.tuning.bandwidth import (
    LEAST_BYTES,
    TOO_SMALL,
    Buffer,
    choose_buffer,
    explain,
    machine_bandwidth,
    measure,
    of_result,
    read_bandwidth,
)
from cgroup_threads.tuning.memory import find_cache, find_free_memory, parse_size
from cgroup_threads.tuning.records import Bandwidth, Task
from cgroup_threads.tuning.weights import Weights, find_parts, measure_weights, sum_read
from tests.lab import models
from tests.lab.trees import lay
from tests.tuning_samples import DECODE, PREFILL, make_curve

SMALL = 64 << 20
MIB = 1 << 20


# Reading memory.


def test_a_byte_that_is_there_is_found() -> None:
    buffer = (ctypes.c_char * 4096)()
    ctypes.memset(buffer, 1, 4096)
    buffer[4000] = b"\0"
    assert bandwidth._load_memchr()(buffer, 0, 4096) == ctypes.addressof(buffer) + 4000


def test_threads_read_at_once_without_pythons_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    running = threading.active_count()
    find = bandwidth._load_memchr()
    assert not find._flags_ & _ctypes.FUNCFLAG_PYTHONAPI  # ctypes gives the lock up for the call
    both = threading.Barrier(2, timeout=60)

    def meet(buffer: ctypes.Array[ctypes.c_char], byte: int, size: int) -> int | None:
        both.wait()
        readers.add(threading.get_ident())
        found: int | None = find(buffer, byte, size)
        return found

    readers: set[int] = set()
    monkeypatch.setattr(bandwidth, "_load_memchr", lambda: meet)
    read_bandwidth(2, 0.0, size=SMALL)
    assert len(readers) == 2
    assert threading.active_count() == running


def test_the_whole_buffer_is_filled_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    find = bandwidth._load_memchr()

    def spy(buffer: ctypes.Array[ctypes.c_char], byte: int, size: int) -> int | None:
        seen.append((size, bytes(buffer).count(1)))
        found: int | None = find(buffer, byte, size)
        return found

    monkeypatch.setattr(bandwidth, "_load_memchr", lambda: spy)
    read_bandwidth(3, 0.0, size=3 * MIB)
    assert set(seen) == {(MIB, MIB)}
    assert len(seen) == 3 * bandwidth.MIN_PASSES


def test_a_thread_that_cannot_be_started_is_an_error_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    running = threading.active_count()
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def refuse_the_third(self: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(RuntimeError, match="can't start"):
        read_bandwidth(4, 0.1, size=MIB)
    assert threading.active_count() == running
    begun.clear()
    assert machine_bandwidth(4, 0.01, size=SMALL) is not None  # what 1 and 2 gave


def test_memory_that_is_not_to_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(buffer: object, byte: int, size: int) -> None:
        raise MemoryError

    monkeypatch.setattr(ctypes, "memset", refuse)
    with pytest.raises(MemoryError):
        read_bandwidth(2, 0.1, size=MIB)
    assert machine_bandwidth(2, 0.1, size=SMALL) is None


def test_counts_up_to_the_usable_cores_are_tried_and_the_most_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def read(threads: int, seconds: float, *, size: int) -> float:
        asked.append(threads)
        return {1: 10.0, 2: 19.0, 4: 30.0, 6: 28.0}[threads]

    monkeypatch.setattr(bandwidth, "read_bandwidth", read)
    assert machine_bandwidth(6) == 30.0
    assert asked == [1, 2, 4, 6]
    asked.clear()
    assert machine_bandwidth(1) == 10.0
    assert machine_bandwidth(4) == 30.0
    assert asked == [1, 1, 2, 4]
    assert machine_bandwidth(4, size=TOO_SMALL - 1) is None


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_counts_that_cannot_be(threads: int) -> None:
    with pytest.raises(InvalidThreadsError):
        read_bandwidth(threads)
    with pytest.raises(InvalidThreadsError):
        machine_bandwidth(threads)


# How much memory, and caches.


MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1000 kB\nMemAvailable:    4000000 kB\nBuffers: 1 kB\n"


def free(tmp_path: Path, **files: str) -> int | None:
    """What is free where only these files are; ``cgroup`` and ``meminfo`` stand for those of /proc."""
    names = {"cgroup": "/proc/self/cgroup", "meminfo": "/proc/meminfo"}
    lay(tmp_path, {names.get(name, f"/sys/fs/cgroup/{name}"): text for name, text in files.items()})
    return find_free_memory(Files(str(tmp_path)))


def test_free_memory_without_control_groups(tmp_path: Path) -> None:
    assert free(tmp_path) is None
    assert free(tmp_path, meminfo=MEMINFO) == 4_000_000 * 1024
    assert free(tmp_path, meminfo="MemAvailable: lots kB\nMemAvailable:\n") is None


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "cgroup": "0::/pod/box\n",
        "meminfo": MEMINFO,
        "pod/box/memory.max": "max\n",
        "pod/box/memory.current": "1000\n",
        "pod/memory.max": str(3000 * MIB),
        "pod/memory.current": str(2000 * MIB),
        "pod/memory.stat": f"anon 5\nactive_file {100 * MIB}\ninactive_file {500 * MIB}\n",
    }
    assert free(tmp_path, **files) == 1500 * MIB  # files that nobody uses give way
    assert free(tmp_path, **{"pod/memory.max": str(1000 * MIB)}) == 0


def test_a_container_of_version_1_shows_its_own_group_at_the_mount(tmp_path: Path) -> None:
    files = {
        "cgroup": "9:memory:/docker/0123\n4:cpu:/docker/0123\n",
        "meminfo": MEMINFO,
        "memory/memory.limit_in_bytes": str(512 * MIB),
        "memory/memory.usage_in_bytes": str(300 * MIB),
        "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {40 * MIB}\n",
    }
    assert free(tmp_path, **files) == 252 * MIB
    assert free(tmp_path, **{"memory/docker/0123/memory.limit_in_bytes": str(100 * MIB)}) == 252 * MIB  # no usage
    assert free(tmp_path, **{"memory/docker/0123/memory.usage_in_bytes": "0"}) == 100 * MIB
    assert free(tmp_path, **{"memory/memory.limit_in_bytes": "9223372036854771712"}) == 100 * MIB
    assert free(tmp_path, cgroup="9:memory:/../other\n") == 4_000_000 * 1024


def cache_files(cpu: int, index: int, level: int, size: str, shared: str) -> dict[str, str]:
    directory = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    return {f"{directory}/level": str(level), f"{directory}/size": size, f"{directory}/shared_cpu_list": shared}


def test_last_level_caches_are_added_and_counted_once(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for cpu in range(4):
        files |= cache_files(cpu, 0, 1, "48K\n", f"{cpu}\n")
        files |= cache_files(cpu, 1, 2, "2048K\n", f"{cpu}\n")
        files |= cache_files(cpu, 2, 3, "32M\n", "0-1\n" if cpu < 2 else "2-3\n")
    lay(tmp_path, files)
    found = Files(str(tmp_path))
    assert find_cache([0, 1, 2, 3], found) == 64 * MIB
    assert find_cache([0, 1], found) == 32 * MIB
    assert find_cache([7], found) == 0


@pytest.mark.parametrize(
    ("text", "size"), [("48K", 48 << 10), ("32M", 32 << 20), ("1G", 1 << 30), ("512", 512), ("", None), ("K", None)]
)
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_the_buffer_of_this_machine() -> None:
    found = choose_buffer(detect().affinity)
    free_now = find_free_memory()
    assert found.size > 0
    assert free_now is None or found.size <= free_now
    assert found.size <= max(LEAST_BYTES, 4 * found.cache)
    assert Buffer(4 * MIB, MIB).exceeds_caches
    assert not Buffer(4 * MIB - 1, MIB).exceeds_caches


# Weights of a token.


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path: Path, tensors: Mapping[str, int], *, version: int = 3, junk: bytes = b"", **numbers: int) -> str:
    """A GGUF file without values: its table says ``tensors`` have so many bytes each (multiples of 32)."""
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("") + text("ccc"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 3) + bytes(12),
        text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        text("tokenizer.ggml.add_bos_token") + struct.pack("<IB", 7, 1),
        *(text(f"llama.{name}") + struct.pack("<II", 4, number) for name, number in numbers.items()),
    ]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    at = 0
    for name, size in tensors.items():
        head += text(name) + struct.pack("<I2QIQ", 2, size, 1, 0, at)
        at += size
    head += bytes(-len(head) % 32)
    path.write_bytes(head[: len(head) - len(junk)] + junk + bytes(at))
    return str(path)


LAYERS = {"blk.0.attn_q.weight": 3200, "blk.0.ffn_up.weight": 6400, "output_norm.weight": 32}


def test_an_embedding_table_is_looked_up(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": 64000, **LAYERS, "output.weight": 32000})
    assert measure_weights(path) == Weights(3200 + 6400 + 32 + 32000, "tensors")


def test_a_tied_table_is_read_as_the_output(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": 64000, **LAYERS})
    assert measure_weights(path) == Weights(3200 + 6400 + 32 + 64000, "tensors")


def test_of_experts_those_in_use_are_read(tmp_path: Path) -> None:
    tensors = {**LAYERS, "output.weight": 320, "blk.0.ffn_up_exps.weight": 64000, "blk.0.ffn_up_shexp.weight": 640}
    path = write_gguf(tmp_path / "m.gguf", tensors, expert_count=8, expert_used_count=2)
    assert measure_weights(path) == Weights(sum(LAYERS.values()) + 320 + 16000 + 640, "tensors")
    assert sum_read({"blk.0.ffn_up_exps.weight": 100}, {"expert_count": 2, "expert_used_count": 3}) == 100


def test_a_split_model_counts_with_all_its_parts(tmp_path: Path) -> None:
    first, second = (str(tmp_path / f"m-0000{part}-of-00002.gguf") for part in (1, 2))
    write_gguf(Path(first), {"token_embd.weight": 64000})
    assert find_parts(first) == [first, second]
    assert measure_weights(first) is None  # the other one is missing
    write_gguf(Path(second), {**LAYERS, "output.weight": 32000})
    assert measure_weights(first) == measure_weights(second) == Weights(sum(LAYERS.values()) + 32000, "tensors")
    assert find_parts("m.gguf") == ["m.gguf"]
    assert find_parts("m-00001-of-00000.gguf") == ["m-00001-of-00000.gguf"]


def test_a_file_that_is_no_gguf_counts_whole(tmp_path: Path) -> None:
    good = Path(write_gguf(tmp_path / "good.gguf", LAYERS)).read_bytes()
    start = len(good) - sum(LAYERS.values())
    bad = [b"", b"GGUF", b"nothing of the kind", bytes(100), good[:60], good[: start // 2], good[: start + 10]]
    bad += [good[:4] + struct.pack("<I", version) + good[8:] for version in (1, 4, 3 << 24)]
    bad += [good[:8] + struct.pack("<QQ", *counts) + good[24:] for counts in ((1 << 60, 5), (3, 1 << 60), (0, 0))]
    bad += [good[:at] + b"\xff" * 8 + good[at + 8 :] for at in range(24, start - 8, 8)]
    path = tmp_path / "bad.gguf"
    for data in bad:
        path.write_bytes(data)
        found = measure_weights(str(path))
        assert found is not None
        assert found.basis == "tensors" or found == Weights(len(data), "file")
        assert found.size <= len(data)
    assert measure_weights(str(tmp_path / "missing.gguf")) is None


def test_a_real_file_agrees_with_the_gguf_package() -> None:
    path = models.tiny_gguf()
    import gguf

    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    total = sum(size for name, size in sizes.items() if name not in ("position_embd.weight", "token_types.weight"))
    found = measure_weights(path)
    assert found is not None
    assert found.basis == "tensors"
    assert total <= found.size <= total + 32 * len(sizes)  # ends are padded


def test_a_real_decoder_with_a_large_vocabulary_is_read_at_once() -> None:
    path = models.gemma_gguf()  # its table of embeddings is the output, too: 262144 words
    before = time.process_time()
    found = measure_weights(path)
    assert time.process_time() - before < 5  # 0.1 s on an idle machine
    assert found is not None
    assert found.basis == "tensors"
    assert 0.9 < found.size / os.path.getsize(path) < 1


# What decoding uses.


def test_decoding_at_the_recommended_count() -> None:
    curves = [
        make_curve(PREFILL, {1: 900.0, 2: 1700.0}, usable=2, knee=2),
        make_curve(DECODE, {1: 180.0, 2: 182.0}, usable=2, knee=1),
    ]
    assert of_result(curves, Weights(250_000_000, "tensors"), 60e9) == Bandwidth(250_000_000, 45e9, 60e9)
    assert of_result(curves[:1], Weights(1, "tensors"), 60e9) is None
    silent = curves[1]._replace(points=())
    assert of_result([silent], Weights(1, "tensors"), 60e9) is None


def test_measure_reads_nothing_where_nothing_was_decoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*arguments: object, **options: object) -> float:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(bandwidth, "machine_bandwidth", refuse)
    encode = make_curve(Task("encode", "sentences"), {1: 10.0}, usable=1, knee=1)
    decode = make_curve(DECODE, {1: 10.0}, usable=1, knee=1)
    path = write_gguf(tmp_path / "m.gguf", LAYERS)
    assert measure([encode], path, {0}, 1, None) == (None, ())
    assert measure([decode], str(tmp_path / "missing.gguf"), {0}, 1, None) == (None, ())


def test_measure_for_real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bandwidth, "choose_buffer", lambda cpus: Buffer(SMALL, MIB))
    curve = make_curve(DECODE, {1: 10.0}, usable=1, knee=1)
    found, notices = measure([curve], write_gguf(tmp_path / "m.gguf", LAYERS), {0}, 1, None)
    assert notices[0].code == "bandwidth-of-cache"  # 9.6 kB of weights
    assert found is not None
    assert found.weights == sum(LAYERS.values())
    assert found.used == pytest.approx(10 * found.weights)
    assert found.machine > 1e8
    monkeypatch.setattr(bandwidth, "choose_buffer", lambda cpus: Buffer(TOO_SMALL - 1, MIB))
    assert measure([curve], str(tmp_path / "m.gguf"), {0}, 1, None) == (None, ())


@pytest.mark.parametrize(
    ("weights", "buffer", "usable", "quota", "codes"),
    [
        (Weights(1 << 30, "tensors"), Buffer(256 * MIB, 32 * MIB), 2, None, []),
        (Weights(1 << 30, "file"), Buffer(256 * MIB, 32 * MIB), 2, 2.0, ["bandwidth-of-file"]),
        (Weights(20 * MIB, "tensors"), Buffer(256 * MIB, 32 * MIB), 2, 2.5, ["bandwidth-of-cache"]),
        (Weights(1 << 30, "tensors"), Buffer(100 * MIB, 32 * MIB), 2, None, ["bandwidth-buffer-small"]),
        (Weights(1 << 30, "tensors"), Buffer(256 * MIB, 0), 1, 0.5, ["bandwidth-throttled"]),
    ],
)
def test_what_must_be_known_of_it(
    weights: Weights, buffer: Buffer, usable: int, quota: float | None, codes: list[str]
) -> None:
    assert [notice.code for notice in explain(weights, buffer, usable, quota)] == codes
