"""Settings of all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.ran import Ran

# How fast an example runs is the machine's affair: pytest-timeout ends one that hangs. Where all tests must run
# (``.ci/run``), and where hypothesis itself sees a CI, the same examples come each time; a failure says how to get it.
fixed = settings().derandomize or os.environ.get("CGROUP_THREADS_LAB") == "required"
if fixed:
    settings.register_profile("here", deadline=None, derandomize=True, database=None, print_blob=True)
else:
    settings.register_profile("here", deadline=None)
settings.load_profile("here")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ran())
