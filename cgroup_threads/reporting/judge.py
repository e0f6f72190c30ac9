"""From evidence to findings, each with what to do about it. Pure: nothing here reads the process.

Findings about single variables come with the evidence (``variables.judge`` and ``conflicts``); here is what only shows
when limits, variables, loaded pools and counters are seen together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..detection.throttling import Throttling, is_brief
from ..errors import first_line
from ..governor.hidden import complain
from ..notices import Level, Notice
from ..pools.records import PoolState
from .records import Evidence

MIN_PERIODS: Final = 20  # 2 seconds of the usual 100 ms: fewer periods say nothing
START_PERIODS: Final = 600  # stopped for a minute of the usual 100 ms
THROTTLED_WARNING: Final = 0.05
THROTTLED_PROBLEM: Final = 0.25
PRESSURE_SHOWN: Final = 20.0  # per cent
OPENMP_KINDS: Final = ("libgomp", "libomp", "libiomp")
_ORDER: Final[dict[Level, int]] = {"problem": 0, "warning": 1, "info": 2}

# The variables a pool of this name reads, strongest first.
POOL_VARIABLES: Final = {
    "libgomp": ("OMP_NUM_THREADS",),
    "libomp": ("OMP_NUM_THREADS",),
    "libiomp": ("OMP_NUM_THREADS",),
    "mkl": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    "torch": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"),
    "openblas": ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"),
    "blis": ("BLIS_NUM_THREADS", "OMP_NUM_THREADS"),
    "numexpr": ("NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS"),
    "numba": ("NUMBA_NUM_THREADS",),
    "cv2": ("OPENCV_FOR_THREADS_NUM",),
}


def find_problems(evidence: Evidence) -> tuple[Notice, ...]:
    """All findings, problems first; a finding that was noted twice appears once.

    Where a judge fails, that becomes a finding, and the others are asked all the same.
    """
    found: dict[tuple[str, str], Notice] = {}

    def note(notices: Iterable[Notice]) -> None:
        for notice in notices:
            found.setdefault((notice.code, notice.message), notice)

    note(evidence.notices)
    for what, judge in _judges():
        try:
            note(judge(evidence))
        except Exception as error:  # noqa: BLE001  # evidence comes from libraries and may be anything
            message = f"{what} could not be judged: {type(error).__name__}: {first_line(error)}"
            note((Notice("report-incomplete", message, "warning", "report this with its text"),))
    return tuple(sorted(found.values(), key=lambda notice: _ORDER.get(notice.level, 2)))


def _judges() -> tuple[tuple[str, Callable[[Evidence], Iterable[Notice]]], ...]:
    return (
        ("pools", _judge_pools),
        ("OpenMP runtimes", _judge_openmp),
        ("throttling", _judge_throttling),
        ("hidden limits", _judge_hidden),
        ("threads", _judge_threads),
        ("address space", _judge_machine),
        ("other libraries' counts", _judge_counts),
        ("settings", _judge_settings),
    )


def _judge_hidden(evidence: Evidence) -> Iterator[Notice]:
    if evidence.hidden is not None:
        yield complain(evidence.hidden, evidence.hidden_cap)


def _judge_counts(evidence: Evidence) -> Iterator[Notice]:
    usable = evidence.plan.usable
    for name, count in evidence.other_counts:
        if count > usable:
            message = f"{name} counts {count} cores, {usable} {'is' if usable == 1 else 'are'} usable"
            yield Notice("other-count-differs", message, "warning", f"set its number of workers to {usable}")


def _judge_settings(evidence: Evidence) -> Iterator[Notice]:
    if not evidence.settings.auto:
        message = "CGROUP_THREADS_AUTO=0: nothing was set at import"
        yield Notice("auto-off", message, "info", "call cgroup_threads.apply(), or unset CGROUP_THREADS_AUTO")


def _was_raised(evidence: Evidence, variable: str, threads: int) -> bool:
    """Whether a lease has more threads than we wrote into ``variable``: the container has grown since."""
    ours = any(state.name == variable and state.origin == "computed" for state in evidence.variables)
    budget = evidence.budget
    return ours and budget is not None and budget.active > 0 and threads <= budget.cores


def pool_kind(name: str) -> str:
    """The key of POOL_VARIABLES for a pool's name: ``libiomp5`` is ``libiomp``, ``scipy-openblas`` ``openblas``."""
    lowered = name.lower()
    return next((kind for kind in (*POOL_VARIABLES,) if kind in lowered), lowered)


