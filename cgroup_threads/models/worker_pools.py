"""Pools of worker processes that sentence-transformers starts for one model: each gets its share of the cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..environment import child_environment
from ..state import process
from .instance_methods import InstanceMethod

POOL_START: Final = "start_multi_process_pool"
_LOCK: Final = "pool-start"
_DEFAULT: Final = 4  # what sentence-transformers starts without devices


class PoolStart(InstanceMethod):
    """``start_multi_process_pool`` whose processes divide this one's cores."""

    __slots__ = ()

    def __call__(self, target_devices: list[str] | None = None) -> Any:
        with environ_of_workers(_number(target_devices)):
            return self.__wrapped__(target_devices)


def _number(devices: list[str] | None) -> int:
    if devices is not None:
        return max(1, len(devices))
    import torch

    return torch.cuda.device_count() or _DEFAULT


@contextmanager
def environ_of_workers(workers: int) -> Iterator[None]:
    """Inside, ``os.environ`` is that of one of ``workers`` child processes: spawned ones copy it, and take no other."""
    with process.lock:
        lock = process.hooks.setdefault(_LOCK, threading.RLock())
    assert hasattr(lock, "acquire")
    with lock:  # type: ignore[attr-defined]
        before = dict(os.environ)
        child = child_environment(workers=workers)
        _change(before, child)
        try:
            yield
        finally:
            _change(child, before)


def _change(old: dict[str, str], new: dict[str, str]) -> None:
    """Change in ``os.environ`` what differs between the two; what others changed meanwhile stays."""
    for name in old.keys() - new.keys():
        if os.environ.get(name) == old[name]:
            del os.environ[name]
    for name, value in new.items():
        if old.get(name) != value and os.environ.get(name) == old.get(name):
            os.environ[name] = value
