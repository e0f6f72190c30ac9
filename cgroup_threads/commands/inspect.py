"""``cgroup-threads inspect``: another process, judged from /proc."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from ..errors import CgroupThreadsError, first_line
from . import EXIT_PROBLEM, EXIT_USAGE, PROG
from .parsing import RAW, seconds

if TYPE_CHECKING:
    from ..reporting.inspecting import Inspection
    from ..reporting.inspecting.records import Verdict

_EPILOG: Final = """\
examples:
  cgroup-threads inspect 4242                  what its threads do with its cores, and what to change
  cgroup-threads inspect --all --check         every process here that runs Python or native pools; 1 on a problem
  cgroup-threads inspect 4242 --seconds 10 --json | jq .verdict

Works without privileges on processes of your own user; what could not be read is said.
"""
_ORDER: Final = {"problem": 0, "warning": 1, "ok": 2}
_WIDTH: Final = 100
_MAX_PID: Final = 1 << 22  # the kernel's own limit


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "inspect", help="judge another process: its threads on its cores", epilog=_EPILOG, formatter_class=RAW
    )
    parser.add_argument("pids", nargs="*", type=_pid, metavar="PID", help="processes to watch")
    parser.add_argument(
        "--all", action="store_true", help="all processes of this container that run Python, llama or native pools"
    )
    parser.add_argument(
        "--seconds", type=_interval, default=2.0, metavar="S", help="how long they are watched (default: 2)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 if a verdict is a problem")
    parser.set_defaults(run=run)


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _MAX_PID):
        raise argparse.ArgumentTypeError(f"{text!r} is not a process number")
    return int(text)


def _interval(text: str) -> float:
    number = seconds(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("the interval must be above 0 seconds")
    return number


def run(options: argparse.Namespace) -> int:
    from ..reporting.inspecting import InspectError, find_processes, inspect_processes, judge_together

    if bool(options.pids) == options.all:
        raise CgroupThreadsError(
            "name processes (PID ...) or give --all" if not options.pids else "PID or --all, not both"
        )
    pids, unread = find_processes() if options.all else (list(dict.fromkeys(options.pids)), 0)
    if unread and sys.stderr is not None:
        print(f"{PROG}: not readable by this user, and left out: {unread} processes", file=sys.stderr)
    if not pids:
        raise CgroupThreadsError("no process here runs Python, llama or a native pool that this user may read")
    results = inspect_processes(pids, seconds=options.seconds)
    found = [item for item in results if not isinstance(item, InspectError)]
    failed = [item for item in results if isinstance(item, InspectError)]
    together = judge_together([item.sample for item in found])
    if options.all:
        # Short-lived processes end all the time: that is no failure of the command.
        failed = [error for error in failed if error.reason != "gone"]
    for error in failed:
        if sys.stderr is not None:
            print(f"{PROG}: error: {first_line(error)}", file=sys.stderr)
    _show(options, found, together)
    if failed and not options.all:
        return EXIT_USAGE
    if not found:  # a check that judged nothing has not passed
        if not failed:
            raise CgroupThreadsError("every process ended while it was watched")
        return EXIT_USAGE
    problem = any(verdict.level == "problem" for verdict in (*(item.verdict for item in found), *together))
    return EXIT_PROBLEM if options.check and problem else 0


def _show(options: argparse.Namespace, found: list[Inspection], together: list[Verdict]) -> None:
    if options.json:
        import json

        single = not options.all and len(options.pids) == 1
        if single:
            print("\n".join(item.to_json() for item in found), end="\n" if found else "")
            return
        processes = [item.to_dict() for item in found]
        verdicts = [{**verdict._asdict(), "line": verdict.line} for verdict in together]
        print(json.dumps({"processes": processes, "together": verdicts}, indent=2))
        return
    for verdict in together:
        print(f"{verdict.line}\n")
    if options.all:  # a line each, problems first; with a PID the whole of it is shown
        for item in sorted(found, key=lambda item: _ORDER[item.verdict.level]):
            print(f"process {item.sample.pid}: {item.verdict.line}\n    {item.sample.command[:_WIDTH]}")
        return
    print("\n\n".join(str(item) for item in found), end="\n" if found else "")
