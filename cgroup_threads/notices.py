"""Notices: what went differently from what was asked, as data with stable codes.

Importing never raises and never logs; whatever it meets becomes a Notice in the report.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from typing import Literal, NamedTuple

Level = Literal["info", "warning", "problem"]


class Notice(NamedTuple):
    """One finding.

    ``code`` is stable and in kebab-case; ``message`` is one line; ``level`` is "info" (explains),
    "warning" (worth a look) or "problem" (``report --check`` fails); ``fix`` says what to do, or is empty.
    """

    code: str
    message: str
    level: Level = "info"
    fix: str = ""


def shown(text: str, limit: int = 60) -> str:
    """Foreign text made safe for one line of a message: escaped by ``ascii`` and cut at ``limit`` characters."""
    return ascii(text if len(text) <= limit else text[:limit] + "...")
