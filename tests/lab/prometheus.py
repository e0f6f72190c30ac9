"""Metrics as a real Prometheus reads them: expositions parsed, gunicorn with workers that obey, a real server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from . import require, require_module
from .gunicorn import gunicorn

T = TypeVar("T")
DEADLINE_S = 60.0
PREFIX = "cgroup_threads_"

# A WSGI application that serves its metrics. In each worker a thread obeys lines on a socket of its own: an expression
# is answered with its value, a statement with null.
APP = """
import cgroup_threads as ct
import hashlib, json, os, socket, sys, threading
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client import Counter
from cgroup_threads.integrations.prometheus import register

REQUESTS = Counter("app_requests", "Requests.")  # one of the application's own
registry = CollectorRegistry()
if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
    MultiProcessCollector(registry)
register(registry)

def application(environ, start_response):
    if environ["PATH_INFO"] == "/work":
        data = bytes(1 << 20)
        with ct.limit_threads(1):
            for _ in range(20): hashlib.sha256(data).digest()
        start_response("200 OK", [])
        return [b"done"]
    REQUESTS.inc()
    start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4"), ("Worker", str(os.getpid()))])
    return [generate_latest(registry)]

holders = []
def hold(number=1):
    # Leases of one thread each, in threads of their own: those that the budget has no cores for wait.
    for _ in range(number):
        left = threading.Event()
        def work(left=left):
            with ct.limit_threads(1, patience=300): left.wait()
        thread = threading.Thread(target=work, daemon=True)
        thread.left = left
        thread.start()
        holders.append(thread)
def release():
    for thread in holders: thread.left.set()
    for thread in holders: thread.join()
    holders.clear()
def lease(number=1):
    def work():
        for _ in range(number):
            with ct.limit_threads(1): pass
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
def now():
    found = ct.statistics()
    return [found.active, found.waiting, found.granted]
def obey():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"worker-{os.getpid()}.new")
    listener.listen()
    os.rename(f"worker-{os.getpid()}.new", f"worker-{os.getpid()}.socket")
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as file:
            for line in file:
                try: answer = eval(line, globals())
                except SyntaxError: exec(line, globals()); answer = None
                print(json.dumps(answer), file=file, flush=True)
def start_obeying(worker):
    threading.Thread(target=obey, daemon=True).start()
"""
CONFIG = """
def post_worker_init(worker):
    import app
    app.start_obeying(worker)
"""


class Scrape(dict[str, float]):
    """Values by name without our prefix; labels are part of the name, as in ``budget_cores{scope="process"}``."""

    def __init__(self, text: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        super().__init__()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                self[sample.name.removeprefix(PREFIX) + (f"{{{labels}}}" if labels else "")] = sample.value


def until(look: Callable[[], T], right: Callable[[T], bool], seconds: float = DEADLINE_S) -> T:
    """Look until what is seen is right."""
    deadline = time.monotonic() + seconds
    while not right(seen := look()):
        assert time.monotonic() < deadline, f"after {seconds} s still {seen}"
        time.sleep(0.02)
    return seen


def fetch(port: int, path: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as response:
            return response.status, response.read().decode(), dict(response.getheaders())


class Served:
    """A gunicorn that runs APP."""

    def __init__(self, port: int, directory: Path) -> None:
        self.port = port
        self.directory = directory
        self.scraped: set[int] = set()
        """The workers that have answered."""

    def scrape(self) -> Scrape:
        status, text, headers = fetch(self.port, "/metrics")
        assert status == 200, text
        self.scraped.add(int(headers["Worker"]))
        return Scrape(text)

    def pids(self) -> list[int]:
        """The workers that obey and live."""
        found = [int(path.stem.partition("-")[2]) for path in self.directory.glob("worker-*.socket")]
        return sorted(pid for pid in found if os.path.exists(f"/proc/{pid}/task"))

    def tell(self, pid: int, line: str) -> Any:
        """Have a worker carry out a line; returns its value."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(DEADLINE_S)
            connection.connect(str(self.directory / f"worker-{pid}.socket"))
            with connection.makefile("rw") as file:
                print(line, file=file, flush=True)
                return json.loads(file.readline())


@contextmanager
def served(
    directory: Path, workers: int, *options: str, join: Callable[[], None] | None = None, **environ: str
) -> Iterator[Served]:
    """gunicorn with APP in ``workers`` processes of four threads; ``join`` is called in it before it begins."""
    require_module("prometheus_client")
    (directory / "config.py").write_text(CONFIG)
    size = ("-w", str(workers), "--threads", "4")
    with gunicorn(directory, APP, "-c", "config.py", *size, *options, environ=environ, join=join) as port:
        made = Served(port, directory)
        until(made.pids, lambda pids: len(pids) == workers)
        yield made


def promtool(*arguments: str, text: str = "") -> str:
    """What Prometheus' own tool says, given ``text`` on its standard input. Of a right exposition it says nothing."""
    program = shutil.which("promtool")
    require(program, "promtool is not installed (Debian package prometheus)")
    assert program is not None
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


class Server:
    """A Prometheus that scrapes one target."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query: one entry a series, with "metric" and "value"."""
        status, text, _ = fetch(self.port, "/api/v1/query?query=" + quote(expression))
        found = json.loads(text)
        assert status == 200, text
        assert found["status"] == "success", text
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def value(self, expression: str) -> float | None:
        """The value of the only series; None if there is none yet."""
        result = self.query(expression)
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else None


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Server]:
    """A real Prometheus server that scrapes the port ``target`` once a second."""
    program = shutil.which("prometheus")
    require(program, "prometheus is not installed (Debian package prometheus)")
    assert program is not None
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "app", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with open(directory / "prometheus.log", "w+") as log:
        server = subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: _is_ready(port) or server.poll() is not None, lambda done: done)
            assert server.poll() is None
            yield Server(port)
        except BaseException:
            log.seek(0)
            print(log.read())
            raise
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _is_ready(port: int) -> bool:
    try:
        return fetch(port, "/-/ready")[0] == 200
    except OSError:
        return False
