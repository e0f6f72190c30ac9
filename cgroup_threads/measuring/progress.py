"""A one-line progress bar on a terminal's standard error."""

from __future__ import annotations

import sys
import time
from typing import Final

WIDTH: Final = 24


class Progress:
    """Draws where standard error is a terminal and ``quiet`` is false; silent otherwise."""

    def __init__(self, quiet: bool = False) -> None:
        self.active = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self.start = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Draw ``done`` of ``total`` steps and what goes on."""
        if not self.active:
            return
        filled = WIDTH * done // max(1, total)
        bar = "#" * filled + "-" * (WIDTH - filled)
        self._draw(f"[{bar}] {done}/{total} {what}, {time.monotonic() - self.start:.0f} s")

    def close(self) -> None:
        """Clear the line."""
        if self.active:
            self._draw("")

    def _draw(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
