"""The machines of the light tests with many more examples."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.test_state_budget import BudgetMachine
from tests.test_state_ledger import LedgerMachine
from tests.test_state_slots import RealSlotsMachine, SlotsMachine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("machine", "examples"),
    [(LedgerMachine, 800), (BudgetMachine, 800), (SlotsMachine, 600), (RealSlotsMachine, 12)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_models_hold_for_long(machine: type[RuleBasedStateMachine], examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=50, suppress_health_check=checks)
    )
