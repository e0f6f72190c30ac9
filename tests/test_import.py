"""What `import cgroup_threads` does and does not do. Each case is a fresh interpreter: only there an import is first.

Field cases: E01, E02, E22 (late import), E17 (numba's variable stays), E24 (a cheap import), D05 (blank and junk
settings), E16, L12, L16 (variables of libraries that have no setter), O01 (numexpr is quiet), E20 (small before numpy).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cgroup_threads.settings import PREFIX, Settings
from cgroup_threads.variables import VARIABLES
from tests.lab import require, require_module

FORBIDDEN = (
    *("numpy", "torch", "threadpoolctl", "subprocess", "logging", "argparse", "json", "asyncio"),
    *("importlib.metadata", "dataclasses", "ctypes"),
)
SETTINGS = [PREFIX + name.upper() for name in Settings._fields if name not in ("workers_source", "notices")]
JUNK = ("", " ", "junk", "-1", "0", "nan", "1e999", "9" * 5000, "\u00b2", "\udcff", ";=,", "0.0000001", "\x1b[31m")
SET_HERE = [v.name for v in VARIABLES if v.stage == "import"]


def clean_environ(**more: str) -> dict[str, str]:
    """This process's environment without thread variables and settings, and with ``more``."""
    names = {v.name for v in VARIABLES} | {"LOCAL_WORLD_SIZE", "WEB_CONCURRENCY", "OMP_WAIT_POLICY"}
    kept = {n: v for n, v in os.environ.items() if n not in names and not n.startswith(PREFIX)}
    return kept | more


def run(code: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=clean_environ(**more), capture_output=True, text=True, timeout=120)


def answer(code: str, **more: str) -> dict[str, object]:
    """What ``code`` left in the dictionary ``out``; it must succeed and print nothing else."""
    ended = run(f"out = {{}}\n{code}\nimport json; print(json.dumps(out))", **more)
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, object] = json.loads(ended.stdout)
    return found


def test_importing_loads_no_heavy_module_and_sets_the_variables() -> None:
    out = answer(
        f"""
import os, sys, typing
texts = []
typing.compile = lambda source, *more, **named: texts.append(source) or compile(source, *more, **named)
before = set(sys.modules)
import cgroup_threads
out["texts"] = texts
out["forbidden"] = sorted(set({FORBIDDEN!r}) & (set(sys.modules) - before))
out["set"] = {{name: os.environ.get(name) for name in {SET_HERE!r}}}
from cgroup_threads import apply, child_environment, undo
first = apply()
out["same"] = apply() is first and apply(first.plan) is first
environ = dict(os.environ)
child = child_environment(workers=2)
out["child"] = [child["OMP_NUM_THREADS"], child["N_THREADS"], child["CGROUP_THREADS_WORKERS"]]
out["untouched"] = dict(os.environ) == environ
undone = undo()
out["left"] = [name for name in {SET_HERE!r} if name in os.environ]
out["marker"] = "CGROUP_THREADS_APPLIED" in os.environ
out["restored"] = sorted(undone.restored) == sorted(first.set)
out["twice"] = undo().restored
""",
        CGROUP_THREADS_CORES="6",
    )
    assert out["forbidden"] == []
    assert out["texts"] == []  # annotations in records that are text: the first to be compiled alone takes 2 ms
    expected = {name: "1" if "INTER" in name else "6" for name in SET_HERE if name != "GOMP_SPINCOUNT"}
    found = out["set"]
    assert isinstance(found, dict)
    assert {name: found[name] for name in expected} == expected
    assert out["same"] is True
    assert out["child"] == ["3", "3", "2"]
    assert out["untouched"] is True
    assert (out["left"], out["marker"], out["restored"], out["twice"]) == ([], False, True, [])


def test_auto_0_leaves_everything_alone() -> None:
    out = answer(
        """
import os, sys
environ, path = dict(os.environ), list(sys.meta_path)
import cgroup_threads
out["environ"] = dict(os.environ) == environ
out["path"] = sys.meta_path == path
from cgroup_threads.state import process
out["hooks"] = list(process.hooks)
out["usable"] = cgroup_threads.usable_cores()
cgroup_threads.apply()
out["applied"] = os.environ["OMP_NUM_THREADS"]
""",
        CGROUP_THREADS_AUTO="0",
        CGROUP_THREADS_CORES="3",
    )
    assert out == {"environ": True, "path": True, "hooks": [], "usable": 3, "applied": "3"}


def test_an_explicit_apply_installs_the_import_hooks() -> None:
    out = answer(
        """
import sys
path = list(sys.meta_path)
import cgroup_threads
cgroup_threads.apply()
out["more"] = len(sys.meta_path) - len(path)
""",
        CGROUP_THREADS_AUTO="0",
    )
    assert out == {"more": 1}


def test_patch_0_sets_variables_but_watches_no_import() -> None:
    out = answer(
        """
import os, sys
path = list(sys.meta_path)
import cgroup_threads
out["path"] = sys.meta_path == path
out["omp"] = os.environ["OMP_NUM_THREADS"]
""",
        CGROUP_THREADS_PATCH="0",
        CGROUP_THREADS_CORES="3",
    )
    assert out == {"path": True, "omp": "3"}


