"""Who wins where the user and the plan both have a value for a variable. Pure.

Order: the user's library variables, then the computed ones; CGROUP_THREADS_OVERRIDE=1 turns it round. A blank value is
no value (libgomp would complain and use all processors).
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from collections.abc import Collection, Mapping
from typing import NamedTuple

from .conflicts import find_conflicts
from .notices import Notice
from .planning import ThreadPlan, count
from .settings import Settings
from .variables import (
    ABSURD,
    BY_NAME,
    NUMEXPR,
    NUMEXPR_MAX,
    OMP,
    OMP_LIMIT,
    SPIN,
    VARIABLES,
    Counts,
    Stage,
    Verdict,
    VerdictState,
    judge,
    value_of,
)

_INT_MAX = 2**31 - 1  # numexpr cannot be imported with a larger number, whatever its maximum


class KeptVariable(NamedTuple):
    """A value the user had set, what is thought of it, and the number of ``threads`` that comes of it (None if it is
    malformed or no count). ``replaced`` is what CGROUP_THREADS_OVERRIDE=1 put in its place, else ""."""

    name: str
    value: str
    state: VerdictState
    threads: int | None
    replaced: str = ""


class Decision(NamedTuple):
    """The variables to set, those the user had set, and what is to be said of them."""

    set: dict[str, str]
    kept: tuple[KeptVariable, ...]
    notices: tuple[Notice, ...]


def settle(
    plan: ThreadPlan,
    user: Mapping[str, str],
    settings: Settings,
    *,
    host_cpus: int,
    affinity: Collection[int] = (),
    stages: Collection[Stage] = ("import", "opt-in"),
    also: Collection[str] = (),
    frozen: Collection[str] = (),
) -> Decision:
    """Decide what to set on top of the ``user``'s environment (which holds nothing we ever wrote).

    ``affinity`` are the CPUs that bindings are checked against, ``also`` names variables of other stages to set,
    ``frozen`` those that may not be touched. Libraries that fall back to OMP_NUM_THREADS get the user's value of it
    where that is below the plan's: a small number is carried on, a large one never copied.
    """
    wanted = [v.name for v in VARIABLES if v.stage in stages or v.name in also]
    verdicts = _judge_all(plan, user, settings, host_cpus, wanted)
    counts = count(plan, settings)
    replaced = {n for n in verdicts if settings.override and n not in frozen and _has_number(n, counts)}
    kept = {n: v for n, v in verdicts.items() if v.state != "blank" and n not in replaced}

    notices = [*_find_crowded(plan, kept)]
    cap = plan.threads
    for name in (OMP, OMP_LIMIT):
        cap = min(cap, (kept[name].threads if name in kept else None) or cap)
    notices += find_conflicts(user, kept, cap, affinity)
    if _is_torchrun_rank(plan, user, settings) and cap > 1:
        message = f"{OMP}=1 in this torchrun rank, as torchrun sets it by itself; the rank's share is {cap} threads"
        fix = f"set {OMP}={cap} for torchrun, or CGROUP_THREADS_OVERRIDE=1"
        notices.append(Notice("torchrun-rank", message, "warning", fix))
        cap = 1

    counts = _follow_user(counts, user, kept, host_cpus)
    chosen: dict[str, int] = {}
    for name in wanted:
        value = None if name in kept or name in frozen else value_of(BY_NAME[name].kind, counts)
        if value is not None:
            chosen[name] = min(value, cap) if name == OMP or BY_NAME[name].falls_back else value
    _couple_numexpr(chosen, kept)

    records = []
    for name, verdict in verdicts.items():
        if name in replaced:
            notices.append(_say_replaced(verdict, chosen[name]))
        elif verdict.notice is not None:
            notices.append(verdict.notice)
        if verdict.state != "blank":
            number = str(chosen[name]) if name in replaced else ""
            records.append(KeptVariable(name, user[name], verdict.state, verdict.threads, number))
    return Decision({name: str(value) for name, value in chosen.items()}, tuple(records), tuple(notices))


def _judge_all(
    plan: ThreadPlan, user: Mapping[str, str], settings: Settings, host_cpus: int, wanted: Collection[str]
) -> dict[str, Verdict]:
    """Verdicts on the user's values, in the table's order."""
    limit = judge(OMP_LIMIT, user.get(OMP_LIMIT, ""), plan.usable).threads
    verdicts = {}
    for name, variable in BY_NAME.items():
        if name in user and (name in wanted or name == OMP_LIMIT):
            # A pool sized for a later resize does no harm.
            usable = max(plan.usable, settings.max_cores or 1) if variable.kind in ("pool", "cores") else plan.usable
            capped = limit if name == OMP else None
            verdicts[name] = judge(name, user[name], usable, share=plan.threads, host_cpus=host_cpus, limit=capped)
    return verdicts


def _find_crowded(plan: ThreadPlan, kept: Mapping[str, Verdict]) -> list[Notice]:
    """User's values with more threads than limits on tasks or address space have room for."""
    if plan.ceiling is None:
        return []
    from .rooms import judge_value

    starting = [v for v in kept.values() if BY_NAME[v.name].kind not in ("maximum", "limit", "interop")]
    return [judge_value(v.name, v.text, plan.ceiling) for v in starting if (v.threads or 0) > plan.ceiling]


