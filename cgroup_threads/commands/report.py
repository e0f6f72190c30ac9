"""``cgroup-threads report``: limits, variables, pools and problems, or the throttling of an interval."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import CgroupThreadsError, first_line
from ..settings import parse_seconds
from . import EXIT_PROBLEM, PROG
from .parsing import RAW, module_names, seconds

if TYPE_CHECKING:
    from ..measuring.progress import Progress

MAX_SINCE: Final = 3600.0
_STEP_S: Final = 0.25
_EPILOG: Final = """\
examples:
  cgroup-threads report --import numpy,torch   also show the pools these libraries make
  cgroup-threads report --interval 10          judge throttling over the next 10 seconds
  cgroup-threads report --json | jq .usable_cores

  cgroup-threads report --since 1m             only the throttling and CPU pressure of the next minute
  cgroup-threads report --json > before.json   the same between now
  cgroup-threads report --since before.json    and later
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    report = commands.add_parser(
        "report", help="limits, variables, pools and problems (default)", epilog=_EPILOG, formatter_class=RAW
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument("--check", action="store_true", help="exit 1 if there is a problem")
    window = report.add_mutually_exclusive_group()
    window.add_argument(
        "--interval", type=seconds, default=0.0, metavar="SECONDS", help="judge throttling over the next SECONDS"
    )
    window.add_argument(
        "--since",
        type=since,
        metavar="WHEN",
        help="only the throttling and CPU pressure, of the next WHEN (10s, 1m) or since an earlier `report --json`",
    )
    report.add_argument(
        "--import",
        dest="modules",
        type=module_names,
        default=[],
        metavar="MODULES",
        help="import these first (comma-separated)",
    )
    report.set_defaults(run=run)


def since(text: str) -> float | str:
    """Type of ``--since``: seconds to wait, or the path of an earlier report."""
    number = parse_seconds(text)
    if number is None and text[-1:] == "m" and text[-2:-1].isdigit():
        number = parse_seconds(text[:-1])
        number = None if number is None else 60 * number
    if number is None and os.path.exists(text):
        return text
    if number is None or not 0 < number <= MAX_SINCE:
        expected = "a duration up to 60 minutes (10, 10s, 1m), nor the file of an earlier `report --json`"
        raise argparse.ArgumentTypeError(f"{text!r} is neither {expected}")
    return number


def run(options: argparse.Namespace) -> int:
    from ..reporting import report

    if options.since is not None:
        return _run_since(options)
    _import_modules(options.modules)
    found = report(interval=options.interval)
    print(found.to_json() if options.json else found)
    return EXIT_PROBLEM if options.check and found.problems else 0


def _run_since(options: argparse.Namespace) -> int:
    from ..detection import detect
    from ..measuring.progress import Progress
    from ..reporting.since import between, read_counters, read_report

    if options.modules:
        raise CgroupThreadsError("--import has no effect with --since, which looks at no pools")
    when: float | str = options.since
    if isinstance(when, str):
        before = read_report(when)
        source = when
    else:
        before = read_counters(detect())
        source = "since the beginning"
        with contextlib.closing(Progress(options.json)) as progress:
            _wait(when, progress)
    limits = detect()
    found = between(before, read_counters(limits), limits.quota, source, limits.levels)
    print(json.dumps(found.to_dict(), indent=2) if options.json else found)
    return EXIT_PROBLEM if options.check and found.problem else 0


def _wait(length: float, progress: Progress) -> None:
    start = time.monotonic()
    total = math.ceil(length)
    while (passed := time.monotonic() - start) < length:
        progress(int(passed), total, "seconds counted")
        time.sleep(min(_STEP_S, length - passed))


def _import_modules(names: Sequence[str]) -> None:
    from importlib import import_module

    for name in names:
        try:
            import_module(name)
        except SystemExit as end:  # a script: what it has loaded is in the report, and its status is not ours
            if sys.stderr is not None:
                print(f"{PROG}: {name} ended with status {end.code} as it was imported", file=sys.stderr)
        except Exception as error:  # a module's own code may raise anything
            raise CgroupThreadsError(f"cannot import {name}: {type(error).__name__}: {first_line(error)}") from error
