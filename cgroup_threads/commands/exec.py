"""``cgroup-threads exec``: run a command with everything set, in place of this process."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from ..errors import CgroupThreadsError
from ..marker import MARKER
from . import PROG
from .parsing import RAW, worker_count

if TYPE_CHECKING:
    from ..launching import Launch

EXIT_CANNOT_RUN: Final = 126
EXIT_NOT_FOUND: Final = 127
MAX_SHOWN: Final = 40
_EPILOG: Final = """\
examples:
  cgroup-threads exec -- llama-server -m model.gguf        adds --threads and --threads-batch, unless given
  cgroup-threads exec -- gunicorn -w 4 service:app         pools without leases get a quarter of the cores
  cgroup-threads exec --workers 4 -- ./start-four.sh       the same, for a command it does not know
  cgroup-threads exec --dry-run -- python -m llama_cpp.server --model model.gguf

The command takes this process's place: process id, signals and exit status are its own. Your own arguments and
variables are kept. Exit codes of exec itself: 127 the command was not found, 126 it cannot be run.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "exec",
        help="run a command with thread counts that fit",
        epilog=_EPILOG,
        formatter_class=RAW,
        usage=f"{PROG} exec [-h] [--workers N] [--dry-run [--json]] -- CMD [ARGS ...]",
    )
    parser.add_argument(
        "--workers",
        type=worker_count,
        metavar="N",
        help="processes that share the cores (default: as the command's own arguments say, else 1)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be passed and why, and run nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: print JSON")
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command or not command[0]:
        raise CgroupThreadsError(f"exec: no command given (see {PROG} exec --help)")
    if options.json and not options.dry_run:
        raise CgroupThreadsError("exec: --json needs --dry-run")
    if options.dry_run and sys.stdout is None:
        raise CgroupThreadsError("standard output is closed")
    launch = prepare(command, options.workers)
    if options.dry_run:
        print(to_json(launch) if options.json else render(launch))
        return 0
    return replace_process(launch)


def prepare(command: list[str], workers: int | None) -> Launch:
    """Decide what the command gets on this machine."""
    from .. import environment, planning
    from ..launching import choose_workers, decide
    from ..programs import recognise
    from ..shells import starting_environ
    from ..state import process

    before = starting_environ()
    program = recognise(command, process.user_environ(), os.path.isfile)
    count, source = choose_workers(program, workers, process.settings, planning.current_plan().usable)
    plan = planning.plan(workers=count)
    environment.apply(plan)  # in this process, which ends here: the child's environment is built from it
    return decide(command, program, plan, source, before, environment.child_environment())


def replace_process(launch: Launch) -> int:
    """Become the command. Returns only if that fails."""
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):  # Python ignores them, and what is ignored is inherited
        number = getattr(signal, name, None)
        if number is not None:
            signal.signal(number, signal.SIG_DFL)
    environ = {name: value for name, value in launch.environment.items() if name}  # Python takes no empty name
    try:
        os.execvpe(launch.command[0], launch.command, environ)
    except OSError as error:
        message = f"{PROG}: error: {shlex.quote(launch.command[0])}: {error.strerror}"
        if sys.stderr is not None:
            line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
            print(line.encode("ascii", "backslashreplace").decode(), file=sys.stderr)
        return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_RUN


def render(launch: Launch) -> str:
    """The launch as text: the command line can be pasted into a shell (bash, zsh), and everything stays one line."""
    first, *words = launch.command
    command = f"'{first}'" if "=" in first and quote(first) == first else quote(first)  # else it were an assignment
    lines = [launch.summary, "", "Command", f"  {' '.join((command, *map(quote, words)))}"]
    if launch.arguments:
        lines += ["", "Arguments"]
        rows = [("add" if a.words else "keep", " ".join(a.words) or a.option, a.reason) for a in launch.arguments]
        lines += _align(rows)
    lines += ["", "Variables"]
    lines += _align([(v.action, _assignment(v.name, v.value), v.reason) for v in launch.variables])
    if launch.notes:
        lines += ["", "Notes", *(f"  - {note}" for note in launch.notes)]
    return "\n".join(lines)


def to_json(launch: Launch) -> str:
    """The launch as JSON."""
    import json

    found = {
        "command": launch.command,
        "summary": launch.summary,
        "arguments": [argument._asdict() for argument in launch.arguments],
        "variables": [variable._asdict() for variable in launch.variables],
        "notes": launch.notes,
    }
    return json.dumps(found, indent=2)


def quote(word: str) -> str:
    """``word`` quoted for a shell, in printable ASCII on one line."""
    from ..shells import quote_word

    if word.isascii() and word.isprintable():
        return quote_word(word)
    plain = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    parts = (
        plain.get(c) or (c if c.isascii() and c.isprintable() else "".join(f"\\x{b:02x}" for b in os.fsencode(c)))
        for c in word
    )
    return f"$'{''.join(parts)}'"


def _assignment(name: str, value: str | None) -> str:
    if value is None or name == MARKER:  # the marker repeats the others
        return name
    return f"{name}={quote(value)}" if len(value) <= MAX_SHOWN else f"{name}={quote(value[:MAX_SHOWN])}..."


def _align(rows: list[tuple[str, str, str]]) -> list[str]:
    width = min(max(len(row[1]) for row in rows), MAX_SHOWN)
    return [f"  {action:<5}  {text:<{width}}  {reason}".rstrip() for action, text, reason in rows]
