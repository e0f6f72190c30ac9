"""The table at the end of a run: what ran where, and what did not.

A test says where it runs with ``@pytest.mark.where("container: runc")``; without the mark it is this machine. A test
that starts test runs of its own (other Pythons) adds their counts with ``record_property("ran", {...})``.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

HERE: Final = f"this machine, Python {platform.python_version()}"
COUNTS: Final = ("passed", "failed", "skipped", "deselected")
HEADS: Final = ("where", "passed", "failed", "skipped", "not run", "seconds")


class Ran:
    """Counts tests by where they ran, and shows them where ``CGROUP_THREADS_LAB`` asks for all labs."""

    def __init__(self) -> None:
        self._where: dict[str, str] = {}
        self._rows: dict[str, dict[str, float]] = {HERE: _nothing()}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._where[item.nodeid] = _where(item)

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            self._add(_where(item), {"deselected": 1})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        where = self._where.get(report.nodeid, HERE)
        self._add(where, {"seconds": report.duration})
        # A fault of set-up or clean-up counts as a failure, as in pytest's own last line.
        if report.when == "call" or not report.passed:
            self._add(where, {report.outcome: 1})
        if report.when == "call":
            for name, value in report.user_properties:
                if name == "ran" and isinstance(value, Mapping):
                    self._add(str(value["where"]), {key: value.get(key, 0) for key in (*COUNTS, "seconds")})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not os.environ.get("CGROUP_THREADS_LAB"):
            return
        terminalreporter.section("what ran where")
        for line in self.table():
            terminalreporter.write_line(line)

    def table(self) -> list[str]:
        """Aligned lines, the heads first."""
        rows = [HEADS]
        for where, counts in self._rows.items():
            rows.append((where, *(f"{counts[name]:g}" for name in COUNTS), f"{counts['seconds']:.0f}"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
        return [
            "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(cells))
            for cells in (list(zip(row, widths, strict=True)) for row in rows)
        ]

    def _add(self, where: str, counts: Mapping[str, float]) -> None:
        row = self._rows.setdefault(where, _nothing())
        for name, value in counts.items():
            row[name] += value


def _nothing() -> dict[str, float]:
    return dict.fromkeys((*COUNTS, "seconds"), 0.0)


def _where(item: pytest.Item) -> str:
    mark = item.get_closest_marker("where")
    return str(mark.args[0]) if mark is not None else HERE
