"""The process of one arm: started inside the quota, sent rounds, its threads watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..errors import CgroupThreadsError
from ..measuring.child import Child, Start, user_environment, worker_environment
from ..measuring.quota import QuotaGroup
from ..measuring.sessions import Guard
from ..reporting.counters import count_threads
from .workloads import Workload

_ARM: Final = f"{__package__}.arm"


class DemoError(CgroupThreadsError, RuntimeError):
    """An arm of the demo failed; ``arm`` is its name, or empty where none could be started."""

    def __init__(self, arm: str, reason: str) -> None:
        self.arm = arm
        super().__init__(f"demo, arm {arm!r}: {reason}" if arm else f"demo: {reason}")


class Answer(NamedTuple):
    """What an arm sent for one request, and the most native threads it had meanwhile. None: the time ran out."""

    data: dict[str, Any] | None
    threads: int


def arm_environment(governed: bool) -> dict[str, str]:
    """The user's environment; the ungoverned arm leaves thread variables to the libraries."""
    environment = user_environment() if governed else worker_environment()
    if governed:
        environment.pop("CGROUP_THREADS_AUTO", None)
    return {**environment, "HF_HUB_OFFLINE": "1"}  # models come from local paths


class ArmProcess:
    """A running arm, for ``callers`` at once at most. ``close`` ends it in every case, ``guard`` if this process is
    killed."""

    def __init__(
        self, name: str, workload: Workload, callers: int, governed: bool, group: QuotaGroup | None, guard: Guard
    ) -> None:
        options = {"workload": workload, "callers": callers, "governed": governed}
        start = Start(_ARM, options, arm_environment(governed), procs=group.procs if group else "")
        self._child = Child(start, guard, lambda reason: DemoError(name, reason))

    def ask(self, callers: int, seconds: float, limit: float, tick: Callable[[], None]) -> Answer:
        """Run one round of ``seconds``; give it up ``limit`` seconds after it should have ended."""
        request = {"callers": callers, "seconds": seconds}
        return self._watch(tick, lambda look: self._child.ask(request, seconds + limit, look))

    def wait(self, limit: float, tick: Callable[[], None]) -> Answer:
        """The arm's next answer, within ``limit`` seconds. Raises DemoError if it failed or ended."""
        return self._watch(tick, lambda look: self._child.wait(limit, look))

    def _watch(self, tick: Callable[[], None], wait: Callable[[Callable[[], None]], dict[str, Any] | None]) -> Answer:
        threads = 0

        def look() -> None:
            nonlocal threads
            threads = max(threads, count_threads(self._child.pid))
            tick()

        data = wait(look)
        return Answer(data, threads)

    def close(self) -> None:
        """Kill the arm and wait for it."""
        self._child.close()
