"""Who gets how many cores: pure arithmetic on numbers that the caller measured.

No static share serves one caller and ten. The share follows the demand: calls in flight and waiting, smoothed over
some tens of call durations, because the number right now misleads. Two callers that call back to back would else run
one after the other (whoever leaves is not counted as the other one starts), and a call that comes last would keep the
one core that happened to be left over.
"""

from __future__ import annotations

import math
from typing import Final

DURATIONS_PER_TAU: Final = 30.0
"""The time constant of the demand's mean, in mean call durations."""
STEP_DURATIONS: Final = 3.0
"""The same for the steps of a longer call (llama.cpp's tokens), which can change their count at the next one: short
enough to follow within some steps, long enough to overlook the moments between two steps of the others."""
DURATION_WEIGHT: Final = 0.1
"""What the latest call counts in the mean duration."""


def smooth(mean: float, calls: int, elapsed_s: float, duration_s: float, durations: float = DURATIONS_PER_TAU) -> float:
    """The time-weighted mean number of calls after ``calls`` were in flight or waiting for ``elapsed_s`` seconds.

    ``duration_s`` is the mean duration of a call, 0 while none has ended; ``durations`` of them are the time constant.
    Idle time is left out: the next calls are expected to come as the last ones did.
    """
    if elapsed_s <= 0.0 or not calls:
        return mean
    if duration_s <= 0.0:
        return float(calls)
    return calls + (mean - calls) * math.exp(-elapsed_s / (durations * duration_s))


def smooth_duration(mean_s: float, seconds: float) -> float:
    """The mean duration of a call in seconds after one that took ``seconds``; 0 means that none had ended."""
    return seconds if mean_s <= 0.0 else mean_s + DURATION_WEIGHT * (seconds - mean_s)


def share(budget: int, calls: int, mean: float, top: int) -> int:
    """How many of ``budget`` cores one of ``calls`` calls in flight and waiting wants; at least 1, at most ``top``.

    ``mean`` is the smoothed number of calls: it is trusted between half and twice the present number. Rounded up,
    since calls that want a little too much use cores that would else lie idle: 9 calls on 16 cores want 2 each.
    """
    # Comparisons, because every call of the service passes here, and min() and max() cost several times as much.
    if mean < calls / 2:
        mean = calls / 2
    elif mean > calls * 2:
        mean = calls * 2
    want = -(-budget // (int(mean + 0.5) or 1))
    return want if want < top else top


def grant(want: int, free: int, running: int, *, wait_for_half: bool = True, extra: int = 0) -> int:
    """Cores for the first in the queue, or 0: it has to wait.

    It starts once half of its share is free, because a call keeps to its end what it started with. It starts with
    whatever is free if nothing runs, since then nothing will be given back. ``wait_for_half`` is False where the other
    processes' waiting calls are not known. ``extra`` of the ``free`` cores stand for the fraction of a quota: they only
    run a call of one thread, since a team waits for the one of its threads that is throttled.
    """
    if extra and free > 0:
        free = free - extra or 1
    if free < 1 or (wait_for_half and running and 2 * free < want):
        return 0
    return want if want < free else free