def _deciding_variable(evidence: Evidence, kind: str) -> tuple[str, str] | None:
    """Name and text of the variable a pool of this kind follows."""
    effective = {state.name: state.effective for state in evidence.variables}
    for name in POOL_VARIABLES.get(kind, ()):
        text = effective.get(name)
        if text is not None and text.strip():
            return name, text
    return None


def _judge_pools(evidence: Evidence) -> Iterator[Notice]:
    usable = evidence.plan.usable
    for pool in evidence.pools:
        if pool.threads is None:
            continue
        deciding = _deciding_variable(evidence, pool_kind(pool.name))
        if pool.threads > usable:
            message = f"{pool.name} would run {pool.threads} threads on {_cores(usable)} ({_scope(pool)})"
            yield Notice("pool-oversubscribed", message, "problem", _oversubscription_fix(evidence, pool))
        elif deciding is not None and deciding[1].strip().isdigit() and pool.threads > int(deciding[1].strip()):
            if _was_raised(evidence, deciding[0], pool.threads):
                continue
            message = f"{deciding[0]} asks for {deciding[1].strip()} threads, {pool.name} reports {pool.threads}"
            yield Notice(
                "pool-differs", message, "warning", "limit it at run time: `with cgroup_threads.limit_threads():`"
            )
    seen = not any(notice.code in ("pools-unseen", "report-incomplete") for notice in evidence.notices)
    if seen and "numpy" in evidence.modules and not any(pool_kind(pool.name) in _BLAS for pool in evidence.pools):
        yield Notice(
            "no-controllable-blas",
            "numpy is loaded, but no BLAS whose threads can be changed at run time was found",
            "info",
            "on macOS set VECLIB_MAXIMUM_THREADS before numpy is imported",
        )


_BLAS: Final = ("openblas", "mkl", "blis", "flexiblas")


def _cores(usable: int) -> str:
    return "1 usable core" if usable == 1 else f"{usable} usable cores"


def _scope(pool: PoolState) -> str:
    return "one pool for the whole process" if pool.scope == "process" else "each calling thread has its own team"


def _oversubscription_fix(evidence: Evidence, pool: PoolState) -> str:
    usable = evidence.plan.usable
    users = {state.name: state.asked for state in evidence.variables if state.origin == "user"}
    for name in POOL_VARIABLES.get(pool_kind(pool.name), ()):
        text = (users.get(name) or "").strip()
        if text and not (text.isdigit() and 1 <= int(text) <= usable):
            return f"unset {name} or set it to {usable}"
    if not evidence.settings.auto:
        return "unset CGROUP_THREADS_AUTO, or wrap calls in `with cgroup_threads.limit_threads():`"
    if any(state.late for state in evidence.variables):
        return "import cgroup_threads first, or wrap calls in `with cgroup_threads.limit_threads():`"
    return "wrap calls in `with cgroup_threads.limit_threads():`"


