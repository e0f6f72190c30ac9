"""A host of 256 CPUs, as far as libraries can tell, and a real quota of one core: counts with and without the package.

A preloaded library answers 256 to whoever asks for the CPUs. The calls that are made with the package must end; without
it only counts are read, since a barrier of 256 spinning threads on one core may take minutes.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llama_forgotten_argument import build_shim
from tests.lab import require, require_module
from tests.lab.commands import clean_environ, inside, quota_group, run
from tests.lab.models import tiny_gguf

pytestmark = [pytest.mark.slow, pytest.mark.where("here, 256 CPUs believed"), pytest.mark.timeout(300)]

CPUS = 256
OURS = "import cgroup_threads as ct\n"
PRELUDE = """
import json, os, sys
def tasks(): return len(os.listdir("/proc/self/task"))
def pools(kind):
    from threadpoolctl import threadpool_info
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == kind]
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require(shutil.which("cc") or shutil.which("gcc"), "no C compiler is installed")
    return build_shim(tmp_path_factory.mktemp("shim"))


def believing(shim: Path, script: str, *arguments: str, **environ: str) -> Any:
    """The last line that ``script`` prints, as JSON, in a group with a quota of one core."""
    believed = clean_environ(LD_PRELOAD=str(shim), BELIEVED_CPUS=str(CPUS), **environ)
    with quota_group(1.0) as group:
        done = run(inside(group, [sys.executable, "-c", PRELUDE + script, *arguments]), believed)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def test_the_quota_is_seen_behind_all_those_cpus(shim: Path) -> None:
    script = """
limits = ct.detect()
print(json.dumps([os.cpu_count(), len(os.sched_getaffinity(0)), len(limits.affinity), limits.quota, limits.usable(),
                  limits.bound_by, ct.plan().threads, ct.statistics().cores]))
"""
    assert believing(shim, OURS + script) == [CPUS, CPUS, CPUS, 1.0, 1, "quota", 1, 1]


def test_numpy(shim: Path) -> None:
    """OpenBLAS starts as many threads as it was built for, when it is loaded."""
    require_module("numpy")
    script = """
import numpy
ones = numpy.ones((300, 300))
print(json.dumps([*pools("blas"), tasks(), COMPUTE]))
"""
    built_for, threads, _ = believing(shim, script.replace("COMPUTE", "0"))
    assert 32 <= built_for <= CPUS
    assert threads >= built_for
    assert believing(shim, OURS + script.replace("COMPUTE", "float((ones @ ones).sum())")) == [1, 1, 300.0**3]


def test_torch(shim: Path) -> None:
    """MKL asks the processor itself how many CPUs there are, and torch MKL: without MKL_DYNAMIC both believe, too."""
    require_module("torch")
    compute = "ones = torch.ones(300, 300); total = float(torch.relu(torch.mm(ones, ones)).sum())"
    count = '[torch.get_num_threads(), pools("openmp")]'
    late = f"""
import torch
default = {count}
import cgroup_threads as ct
with ct.limit_threads() as lease:
    {compute}
    print(json.dumps([default, lease.threads, {count}, total]))
"""
    right = [1, [1]]
    assert believing(shim, late, MKL_DYNAMIC="FALSE") == [[CPUS, [CPUS]], 1, right, 300.0**3]
    first = f"import torch; {compute}; print(json.dumps([{count}, total]))"
    assert believing(shim, OURS + first, MKL_DYNAMIC="FALSE") == [right, 300.0**3]


def test_llama(shim: Path) -> None:
    """Half of the CPUs to generate and all of them to read: what a wrapper gets that names no counts, or only one."""
    model = tiny_gguf()
    script = """
import llama_cpp
common = {"embedding": True, "n_ctx": 64, "verbose": False}
counts = []
for threads in ({}, {"n_threads": 1}):
    llm = llama_cpp.Llama(sys.argv[1], **threads, **common)
    native = llama_cpp.llama_cpp
    counts.append([native.llama_n_threads(llm._ctx.ctx), native.llama_n_threads_batch(llm._ctx.ctx)])
    COMPUTE
print(json.dumps(counts))
"""
    assert believing(shim, script.replace("COMPUTE", ""), model) == [[CPUS // 2, CPUS], [1, CPUS]]
    compute = "counts[-1].append(len(llm.embed('threads must never change any result')) > 0)"
    assert believing(shim, OURS + script.replace("COMPUTE", compute), model) == [[1, 1, True], [1, 1, True]]
    factory = f"""
llm = ct.create_llama(sys.argv[1], embedding=True, n_ctx=64, verbose=False)
counts = [[llm.n_threads, llm.n_threads_batch]]
{compute}
print(json.dumps(counts))
"""
    assert believing(shim, OURS + factory, model) == [[1, 1, True]]
