"""``cgroup-threads cores``: the usable cores, one integer."""

from __future__ import annotations

import argparse
from typing import Any, Final

from ..settings import ROUNDINGS, Rounding
from .parsing import RAW

_EPILOG: Final = """\
examples:
  llama-embedding --threads $(cgroup-threads cores) --threads-batch $(cgroup-threads cores) ...
  make -j"$(cgroup-threads cores --rounding ceil)"
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    cores = commands.add_parser(
        "cores", help="print the usable cores, one integer", epilog=_EPILOG, formatter_class=RAW
    )
    cores.add_argument("--rounding", choices=ROUNDINGS, help="how a fractional quota is rounded (default: floor)")
    cores.add_argument("--json", action="store_true", help="print JSON: the integer, the quota and what bound it")
    cores.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ..detection import detect, usable_cores

    rounding: Rounding | None = options.rounding
    cores = usable_cores(rounding=rounding)
    if options.json:
        import json

        limits = detect()
        print(json.dumps({"usable_cores": cores, "quota": limits.quota, "bound_by": limits.bound_by}))
    else:
        print(cores)
    return 0
