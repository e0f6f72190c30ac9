"""Fuzz some targets, or all of them, for a while; see README.md."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .seeds import CASES, seeds
from .targets import MAX_BYTES, MAX_RESIDENT, SECONDS, TARGETS

SLOWER = 8.0
"""How much longer an input may take here: counting coverage slows Python down, and others use the machine too."""
MAX_FINDINGS = 8  # of one target: then it is mended first
_PROGRESS = re.compile(rb"^#\d+\s.*\bcov: (\d+)", re.MULTILINE)
_EXECUTIONS = re.compile(rb"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
_DONE = re.compile(rb"^#(\d+)\s", re.MULTILINE)
_ERROR = re.compile(rb"^ === Uncaught Python exception: ===\n(.*)$|^==\d+== ?(ERROR: .*)$", re.MULTILINE)


class Outcome(NamedTuple):
    """One target: inputs tried, seconds, branches and functions reached, and the files of what was found."""

    name: str
    executions: int
    seconds: float
    coverage: int
    findings: tuple[Path, ...]

    def __str__(self) -> str:
        return (
            f"{self.name:12} {self.executions:9} executions  {self.seconds:6.1f} s  coverage {self.coverage:5}  "
            f"findings {len(self.findings)}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all, one after the other")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--work", type=Path, default=_cache(), help="where inputs are kept (default: %(default)s)")
    options = parser.parse_args()
    if options.list:
        print("\n".join(TARGETS))
        return 0
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; --list shows them")
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed here; tests/fuzz/README.md says how to get it")
    outcomes = []
    for name in options.targets or TARGETS:
        outcome = fuzz(name, options.seconds, options.work / name)
        print(outcome, flush=True)
        outcomes.append(outcome)
    total = sum(outcome.executions for outcome in outcomes)
    findings = [path for outcome in outcomes for path in outcome.findings]
    print(f"{len(outcomes)} targets, {total} executions, {sum(o.seconds for o in outcomes):.0f} s")
    for path in findings:
        print(f"finding: {path}; once it is mended, keep it in {CASES.relative_to(Path.cwd())}/{path.parts[-3]}/")
    return 1 if findings else 0


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base, "cgroup-threads", "fuzz")


def fuzz(name: str, seconds: float, work: Path) -> Outcome:
    """Run the fuzzer until the time is over; it ends at each finding and is started anew."""
    corpus, sown, found = (work / part for part in ("corpus", "seeds", "findings"))
    for directory in (corpus, sown, found):
        directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(name)):
        (sown / str(number)).write_bytes(data)
    executions = coverage = 0
    began = time.monotonic()
    before = set(found.iterdir())
    for path in sorted(before):  # of earlier runs: mended by now?
        if _replay(name, path):
            path.unlink()
    before = set(found.iterdir())
    while (left := seconds - (time.monotonic() - began)) >= 1 and len(set(found.iterdir()) - before) < MAX_FINDINGS:
        log: bytes = _run(
            name, f"-max_total_time={int(left)}", f"-artifact_prefix={found}{os.sep}", str(corpus), str(sown)
        ).stdout
        counts = _EXECUTIONS.findall(log) or _DONE.findall(log)[-1:]
        executions += int(counts[0]) if counts else 0
        coverage = max([coverage, *map(int, _PROGRESS.findall(log))])
        (work / "log").write_bytes(log)
        problem = _ERROR.search(log)
        if problem:
            print(f"{name}: {(problem[1] or problem[2]).decode(errors='replace')}", file=sys.stderr)
        elif not counts:
            sys.exit(f"the fuzzer of {name} did not start:\n{log.decode(errors='replace')[-2000:]}")
    return Outcome(name, executions, time.monotonic() - began, coverage, tuple(sorted(found.iterdir())))


def _replay(name: str, path: Path) -> bool:
    """Whether an input passes now."""
    return _run(name, str(path)).returncode == 0


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    allowed = SECONDS * SLOWER
    command = [
        *(sys.executable, "-m", "tests.fuzz.drive", name, str(allowed)),
        *(f"-max_len={MAX_BYTES}", f"-timeout={int(3 * allowed)}", f"-rss_limit_mb={MAX_RESIDENT >> 20}"),
        *("-print_final_stats=1", "-report_slow_units=3600", *arguments),
    ]
    # What the library does at import is no part of this, and must not disturb it.
    environ = {**os.environ, "CGROUP_THREADS_AUTO": "0", "CGROUP_THREADS_PATCH": "0"}
    return subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


if __name__ == "__main__":
    sys.exit(main())
