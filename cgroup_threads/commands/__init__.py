"""One file a command: its arguments, and what it does with them."""

from __future__ import annotations

from typing import Final

PROG: Final = "cgroup-threads"
EXIT_PROBLEM: Final = 1
EXIT_USAGE: Final = 2
