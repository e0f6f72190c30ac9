"""docs/report.md names every notice the package can leave, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Functions that are given a code, or the part of one, and make the notice: name -> (argument, text of the code).
MAKERS = {"_nowhere": (1, "{}"), "note_above_usable": (0, "{}-threads-above-usable")}
LEVELS = {"info": "note", "warning": "warning", "problem": "problem"}


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """File, name of the called function and call, for each call in the package."""
    for path in sorted((ROOT / "cgroup_threads").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield f"{path.name}:{node.lineno}", getattr(node.func, "id", getattr(node.func, "attr", "")), node


def codes() -> set[str]:
    found = set()
    computed = 0
    for place, name, call in calls():
        if name == "Notice":
            if isinstance(call.args[0], ast.Constant):
                found.add(call.args[0].value)
            else:
                computed += 1
        elif name in MAKERS:
            index, text = MAKERS[name]
            argument = call.args[index]
            assert isinstance(argument, ast.Constant), place
            found.add(text.format(argument.value))
    assert computed == len(MAKERS), "a function that makes notices of computed codes is missing in MAKERS"
    return found


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "report.md").read_text()
    table = text.partition("<!-- codes -->")[2].partition("<!-- end of codes -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_code_is_documented_and_every_documented_code_exists() -> None:
    documented = [row[0].strip("`") for row in rows()]
    assert sorted(documented) == documented
    assert set(documented) == codes()
    assert len(documented) == len(set(documented))


def test_codes_are_kebab_case() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|throttled|inherited", code) for code in codes())


def test_each_row_has_levels_a_meaning_and_what_to_do() -> None:
    for row in rows():
        assert len(row) == 4, row
        assert all(row), row
        assert set(row[1].split(", ")) <= set(LEVELS.values()), row


def test_documented_levels_are_those_of_the_code() -> None:
    """Where a notice's level stands in its call as a word, or is missing ("info")."""
    documented = {row[0].strip("`"): row[1].split(", ") for row in rows()}
    for place, name, call in calls():
        if name != "Notice" or not isinstance(call.args[0], ast.Constant):
            continue
        level = call.args[2] if len(call.args) > 2 else ast.Constant("info")
        if isinstance(level, ast.Constant):
            assert LEVELS[level.value] in documented[call.args[0].value], f"{place}: {call.args[0].value}"
