"""What the llama benchmarks share: children inside a quota group that print JSON lines, and aligned tables."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from benchmarks.service_servers import ROOT, TICK, read_usage
from benchmarks.service_table import figure

START_SECONDS = 300.0
"""Until a child's first line: it imports and loads under a quota."""
FIRST_IMPORT = "import cgroup_threads\n"


class Killed(Exception):
    """A child printed nothing for too long."""


class Failed(RuntimeError):
    """A child ended early; the text has its last messages."""


class Counters(NamedTuple):
    """At one moment: context switches of a process, by its will or not, and periods of its group."""

    voluntary: int
    involuntary: int
    periods: int
    throttled: int

    def since(self, before: Counters) -> Counters:
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def share(self) -> float:
        """Throttled periods of all in which the group had something to run."""
        return self.throttled / self.periods if self.periods else 0.0


def read_counters(pid: int, group: Path) -> Counters:
    """Of the threads that live now: those of a team stay until their process ends."""
    switches = [0, 0]
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in _text(status).splitlines():
            for index, name in enumerate(("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")):
                if line.startswith(name + ":"):
                    switches[index] += int(line.split()[1])
    usage = read_usage([], group)
    return Counters(*switches, usage.periods, usage.throttled)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return ""


class Neighbours:
    """How many CPUs other processes keep busy meanwhile: with them a benchmark's own threads meet on one CPU."""

    def __init__(self) -> None:
        self.before = self._read()

    def cpus(self) -> float:
        """Since the start, on average."""
        then, now = self.before, self._read()
        return max(0.0, (now[1] - then[1]) - (now[2] - then[2])) / (now[0] - then[0])

    def _read(self) -> tuple[float, float, float]:
        """Seconds by the clock, of all CPUs at work, and of this process."""
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = fields[3] + fields[4]
        return time.monotonic(), (sum(fields) - idle) / TICK, time.process_time()


def build(code: str, path: str, common: Mapping[str, Any]) -> Any:
    """The model that ``code`` binds to ``llm`` from ``path`` and ``common``; its first import comes first of all."""
    names: dict[str, Any] = {"path": path, "common": common}
    if code.startswith(FIRST_IMPORT):
        exec(FIRST_IMPORT, names)
        code = code.removeprefix(FIRST_IMPORT)
    exec("from llama_cpp import Llama", names)
    exec(code, names)
    return names["llm"]


class Child:
    """``python -m module --child SPEC`` inside the group, in a bare environment plus ``environ``; killed at the end."""

    def __init__(self, module: str, spec: Mapping[str, Any], group: Path, environ: Mapping[str, str]) -> None:
        keep = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CGROUP_THREADS_CACHE")
        bare = {name: value for name, value in os.environ.items() if name in keep}
        # The shell joins the group and becomes Python: everything happens inside.
        script = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
        command = [sys.executable, "-m", module, "--child", json.dumps(spec)]
        self.group = group
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script, *command],
            env={**bare, "PYTHONPATH": str(ROOT), "GGML_NO_BACKTRACE": "1", **environ},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,  # select sees what is not read yet
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()

    def lines(self, patience: float) -> Iterator[dict[str, Any]]:
        """What it prints, until it ends. Raises Killed if a line takes longer than ``patience``, and Failed."""
        assert self.process.stdout is not None
        allowed = START_SECONDS
        while True:
            seen, _, _ = select.select([self.process.stdout], [], [], allowed)
            if not seen and allowed == START_SECONDS:
                raise Failed(f"a child did not start in {START_SECONDS:g} s\n{self.messages()}")
            if not seen:
                raise Killed
            line = self.process.stdout.readline()
            if not line:
                break
            yield json.loads(line)
            allowed = patience
        if self.process.wait():
            raise Failed(f"a child ended with {self.process.returncode}\n{self.messages()}")

    def messages(self) -> str:
        """The end of what it wrote to stderr."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-20:])

    def counters(self) -> Counters:
        return read_counters(self.process.pid, self.group)


def emit(**values: Any) -> None:
    """Print one JSON line, at once."""
    print(json.dumps(values), flush=True)


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    middle = figure(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({figure(min(values))}-{figure(max(values))})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(heads), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]


def about(model: str, **settings: Any) -> dict[str, Any]:
    """The first record of a run."""
    import importlib.metadata
    import platform

    versions = {name: importlib.metadata.version(name) for name in ("llama-cpp-python", "cgroup-threads")}
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    return {"kind": "about", "at": time.time(), "model": model, "machine": machine, "versions": versions, **settings}
