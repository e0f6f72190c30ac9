"""docs/variables.md and docs/budget.md say what the code does: their tables and numbers are those of the code.

python -m tests.test_variables_doc      write the table of variables anew
"""

from __future__ import annotations

import re
from pathlib import Path

from cgroup_threads import Statistics
from cgroup_threads.governor.arbitration import DURATIONS_PER_TAU
from cgroup_threads.governor.core_budget import CHECK_S
from cgroup_threads.governor.queue import MAX_WAIT_S, MIN_STALL_S, STALL_DURATIONS
from cgroup_threads.governor.slot_rows import MAX_SLOTS, ROWS
from cgroup_threads.settings import PREFIX, Settings
from cgroup_threads.variables import SPINCOUNT, VARIABLES, Kind, Stage

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "variables.md"
NUMBERS: dict[Kind, str] = {
    "threads": "plan",
    "pool": "plan, or its share of the resize ceiling",
    "maximum": "plan, or its share of the resize ceiling",
    "cores": "cores, or their share of the resize ceiling",
    "cpus": "cores",
    "interop": "1",
    "spin": f"{SPINCOUNT}, where a quota binds",
    "limit": "usable cores, the resize ceiling, or your larger OMP_NUM_THREADS",
}
STAGES: dict[Stage, str] = {"import": "import", "child": "child processes", "opt-in": "on request"}


def render_variables() -> str:
    """The rows of the table of variables."""
    rows = ["| variable | read by | caps | number | read for good at | afterwards | set at |", "|" + "---|" * 7]
    for variable in VARIABLES:
        cells = (variable.library, variable.caps, NUMBERS[variable.kind], variable.latched, variable.setter)
        rows.append(f"| `{variable.name}` | {' | '.join(cells)} | {STAGES[variable.stage]} |")
    return "\n".join(rows)


def section(text: str, name: str) -> str:
    """What stands between the marks of ``name``."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


def test_the_table_of_variables_is_the_codes() -> None:
    assert section(PAGE.read_text(encoding="utf-8"), "variables") == render_variables()


def test_every_setting_has_a_row_with_its_default() -> None:
    rows = {}
    for line in section(PAGE.read_text(encoding="utf-8"), "settings").splitlines()[2:]:
        name, default = (cell.strip().strip("`") for cell in line.split("|")[1:3])
        rows[name] = default
    shown = {True: "1", False: "0", None: "not set"}
    defaults = Settings()._asdict()
    expected = {
        PREFIX + name.upper(): shown[value] if value is None or isinstance(value, bool) else value
        for name, value in defaults.items()
        if name not in ("workers_source", "notices")
    }
    assert rows == expected


def test_the_readme_names_every_setting() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Settings\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    expected = {PREFIX + name.upper() for name in Settings._fields if name not in ("workers_source", "notices")}
    assert sorted(names) == sorted(expected)


def test_the_page_of_the_budget_has_the_numbers_of_the_code() -> None:
    text = " ".join((ROOT / "docs" / "budget.md").read_text(encoding="utf-8").split())
    assert f"over some {DURATIONS_PER_TAU:g} call durations" in text
    assert f"{MAX_WAIT_S:g} seconds at most" in text
    assert STALL_DURATIONS == 3
    assert f"for three mean call durations, at least {MIN_STALL_S:g} s" in text
    assert f"at most every {1000 * CHECK_S:g} ms" in text
    assert f"At most {MAX_SLOTS} cores and {ROWS} processes" in text


def test_the_page_of_the_budget_explains_every_statistic() -> None:
    text = (ROOT / "docs" / "budget.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+) \|", text.partition("## What it has done")[2], re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(cells)) == list(Statistics._fields)


def test_names_of_followers_are_the_codes() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    names = ", ".join(f"`{variable.name}`" for variable in VARIABLES if variable.falls_back)
    assert f"Libraries that fall back to it ({names})" in text


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(section(page, "variables"), render_variables()), encoding="utf-8")
