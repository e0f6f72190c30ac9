"""Parsers of /proc files: the kernel's formats, hostile names, and junk."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.reporting.inspecting import owners, tasks
from cgroup_threads.reporting.inspecting.owners import CodeMap, find_kind, find_libraries, find_owner, runs_python
from cgroup_threads.reporting.inspecting.tasks import Mapping, parse_maps, parse_stat, parse_status, parse_syscall

REST = b" S 1 2 3 0 -1 4194304 99 0 0 0 700 50 0 0 20 0 3 0 123456 1000 200 18446744073709551615 0 0 0\n"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"python", "python"),
        (b"a b) R 1 (c", "a b) R 1 (c"),
        (b"(", "("),
        (b") Z 9 9 9 9 9 9", ") Z 9 9 9 9 9 9"),
        (b"line\nline", "line line"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\x1b[31m", "\\x1b[31m"),
        (b"", ""),
    ],
)
def test_names_hold_anything(raw: bytes, name: str) -> None:
    stat = parse_stat(b"42 (" + raw + b")" + REST)
    assert stat == tasks.TaskStat(name, "S", 1, False, 750, 123456)


def test_kernel_threads_have_their_flag() -> None:
    stat = parse_stat(b"2 (kthreadd)" + REST.replace(b"4194304", b"2129984"))
    assert stat is not None
    assert stat.kernel


@pytest.mark.parametrize("data", [b"", b"42 (x", b"42 )x(", b"42 (x) S 1", b"42 (x)" + REST.replace(b"700", b"-7")])
def test_junk_is_no_stat(data: bytes) -> None:
    assert parse_stat(data) is None


def test_status() -> None:
    text = b"Name:\tTgid:\\n\nTgid:\t7\nUid:\t1000\t0\t0\t0\nCpus_allowed_list:\t0-3\nvoluntary_ctxt_switches:\t5\n"
    assert parse_status(text) == tasks.TaskStatus(7, 1000, 5, None, "0-3")
    assert parse_status(b"\xff\0") == tasks.TaskStatus()


def test_environ() -> None:
    data = b"A=1\0A=2\0=x\0junk\0B=\xff\0OMP_NUM_THREADS=" + b"9" * 5000
    found = tasks.parse_environ(data)
    assert (found["A"], found["B"], len(found["OMP_NUM_THREADS"]), len(found)) == ("1", "\\xff", 200, 3)


MAPS = b"""\
55d000000000-55d000001000 r-xp 00000000 fe:00 10 /usr/bin/python3.11
7f0000000000-7f0000010000 r-xp 00000000 fe:00 11 /w/torch/lib/libgomp-a34b3233.so.1 (deleted)
7f0000020000-7f0000030000 r-xp 00000000 fe:00 12 /w/with space/libscipy_openblas64_-32a4b2a6.so
7f0000030000-7f0000031000 r--p 00000000 fe:00 13 /w/libllama.so
7f0000040000-7f0000050000 rw-p 00000000 00:00 0 
7f0000050000-7f0000051000 ---p 00000000 00:00 0 
7ffd00000000-7ffd00010000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
junk
"""  # noqa: W291


def test_maps() -> None:
    code, stacks, paths = parse_maps(MAPS)
    assert [mapping.path.rpartition("/")[2] for mapping in code] == [
        "python3.11",
        "libgomp-a34b3233.so.1",
        "libscipy_openblas64_-32a4b2a6.so",
    ]
    assert [(mapping.start, mapping.path) for mapping in stacks] == [(0x7F0000040000, ""), (0x7FFD00000000, "[stack]")]
    assert [library.kind for library in find_libraries(paths)] == ["libgomp", "openblas", "llama"]
    assert runs_python(paths)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("libgomp.so.1", "libgomp"),
        ("libgomp-a34b3233.so.1.0.0", "libgomp"),
        ("libgomp-plugin-nvptx.so.1", None),
        ("libomp.so.5", "libomp"),
        ("libomp-18.so", "libomp"),
        ("libiomp5.so", "libiomp5"),
        ("libompl.so.1", None),
        ("libompi.so", None),
        ("libggml-cpu.so", "ggml"),
        ("libmkl_rt.so.2", "mkl"),
        ("onnxruntime_pybind11_state.cpython-311.so", "onnxruntime"),
        ("tokenizers.abi3.so", "tokenizers"),
        ("libtorch_cpu.so", "torch"),
        ("libtorch_python.so", None),
    ],
)
def test_kinds_of_libraries(name: str, kind: str | None) -> None:
    assert find_kind(f"/some/where/{name}") == kind


@pytest.mark.parametrize(
    "name", ["python", "python3", "python3.13", "python3.13t", "libpython3.11.so.1.0", "libpython3.13t.so.1.0"]
)
def test_python_files(name: str) -> None:
    assert runs_python([f"/usr/{name}"])
    assert not runs_python([f"/usr/{name}-config", "/lib/libpython_helper.so"])


def words(*values: int) -> bytes:
    return struct.pack(f"={len(values)}Q", *values)


def test_stacks_tell_owners() -> None:
    code = CodeMap(parse_maps(MAPS)[0])
    python, gomp, blas = 0x55D000000010, 0x7F0000000010, 0x7F0000020010
    assert code.owner_of(gomp, b"") == owners.OPENMP
    assert code.owner_of(0, words(1, gomp, 2)) == owners.OPENMP
    assert code.owner_of(0, words(blas)) == owners.OPENBLAS
    # A Python thread waits at the barrier of its own team.
    assert code.owner_of(gomp, words(gomp, 5, python)) == owners.PYTHON
    assert code.owner_of(1 << 62, words(0x7F0000010000, 0x7F000001FFFF, 0)) is None
    assert code.owner_of(gomp, b"\1\2\3") == owners.OPENMP
    assert CodeMap([]).owner_of(gomp, words(gomp)) is None


@pytest.mark.parametrize(
    ("name", "stack", "owner"),
    [
        ("python", None, "unknown"),
        ("python", "OpenMP team", "OpenMP team"),
        ("ThreadPoolExecu", "OpenMP team", "Python"),
        ("Thread-12 (serv", None, "Python"),
        ("polars-3", None, "Rayon"),
        ("gunicorn: worke", None, "gunicorn"),
        ("worker-12", None, "worker"),
        ("12", None, "12"),
        ("", None, "unknown"),
    ],
)
def test_owners(name: str, stack: str | None, owner: str) -> None:
    assert find_owner(2, 1, name, "python", stack) == owner
    assert find_owner(1, 1, name, "python", stack) == "main"


def test_syscall() -> None:
    assert parse_syscall(b"running\n") is None
    assert parse_syscall(b"202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd 0x7f00\n") == (0x7FFD, 0x7F00)
    assert parse_syscall(b"-1 0x7ffd 0x7f00\n") == (0x7FFD, 0x7F00)
    assert parse_syscall(b"a b c") == (0xB, 0xC)
    assert parse_syscall(b"1 x y") is None
    assert parse_syscall(b"") is None


@given(st.binary(max_size=300))
def test_no_parser_fails(data: bytes) -> None:
    parse_stat(data)
    parse_stat(b"1 (" + data + b")" + REST)
    parse_status(data)
    tasks.parse_environ(data)
    code, _, paths = parse_maps(data)
    find_libraries(paths)
    CodeMap([*code, Mapping(0, 1 << 64, "/x/libgomp.so")]).owner_of(0, data)
    parse_syscall(data)
    assert tasks.printable(data).isprintable()
