"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# How fast an example runs is the machine's affair: pytest-timeout ends one that hangs.
settings.register_profile("here", deadline=None)
settings.load_profile("here")
