"""A real ``gunicorn --preload`` whose master has computed: its workers answer, and share what they must share.

Without the package such a worker hangs for ever in its first parallel region.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.detection import detect
from tests.lab import require_module
from tests.lab.cgroup1 import CPU, CPUSET, group
from tests.lab.gunicorn import gunicorn
from tests.lab.shared_budget import workers

DEADLINE_S = 60
# Four cores: each of two workers computes with a team also while the other one does. MKL would not go above the CPUs.
ENVIRON = {"CGROUP_THREADS_CORES": "4", "MKL_DYNAMIC": "FALSE"}
TWO_THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}

WORK = """
import json, os
import numpy, torch

def work():
    ones = torch.ones(1 << 20).add_(1).sum().item()
    product = torch.relu(torch.mm(torch.ones(256, 256), torch.ones(256, 256))).sum().item()
    square = numpy.ones((256, 256))
    return [ones == 2 << 20, product == 256.0 ** 3, (square @ square).sum() == 256.0 ** 3]
"""
# An answer has one line of inside the block and one of after it. "/hold" keeps its two cores until something is written
# to the named pipe beside this file, so that the next request is the other worker's.
APP = f"""
import cgroup_threads as ct
{WORK}
from cgroup_threads.pools import describe

def counts():
    blas = [pool.threads for pool in describe() if "openblas" in pool.name]
    return [torch.get_num_threads(), blas]
MASTER = os.getpid()
work()
with ct.limit_threads() as lease:
    work()
BASELINE = counts()

def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/json")])
    hold = environ["PATH_INFO"] == "/hold"
    with ct.limit_threads(2 if hold else None) as lease:
        right = [bool(value) for value in work()]
        told = {{"pid": os.getpid(), "master": MASTER, "right": right, "threads": lease.threads, "counts": counts(),
                "baseline": BASELINE, "scope": ct.statistics().scope, "cores": ct.statistics().cores}}
        yield json.dumps(told).encode() + b"\\n"
        if hold:
            with open(os.path.join(os.path.dirname(__file__), "release")) as file: file.read()
    now = ct.statistics()
    told = {{"open": [now.active, now.leased, now.waiting], "above": now.overcommitted, "counts": counts()}}
    yield json.dumps(told).encode() + b"\\n"
"""
PLAIN = f"""
{WORK}
work()
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(environ["PATH_INFO"] == "/alive" or [bool(value) for value in work()]).encode() + b"\\n"]
"""


@contextmanager
def preloaded(
    directory: Path, app: str, name: str | None = None, *, environ: Mapping[str, str] = ENVIRON, hangs: bool = False
) -> Iterator[int]:
    """gunicorn that loads ``app`` before it forks two workers, in the group ``name``; yields its port."""
    require_module("torch")
    os.mkfifo(directory / "release")

    def join() -> None:
        for hierarchy in (CPU, CPUSET) if name is not None else ():
            (hierarchy / str(name) / "cgroup.procs").write_text(str(os.getpid()))

    # -t 0: gunicorn would kill and replace a hung worker, and hang again.
    options = ("--preload", "-w", "2", "-t", "0")
    with gunicorn(directory, app, *options, environ=environ, join=join, hangs=hangs) as port:
        yield port


@contextmanager
def answered(port: int, path: str, seconds: float = DEADLINE_S) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=seconds)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as response:
            yield response


def line(response: HTTPResponse) -> Any:
    return json.loads(response.readline())


def test_without_the_package_a_worker_hangs(tmp_path: Path) -> None:
    """The fault itself: were it gone, the tests below would prove nothing."""
    with preloaded(tmp_path, PLAIN, environ=TWO_THREADS, hangs=True) as port:
        with answered(port, "/alive") as response:
            assert line(response) is True
        with pytest.raises(TimeoutError), answered(port, "/work", seconds=5):
            pass
        with answered(port, "/alive") as response:  # the other worker
            assert line(response) is True


def ask_both(port: int, directory: Path) -> list[dict[str, Any]]:
    """What the two workers said inside and after their blocks; the second one's is inside the first one's."""
    with answered(port, "/hold") as held:
        first = line(held)
        with answered(port, "/") as response:
            second = line(response)
            second["after"] = line(response)
        (directory / "release").write_text("")
        first["after"] = line(held)
    for told in (first, second):
        assert told["right"] == [True] * 3
        torch, blas = told["counts"]
        assert torch == told["threads"]
        baseline_torch, baseline_blas = told["baseline"]
        assert blas == [min(count, told["threads"]) for count in baseline_blas]
        assert baseline_torch == 4
        assert blas
        assert told["cores"] == 4
        assert told["after"] == {"open": [0, 0, 0], "above": 0, "counts": told["baseline"]}
    assert len({first["pid"], second["pid"], first["master"]}) == 3, "two workers answered, and not the master"
    assert first["master"] == second["master"], "the application was preloaded"
    return [first, second]


def test_workers_without_a_limit_have_budgets_of_their_own(tmp_path: Path) -> None:
    if detect().status == "limited":
        pytest.skip("this machine's own cgroup has a quota: the next test is about that")
    with preloaded(tmp_path, APP) as port:
        told = ask_both(port, tmp_path)
        assert [worker["scope"] for worker in told] == ["process", "process"]
        assert [worker["threads"] for worker in told] == [2, 4]


def test_workers_in_a_container_share_one_budget(tmp_path: Path) -> None:
    with group(quota=2.0) as name, preloaded(tmp_path, APP, name) as port:
        told = ask_both(port, tmp_path)
        assert [worker["scope"] for worker in told] == ["container", "container"]
        assert [worker["threads"] for worker in told] == [2, 2], "four cores in sum"
        # Nothing is left locked, neither by the workers nor by the master: a newcomer gets all at once.
        with workers(name, 1, **ENVIRON) as (newcomer,):
            assert newcomer("enter(patience=0)") == 4
            assert newcomer("leave()") is None
