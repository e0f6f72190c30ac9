"""Both type checkers accept what users write, and reject what they must not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import require_module

ROOT = Path(__file__).parent.parent
USE = ROOT / "tests" / "typed" / "api.py"
WRONG = "import cgroup_threads as ct\nct.limit_threads('2')\nct.detect(7.5)\nct.usable_cores(rounding='up')\n"


def check(checker: str, target: Path) -> subprocess.CompletedProcess[str]:
    require_module(checker)
    options = ["--strict", "--no-incremental"] if checker == "mypy" else []
    return subprocess.run(
        [sys.executable, "-m", checker, *options, str(target)], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_users_code_is_accepted(checker: str) -> None:
    done = check(checker, USE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_wrong_calls_are_rejected(checker: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = check(checker, wrong)
    assert done.returncode == 1
    for line in (2, 3, 4):
        assert f"wrong.py:{line}" in done.stdout
