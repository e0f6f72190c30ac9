"""Native threads of child processes that a governed parent starts, beside those without us.

    python -m benchmarks.inheritance [--json] [case ...]

Each case starts two children that load numpy or torch and compute; none of them imports cgroup_threads, unless the case
says so. A figure is the sum over both children of the threads the kernel counts (``/proc/<pid>/status``) after the
work, and in brackets the sum of what their libraries say they use. Arms: "without us" the parent imports nothing of
ours; "variables only" it has the same variables, as if set by hand: what inheriting would do by itself; "governed" it
has imported cgroup_threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
ARMS = {
    "without us": "",
    "variables only": "import cgroup_threads, os\nfrom cgroup_threads.importing import stop_watching\n"
    "stop_watching()\ndel os.environ['CGROUP_THREADS_APPLIED']\n",
    "governed": "import cgroup_threads, os\nos.environ['CGROUP_THREADS_APPLIED']  # else nothing was set\n",
}
_TORCHRUN = "['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', '-m', 'benchmarks.inheritance', {}]"
_RANK = "'--rank', room"
_IMPORTING = "'--importing-rank', room"
_MULTIPROCESSING = """
import multiprocessing
{before_fork}
with multiprocessing.get_context({method!r}).Pool(2) as pool:
    results = pool.starmap(child, [(i, room) for i in range(2)], chunksize=1)
"""


class Case(NamedTuple):
    """``code`` runs in the parent after the arm's imports; it leaves the children's answers in ``results`` or files in
    the directory ``room``."""

    title: str
    code: str


CASES = {
    "joblib": Case(
        "joblib (loky), 2 workers x numpy",
        "from joblib import Parallel, delayed\n"
        "results = Parallel(n_jobs=2, batch_size=1)(delayed(child)(i, room) for i in range(2))",
    ),
    "torchrun": Case(
        "torchrun, 2 ranks, started by subprocess",
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, *{_TORCHRUN.format(_RANK)}], check=True, stderr=2, stdout=2)",
    ),
    "torchrun-importing": Case(
        "torchrun, 2 ranks that import cgroup_threads",
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, *{_TORCHRUN.format(_IMPORTING)}], check=True, stdout=2)",
    ),
    "torchrun-inside": Case(
        "torch.distributed.run.main() in the parent",
        f"from torch.distributed.run import main\nmain({_TORCHRUN.format(_RANK)}[2:])",
    ),
    "spawn": Case("multiprocessing pool (spawn), 2 x numpy", _MULTIPROCESSING.format(method="spawn", before_fork="")),
    "fork": Case(
        "multiprocessing pool (fork), 2 x numpy",
        _MULTIPROCESSING.format(
            method="fork", before_fork="import numpy; numpy.ones((600, 600)) @ numpy.ones((600, 600))"
        ),
    ),
}


def child(index: int, room: str) -> dict[str, Any]:
    """Meet the other child, so that no worker gets both tasks; compute with numpy; say what was used."""
    with open(os.path.join(room, "meet"), "r" if index else "w"):  # a FIFO: each waits for the other
        pass
    import numpy

    numpy.ones((600, 600)) @ numpy.ones((600, 600))
    return answer()


def answer() -> dict[str, Any]:
    """The threads of this process, by the kernel and by its libraries, and its variable for OpenMP."""
    from threadpoolctl import threadpool_info

    status = Path("/proc/self/status").read_text()
    return {
        "os_threads": int(status.split("Threads:")[1].split()[0]),
        "pools": sum(pool["num_threads"] for pool in threadpool_info()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS"),
    }


def rank(room: str) -> None:
    """A rank of torchrun: compute with torch and leave the answer in ``room``."""
    import torch

    torch.ones(600, 600) @ torch.ones(600, 600)
    torch.ones(1 << 20).exp()
    Path(room, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(answer()))


def run_case(case: str, arm: str, **variables: str) -> list[dict[str, Any]]:
    """The answers of both children of a parent in ``arm``, started with the environment variables ``variables``."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    environ = kept | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    with tempfile.TemporaryDirectory() as room:
        os.mkfifo(os.path.join(room, "meet"))
        indented = "\n".join("    " + line for line in CASES[case].code.splitlines())
        script = (
            "results = []\nif __name__ == '__main__':\n"
            + "".join(f"    {line}\n" for line in ARMS[arm].splitlines())
            + f"    from benchmarks.inheritance import child\n    room = {room!r}\n{indented}\n"
            + "    import json\n    open(room + '/results', 'w').write(json.dumps(results))\n"
        )
        Path(room, "parent.py").write_text(script)
        done = subprocess.run(
            [sys.executable, os.path.join(room, "parent.py")],
            env=environ, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{case} / {arm}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        results = json.loads(Path(room, "results").read_text())
        results += [json.loads(path.read_text()) for path in sorted(Path(room).glob("rank-*.json"))]
    return results


def total(results: list[dict[str, Any]], what: str) -> int:
    """The sum over the children."""
    return sum(int(result[what]) for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--importing-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if set(options.cases) - set(CASES):
        parser.error(f"cases are {', '.join(CASES)}")
    if options.rank or options.importing_rank:
        if options.importing_rank:
            import cgroup_threads  # noqa: F401 - what the case is about
        rank(options.rank or options.importing_rank)
        return
    table: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for case in options.cases or CASES:
        table[case] = {arm: run_case(case, arm) for arm in ARMS}
    if options.json:
        print(json.dumps(table))
        return
    print(f"threads of both children by the kernel (by their libraries); {len(os.sched_getaffinity(0))} CPUs")
    print(f"{'':46}" + "".join(f"{arm:>16}" for arm in ARMS))
    for case, arms in table.items():
        cells = [f"{total(results, 'os_threads')} ({total(results, 'pools')})" for results in arms.values()]
        print(f"{CASES[case].title:46}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
