"""The command line: ``cgroup-threads`` and ``python -m cgroup_threads``.

Exit codes: 0 done, 1 ``--check`` found a problem, 2 the command could not be understood or carried out (one line on
standard error), 130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from . import __version__
from .commands import EXIT_USAGE, PROG
from .errors import CgroupThreadsError, first_line

EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141

_DESCRIPTION: Final = "How many cores this container really has, and thread counts that fit them."
_EPILOG: Final = """\
examples:
  cgroup-threads                             what bounds this process, which variables and pools, what to mend
  cgroup-threads --check                     the same, and exit 1 if there is a problem (start scripts, CI)
  cgroup-threads exec -- llama-server -m x   run a command with threads that fit (--dry-run: what it gets, and why)
  eval "$(cgroup-threads env)"               set thread variables for programs that are not Python
  cgroup-threads demo                        measure this machine, as libraries choose and governed
  cgroup-threads tune model.gguf             find the fewest threads that are as good as the best (--plot, --save)
  cgroup-threads compare -- python job.py    a command as it is and governed: how much faster, and the same output?

In Python, `import cgroup_threads` at the top of the entry point does what `env` does, and
`print(cgroup_threads.report())` shows the pools of your own process, which this command cannot see.
"""


class _Parser(argparse.ArgumentParser):
    """Usage errors are one line."""

    def error(self, message: str) -> NoReturn:
        text = f"{self.prog}: error: {_one_line(message)} (see {self.prog} --help)\n"
        self.exit(EXIT_USAGE, None if sys.stderr is None else text)  # argparse of Python 3.10 would raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (default: ``sys.argv[1:]``) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")):
        arguments.insert(0, "report")
    if sys.stdout is None and arguments[0] != "exec":  # the caller closed it: a command to run may not mind
        return _fail("standard output is closed")
    try:
        _escape_output()
        code = _run(arguments)
        if sys.stdout is not None:
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


def _escape_output() -> None:
    """Names and commands of other processes may hold what the encoding of our output does not."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # another object may stand in its place
        if reconfigure is not None:
            try:
                reconfigure(errors="backslashreplace")
            except ValueError:  # it is closed: whoever writes to it will say so
                continue


def _fail(message: str) -> int:
    if sys.stderr is not None:  # print would take standard output instead
        print(f"{PROG}: error: {_one_line(message)}", file=sys.stderr)
    return EXIT_USAGE


def _one_line(message: str) -> str:
    """``message`` without what a terminal would obey: arguments and paths may hold newlines and escape sequences."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))


def _abandon_output() -> None:
    """The interpreter flushes standard output once more as it exits: let that go nowhere."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # an object in its place, without a file behind it
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _build_parser() -> argparse.ArgumentParser:
    from .commands import compare, cores, demo, env, exec, inspect, report, tune  # noqa: A004 - the command is called exec
    from .commands.parsing import RAW

    parser = _Parser(prog=PROG, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=RAW)
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (report, cores, env, exec, inspect, demo, tune, compare):
        command.add(commands)
    return parser
