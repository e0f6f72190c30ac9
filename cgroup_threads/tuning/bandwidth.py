"""How fast this machine reads memory, and how much of that decoding uses.

A decoder reads its weights once for each token, so tokens a second times bytes of weights cannot exceed what the memory
gives; where it comes near, more threads gain nothing.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from ..errors import check_threads
from ..notices import Notice
from .memory import find_cache, find_free_memory
from .records import Bandwidth, Curve
from .weights import Weights, measure_weights

LEAST_BYTES: Final = 256 << 20
CACHES: Final = 4  # a buffer of so many last-level caches comes from memory for the most part
FREE_SHARE: Final = 8  # at most one part in so many of the free memory is filled
TOO_SMALL: Final = 32 << 20  # below, nothing but caches is measured
PAGE: Final = 4096
MIN_PASSES: Final = 3
ABSENT: Final = 0
FILLING: Final = 1


class Buffer(NamedTuple):
    """How many bytes are read in a pass, by all threads together, and the last-level cache they should not fit."""

    size: int
    cache: int

    @property
    def exceeds_caches(self) -> bool:
        """Whether most of a pass comes from memory."""
        return self.size >= CACHES * self.cache


def choose_buffer(cpus: Collection[int]) -> Buffer:
    """What to read on ``cpus``: several times their caches, as far as the free memory allows it."""
    cache, free = find_cache(cpus), find_free_memory()
    wanted = max(LEAST_BYTES, CACHES * cache)
    return Buffer(wanted if free is None else min(wanted, free // FREE_SHARE), cache)


def read_bandwidth(threads: int, seconds: float = 0.3, *, size: int = LEAST_BYTES) -> float:
    """Bytes a second that ``threads`` threads read together from ``size`` bytes of memory; the best of several passes.

    Each thread searches a buffer of its own for a byte that is not there: the C library's ``memchr`` reads as fast as
    it can, and without Python's lock. It lasts about ``seconds``, at least three passes, and the filling of the buffers
    before. Raises InvalidThreadsError, MemoryError, and RuntimeError where a thread cannot be started.
    """
    check_threads(threads)
    share = max(PAGE, size // threads // PAGE * PAGE)
    passes = _Passes(threads, share, seconds)
    members = [threading.Thread(target=passes.take_part, daemon=True) for _ in range(threads)]
    started: list[threading.Thread] = []
    try:
        for member in members:
            member.start()
            started.append(member)
        for member in started:
            member.join()
    finally:
        passes.barrier.abort()  # whoever waits for one that never came ends
        for member in started:
            member.join()
    if passes.failure is not None:
        raise passes.failure
    return threads * share / passes.best


class _Passes:
    """Threads that read side by side: all begin a pass once all have ended the one before."""

    def __init__(self, threads: int, share: int, seconds: float) -> None:
        self.share = share
        self.seconds = seconds
        self.best = math.inf
        self.failure: BaseException | None = None
        self.barrier = threading.Barrier(threads, self._end_pass)
        self._find = _load_memchr()
        self._begun: float | None = None
        self._deadline = 0.0
        self._count = 0
        self._over = False

    def _end_pass(self) -> None:
        """Called by one of the threads while the others stand still."""
        now = time.perf_counter()
        if self._begun is None:
            self._deadline = now + self.seconds
        else:
            self._count += 1
            self.best = min(self.best, max(now - self._begun, 1e-9))
        self._over = self._count >= MIN_PASSES and now >= self._deadline
        self._begun = now

    def take_part(self) -> None:
        """One thread's part: a buffer, and passes over it. Its own thread fills it, so it lies in that one's node."""
        try:
            buffer = (ctypes.c_char * self.share)()
            ctypes.memset(buffer, FILLING, self.share)  # each page becomes real
            self.barrier.wait()
            while not self._over:
                self._find(buffer, ABSENT, self.share)
                self.barrier.wait()
        except threading.BrokenBarrierError:
            pass  # another thread failed, or the caller was interrupted
        except MemoryError as error:
            self.failure = error
            self.barrier.abort()


def _load_memchr() -> Any:
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)  # None: what this process has loaded
    function = library.memchr
    function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    function.restype = ctypes.c_void_p
    return function


def machine_bandwidth(max_threads: int, seconds: float = 0.3, *, size: int = LEAST_BYTES) -> float | None:
    """The most that 1, 2, 4 ... ``max_threads`` threads read, in bytes a second; None where it cannot be measured."""
    check_threads(max_threads, "max_threads")
    if size < TOO_SMALL:
        return None
    counts = [count for count in (1 << power for power in range(max_threads.bit_length())) if count < max_threads]
    rates = []
    for count in [*counts, max_threads]:
        try:
            rates.append(read_bandwidth(count, seconds, size=size))
        except (MemoryError, RuntimeError):  # no memory or no thread to be had: fewer may do
            break
    return max(rates, default=None)


def measure(
    curves: Sequence[Curve], model: str, cpus: Collection[int], usable: int, quota: float | None
) -> tuple[Bandwidth | None, tuple[Notice, ...]]:
    """The bandwidth of decoding with the GGUF file ``model``, and what must be known of it.

    Reads memory for some 0.3 s a count, with up to ``usable`` threads; call it while nothing else computes. ``cpus``
    are those this process may use.
    """
    weights = measure_weights(model) if any(curve.task.name == "decode" for curve in curves) else None
    if weights is None:
        return None, ()
    buffer = choose_buffer(cpus)
    machine = machine_bandwidth(usable, size=buffer.size)
    found = None if machine is None else of_result(curves, weights, machine)
    return found, () if found is None else explain(weights, buffer, usable, quota)


def of_result(curves: Sequence[Curve], weights: Weights, machine: float) -> Bandwidth | None:
    """What decoding at its recommended count reads, beside what the machine can; None where nothing was decoded."""
    for curve in curves:
        if curve.task.name == "decode":
            rate = next((p.median for p in curve.points if p.threads == curve.recommendation.threads), 0.0)
            return Bandwidth(weights.size, weights.size * rate, machine) if rate > 0 else None
    return None


def explain(weights: Weights, buffer: Buffer, usable: int, quota: float | None) -> tuple[Notice, ...]:
    """What must be known of a bandwidth before it is believed."""
    found = []
    if weights.basis == "file":
        message = "the file's table of tensors could not be read: its whole size counts as read for each token"
        found.append(Notice("bandwidth-of-file", message))
    if 0 < weights.size < buffer.cache:
        message = (
            f"the weights ({weights.size / 1e6:.0f} MB) fit the last level of cache ({buffer.cache / 1e6:.0f} MB): "
            "decoding may read faster than the memory"
        )
        found.append(Notice("bandwidth-of-cache", message))
    if not buffer.exceeds_caches:
        message = (
            f"little memory is free: {buffer.size / 1e6:.0f} MB were read to measure the bandwidth, with "
            f"{buffer.cache / 1e6:.0f} MB of cache, which may have made it look higher"
        )
        found.append(Notice("bandwidth-buffer-small", message))
    if quota is not None and quota < usable:
        message = f"the quota of {quota:g} stops {usable} busy thread(s), too: the bandwidth is that between stops"
        found.append(Notice("bandwidth-throttled", message))
    return tuple(found)
