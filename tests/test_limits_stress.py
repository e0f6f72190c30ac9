"""1 600 overlapping limits from threads and tasks; the same script shows that threadpoolctl's do not hold."""

from __future__ import annotations

import json
import sys

import pytest

from tests.lab import require_module
from tests.lab.commands import ROOT, run


@pytest.mark.parametrize(("arm", "holds"), [("ours", True), ("controller", False)])
def test_overlapping_limits(arm: str, holds: bool) -> None:
    require_module("numpy")
    done = run([sys.executable, str(ROOT / "benchmarks" / "limiter_stress.py"), "--arm", arm])
    assert done.returncode == (0 if holds else 1), done.stderr
    result = json.loads(done.stdout)
    assert result["limits"] == 1600
    assert (result["above_the_limit"] == 0 and result["baseline_exact"]) is holds
