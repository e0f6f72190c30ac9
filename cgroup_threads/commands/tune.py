"""``cgroup-threads tune``: how many threads are enough, measured."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from ..errors import CgroupThreadsError
from ..notices import shown
from . import PROG
from .parsing import RAW, confidence, seconds, worker_count

if TYPE_CHECKING:
    from ..tuning.records import TuneResult

PLACEHOLDER: Final = "{threads}"
_EPILOG: Final = """\
examples:
  cgroup-threads tune model.gguf                        tokens a second, decoding and reading prompts apart
  cgroup-threads tune path/to/all-MiniLM-L6-v2          sentences a second of a sentence-transformers directory
  cgroup-threads tune model.onnx                        calls a second of an onnxruntime session
  cgroup-threads tune service:predict                   a function of the thread count: predict(threads)
  cgroup-threads tune -- ./bench --threads {threads}    any command, whole processes; {threads} is replaced
  cgroup-threads tune model.gguf --plot knee.svg        and draw it (needs matplotlib: the extra plot)
  cgroup-threads tune model.gguf --save                 and keep it: the factories and govern use it from now on
  cgroup-threads tune model.gguf --markdown             to paste into an issue

The knee is the smallest count within 3 % of the best; more threads than usable cores are measured to show what they
do, and never recommended. Run it where the service runs, in its container and under its quota, on an idle machine.
Ctrl-C ends it and what it started. Every option goes before `--`.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tune",
        help="measure how many threads are enough",
        epilog=_EPILOG,
        formatter_class=RAW,
        usage=f"{PROG} tune [options] TARGET\n       {PROG} tune [options] -- CMD [ARGS ...] (with {PLACEHOLDER})",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="*",
        help=f"a .gguf or .onnx file, a model's directory, module:function, or a command with {PLACEHOLDER}",
    )
    parser.add_argument(
        "--max-threads", type=worker_count, metavar="N", help="highest count (default: two above the usable cores)"
    )
    parser.add_argument(
        "--rounds", type=worker_count, default=15, metavar="N", help="rounds of each count at most (default: 15)"
    )
    parser.add_argument("--seconds", type=seconds, default=1.0, help="length of a round (default: 1)")
    parser.add_argument(
        "--time-limit", type=seconds, default=300.0, metavar="SECONDS", help="length of the run at most (default: 300)"
    )
    parser.add_argument(
        "--confidence",
        type=confidence,
        default=0.95,
        metavar="SHARE",
        help="end as soon as the recommendation is this sure (default: 0.95)",
    )
    parser.add_argument(
        "--task", action="append", choices=("decode", "prefill"), help="of a GGUF file, this one only (default: both)"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--plot", metavar="FILE", help="draw it into a .svg or .png file")
    parser.add_argument(
        "--save",
        nargs="?",
        const=True,
        default=False,
        metavar="PATH",
        help="save a profile (where it is found, or here)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ..measuring.ending import ending_on_signals
    from ..measuring.progress import Progress
    from ..tuning.tuner import tune

    target = choose_target(options.target, options.save)
    if options.plot is not None:
        from ..tuning.plot import check_plot

        check_plot(options.plot)
    progress = Progress(options.quiet)
    with ending_on_signals(), contextlib.closing(progress):
        result = tune(
            target,
            max_threads=options.max_threads,
            rounds=options.rounds,
            seconds=options.seconds,
            time_limit=options.time_limit,
            confidence=options.confidence,
            save=options.save,
            progress=progress,
            tasks=None if options.task is None else tuple(dict.fromkeys(options.task)),
        )
    print(_show(result, options), flush=True)  # before the picture, which may fail
    if options.plot is not None:
        from ..tuning.plot import plot

        plot(result, options.plot)
        if not options.quiet and sys.stderr is not None:
            print(f"{PROG}: drawn into {options.plot}", file=sys.stderr)
    return 0


def choose_target(words: list[str], save: bool | str = False) -> str | list[str]:
    """One word is a file or a function; several, or one with the placeholder, are a command."""
    if not words or not words[0]:
        hint = f" (--save took {shown(save)} as its directory: put it last)" if isinstance(save, str) else ""
        raise CgroupThreadsError(f"tune: no target given{hint or f' (see {PROG} tune --help)'}")
    if any(PLACEHOLDER in word for word in words):
        return words
    if len(words) > 1:
        raise CgroupThreadsError(f"tune: the command has no {PLACEHOLDER} to put the thread count in")
    return words[0]


def _show(result: TuneResult, options: argparse.Namespace) -> str:
    from ..tuning.render import markdown, render, to_json

    if options.json:
        return to_json(result)
    return markdown(result) if options.markdown else render(result)
