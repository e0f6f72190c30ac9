"""The simulation of policies agrees with queueing theory and with sums by hand, and runs the rule of the runtime."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import policy_simulation
from benchmarks.policies import TABLE, Fixed, Governor, Rule, Varied, latencies_of, theory
from benchmarks.simulated_calls import (
    SPINNING,
    SWITCHING,
    Cell,
    Load,
    all_cells,
    curve_of,
    default_cells,
    load_of,
    mean_sojourn,
    simulate,
    summarize,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "policy.md"


def run(policy: str, cell: Cell, calls: int = 600, seed: int = 1) -> list[float]:
    return latencies_of(TABLE[policy], cell, curve_of(cell.curve, cell.budget), load_of(cell, calls, seed))


def test_theory_is_the_textbooks() -> None:
    assert mean_sojourn(1, 0.5) == pytest.approx(2.0)  # 1 / (1 - load)
    assert mean_sojourn(1, 0.9) == pytest.approx(10.0)
    assert mean_sojourn(2, 0.5) == pytest.approx(4 / 3)  # 1 / (1 - load**2)


def test_simulated_queues_agree_with_theory() -> None:
    for title, exact, simulated in theory(seed=1, calls=60_000):
        assert simulated == pytest.approx(exact, rel=0.05), title


def two_at_once(budget: int, threads: int, admission: bool) -> list[float]:
    load = Load(times=(0.0, 0.0), works=(1.0, 1.0))
    return simulate(budget, curve_of("linear", budget), load, lambda cores: Fixed(cores, threads, admission))


def test_two_calls_by_hand() -> None:
    assert two_at_once(2, 1, admission=False) == pytest.approx([1.0, 1.0])
    assert two_at_once(2, 2, admission=True) == pytest.approx([0.5, 1.0])
    assert two_at_once(1, 1, admission=False) == pytest.approx([2 * (1 + SWITCHING)] * 2)
    assert two_at_once(2, 2, admission=False) == pytest.approx([1 + SWITCHING + SPINNING] * 2)


def test_a_later_call_shares_from_when_it_comes() -> None:
    load = Load(times=(0.0, 0.5), works=(1.0, 1.0))
    found = simulate(1, curve_of("linear", 1), load, lambda cores: Fixed(cores, 1, False), switching=0.0)
    assert found == pytest.approx([1.5, 1.5])  # halves from 0.5 to 1.5, then the second one alone to 2


def test_calls_that_share_memory_bandwidth_slow_each_other() -> None:
    curve = curve_of("shared", 8)  # one call: twice as fast at most; all together four times
    load = Load(times=(0.0,) * 4, works=(1.0,) * 4)
    assert simulate(8, curve, load, lambda cores: Fixed(cores, 2, True)) == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("arrival", ["poisson50", "onoff50", "batchall", "closed10", "think10"])
def test_admission_keeps_within_the_cores(arrival: str) -> None:
    cell = Cell(16, "amdahl90", arrival, "mixed")

    class Checked(Governor):
        def cores(self, running: int, waiting: int, free: int) -> int:
            assert 0 <= free <= 16
            granted = super().cores(running, waiting, free)
            assert 0 <= granted <= free
            assert granted or running, "it waits for nobody"
            return granted

    load = load_of(cell, 600, 1)
    assert min(simulate(16, curve_of(cell.curve, 16), load, lambda cores: Checked(cores, cores))) > 0


@pytest.mark.parametrize("cell", default_cells()[:: len(default_cells()) // 12], ids=lambda cell: cell.name)
def test_the_rule_that_is_varied_is_the_runtimes(cell: Cell) -> None:
    """Fails if arbitration.py has changed: give Rule its new defaults and measure docs/policy.md anew."""
    curve, load = curve_of(cell.curve, cell.budget), load_of(cell, 500, 1)
    ours = simulate(cell.budget, curve, load, lambda cores: Governor(cores, curve.top))
    assert simulate(cell.budget, curve, load, lambda cores: Varied(cores, curve.top, Rule())) == ours


def test_two_callers_back_to_back_do_not_form_a_convoy() -> None:
    cell = Cell(64, "amdahl90", "closed2", "equal")
    assert summarize(run("ours", cell)).mean < 0.7 * summarize(run("clamp", cell)).mean


def test_one_caller_gets_all_cores() -> None:
    cell = Cell(64, "amdahl99", "closed1", "equal")
    assert run("ours", cell) == pytest.approx([1 / curve_of("amdahl99", 64).rate[64]] * 600)


def test_seeds() -> None:
    cell = Cell(4, "flat", "onoff20", "mixed")
    assert run("ours", cell) == run("ours", cell) != run("ours", cell, seed=2)


def test_names_of_cells_are_unique_and_the_default_has_every_pair() -> None:
    names = [cell.name for cell in all_cells()]
    assert len(set(names)) == len(names) == 3 * len(default_cells())
    assert {cell.name for cell in default_cells()} <= set(names)
    assert {(cell.curve, cell.work) for cell in default_cells()} == {(cell.curve, cell.work) for cell in all_cells()}


def test_output_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_simulation, "THEORY_CALLS", 2000)
    found = tmp_path / "figures.json"
    arguments = ["--quick", "--cell", "4/amdahl90/poisson*/equal", "--json", str(found)]
    assert policy_simulation.main(arguments) == 0
    shown = capsys.readouterr()
    assert all(entry.title in shown.out for entry in TABLE.values())
    assert not shown.err  # no progress bar in a file
    record = json.loads(found.read_text())
    assert len(record["cells"]) == 4
    for measure in ("mean", "p99"):
        averages = [record["regret"][name][measure]["average"] for name in TABLE]
        assert 1.0 <= min(averages) < 2.0 < max(averages)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cell", "3/*"], "no cell matches 3/*; --list-cells prints their names"),
        (["--cores", "0,4"], "--cores 0,4: not numbers from 2 to 1024 with commas between"),
        (["--json", "/nowhere/at/all.json"], "no such directory: /nowhere/at"),
        (["--plot", "figure.svg"], "--plot needs matplotlib: python -m pip install matplotlib"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        policy_simulation.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"policy_simulation: {says}\n"


def test_the_document_has_every_policy() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert not [entry.title for entry in TABLE.values() if f"| {entry.title} |" not in text]
