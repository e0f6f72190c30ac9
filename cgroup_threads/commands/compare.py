"""``cgroup-threads compare``: a command as it is and governed, and whether its output stays the same."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from ..errors import CgroupThreadsError
from . import EXIT_PROBLEM, PROG
from .parsing import RAW, seconds, whole, worker_count

if TYPE_CHECKING:
    from ..comparing.llama_reading import LlamaReading
    from ..comparing.records import Arm

MAX_LOG: Final = 64 << 20
_EPILOG: Final = """\
examples:
  cgroup-threads compare -- python embed.py texts.txt          times, throttling, and are the outputs equal?
  cgroup-threads compare --output vectors.npy -- ./embed       compares a file that the command writes
  cgroup-threads compare --ignore threads --runs 10 -- CMD     lines that name the threads do differ
  cgroup-threads compare --check -- CMD                        exit 1 if outputs differ or governed is slower
  kubectl logs pod | cgroup-threads compare --read-llama -     what llama.cpp's performance summary means

The command runs in your environment as it is, without what this package computed, and as `cgroup-threads exec` would
run it, in turns. A command that imports cgroup_threads itself is governed in both arms. Numbers in the outputs are
compared with a tolerance; what differs between runs of one arm (times, dates) is named and not blamed on threads.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compare",
        help="run a command as it is and governed: times, and are the outputs equal",
        epilog=_EPILOG,
        formatter_class=RAW,
        usage=f"{PROG} compare [options] -- CMD [ARGS ...]\n       {PROG} compare --read-llama FILE",
    )
    parser.add_argument("--runs", type=whole, default=5, metavar="N", help="measured runs of each arm (default: 5)")
    parser.add_argument("--warmup", type=_count, default=1, metavar="N", help="runs before those (default: 1)")
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="end a run after that long, and do not repeat it (default: 60)",
    )
    parser.add_argument("--workers", type=worker_count, metavar="N", help="as for exec: processes that share the cores")
    parser.add_argument("--input", metavar="FILE", help="standard input of every run (default: none)")
    parser.add_argument("--output", metavar="FILE", help="compare this file, not standard output (.npy, or text)")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        default=1e-5,
        metavar="X",
        help="relative, for numbers in the output (default: 1e-5)",
    )
    parser.add_argument(
        "--ignore", type=_pattern, action="append", default=[], metavar="REGEX", help="leave out lines with this"
    )
    parser.add_argument("--ignore-failure", action="store_true", help="compare runs that fail, too")
    parser.add_argument("--check", action="store_true", help="exit 1 if outputs differ, or governed is slower or fails")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.add_argument(
        "--read-llama",
        action="append",
        default=[],
        metavar="FILE",
        help="run nothing: explain the performance summaries of llama.cpp in a log (- for standard input)",
    )
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.read_llama:
        if command:
            raise CgroupThreadsError("compare: --read-llama runs no command")
        if options.markdown:
            raise CgroupThreadsError("compare: --read-llama prints text or, with --json, JSON")
        return _read_llama(options)
    if not command or not command[0]:
        raise CgroupThreadsError(f"compare: no command given (see {PROG} compare --help)")
    if sys.platform == "win32":
        raise CgroupThreadsError("compare: it needs Linux or macOS")
    return _compare(command, options)


def _compare(command: list[str], options: argparse.Namespace) -> int:
    from ..comparing.records import Terms
    from ..comparing.render import markdown, render, to_json
    from ..comparing.rounds import run_comparison
    from ..detection import detect
    from ..measuring.ending import ending_on_signals
    from ..measuring.progress import Progress
    from ..reporting.counters import binding_level

    level = binding_level(detect().levels)
    terms = Terms(
        rounds=options.runs,
        warmup=options.warmup,
        limit=options.time_limit,
        tolerance=options.tolerance,
        output=options.output,
        given=options.input,
        ignored=tuple(options.ignore),
        counters="" if level is None else level.path,
        go_on=options.ignore_failure,
    )
    plain, governed = make_arms(command, options.workers)
    progress = Progress(options.quiet or options.json)
    with ending_on_signals(), contextlib.closing(progress):
        comparison = run_comparison(plain, governed, terms, progress)
    form = to_json if options.json else markdown if options.markdown else render
    print(form(comparison))
    return EXIT_PROBLEM if options.check and comparison.fails else 0


def make_arms(command: list[str], workers: int | None = None) -> tuple[Arm, Arm]:
    """The command as it is, and as ``exec`` would run it."""
    from ..comparing.records import Arm
    from ..marker import MARKER, computed_values, read_marker
    from ..shells import starting_environ
    from .exec import prepare

    before = starting_environ()
    marker, _ = read_marker(before.get(MARKER))
    # What a governed parent (a shell with `env` evaluated, `exec`) computed is ours, and no part of "as it is".
    computed = computed_values(before, marker.values) if marker is not None else {}
    plain = {name: value for name, value in before.items() if name not in computed and name != MARKER}
    launch = prepare(command, workers)
    changed = sum(change.action == "set" and change.name != MARKER for change in launch.variables)
    words = [word for argument in launch.arguments for word in argument.words]
    parts = [launch.summary, f"{changed} variables", *([f"{' '.join(words)} added"] if words else [])]
    return (
        Arm("as it is", tuple(command), plain),
        Arm("governed", launch.command, launch.environment, "; ".join(parts)),
    )


def _read_llama(options: argparse.Namespace) -> int:
    import json

    from ..comparing.llama_reading import read_llama_summary

    reading = read_llama_summary(*map(_read_log, options.read_llama))
    if not reading.summaries:
        raise CgroupThreadsError("compare: no performance summary of llama.cpp was found (verbose=True prints one)")
    print(json.dumps(reading.to_dict(), indent=2) if options.json else str(reading))
    return EXIT_PROBLEM if options.check and _is_bad(reading) else 0


def _is_bad(reading: LlamaReading) -> bool:
    return any(notice.level == "problem" for notice in reading.notices)


def _read_log(path: str) -> str:
    if path != "-":
        with open(path, "rb") as file:  # the command line says what is wrong with it
            return file.read(MAX_LOG).decode("utf-8", "replace")
    if sys.stdin is None:
        raise CgroupThreadsError("compare: standard input is closed")
    return sys.stdin.buffer.read(MAX_LOG).decode("utf-8", "replace")


def _count(text: str) -> int:
    return 0 if text == "0" else whole(text)


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1, such as 1e-5")
    return number


def _pattern(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty regular expression leaves out every line")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
    return text
