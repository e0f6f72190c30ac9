"""Every known field case has a row in docs/field-cases.md, and the tests its row names exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_case_is_shown_by_a_test_or_has_a_reason() -> None:
    cases = {case["id"] for case in json.loads((ROOT / "tests" / "data" / "field_cases.json").read_text())}
    rows = {}
    for line in (ROOT / "docs" / "field-cases.md").read_text().splitlines():
        found = re.match(r"\| \[?([A-Z]\d\d)\]?.*\| (.+) \|$", line)
        if found:
            rows[found[1]] = found[2]
    assert set(rows) == cases
    for case, shown in rows.items():
        assert shown, case
        for name in re.findall(r"[\w/]+\.(?:py|md)", shown):
            known = [ROOT / name, ROOT / "tests" / name]
            assert any(path.exists() for path in known), f"{case}: {name}"
