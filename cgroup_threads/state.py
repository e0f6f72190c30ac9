"""The one holder of state that belongs to the process. Everything else is passed as values.

Modules keep no mutable globals of their own: what must outlive a call hangs on ``process``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .notices import Notice
from .settings import Settings, read_settings

if TYPE_CHECKING:
    from .detection.records import Observation
    from .environment import Applied
    from .planning import ThreadPlan
    from .pools.ledger import Ledger

MAX_NOTICES: Final = 200


class ProcessState:
    """What this process has seen and done since the package was imported."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.environ_before: dict[str, str] | None = None
        """The environment before we first wrote to it; None until then."""
        self.affinity: frozenset[int] | None = None
        """The affinity mask at import: OMP_PROC_BIND and GOMP_CPU_AFFINITY shrink it when libgomp loads."""
        self.observation: Observation | None = None
        """The last look at this machine: parts of it hold while the files they were decided from are the same."""
        self.applied: Applied | None = None
        self.plan: ThreadPlan | None = None
        """What would be applied, while nothing is."""
        self.ledger: Ledger | None = None
        self.generation = 0
        """How many forks lie between this process and the one that imported the package."""
        self.budget: object = None
        """The core budget (``governor.core_budget.CoreBudget``); made at first use."""
        self.slots: object = None
        """In a forked child: its part in the slots that its parent shared, until its own budget takes it over."""
        self.workers: object = None
        """The threads of ``run`` (``governor.workers.Workers``); made at first use."""
        self.configured: dict[str, Any] = {}
        """Settings that ``configure`` has put over those of the environment."""
        self.hooks: dict[str, object] = {}
        """Import hooks and wrapped callables by name, so that each is installed once."""
        self.overflows = 0
        """Calls that put things right after a full stack, now."""
        self.raised = (0, 0)
        """The limit on calls inside calls as it was, and as it was raised for them (``pools.guarding``)."""
        self._settings: Settings | None = None
        self._notices: dict[tuple[str, str], Notice] = {}
        self.warned = False
        """Whether the one CgroupThreadsWarning of a late import was emitted."""

    @property
    def settings(self) -> Settings:
        """The settings, read from the environment at first use."""
        if self._settings is None:
            self._settings = read_settings(self.user_environ())
        return self._settings

    def forget_settings(self) -> None:
        """Read the settings anew at the next use (tests and ``refresh`` need it)."""
        self._settings = self.plan = None

    def user_environ(self) -> Mapping[str, str]:
        """The environment as it was before us, or the present one if we have not written to it."""
        return os.environ if self.environ_before is None else self.environ_before

    def note(self, *notices: Notice) -> None:
        """Keep notices for the report; the same code and message is kept once, and their number is bounded."""
        with self.lock:
            for notice in notices:
                if len(self._notices) < MAX_NOTICES:
                    self._notices[(notice.code, notice.message)] = notice

    @property
    def notices(self) -> tuple[Notice, ...]:
        with self.lock:
            return tuple(self._notices.values())


process: Final = ProcessState()
