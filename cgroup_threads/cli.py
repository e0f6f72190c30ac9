"""The command line: ``cgroup-threads`` and ``python -m cgroup_threads``.

Exit codes: 0 done, 1 ``--check`` found a problem, 2 the command could not be understood or carried out (one line on
standard error), 130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from . import __version__
from .errors import CgroupThreadsError, first_line
from .settings import ROUNDINGS, Rounding, parse_cores

PROG: Final = "cgroup-threads"
COMMANDS: Final = ("report", "cores", "env", "demo")
SHELLS: Final = ("auto", "sh", "bash", "zsh", "fish")
MAX_CALLERS: Final = 256
EXIT_PROBLEM: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141

_DESCRIPTION: Final = "How many cores this container really has, and thread counts that fit them."
_EPILOG: Final = """\
examples:
  cgroup-threads                             what bounds this process, which variables and pools, what to mend
  cgroup-threads --check                     the same, and exit 1 if there is a problem (start scripts, CI)
  llama-server --threads $(cgroup-threads cores)
  eval "$(cgroup-threads env)"               set thread variables for programs that are not Python
  cgroup-threads demo                        measure this machine, as libraries choose and governed

In Python, `import cgroup_threads` at the top of the entry point does what `env` does, and
`print(cgroup_threads.report())` shows the pools of your own process, which this command cannot see.
"""
_REPORT_EPILOG: Final = """\
examples:
  cgroup-threads report --import numpy,torch   also show the pools these libraries make
  cgroup-threads report --interval 10          judge throttling over the next 10 seconds
  cgroup-threads report --json | jq .usable_cores
"""
_CORES_EPILOG: Final = """\
examples:
  llama-embedding --threads $(cgroup-threads cores) --threads-batch $(cgroup-threads cores) ...
  make -j"$(cgroup-threads cores --rounding ceil)"
"""
_ENV_EPILOG: Final = """\
examples:
  eval "$(cgroup-threads env)"                 bash, zsh, sh
  cgroup-threads env --shell fish | source     fish

Your own values are kept (see `cgroup-threads report` for what is thought of them). Running it again, in the same
shell or after the container was resized, gives the values of today.
"""
_DEMO_EPILOG: Final = """\
examples:
  cgroup-threads demo                          the best workload installed, about a minute
  cgroup-threads demo --model model.gguf --callers 8 --quota 2

Where the process may (root, or a delegated cgroup), both arms run in a CPU quota of their own, which is removed at
the end; where a quota is in force already, in that one.
"""


class _Parser(argparse.ArgumentParser):
    """Usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        line = " ".join(message.split())  # an argument may hold newlines
        self.exit(EXIT_USAGE, f"{self.prog}: error: {line} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (default: ``sys.argv[1:]``) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "report")
    if sys.stdout is None:  # the caller closed it
        return _fail("standard output is closed")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()
        return EXIT_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except CgroupThreadsError as error:
        return _fail(first_line(error))
    except OSError as error:  # a full disk behind standard output or the temporary directory
        _abandon_output()
        return _fail(": ".join(str(part) for part in (error.filename, error.strerror) if part) or first_line(error))
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        options = _build_parser().parse_args(arguments)
    except SystemExit as end:  # help, version and usage errors
        return int(end.code or 0)
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _fail(message: str) -> int:
    if sys.stderr is not None:  # print would take standard output instead
        print(f"{PROG}: error: {message}", file=sys.stderr)
    return EXIT_USAGE


def _abandon_output() -> None:
    """The interpreter flushes standard output once more as it exits: let that go nowhere."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # an object in its place, without a file behind it
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _build_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog=PROG, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    report = commands.add_parser(
        "report", help="limits, variables, pools and problems (default)", epilog=_REPORT_EPILOG, formatter_class=raw
    )
    report.add_argument("--json", action="store_true", help="print JSON")
    report.add_argument("--check", action="store_true", help="exit 1 if there is a problem")
    report.add_argument(
        "--interval", type=_seconds, default=0.0, metavar="SECONDS", help="judge throttling over the next SECONDS"
    )
    report.add_argument(
        "--import",
        dest="modules",
        type=_names,
        default=[],
        metavar="MODULES",
        help="import these first (comma-separated)",
    )
    report.set_defaults(run=_report)

    cores = commands.add_parser(
        "cores", help="print the usable cores, one integer", epilog=_CORES_EPILOG, formatter_class=raw
    )
    cores.add_argument("--rounding", choices=ROUNDINGS, help="how a fractional quota is rounded (default: floor)")
    cores.add_argument("--json", action="store_true", help="print JSON: the integer, the quota and what bound it")
    cores.set_defaults(run=_cores)

    env = commands.add_parser("env", help="print thread variables for a shell", epilog=_ENV_EPILOG, formatter_class=raw)
    env.add_argument("--shell", choices=SHELLS, default="auto", help="syntax (default: that of the calling shell)")
    env.add_argument("--json", action="store_true", help="print JSON: what to set and what to unset")
    env.set_defaults(run=_env)

    demo = commands.add_parser(
        "demo", help="measure inference, ungoverned and governed", epilog=_DEMO_EPILOG, formatter_class=raw
    )
    demo.add_argument("--callers", type=_whole, default=4, metavar="N", help="concurrent callers (default: 4)")
    demo.add_argument("--seconds", type=_seconds, default=3.0, help="length of a round (default: 3)")
    demo.add_argument("--rounds", type=_whole, default=3, metavar="N", help="rounds of each arm (default: 3)")
    demo.add_argument(
        "--quota", type=_quota, metavar="CORES", help="CPU quota to measure in (default: the one in force, else 1.0)"
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
    demo.set_defaults(run=_demo)
    return parser


def _seconds(text: str) -> float:
    number = 0.0 if text.strip() == "0" else parse_cores(text.strip().removesuffix("s"))
    if number is None or number > 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600")
    return number


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_CALLERS and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_CALLERS}")
    return int(text)


def _quota(text: str) -> float:
    number = parse_cores(text)
    if number is None or not 0.01 <= number <= 4096:  # the kernel's least quota is 1 ms of a 100 ms period
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores such as 1, 0.5 or 1500m")
    return number


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of module names")
    return names


def _report(options: argparse.Namespace) -> int:
    from .reporting import report

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


def _cores(options: argparse.Namespace) -> int:
    from .detection import detect, usable_cores

    rounding: Rounding | None = options.rounding
    cores = usable_cores(rounding=rounding)
    if options.json:
        import json

        limits = detect()
        print(json.dumps({"usable_cores": cores, "quota": limits.quota, "bound_by": limits.bound_by}))
    else:
        print(cores)
    return 0


def _env(options: argparse.Namespace) -> int:
    from .environment import child_environment
    from .shells import calling_shell, find_changes, format_statement, starting_environ

    changes = find_changes(starting_environ(), child_environment())
    if options.json:
        import json

        values = {name: value for name, value in changes.items() if value is not None}
        print(json.dumps({"set": values, "unset": [name for name in changes if name not in values]}, indent=2))
        return 0
    shell = calling_shell() if options.shell == "auto" else options.shell
    for name, value in changes.items():
        print(format_statement(shell, name, value))
    return 0


def _demo(options: argparse.Namespace) -> int:
    from .demo import run_demo
    from .demo.process import ending_on_signals
    from .demo.progress import Progress
    from .demo.table import render, to_json
    from .demo.workloads import choose_workload

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
