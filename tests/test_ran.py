"""The table of what ran where: no test is left out of it, and pytest's own line stays the last."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.ran import HERE

CONFTEST = """
from tests.ran import Ran

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: x")
    config.addinivalue_line("markers", "where(place): x")
    config.pluginmanager.register(Ran())
"""
TESTS = """
import pytest

def test_here(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("no such thing")

@pytest.fixture
def broken(): raise OSError
def test_setup_fails(broken): pass

@pytest.mark.where("container: x")
class TestContainer:
    def test_one(self): pass
    @pytest.mark.slow
    def test_two(self): pass

def test_inner(record_property):
    record_property("ran", {"where": "Python 3.99", "passed": 41, "deselected": 7, "seconds": 12.4})
"""


def run_inner(path: Path, lab: str) -> list[str]:
    (path / "conftest.py").write_text(CONFTEST)
    (path / "test_inner.py").write_text(TESTS)
    root = Path(__file__).parent.parent
    environ = {**os.environ, "CGROUP_THREADS_LAB": lab, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", str(path)]
    done = subprocess.run(command, cwd=path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.splitlines()


def test_all_are_counted_where_they_ran(tmp_path: Path) -> None:
    lines = run_inner(tmp_path, "required")
    start = next(number for number, line in enumerate(lines) if line.startswith("where "))
    rows = [[cell for cell in line.split("  ") if cell] for line in lines[start : start + 4]]
    assert [cell.strip() for cell in rows[0]] == ["where", "passed", "failed", "skipped", "not run", "seconds"]
    assert {row[0].strip(): [int(cell) for cell in row[1:5]] for row in rows[1:]} == {
        HERE: [2, 2, 1, 0],
        "container: x": [1, 0, 0, 1],
        "Python 3.99": [41, 0, 0, 7],
    }
    assert rows[3][5].strip() == "12"
    assert lines[-1].startswith("=")
    assert "3 passed" in lines[-1]


def test_it_is_shown_where_all_labs_are_asked_for(tmp_path: Path) -> None:
    assert not any("what ran where" in line for line in run_inner(tmp_path, ""))