def test_verbose_prints_one_line_and_silence_is_the_default() -> None:
    ended = run("import cgroup_threads", CGROUP_THREADS_VERBOSE="1", CGROUP_THREADS_CORES="3")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "cgroup_threads: 3 threads, 3 usable cores (bound by override)\n"
    quiet = run("import cgroup_threads")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


@pytest.mark.parametrize("ending", ["sys.stderr = None", "os.close(2)", "sys.stderr.close()"])
def test_verbose_without_standard_error_says_nothing(ending: str) -> None:
    code = f"""
import os, sys
{ending}
import cgroup_threads
sys.stderr = None
print([n.code for n in cgroup_threads.state.process.notices])
os._exit(sys.stdout.flush() or 0)
"""
    ended = run(code, CGROUP_THREADS_VERBOSE="1", CGROUP_THREADS_CORES="3")
    assert (ended.returncode, ended.stdout) == (0, "[]\n")


def test_no_setting_can_make_the_import_fail() -> None:
    """Each text in all settings together and in each alone; the package is imported anew each time."""
    code = f"""
import os, sys
problems = []
settings = {SETTINGS!r}
for text in {JUNK!a}:
    for chosen in [settings, *[[name] for name in settings]]:
        for name in settings:
            os.environ.pop(name, None)
        for name in chosen:
            os.environ[name] = text
        for name in [name for name in sys.modules if name.partition(".")[0] == "cgroup_threads"]:
            del sys.modules[name]
        try:
            import cgroup_threads
            from cgroup_threads.state import process
            codes = [notice.code for notice in process.notices]
            if "startup-failed" in codes:
                problems.append([ascii(text)[:20], chosen, [n.message for n in process.notices]])
            if text == "junk" and codes.count("setting-invalid") != len(chosen):
                problems.append(["notices", chosen, codes])
            cgroup_threads.undo()
        except BaseException as error:
            problems.append([ascii(text)[:20], chosen, repr(error)])
out["problems"] = problems
"""
    assert answer(code)["problems"] == []


def test_late_import_lowers_live_pools_and_warns_once() -> None:
    """E01, E02, E22: the variables come too late for numpy and torch, so their pools are lowered instead."""
    for name in ("numpy", "torch", "numba"):
        require_module(name)
    require((os.cpu_count() or 1) > 1, "a pool of one thread cannot be lowered")
    out = answer(
        """
import warnings
warnings.simplefilter("ignore")  # warnings of the libraries themselves
import numpy, torch, threadpoolctl, numba, os, sys
out["before"] = [torch.get_num_threads(), max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())]
import cgroup_threads
from cgroup_threads.state import process
out["after"] = [torch.get_num_threads(), max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())]
out["late"] = list(cgroup_threads.apply().late)
out["notices"] = [n.message for n in process.notices if n.code == "late-import"]
out["numba"] = os.environ.get("NUMBA_NUM_THREADS")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        with cgroup_threads.limit_threads():
            pass
out["warned"] = [[w.category.__name__, str(w.message), os.path.basename(w.filename)] for w in caught]
""",
        CGROUP_THREADS_CORES="1",
    )
    assert min(out["before"]) > 1  # type: ignore[call-overload]  # a list of ints
    assert out["after"] == [1, 1]
    late = out["late"]
    assert isinstance(late, list)
    assert late[0] == "numpy"
    assert "torch" in late
    (message,) = out["notices"]  # type: ignore[misc]  # a list
    assert message.startswith("numpy was imported before cgroup_threads; used run-time limits instead")
    assert out["warned"] == [["CgroupThreadsWarning", message, "<string>"]]
    assert out["numba"] is None  # E17: never set once numba is imported


def test_a_failing_startup_becomes_a_notice() -> None:
    """The first thing the start asks of the system fails in a way nobody foresaw."""
    out = answer(
        """
import os
class Broken(type(os.environ)):
    def __iter__(self):
        raise RuntimeError("first line\\nsecond line")
os.environ.__class__ = Broken
import cgroup_threads
from cgroup_threads.state import process
out["notices"] = [[n.code, n.level, n.message] for n in process.notices]
"""
    )
    message = "importing did not finish: RuntimeError: first line"
    assert out["notices"] == [["startup-failed", "problem", message]]


def test_numexpr_starts_quietly_at_the_plans_number() -> None:
    """O01, E07: numexpr logs where its variables are missing, and fails where its number is above its maximum."""
    require_module("numexpr")
    out = answer(
        """
import logging
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger().addHandler(Keep())
logging.getLogger().setLevel("DEBUG")
import cgroup_threads, numexpr
out["lines"] = [line for line in lines if "NUMEXPR" in line.upper()]
out["threads"] = numexpr.nthreads
""",
        CGROUP_THREADS_CORES="2",
    )
    assert out == {"lines": [], "threads": 2}
