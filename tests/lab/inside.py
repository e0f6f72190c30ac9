"""Prints, as a line of JSON, what the package says and does where it runs; then is ``cgroup-threads report --json``.

One process is both: what is laid over the files of the container's first process, only that one sees.
"""

import json
import os
import sys
import warnings

environ = dict(os.environ)
row = {"raised": None}


def count_in_child():
    """How often a child process went beyond a budget that this one has used up: 0 where they share none."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with ct.limit_threads(patience=0):
            pass
        os.write(writer, b"%d" % ct.statistics().overcommitted)
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    return int(os.read(reader, 9))


# What is printed behind Python's back counts, too.
reader, writer = os.pipe()
kept = os.dup(1), os.dup(2)
os.dup2(writer, 1)
os.dup2(writer, 2)
try:
    import cgroup_threads as ct
except BaseException as error:  # noqa: BLE001  # that it raises none is what is asked
    row["raised"] = repr(error)
os.dup2(kept[0], 1)
os.dup2(kept[1], 2)
os.close(writer)
row["printed"] = os.read(reader, 4096).decode()

limits = ct.detect()
row |= {
    "quota": limits.quota,
    "status": limits.status,
    "usable": ct.usable_cores(),
    "bound_by": limits.bound_by,
    "source": limits.affinity_source,
    "codes": [notice.code for notice in limits.notices],
    "fixes": [notice.fix for notice in limits.notices],
    "plan": ct.plan().threads,
    "asked": os.environ.get("OMP_NUM_THREADS"),
}

import ctypes  # noqa: E402

import numpy  # noqa: E402, F401  # brings an OpenBLAS
from threadpoolctl import ThreadpoolController  # noqa: E402

gomp = ctypes.CDLL("libgomp.so.1")
blas = next(c for c in ThreadpoolController().lib_controllers if c.user_api == "blas")


def look():
    return [gomp.omp_get_max_threads(), blas.get_num_threads()]


row["started"] = look()
gomp.omp_set_num_threads(4)
blas.set_num_threads(4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with ct.limit_threads() as lease:
        row |= {"threads": lease.threads, "within": look(), "child": count_in_child()}
    row["after"] = look()
row["warned"] = [str(warning.message) for warning in caught]
row["scope"] = ct.statistics().scope
gomp.omp_set_num_threads(row["started"][0])  # the report is to be about where we are, not about the fours
blas.set_num_threads(row["started"][1])
row["report"] = ct.report().to_dict()
print(json.dumps(row), flush=True)
os.execve(sys.executable, [sys.executable, "-m", "cgroup_threads", "report", "--json"], environ)
