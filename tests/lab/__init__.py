"""What a test may need from the machine, asked for in one place.

``require`` skips with the cause, or fails where ``CGROUP_THREADS_LAB=required`` is set: there a skip would hide that a
promise was not tested.
"""

from __future__ import annotations

import importlib.util
import os

import pytest


def require(condition: object, cause: str) -> None:
    """Go on if ``condition`` holds; otherwise skip the test (or fail it) naming ``cause``."""
    if condition:
        return
    if os.environ.get("CGROUP_THREADS_LAB") == "required":
        pytest.fail(f"CGROUP_THREADS_LAB=required, but {cause}")
    pytest.skip(cause)


def require_module(name: str) -> None:
    """Go on if the module ``name`` can be found, without importing it.

    Environments that are without it on purpose (``tests.lab.matrix``) name it in CGROUP_THREADS_LAB_WITHOUT.
    """
    if importlib.util.find_spec(name) is None and name in os.environ.get("CGROUP_THREADS_LAB_WITHOUT", "").split(","):
        pytest.skip(f"{name} is not part of this environment")
    require(importlib.util.find_spec(name) is not None, f"{name} is not installed")
