"""Which thread counts a sweep measures."""

from __future__ import annotations

from typing import Final

from ..errors import check_threads

EVERY_COUNT: Final = 16
"""Up to here every count is measured; above, four in each octave (20, 24, 28, 32, 40, ...)."""
BURST_COUNTS: Final = 2
"""So many counts above the usable cores are measured, to show why they are not recommended."""


def sweep_counts(width: int, usable: int, max_threads: int | None = None) -> tuple[int, ...]:
    """The counts to measure where ``usable`` of the ``width`` CPUs the scheduler may use can be kept busy, ascending.

    From 1 to two above the usable cores, but not above ``width`` or ``max_threads``. The highest and ``usable`` itself
    are always among them. Raises InvalidThreadsError for an argument that is not a whole number of at least 1.
    """
    check_threads(width, "width")
    check_threads(usable, "usable")
    top = min(width, usable + BURST_COUNTS)
    if max_threads is not None:
        top = min(top, check_threads(max_threads, "max_threads"))
    counts = {*range(1, min(top, EVERY_COUNT) + 1), min(usable, top), top}
    octave = EVERY_COUNT
    while octave < top:
        counts.update(count for count in range(octave, 2 * octave, octave // 4) if count < top)
        octave *= 2
    return tuple(sorted(counts))
