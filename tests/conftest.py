"""Settings of all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.ran import Ran

# How fast an example runs is the machine's affair: pytest-timeout ends one that hangs.
settings.register_profile("here", deadline=None)
settings.load_profile("here")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ran())
