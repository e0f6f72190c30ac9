"""The process's core budget: made at its first use, followed as limits change, replaced in a forked child."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from time import monotonic, thread_time
from typing import Final

from ..detection import detect
from ..detection.records import CpuLimits
from ..errors import InvalidArgumentError, check_threads, first_line
from ..notices import Notice
from ..planning import current_plan
from ..pools.ledger import current
from ..settings import MAX_COUNT, SCOPES, Scope, Settings, parse_count
from ..state import process
from ..variables import OMP
from .budget import Budget
from .sampling import Sampler
from .sizing import keep_known, process_size, shared_size, size
from .statistics import Statistics

# Detection costs 0.1 ms, 0.5 ms after a call has emptied the caches, and each worker process of a container looks for
# itself. Looking again at most this often, and never for more than a hundredth of the time, follows a resize within a
# second and costs nothing to speak of.
CHECK_S: Final = 0.25
CHECK_SHARE: Final = 0.01
# Where the user said one of these, the counts that pools began with are not ours.
_COUNTS: Final = (OMP, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")
# Libraries whose pools keep the size they were made with (see the table of variables).
_FIXED: Final = ("numba", "numexpr", "polars", "tokenizers", "tensorflow", "jax")
_HOOK: Final = "budget-fork"


class CoreBudget:
    """The budget in use with what it was made from. ``due_s`` is when limits are looked at again (monotonic)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = threading.RLock()
        """Taken by whoever looks at the limits; the others go on with what is known. Re-entrant for signal handlers
        that call ``refresh`` or ``configure``."""
        self.size = size(_limits(settings), settings)
        self.budget = self._make()
        self.known = self.size
        """What the limits gave when last known; ``size`` may follow a hidden limit below it."""
        self.top = _top()
        current().ours = _ours()
        self.sampler = Sampler()
        self.due_s = monotonic() + CHECK_S

    def look(self) -> None:
        """Read the limits again if it is time to, and resize the budget."""
        now = monotonic()
        if now < self.due_s or not self.lock.acquire(blocking=False):
            return
        try:
            self.due_s = now + CHECK_S
            began = thread_time()  # a stop by the quota costs nothing, and is no reason to look more rarely
            self.follow()
            self.due_s = now + max(CHECK_S, (thread_time() - began) / CHECK_SHARE)
        finally:
            self.lock.release()
        self.sampler.sample(now, self)

    def follow(self) -> None:
        """Resize the budget to what the limits are now."""
        limits = _limits(self.settings)
        after = size(limits, self.settings)
        if after.scope != self.size.scope:  # slots stay what they are: the others look there too
            shared = self.size.scope == "container"
            after = shared_size(limits, self.settings) if shared else process_size(limits, self.settings)
        after = keep_known(self.known, after, limits)
        if limits.status != "unknown":
            self.known = after
        if self.sampler.cap < after.cores + after.extra:
            after = after._replace(cores=min(self.sampler.cap, after.cores), extra=0, bound_by="hidden limit")
        before, self.size = self.size, after._replace(directory=self.size.directory)
        self.budget.regroup(limits)
        if (after.cores, after.extra) != (before.cores, before.extra):
            self.budget.resize(after.cores + after.extra, after.extra)
            self._say_growth(after.cores)

    def statistics(self) -> Statistics:
        budget = self.budget
        with budget.lock:
            counters = budget.counters
            found = Statistics(
                cores=budget.cores,
                scope=self.size.scope,
                bound_by=self.size.bound_by,
                active=len(budget.leases),
                leased=budget.leased(),
                waiting=len(budget.queue),
                granted=counters.granted,
                overcommitted=counters.overcommitted,
                waits=counters.histogram(),
                core_seconds=counters.core_seconds,
                waited_s=counters.waited_s,
            )
        budget._send()
        return found

    def _make(self) -> Budget:
        wanted = self.size
        if wanted.directory is not None and wanted.scope == "container":
            try:
                return _make_shared(wanted.cores + wanted.extra, wanted.extra, wanted.directory)
            except OSError as error:
                from .slot_file import NO_SLOTS

                message = f"worker processes of this container do not share one core budget: {first_line(error)}"
                process.note(Notice("slots-unavailable", message, "warning", NO_SLOTS))
                self.size = process_size(_limits(self.settings), self.settings)
        elif self.settings.scope == "container":
            message = "CGROUP_THREADS_SCOPE=container has no effect: no cgroup is visible"
            process.note(Notice("slots-unavailable", message, "warning", "mount the cgroup file system"))
        return Budget(self.size.cores + self.size.extra, self.size.extra)

    def _say_growth(self, cores: int) -> None:
        applied = process.applied
        ceiling = max(self.settings.max_cores or 0, applied.plan.threads if applied is not None else cores)
        if cores > ceiling:
            fixed = (
                ", ".join(name for name in _FIXED if name in sys.modules) or "what reads its count once (numba, polars)"
            )
            message = f"the budget grew to {cores} cores: above {ceiling} threads {fixed} cannot follow"
            fix = f"set CGROUP_THREADS_MAX_CORES={cores} or more where the container may be resized up"
            process.note(Notice("cannot-grow", message, "warning", fix))


