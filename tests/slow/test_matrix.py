"""The light tests on other Pythons, and those of pools and limits with the oldest threadpoolctl that is allowed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.matrix import ELSEWHERE, ROOT, beside, other_python, run_tests, unexpected_skips

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.where("other Pythons: the runs as a whole")]
OLDEST = "3.5.0"
# What finds pools through threadpoolctl, and what watches their counts.
POOLS = ("test_pools_*.py", "test_limits_*.py", "test_import.py", "test_running_threads.py", "test_reporting_judge.py")


def _run(record_property: Callable[[str, object], None], where: str, python: str, tests: list[str], least: int) -> None:
    """Run the tests; ``least`` of them must pass, and none may be skipped but for a library that is not there."""
    ran = run_tests(python, [*tests, *(f"--deselect=tests/{name}" for name in ELSEWHERE)])
    counts = {"passed": ran.passed, "failed": ran.failed, "skipped": ran.skipped.total(), "deselected": ran.deselected}
    record_property("ran", {"where": where, **counts, "seconds": ran.seconds})
    assert ran.failed == 0, ran.said
    assert not unexpected_skips(ran)
    assert ran.passed >= least, f"only {ran.passed} tests passed, {dict(ran.skipped)} were skipped"


def test_what_is_not_run_again_is_there() -> None:
    missing = [name for name in ELSEWHERE if not (ROOT / "tests" / name).exists()]
    assert not missing


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_light_tests_on_another_python(version: str, record_property: Callable[[str, object], None]) -> None:
    if version == _running():
        pytest.skip(f"this is Python {version}: its light tests are the usual run")
    _run(record_property, f"Python {version}", other_python(version), ["tests"], least=1000)


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_the_oldest_threadpoolctl(version: str, record_property: Callable[[str, object], None]) -> None:
    behind = sys.executable if version == _running() else other_python(version)
    python = beside(f"threadpoolctl-{OLDEST}-{version}", behind, [f"threadpoolctl=={OLDEST}"])
    assert _version_of_threadpoolctl(python) == OLDEST
    tests = sorted(str(path) for pattern in POOLS for path in (ROOT / "tests").glob(pattern))
    _run(record_property, f"threadpoolctl {OLDEST}, Python {version}", python, tests, least=150)


def test_the_declared_oldest_threadpoolctl_is_the_tested_one() -> None:
    declared = re.search(r'"threadpoolctl>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared is not None
    assert f"{declared[1]}.0" == OLDEST


def _running() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _version_of_threadpoolctl(python: str) -> str:
    script = "import importlib.metadata, threadpoolctl; print(threadpoolctl.__version__)"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, timeout=60, cwd=Path("/"))
    return done.stdout.strip()