def _has_number(name: str, counts: Counts) -> bool:
    """Whether an override has a number for the variable; how long to spin stays the user's choice."""
    return name != SPIN and value_of(BY_NAME[name].kind, counts) is not None


def _is_torchrun_rank(plan: ThreadPlan, user: Mapping[str, str], settings: Settings) -> bool:
    """Whether torchrun would have set OMP_NUM_THREADS=1 here, had a governed parent not set the variable before.

    It does so where the variable is missing and a node has several ranks. Ranks must not get more because of us; who
    says CGROUP_THREADS_WORKERS, or plans for other workers, has decided otherwise.
    """
    ranks = settings.workers_source == "LOCAL_WORLD_SIZE" and (settings.workers or 1) > 1
    return (
        ranks
        and plan.workers == settings.workers
        and not settings.override
        and OMP not in user
        and bool(user.get("TORCHELASTIC_RUN_ID"))
    )


def _follow_user(counts: Counts, user: Mapping[str, str], kept: Mapping[str, Verdict], host_cpus: int) -> Counts:
    """The counts after what the user said of waiting and of OpenMP's threads."""
    wait = any(user.get(name, "").strip() for name in (SPIN, "OMP_WAIT_POLICY"))
    asked = (kept[OMP].threads if OMP in kept else None) or 1
    limit = counts.limit
    if limit is not None and asked <= ABSURD * host_cpus:
        limit = max(limit, asked)
    return counts._replace(spin=counts.spin and not wait, limit=limit)


def _couple_numexpr(chosen: dict[str, int], kept: Mapping[str, Verdict]) -> None:
    """numexpr complains and runs on one thread (older ones fail) where its number is above its maximum."""
    if NUMEXPR in chosen and NUMEXPR_MAX in kept:
        chosen[NUMEXPR] = min(chosen[NUMEXPR], kept[NUMEXPR_MAX].threads or chosen[NUMEXPR])
    elif NUMEXPR_MAX in chosen and NUMEXPR in kept:
        asked = kept[NUMEXPR].threads or 1
        chosen[NUMEXPR_MAX] = max(chosen[NUMEXPR_MAX], asked if asked <= _INT_MAX else 1)


def _say_replaced(verdict: Verdict, number: int) -> Notice:
    message = f"{verdict.name}={verdict.text} replaced by {number}"
    return Notice("variable-replaced", message, "info", "unset CGROUP_THREADS_OVERRIDE to keep it")
