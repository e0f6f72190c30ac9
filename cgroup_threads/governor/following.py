"""How a budget follows an estimated limit without swinging: lower late, raise seldom. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from .hidden import HiddenLimit

AGREEING: Final = 5  # estimates in a row before the budget is lowered
PROBE_S: Final = 30.0
MAX_PROBE_S: Final = 300.0
CALM_S: Final = 600.0  # a raised budget that held so long ends the doubling
_ROUNDING: Final = 0.05  # an estimate of 1.97 cores is 2


class Following(NamedTuple):
    """``cap`` is the most cores the budget may have, None for no cap. ``cause`` is the estimate that lowered it.

    ``top`` is the budget before the first cap, where raising ends. ``agreeing`` estimates in a row asked for a lower
    budget, the highest of them ``lowest``. The budget was last changed at ``changed_s``; it may be raised
    ``pause_s`` later.
    """

    cap: int | None = None
    cause: HiddenLimit | None = None
    top: int = 0
    agreeing: int = 0
    lowest: int = 0
    raised: bool = False
    changed_s: float = float("-inf")
    pause_s: float = PROBE_S


def follow(state: Following, estimate: HiddenLimit | None, now: float) -> Following:
    """The next state after one more estimate. It never lowers below 1 and never acts on an unclear cause.

    Lowering takes AGREEING estimates in a row. Raising is a probe: it doubles the cap, at most once in ``pause_s``. A
    probe that ends in lowering again doubles the pause, up to MAX_PROBE_S.
    """
    if estimate is not None and estimate.kind == "hidden limit":
        target = max(1, int(min(estimate.cores, 1e6) + _ROUNDING))
        now_at = estimate.budget if state.cap is None else state.cap
        if target >= now_at:
            return state._replace(agreeing=0)
        highest = max(target, state.lowest) if state.agreeing else target
        state = state._replace(agreeing=state.agreeing + 1, lowest=highest)
        return _lower(state, estimate, now) if state.agreeing >= AGREEING else state
    state = state._replace(agreeing=0)
    if state.raised and now - state.changed_s >= CALM_S:
        state = state._replace(raised=False, pause_s=PROBE_S)
    if state.cap is None or estimate is not None or now - state.changed_s < state.pause_s:
        return state
    cap = state.cap * 2
    ends = cap >= state.top
    return state._replace(cap=None if ends else cap, cause=None if ends else state.cause, raised=True, changed_s=now)


def _lower(state: Following, estimate: HiddenLimit, now: float) -> Following:
    pause = min(2 * state.pause_s, MAX_PROBE_S) if state.raised else state.pause_s
    top = estimate.budget if state.cap is None else state.top
    return Following(state.lowest, estimate, top, 0, 0, False, now, pause)
