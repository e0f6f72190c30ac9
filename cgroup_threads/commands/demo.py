"""``cgroup-threads demo``: inference measured, ungoverned and governed."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any, Final

from .parsing import RAW, quota, seconds, whole

_EPILOG: Final = """\
examples:
  cgroup-threads demo                          the best workload installed, about a minute
  cgroup-threads demo --model model.gguf --callers 8 --quota 2

Where the process may (root, or a delegated cgroup), both arms run in a CPU quota of their own, which is removed at
the end; where a quota is in force already, in that one.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    demo = commands.add_parser(
        "demo", help="measure inference, ungoverned and governed", epilog=_EPILOG, formatter_class=RAW
    )
    demo.add_argument("--callers", type=whole, default=4, metavar="N", help="concurrent callers (default: 4)")
    demo.add_argument("--seconds", type=seconds, default=3.0, help="length of a round (default: 3)")
    demo.add_argument("--rounds", type=whole, default=3, metavar="N", help="rounds of each arm (default: 3)")
    demo.add_argument(
        "--quota", type=quota, metavar="CORES", help="CPU quota to measure in (default: the one in force, else 1.0)"
    )
    demo.add_argument(
        "--workload",
        choices=("auto", "llama", "sentence-transformers", "numpy"),
        default="auto",
        help="default: the best installed",
    )
    demo.add_argument("--model", metavar="PATH", help="a .gguf file, or a sentence-transformers directory")
    demo.add_argument("--json", action="store_true", help="print JSON")
    demo.add_argument("--quiet", action="store_true", help="no progress on standard error")
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ..demo import run_demo
    from ..demo.table import render, to_json
    from ..demo.workloads import choose_workload
    from ..measuring.ending import ending_on_signals
    from ..measuring.progress import Progress

    progress = Progress(options.quiet or options.json)
    with ending_on_signals(), contextlib.closing(progress):
        result = run_demo(
            choose_workload(options.workload, options.model),
            callers=options.callers,
            seconds=options.seconds,
            rounds=options.rounds,
            quota=options.quota,
            tick=progress,
        )
    print(to_json(result) if options.json else render(result))
    return 0
