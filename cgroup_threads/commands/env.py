"""``cgroup-threads env``: thread variables for a shell."""

from __future__ import annotations

import argparse
from typing import Any, Final

from .parsing import RAW

SHELLS: Final = ("auto", "sh", "bash", "zsh", "fish")
_EPILOG: Final = """\
examples:
  eval "$(cgroup-threads env)"                 bash, zsh, sh
  cgroup-threads env --shell fish | source     fish

Your own values are kept (see `cgroup-threads report` for what is thought of them). Running it again, in the same
shell or after the container was resized, gives the values of today.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    env = commands.add_parser("env", help="print thread variables for a shell", epilog=_EPILOG, formatter_class=RAW)
    env.add_argument("--shell", choices=SHELLS, default="auto", help="syntax (default: that of the calling shell)")
    env.add_argument("--json", action="store_true", help="print JSON: what to set and what to unset")
    env.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ..environment import child_environment
    from ..shells import calling_shell, find_changes, format_statement, starting_environ

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
