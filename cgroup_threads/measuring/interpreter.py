"""The interpreter that our children run in, and modules of ours as programs for it."""

from __future__ import annotations

import errno
import os
import sys


def find_interpreter() -> str:
    """Its path. Raises OSError in a frozen application (PyInstaller, cx_Freeze): the path would start that again."""
    if getattr(sys, "frozen", False):
        reason = "a frozen application has no Python interpreter to start (run cgroup-threads of an installed Python)"
        raise OSError(errno.ENOEXEC, reason)
    if not sys.executable:  # Python was embedded, or its program cannot be found
        raise OSError(errno.ENOENT, "no Python interpreter is known to start")
    return sys.executable


def find_program(name: str, path: str) -> list[str]:
    """The command that runs the module ``name`` of the file ``path`` alone, also out of a zip archive.

    It gets the standard library only. Raises OSError where it cannot be run.
    """
    command = [find_interpreter(), "-I", "-S"]
    if os.path.isfile(path):
        return [*command, os.path.abspath(path)]
    source = getattr(sys.modules[name].__loader__, "get_source", lambda _: None)(name)
    if source is None:
        raise OSError(errno.ENOENT, f"{name} has no source")
    return [*command, "-c", source]
