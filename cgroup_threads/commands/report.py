"""``cgroup-threads report``: limits, variables, pools and problems."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from ..errors import CgroupThreadsError, first_line
from . import EXIT_PROBLEM, PROG
from .parsing import RAW, module_names, seconds

_EPILOG: Final = """\
examples:
  cgroup-threads report --import numpy,torch   also show the pools these libraries make
  cgroup-threads report --interval 10          judge throttling over the next 10 seconds
  cgroup-threads report --json | jq .usable_cores
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    report = commands.add_parser(
        "report", help="limits, variables, pools and problems (default)", epilog=_EPILOG, formatter_class=RAW
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument("--check", action="store_true", help="exit 1 if there is a problem")
    report.add_argument(
        "--interval", type=seconds, default=0.0, metavar="SECONDS", help="judge throttling over the next SECONDS"
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


def run(options: argparse.Namespace) -> int:
    from ..reporting import report

    _import_modules(options.modules)
    found = report(interval=options.interval)
    print(found.to_json() if options.json else found)
    return EXIT_PROBLEM if options.check and found.problems else 0


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
