"""numba's pool, once launched, has raised the OpenMP count of the thread that launched it (numba issue 9387)."""

from __future__ import annotations

import sys
from typing import Any

from ..state import process
from .modules import NUMBA_PARALLEL


def watch() -> None:
    """Have the launching thread's limit set again right after numba's pool starts; does nothing once it runs.

    The launch is a private function of numba that every user of the pool calls by its module; it is replaced until it
    has run once. Where it is not as expected, numba is left alone.
    """
    module: Any = sys.modules.get(NUMBA_PARALLEL)
    launch = getattr(module, "_launch_threads", None)
    if launch is None or getattr(module, "_is_initialized", True) or getattr(launch, "_cgroup_threads", False):
        return

    def launch_and_settle() -> None:
        launch()
        if module._launch_threads is launch_and_settle:
            module._launch_threads = launch
        now = process.ledger
        if now is not None:
            now.registry.dirty = True
            if now.shares:
                now.refresh()
                now.settle(doubt=True)

    launch_and_settle._cgroup_threads = True  # type: ignore[attr-defined]  # the mark looked for above
    module._launch_threads = launch_and_settle