def _make_shared(cores: int, extra: int, directory: str) -> Budget:
    """Raises OSError where slots cannot be had."""
    from .sharing import SharedBudget
    from .slots import Slots, open_slots, slot_key

    key = slot_key(directory)
    if key is None:
        raise OSError(f"{directory} cannot be read")
    inherited, process.slots = process.slots, None
    if isinstance(inherited, Slots):
        if inherited.key == key:
            return SharedBudget(cores, inherited, extra)
        inherited.close()
    slots = open_slots(key)
    process.note(*slots.notices)
    return SharedBudget(cores, slots, extra)


def core_budget() -> CoreBudget:
    """The budget of this process; made at its first use."""
    found = process.budget
    if isinstance(found, CoreBudget):
        return found
    with process.lock:
        if not isinstance(process.budget, CoreBudget):
            _register()
            process.budget = CoreBudget(configured())
        made = process.budget
    assert isinstance(made, CoreBudget)
    return made


def _limits(settings: Settings) -> CpuLimits:
    """The limits now, under what ``configure`` said."""
    limits = detect()
    if settings.cores is not None and settings.cores != limits.override:
        limits = limits._replace(override=settings.cores, bound_by="override")
    return limits


def configured() -> Settings:
    """The settings with what ``configure`` has put over them."""
    return process.settings._replace(**process.configured)


def configure(
    *,
    cores: float | None = None,
    workers: int | None = None,
    scope: Scope | None = None,
    patience: float | None = None,
) -> None:
    """Set how large the core budget is and who shares it; arguments win over the ``CGROUP_THREADS_*`` settings.

    ``cores`` is the budget instead of the detected cores, ``workers`` the number of processes that share them where
    they cannot share slots, ``scope`` "auto", "process" or "container", ``patience`` how many seconds a call may wait
    for cores. None leaves a value to the settings. Leases that are open end in the budget they came from. Raises
    InvalidArgumentError or InvalidThreadsError for values that are none of these.
    """
    changes: dict[str, object] = {}
    if cores is not None:
        if isinstance(cores, bool) or not isinstance(cores, (int, float)) or not 0 < cores <= MAX_COUNT:
            raise InvalidArgumentError("cores", cores, "a number of cores above 0")
        changes["cores"] = float(cores)
    if workers is not None:
        changes["workers"] = check_threads(workers, "workers")
    if scope is not None:
        if scope not in SCOPES:
            raise InvalidArgumentError("scope", scope, "one of " + ", ".join(SCOPES))
        changes["scope"] = scope
    if patience is not None:
        changes["patience"] = check_patience(patience)
    with process.lock:
        process.configured = changes
        now = configured()
        before = process.budget
        if not isinstance(before, CoreBudget):
            return
        before.settings = now
        if size(_limits(now), now).scope != before.size.scope:
            process.budget = None
    # Without that lock: looking at the limits may have something to note, which takes it.
    if process.budget is before:
        with before.lock:
            before.follow()
    else:
        before.budget.end()


def refresh() -> Statistics:
    """Read limits and settings again now, and resize the budget; returns the budget as it is then.

    The budget does this by itself at most every 250 ms as leases are taken; idle services and tests may not want to
    wait for that.
    """
    with process.lock:
        process.forget_settings()
        now = core_budget()
        now.settings = configured()
    with now.lock:
        now.top = _top()
        current().ours = _ours()
        now.follow()
    return now.statistics()


def statistics() -> Statistics:
    """The core budget at this moment: cores, leases, waiting calls, and what was counted since the process began."""
    return core_budget().statistics()


def check_patience(patience: object) -> float:
    """``patience`` as seconds. Raises InvalidArgumentError for what is no number of at least 0."""
    if isinstance(patience, (int, float)) and not isinstance(patience, bool) and patience >= 0:
        return float(patience)
    raise InvalidArgumentError("patience", patience, "a number of seconds of at least 0")


def _top() -> int:
    """What one call can use: no pool will start more threads than the user's own OMP_NUM_THREADS, nor may it start more
    than there is room for."""
    applied = process.applied
    ceiling = current_plan().ceiling or MAX_COUNT
    kept = () if applied is None else applied.kept
    counts = [k.threads for k in kept if k.name == OMP and not k.replaced and k.threads]
    return min(counts[0], ceiling) if counts else ceiling


def _ours() -> int:
    """The count that we wrote for OpenMP and BLAS libraries, 0 where the user had a say in it: a lease may have more,
    because workers divide only what runs without a lease, and the container may have grown."""
    applied = process.applied
    if applied is None or any(k.name in _COUNTS and not k.replaced for k in applied.kept):
        return 0
    return parse_count(applied.set.get(OMP, "")) or 0


def _register() -> None:
    if _HOOK in process.hooks:
        return
    process.hooks[_HOOK] = True
    atexit.register(_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def _at_exit() -> None:
    now = process.budget
    if isinstance(now, CoreBudget):
        now.budget.end()


def _in_child() -> None:
    """The parent's leases are the parent's: the child begins with none, and makes its budget anew at first use.

    Locks may be held for ever by threads that do not exist here, so none is taken.
    """
    process.generation += 1
    before, process.budget = process.budget, None
    process.workers = None  # its threads do not exist here
    if isinstance(before, CoreBudget):
        before.budget.abandon()
    elif process.slots is not None:  # a fork of a fork that has leased nothing itself
        from .slots import Slots

        if isinstance(process.slots, Slots):
            process.slots = process.slots.abandon_in_child()
