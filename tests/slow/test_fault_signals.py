"""The first block of a process, interrupted at one line in seven."""

from __future__ import annotations

import pytest

from tests.test_fault_signals import interrupt_the_first_block

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_the_first_block_of_all_interrupted_at_most_places() -> None:
    assert interrupt_the_first_block(step=7) == []
