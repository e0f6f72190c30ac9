"""What the fuzzer begins with: sound inputs of each target, small and real where there are any."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cgroup_threads.governor.slot_rows import PAGE_SIZE, pack_row
from cgroup_threads.integrations.prometheus_activity import Activity
from cgroup_threads.integrations.prometheus_workers import pack_row as pack_worker
from cgroup_threads.profiles import format as profile_format
from cgroup_threads.profiles.records import Identity, Profile
from cgroup_threads.settings import PREFIX, WORKER_VARIABLES
from cgroup_threads.variables import VARIABLES
from tests.lab.trees import V1, V2, vectors

from .checks import SEPARATOR, join_halves

DATA: Final = Path(__file__).parents[1] / "data"
CASES: Final = DATA / "fuzz"
"""Inputs that once broke a promise, by target."""
_STAT: Final = b"1 (py) S 0 1 1 0 -1 4194560 0 0 0 0 12 5 0 0 20 0 1 0 123456 1 2 3"
_STATUS: Final = (
    b"Name:\tpy\nTgid:\t1\nUid:\t0\t0\t0\t0\nThreads:\t3\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n"
)
_MAPS: Final = (
    b"55d0-55d1 r-xp 00000000 08:01 12                         /usr/bin/python3.11\n"
    b"7f00-7f10 r-xp 00000000 08:01 13                         /usr/lib/libgomp.so.1.0.0\n"
    b"7f20-7f30 rw-p 00000000 00:00 0 \n"
    b"7f40-7f50 r--p 00000000 08:01 14                         /opt/a b/libopenblas\\012x.so (deleted)\n"
    b"7ffc-7ffd rw-p 00000000 00:00 0                          [stack]\n"
)
_LIMITS: Final = (
    b"Limit                     Soft Limit           Hard Limit           Units     \n"
    b"Max stack size            8388608              unlimited            bytes     \n"
    b"Max processes             100                  200                  processes \n"
    b"Max address space         4294967296           unlimited            bytes     \n"
)


def seeds(name: str) -> list[bytes]:
    """Sound inputs of a target, and the cases that were kept."""
    return [*_SEEDS[name](), *(data for _, data in cases(name))]


def cases(name: str) -> Iterator[tuple[str, bytes]]:
    """The kept inputs of a target with their names."""
    for path in sorted((CASES / name).glob("*")):
        yield path.name, path.read_bytes()


def _environ(values: Mapping[str, str]) -> bytes:
    return b"".join(f"{name}={value}\0".encode() for name, value in values.items())


def _cpulist() -> Iterator[bytes]:
    yield from (b"0-3,8-11\n", b"0-6:2/3", b"ff,00000003", b"", b"65535", b"0-65535:1/2")


def _tree_of(files: Mapping[str, str]) -> bytes:
    records = (f"{name}\n{text}".encode("utf-8", "surrogateescape") for name, text in files.items())
    return SEPARATOR.join(records)


def _tree() -> Iterator[bytes]:
    for files in (V1, V2, *(vector["files"] for vector in vectors())):
        yield _tree_of(files)
    pids = {"/sys/fs/cgroup/pod/box/pids.max": "20\n", "/sys/fs/cgroup/pod/box/pids.current": "3\n"}
    yield _tree_of({**pids, "/proc/self/limits": _LIMITS.decode(), **V2, "/proc/self/status": _STATUS.decode()})
    yield _tree_of({"/sys/devices/cpu_core/cpus": "0-3\n", "/sys/devices/cpu_atom/cpus": "4-7\n", **V2})


def _proc_tables() -> Iterator[bytes]:
    counters = b"nr_periods 10\nnr_throttled 3\nthrottled_usec 900\nsome avg10=1.50 avg60=0.20 avg300=0.00 total=1\n"
    for tree in (V1, V2):
        tables = (tree["/proc/self/cgroup"].encode(), tree["/proc/self/mountinfo"].encode())
        yield SEPARATOR.join((*tables, _LIMITS, _STATUS, counters, b"0.00 0.01 0.05 1/234 5678\n"))
        yield SEPARATOR.join((*tables, _LIMITS, _STATUS, counters, b"150000 100000\n"))


def _schedulers() -> Iterator[bytes]:
    yield _environ({"SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_NUM_NODES": "2"})
    yield _environ({"SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NNODES": "4"})
    yield _environ({"SLURM_CPUS_ON_NODE": "8", "SLURM_NNODES": "1"})
    yield _environ({"PBS_NUM_PPN": "3", "NCPUS": "5", "NSLOTS": "2", "LSB_DJOB_NUMPROC": "9", "CPU_LIMIT": "1500m"})
    yield _environ({"PJM_VNODE_CORE": "3", "PJM_PROC_BY_NODE": "5", "CPU_LIMIT": "0.5"})


def _task() -> Iterator[bytes]:
    environ = b"PATH=/bin\0OMP_NUM_THREADS=4\0OMP_PROC_BIND=close\0KMP_AFFINITY=none\0"
    syscall = b"202 0x7f00 0x189 0x2 0x0 0x0 0xffffffff 0x7ffe1000 0x7f05\n"
    yield SEPARATOR.join((_STAT, _STATUS, syscall, environ, b"python3\0-c\0pass\0", struct.pack("<3Q", 1, 0x7F05, 9)))
    yield SEPARATOR.join((_STAT.replace(b"(py)", b"(a) b\x1b(c-12)"), b"Tgid:\t3", b"running\n", b"", b"\xff\n\x1b[0m"))


def _maps() -> Iterator[bytes]:
    yield _MAPS
    yield Path("/proc/self/maps").read_bytes()[:4000]


def _settings() -> Iterator[bytes]:
    flags = ("AUTO", "SMT", "OVERRIDE", "PATCH", "OMP_LIMIT", "FOLLOW_HIDDEN", "VERBOSE")
    yield _environ(
        {PREFIX + name: value for name, value in zip(flags, ("0", "yes", "off", "1", "2", "", "on"), strict=True)}
    )
    others = {"CORES": "1500m", "MAX_CORES": "8.5", "ROUNDING": "ceil", "SCOPE": "container", "PATIENCE": "500ms"}
    yield _environ({PREFIX + name: value for name, value in {**others, "PROFILES": "/var/tmp"}.items()})
    yield _environ({PREFIX + "CORES": ".5", PREFIX + "PATIENCE": "2.5s", PREFIX + "PROFILES": "off"})
    yield _environ(dict.fromkeys(WORKER_VARIABLES, "3"))


def _variables() -> Iterator[bytes]:
    for value in ("4", "4,3,2", "1", "500m", "99999999999", ""):
        yield _environ({variable.name: value for variable in VARIABLES})
    yield _environ({PREFIX + "OVERRIDE": "1", "OMP_NUM_THREADS": "64", "NUMEXPR_MAX_THREADS": "2"})
    yield _environ({"OMP_PLACES": "{0:4},{8:4:2}", "OMP_PROC_BIND": "close", "GOMP_CPU_AFFINITY": "0 3 4-15:2"})
    yield _environ({"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a", "OMP_THREAD_LIMIT": "3", "NSLOTS": "2"})


def _marker() -> Iterator[bytes]:
    yield b"1;25:4026531835;0f0e-4a;OMP_NUM_THREADS=2,MKL_NUM_THREADS=2"
    yield b"1;-;-;"


def _command() -> Iterator[bytes]:
    for line in (
        "gunicorn -w 4 app:app", "env -u A B=1 python3.11 -m uvicorn --workers 2 app", "nice -n 5 llama-server -t 4",
        "celery -A app worker --autoscale 8,2", "fastapi run --workers 3", "taskset -c 0-3 python a.py",
        "python -X dev -c pass", "llama-bench -t {threads}", "hypercorn -c f --workers=2 app", "tini -- gunicorn app",
        "env -i - PATH=x llama-cli", "python -m llama_cpp.server --n_threads {threads}",
    ):  # fmt: skip
        words = "\0".join(line.split()).encode()
        yield SEPARATOR.join((words, _environ({"GUNICORN_CMD_ARGS": "-w 3 'a b'", "WEB_CONCURRENCY": "2"}), b""))
        yield SEPARATOR.join((words, b"", b"gunicorn.conf.py"))


def _llama() -> Iterator[bytes]:
    for path in sorted((DATA / "llama_summaries").glob("*.txt")):
        yield path.read_bytes()[-4000:]
    one = b"x: load time = 10.00 ms\nx: prompt eval time = 9.50 ms / 4 tokens\nx: eval time = 1.00 ms / 5 runs\n"
    facts = b"n_threads = 2 (n_threads_batch = 8) / 8\nmodel params = 1.5 B\nfile size = 1.2 GiB\n"
    yield SEPARATOR.join((one + b"x: total time = 11.00 ms\n" + facts, one.replace(b"/ 4", b"/ 400")))


def _outputs() -> Iterator[bytes]:
    yield SEPARATOR.join((b"loss 0.51234 [1.0, 2.0, nan]\n", b"loss 0.51235 [1.0, 2.0, nan]\n"))
    yield SEPARATOR.join((b"took 3.2s\n1e-3\n", b"took 3.3s\n1e-3\n", b"took 4.1s\n1e-3\n", b"took 3.3s\n1.1e-3\n"))
    yield SEPARATOR.join((b"# 1\nlayer2 v1.2.3 -inf 1e999\n", b"# 2\nlayer2 v1.2.3 -inf 2e999\n"))
    yield SEPARATOR.join((b"\x00\x01", b"\x00\x02"))


def npy(header: str, data: bytes, version: int = 1) -> bytes:
    """A .npy file with any header."""
    text = header.encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + struct.pack("<BBH", version, 0, len(text)) + text + data


def _arrays() -> Iterator[bytes]:
    header = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
    for kind, shape, data in (
        ("<f8", "(2,)", struct.pack("<2d", 1.0, 2.0)),
        ("<f4", "(1, 2)", struct.pack("<2f", 1.0, float("nan"))),
        ("|b1", "()", b"\1"),
        ("<c16", "(1,)", struct.pack("<2d", 1.0, -2.0)),
        ("<i8", "(0, 3)", b""),
        ("<U2", "(1,)", bytes(8)),
    ):
        one = npy(header.format(kind, shape), data)
        yield join_halves(one, one)
        yield join_halves(one, one[:-1] + b"\x40")


def _slots() -> Iterator[bytes]:
    yield b""
    row = pack_row(7, 2, 1, 999.0, 999.99, 0b1011)
    yield row
    yield (row + bytes(64) + pack_row(9, 4000, 4000, 1.0, 1e300, (1 << 256) - 1)).ljust(PAGE_SIZE, b"\0")


def _workers() -> Iterator[bytes]:
    row = pack_worker(Activity(2, 3, 1, 4, "container", 5, 10.0, 2.0, 0.5, 1.0, 7.25))
    yield row
    yield row + bytes(128) + pack_worker(Activity()) + row[:-1]


def _profile() -> Iterator[bytes]:
    identity = Identity("gguf:1:ab", "llama-cpp-python 0.3.16", "Some CPU", 4, 1.5)
    profile = Profile(identity, {"n_threads": 3, "n_threads_batch": 4}, 0.9, {"n_threads": 12.5}, "2025-01-01", "0.1")
    yield profile_format.write(profile)
    yield json.dumps(
        json.loads(profile_format.write(profile._replace(identity=identity._replace(quota=None))))
    ).encode()


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(pairs: list[tuple[str, int, bytes]], tensors: list[tuple[str, int]], size: int = 256) -> bytes:
    """A GGUF file: settings as key, type and content; tensors of one dimension with their offsets."""
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    data += b"".join(_text(key) + struct.pack("<I", kind) + content for key, kind, content in pairs)
    for name, offset in tensors:
        data += _text(name) + struct.pack("<IQIQ", 1, 8, 0, offset)
    return data + bytes(-len(data) % 32 + size)


def _models() -> Iterator[bytes]:
    words = struct.pack("<IQ", 8, 2) + _text("a") + _text("b")
    numbers = struct.pack("<IQ", 4, 2) + bytes(8)
    yield gguf(
        [("general.architecture", 8, _text("bert")), ("bert.attention.causal", 7, b"\0"),
         ("bert.pooling_type", 4, b"\2\0\0\0"), ("tokenizer.ggml.tokens", 9, words), ("x.list", 9, numbers),
         ("x.expert_count", 4, b"\4\0\0\0"), ("x.expert_used_count", 4, b"\2\0\0\0"),
         ("general.alignment", 4, b"\x20\0\0\0"), ("x.f", 6, bytes(4))],
        [("token_embd.weight", 0), ("blk.0.ffn_up_exps.weight", 64), ("output.weight", 128)],
    )  # fmt: skip
    yield gguf([], [])


def _identity() -> Iterator[bytes]:
    yield b"processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n" + SEPARATOR + b'{"model_type": "bert"}'
    yield b"CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n" + SEPARATOR + next(_models())


def _earlier_report() -> Iterator[bytes]:
    throttling = {"file": "f", "periods": 800, "throttled": 50, "seconds": 2.5}
    pressure = {"file": "p", "cgroup": "1:2", "seconds": 20.5}
    counters = {"boot": "b", "uptime_s": 9e5, "cgroup": "1:2", "throttling": throttling, "pressure": pressure}
    yield json.dumps({"usable_cores": 2, "counters": counters}).encode()
    yield json.dumps({"usable_cores": 2, "counters": {**counters, "throttling": None, "boot": "c"}}).encode()


_SEEDS: Final[Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "cpulist": _cpulist,
    "tree": _tree,
    "proc_tables": _proc_tables,
    "schedulers": _schedulers,
    "task": _task,
    "maps": _maps,
    "settings": _settings,
    "variables": _variables,
    "marker": _marker,
    "command": _command,
    "llama": _llama,
    "outputs": _outputs,
    "slots": _slots,
    "workers": _workers,
    "profile": _profile,
    "header": _models,
    "weights": _models,
    "arrays": _arrays,
    "identity": _identity,
    "earlier_report": _earlier_report,
}
