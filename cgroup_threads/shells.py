"""Environment changes as shell statements. The functions are pure, but for the two that read /proc."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Final

from .detection.procfs import MEDIUM, Files
from .environment import WORKERS
from .marker import MARKER
from .state import process
from .variables import VARIABLES

MAX_ENVIRON: Final = 8 << 20  # Linux keeps argument strings and environment below a quarter of the stack limit


def starting_environ() -> Mapping[str, str]:
    """The environment this process was started with, values inherited from a governed parent included.

    Importing the package recomputes those, so ``os.environ`` does not tell them any more; /proc does. Elsewhere it is
    the user's environment without them.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            data = file.read(MAX_ENVIRON)
    except OSError:
        return process.user_environ()
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Our variables that differ, with their new value, or None for those to unset."""
    ours = (*(variable.name for variable in VARIABLES), WORKERS, MARKER)
    return {name: after.get(name) for name in ours if before.get(name) != after.get(name)}


def calling_shell() -> str:
    """``fish`` if the parent process is one, else ``sh``: $SHELL is the login shell, which may be another."""
    name = Files().read(f"/proc/{os.getppid()}/comm", MEDIUM).text or ""
    return "fish" if name.strip() == "fish" else "sh"


def format_statement(shell: str, name: str, value: str | None) -> str:
    """The statement that gives ``name`` its value, or unsets it, in ``shell`` ("fish" or one of the Bourne family).

    ``name`` must be a plain identifier; ``value`` may hold anything but NUL.
    """
    if shell == "fish":
        if value is None:
            return f"set -e {name};"
        # In fish's single quotes a backslash escapes itself and the quote, and nothing else.
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {name} '{quoted}';"
    return f"unset {name};" if value is None else f"export {name}={quote_word(value)};"


def quote_word(word: str) -> str:
    """``word`` quoted for shells of the Bourne family, zsh included: there an unquoted ``=name`` is name's path."""
    return f"'{word}'" if word.startswith("=") and shlex.quote(word) == word else shlex.quote(word)