def _judge_openmp(evidence: Evidence) -> Iterator[Notice]:
    runtimes = [pool for pool in evidence.pools if pool_kind(pool.name) in OPENMP_KINDS]
    paths = {pool.path for pool in runtimes if pool.path}
    kinds = sorted({pool_kind(pool.name) for pool in runtimes})
    if len(kinds) > 1:
        message = (
            f"{len(kinds)} different OpenMP runtimes are loaded ({', '.join(kinds)}): each keeps a pool of its own"
        )
        fix = "install builds that share one runtime; mixing them can hang or crash"
        yield Notice("openmp-runtimes-mixed", message, "warning", fix)
    elif len(paths) > 1:
        message = f"{len(paths)} copies of {kinds[0]} are loaded: each keeps a pool of its own"
        yield Notice("openmp-runtimes-duplicate", message)
    widest = max((pool.threads or 1 for pool in runtimes), default=1)
    if evidence.start_method == "fork" and widest > 1 and not evidence.fork_guarded:
        yield Notice(
            "fork-after-openmp",
            f"multiprocessing forks, and an OpenMP pool of {widest} threads is loaded: a forked child can hang in it",
            "warning",
            "unset CGROUP_THREADS_AUTO (pools are then paused before a fork), or use the forkserver start method",
        )


def _judge_throttling(evidence: Evidence) -> Iterator[Notice]:
    throttling, quota = evidence.throttling, evidence.limits.quota
    if throttling is None or quota is None or throttling.periods < MIN_PERIODS or throttling.share < THROTTLED_WARNING:
        return
    if is_brief(throttling, evidence.limits.levels):
        return
    cores = "1 core" if quota == 1 else f"{quota:g} cores"
    window = f"of the last {evidence.interval:g} s" if evidence.interval else "since it was made"
    message = f"the quota of {cores} stopped this group in {100 * throttling.share:.0f} % of periods {window}"
    widest = max((pool.threads or 0 for pool in evidence.pools), default=0)
    level: Level = "warning"
    if quota < 1:
        fix = "one busy thread is more than this quota: raise it to a whole core"
    elif widest > evidence.plan.usable:
        message += f"; {widest} threads in a pool"
        fix = "lower the thread counts named above, or raise the quota"
    else:
        fix = "run fewer calls at once, use fewer workers, or raise the quota"
    if not evidence.interval and _is_start(throttling):
        message += "; that may all be its start"
        level, fix = "info", "`cgroup-threads --interval 10` tells whether it goes on"
    elif not evidence.interval:
        fix += "; `cgroup-threads --interval 10` tells whether it goes on"
    elif quota >= 1 and throttling.share >= THROTTLED_PROBLEM:
        level = "problem"
    yield Notice("throttled", message, level, fix)


def _is_start(throttling: Throttling) -> bool:
    """Whether the start of a group explains its stops: without START_PERIODS of them, few are left.

    Imports, loading and compiling use more cores than a quota has. The counters keep that for as long as the group is
    there, and do not tell when it was.
    """
    periods, throttled = throttling.periods - START_PERIODS, throttling.throttled - START_PERIODS
    return throttled < THROTTLED_WARNING * max(periods, MIN_PERIODS)


def _judge_threads(evidence: Evidence) -> Iterator[Notice]:
    usable = evidence.plan.usable
    running = sum(group.running for group in evidence.threads)
    if running > 2 * usable:
        message = f"{running} threads of this process are runnable right now on {_cores(usable)}"
        yield Notice("threads-runnable", message, "warning", "lower pool sizes or calls in flight")
    if evidence.pressure is not None and evidence.pressure.avg10 >= PRESSURE_SHOWN:
        where = "of this machine" if evidence.pressure.file.startswith("/proc/") else "of this cgroup"
        message = f"threads {where} waited for a CPU in {evidence.pressure.avg10:.0f} % of the last 10 s"
        yield Notice("cpu-pressure", message)


def _judge_machine(evidence: Evidence) -> Iterator[Notice]:
    limits, plan = evidence.limits, evidence.plan
    said = any(notice.code == "address-space-limited" for notice in plan.notices)
    if evidence.address_space is not None and limits.host_cpus > plan.usable and not said:
        gib = evidence.address_space / 2**30
        yield Notice(
            "address-space-limited",
            f"RLIMIT_AS is {gib:.1f} GiB: every native thread reserves stack and buffers in it",
            "info",
            "keep thread counts low before libraries load, or raise `ulimit -v`",
        )
