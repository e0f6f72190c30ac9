"""Interpreters that are unlike a developer's: other flags, closed descriptors, no UTF-8, and no descriptor left when a
name is first used."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.lab.commands import COMMAND, ROOT, clean_environ, run
from tests.lab.limits import limits_script
from tests.lab.native import debian_library
from tests.test_fault_crowds import DEPTHS

COMMANDS = ("report", "cores", "env", "exec", "inspect", "demo", "tune", "compare")
# The command line and a limit, in one process; ``-I`` and ``-S`` leave no other way to say where the packages are.
SCRIPT = """
import sys
sys.path[:0] = PATH
import cgroup_threads as ct
import ctypes, json, io, contextlib, threadpoolctl
from cgroup_threads.cli import main
def said(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out: code = main(arguments)
    if code: raise SystemExit(f"{arguments} ended with {code}")
    return out.getvalue()
gomp = ctypes.CDLL(GOMP)
gomp.omp_set_num_threads(3)
with ct.limit_threads(1): inside = gomp.omp_get_max_threads()
helps = [said(command, "--help") for command in COMMANDS]
report = json.loads(said("report", "--json"))
pools = [pool.name for pool in ct.report().evidence.pools]
texts = [said("env").count("export") > 10, "Command\\n  x\\n" in said("exec", "--dry-run", "--", "x")]
codes = [notice.code for notice in ct.report().notices if notice.level == "problem"]
print(json.dumps([ct.usable_cores(), said("cores"), report["usable_cores"], inside, gomp.omp_get_max_threads(),
    "libgomp" in pools, codes, texts, helps]))
"""


def packages() -> list[str]:
    """Where this package and threadpoolctl are."""
    spec = importlib.util.find_spec("threadpoolctl")
    assert spec is not None
    assert spec.origin is not None
    return [str(ROOT), os.path.dirname(spec.origin)]


def filled(script: str) -> str:
    gomp = debian_library("libgomp1", "libgomp.so.1")
    script = script.replace("PATH", repr(packages()), 1).replace("COMMANDS", repr(COMMANDS))
    return script.replace("GOMP)", f"{gomp!r})")


FLAGS = ("-I", "-S", "-E", "-I -S -E", "-O", "-OO", "-X importtime", "-W error", "-X dev", "-bb")


@pytest.mark.parametrize("flags", FLAGS)
def test_flags_of_the_interpreter(flags: str) -> None:
    environ = clean_environ(CGROUP_THREADS_CORES="3", PYTHONSAFEPATH="1", COLUMNS="80")
    command = [sys.executable, *flags.split(), "-c", filled(SCRIPT)]
    done = run(command, environ)
    assert done.returncode == 0, done.stderr
    *found, helps = json.loads(done.stdout)
    assert found == [3, "3\n", 3, 1, 3, True, [], [True, True]]
    for command_name, text in zip(COMMANDS, helps, strict=True):
        assert text.startswith(f"usage: cgroup-threads {command_name} ")
        assert "examples:\n  " in text, "docstrings are not where a help text may come from"
    assert flags == "-X importtime" or done.stderr == ""


def test_no_standard_streams_at_all() -> None:
    """Descriptors 0 to 2 are free at the start. One of ours in their place would get what a library prints."""
    script = """
import os, sys
sys.path[:0] = PATH
import cgroup_threads as ct
with ct.limit_threads() as lease: threads = lease.threads
text = str(ct.report())
from cgroup_threads.cli import main
codes = [main([command]) for command in ("report", "cores", "env", "nonsense")]
low = [number for number in os.listdir("/proc/self/fd") if int(number) < 3]
low = [os.readlink(f"/proc/self/fd/{number}") for number in low if os.path.islink(f"/proc/self/fd/{number}")]
os.write(WRITER, repr([threads, text[:14], codes, low, ct.statistics().scope]).encode())
"""
    reader, writer = os.pipe()
    environ = clean_environ(CGROUP_THREADS_CORES="2", CGROUP_THREADS_VERBOSE="1", CGROUP_THREADS_SCOPE="container")
    script = filled(script).replace("WRITER", str(writer))
    shell = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script]
    done = subprocess.run(shell, env=environ, pass_fds=(writer,), timeout=60, check=False)
    os.close(writer)
    with open(reader) as file:
        answer = file.read()
    assert done.returncode == 0
    assert answer == repr([2, "2 usable cores", [2, 2, 2, 2], [], "container"])


def test_streams_that_are_none() -> None:
    """As under pythonw and some service managers."""
    script = """
import sys
sys.path[:0] = PATH
out, sys.stdin, sys.stdout, sys.stderr = sys.stdout, None, None, None
import cgroup_threads as ct
from cgroup_threads.cli import main
with ct.limit_threads() as lease: pass
codes = [main([command]) for command in COMMANDS] + [main([]), main(["--help"]), main(["nonsense"])]
print(lease.threads, str(ct.report())[:14], codes, file=out)
"""
    done = run([sys.executable, "-c", filled(script)], clean_environ(CGROUP_THREADS_CORES="2"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"2 2 usable cores {[2] * 11}\n"


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
OUTPUTS: tuple[tuple[str, ...], ...] = (
    ("report",),
    ("report", "--json"),
    ("cores",),
    ("env",),
    ("env", "--json"),
    ("exec", "--dry-run", "--", "\udcc3\udcbc"),
    ("exec", "--dry-run", "--json", "--", "\udcc3\udcbc"),
    ("inspect", "--seconds", "0.1", "PID"),
    ("--help",),
    *((command, "--help") for command in COMMANDS),
)


def test_output_where_nothing_but_ascii_can_be_written() -> None:
    """A character that is left would end the command; one that has to be escaped is the user's own. And no home."""
    environ = {name: value for name, value in clean_environ(**ASCII).items() if name != "HOME"}
    outputs = [[str(os.getpid()) if word == "PID" else word for word in words] for words in OUTPUTS]
    script = "import sys; from cgroup_threads.cli import main\n"
    script += f"for words in {outputs!a}:\n    if main(words): sys.exit(repr(words))"
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert b"\\x" not in done.stdout.replace(b"\\xc3\\xbc", b""), done.stdout
    compare = subprocess.run(
        [*COMMAND, "compare", "--runs", "2", "--warmup", "0", "--", "true"],
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (compare.returncode, compare.stderr) == (0, b"")
    assert compare.stdout.isascii()


# All descriptors are taken before anything but the import was done.
EXHAUSTED = """
import sys
sys.path[:0] = PATH
import os, resource
import cgroup_threads as ct
LOAD
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.dup(1))
except OSError: pass
def limited():
    with ct.limit_threads() as lease: return lease.threads
def tried(function):
    try: return function()
    except OSError as error: return error.strerror
calls = [lambda: ct.usable_cores(), lambda: ct.detect().usable(), lambda: ct.plan().threads,
    lambda: ct.child_environment()["OMP_NUM_THREADS"], lambda: ct.apply().plan.threads, limited,
    lambda: str(ct.report())[:14]]
answers = [tried(call) for call in calls]
for descriptor in held: os.close(descriptor)
print([answers, [tried(call) for call in calls]])
"""


@pytest.mark.parametrize("load", ["pass", "ct.limit_threads, ct.report"])
def test_the_first_use_of_a_name_without_a_free_descriptor(load: str) -> None:
    """Nothing can be loaded then. What the import has loaded answers, and so do names that were taken before (``from
    cgroup_threads import limit_threads``); the others say what is lacking, and answer as soon as they can."""
    script = filled(EXHAUSTED.replace("LOAD", load))
    done = run([sys.executable, "-c", script], clean_environ(CGROUP_THREADS_CORES="2"))
    assert done.returncode == 0, done.stderr
    full = [2, 2, 2, "2", 2, 2, "2 usable cores"]
    lacking = [*full[:5], "Too many open files", "Too many open files"] if load == "pass" else full
    assert done.stdout == f"{[lacking, full]}\n"


# From Python 3.12 on, calls that pass through C are counted apart, and nothing can raise their limit: on its last two
# levels ctypes can set no pool, neither to limit it nor to put it back.
THROUGH_C = """
import bisect
if sys.version_info >= (3, 12): sys.setrecursionlimit(100_000)
def down(depth, operate):
    if depth: [*map(down, (depth - 1,), (operate,))]
    else: operate()
def is_too_deep(depth):
    try: down(depth, int)
    except RecursionError: return True
    return False
def operate():
    with ct.limit_threads(1): pass
top = bisect.bisect_left(range(20_000), True, key=is_too_deep) - 1
failed = 0
for depth in range(top - 30, top + 1):
    try: down(depth, operate)
    except Exception as error:
        if "RecursionError" not in repr(error) + type(error).__name__: raise
        failed += 1
    if left() != nothing: seen.append([depth, left()])
    with ct.limit_threads(2) as lease:
        if [lease.threads, *look()] != [2, 2, 2]: seen.append([depth, lease.threads, look()])
    if look() != [4, 4]: seen.append([depth, look()])
assert 0 < failed < 31, failed
"""


@pytest.mark.parametrize("scope", ["process", "container"])
def test_a_full_stack_of_calls_through_c(scope: str) -> None:
    """No lease is left behind, and the next block finds and leaves the pools right, whatever that one had left."""
    assert limits_script(DEPTHS + THROUGH_C, CGROUP_THREADS_SCOPE=scope) == []
