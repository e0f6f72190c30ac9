"""Simulated calls that share cores: how long they take alone, when they come, and what happens to each of them.

A call of work w on k threads takes w / rate[k] seconds if the cores suffice; its k never changes. Where a policy starts
more threads than there are cores, all calls slow down alike: they share the cores, teams wait at their barriers for
members that are not running, and context switches cost a little. So one clock serves all of them: it runs at speed 1
while the cores suffice and slower otherwise, and a call ends when the clock has advanced by what it takes alone.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

SWITCHING: Final = 0.02
"""What context switches cost as soon as there are more threads than cores: a part of the time."""
SPINNING: Final = 0.5
"""What teams lose at their barriers for each whole set of threads above the cores (0 if every call has one thread)."""
COLLAPSE: Final = 10.0
"""What they lose at most: a call is slower by this factor, sharing aside."""
BUDGETS: Final = (2, 4, 8, 16, 64, 256)
CURVES: Final = ("amdahl99", "amdahl90", "amdahl60", "flat", "falling", "shared")
ARRIVALS: Final = (
    *("poisson05", "poisson20", "poisson50", "poisson80", "onoff20", "onoff50", "batch4", "batchall"),
    *("closed1", "closed2", "closed4", "closed10", "closed32", "think10"),
)
WORKS: Final = ("equal", "exponential", "mixed")


class Cell(NamedTuple):
    """One situation."""

    budget: int
    curve: str
    arrival: str
    work: str

    @property
    def name(self) -> str:
        return f"{self.budget}/{self.curve}/{self.arrival}/{self.work}"


class Curve(NamedTuple):
    """``rate[k]``: how many times faster one call is on k threads; ``top``: the least k at which it is fastest;
    ``capacity``: how many times faster all calls together can be, however many cores they have."""

    rate: tuple[float, ...]
    top: int
    capacity: float


class Load(NamedTuple):
    """``times`` of arrival, rising; or, of callers that call again ``pauses[i]`` seconds after their i-th answer, only
    the first one each. ``works[i]`` is the work of the i-th call to arrive."""

    times: tuple[float, ...]
    works: tuple[float, ...]
    pauses: tuple[float, ...] = ()


class Policy(Protocol):
    """What decides. ``calls`` is how many were in flight or waiting up to ``now``."""

    def arrived(self, now: float, calls: int) -> None: ...
    def ended(self, now: float, calls: int, seconds: float) -> None: ...
    def cores(self, running: int, waiting: int, free: int) -> int:
        """Threads for the first in the queue; 0: it waits."""
        ...


class Outcome(NamedTuple):
    mean: float
    p99: float


def all_cells(budgets: Sequence[int] = BUDGETS) -> list[Cell]:
    """Every combination."""
    return [Cell(b, c, a, w) for b in budgets for c in CURVES for a in ARRIVALS for w in WORKS]


def default_cells(budgets: Sequence[int] = BUDGETS) -> list[Cell]:
    """Every budget with every curve and arrival pattern, the law of work taking turns."""
    return [
        Cell(budget, curve, arrival, WORKS[(i + j + k) % len(WORKS)])
        for i, budget in enumerate(budgets)
        for j, curve in enumerate(CURVES)
        for k, arrival in enumerate(ARRIVALS)
    ]


def curve_of(name: str, budget: int) -> Curve:
    """The speed-up curve ``name`` on ``budget`` cores."""
    threads = range(1, budget + 1)
    capacity = math.inf
    if name.startswith("amdahl"):
        serial = 1 - int(name.removeprefix("amdahl")) / 100
        rates = [1 / (serial + (1 - serial) / k) for k in threads]
    elif name == "linear":
        rates = [float(k) for k in threads]
    elif name == "flat":  # no faster beyond a quarter of the cores
        rates = [float(min(k, max(2, budget // 4))) for k in threads]
    elif name == "falling":  # fastest at 8 threads, or half of the cores; then slower again
        peak = min(8, budget // 2)
        rates = [float(k) if k <= peak else peak * math.sqrt(peak / k) for k in threads]
    elif name == "shared":  # memory: one call is no faster than a quarter of the cores, all together than half of them
        rates = [float(min(k, max(1, budget // 4))) for k in threads]
        capacity = max(1.0, budget / 2)
    else:
        raise ValueError(f"no such curve: {name}")
    return Curve((0.0, *rates), 1 + rates.index(max(rates)), capacity)


def load_of(cell: Cell, calls: int, seed: int) -> Load:
    """What arrives in ``cell``: the same for every policy. The mean work is 1; a load of 80 % is 0.8 x cores."""
    rng = random.Random(f"{seed} {cell.name}")
    if cell.work == "equal":
        works = [1.0] * calls
    elif cell.work == "exponential":
        works = [rng.expovariate(1.0) for _ in range(calls)]
    else:  # nine short calls to one that is 30 times as long
        works = [(30.0 if rng.random() < 0.1 else 1.0) / 3.9 for _ in range(calls)]
    kind = cell.arrival.rstrip("0123456789")
    number = int(cell.arrival.removeprefix(kind) or 0)
    if kind in ("closed", "think"):
        pauses = [rng.expovariate(1.0) if kind == "think" else 0.0 for _ in range(calls)]
        return Load((0.0,) * min(number, calls), tuple(works), tuple(pauses))
    capacity = min(curve_of(cell.curve, cell.budget).capacity, float(cell.budget))
    if kind.startswith("batch"):  # at 40 % load
        size = number or max(8, cell.budget)
        times = _batches(rng, calls, size, 0.4 * capacity)
    elif kind == "onoff":
        times = _bursts(rng, calls, max(8, cell.budget), number / 100 * capacity)
    else:
        times = _batches(rng, calls, 1, number / 100 * capacity)
    return Load(tuple(times), tuple(works))


def _batches(rng: random.Random, calls: int, size: int, rate: float) -> list[float]:
    """Poisson arrivals of ``size`` calls at once, ``rate`` calls a second."""
    now = 0.0
    times: list[float] = []
    while len(times) < calls:
        now += rng.expovariate(rate / size)
        times += [now] * size
    return times[:calls]


def _bursts(rng: random.Random, calls: int, size: int, rate: float) -> list[float]:
    """Poisson arrivals at thrice ``rate`` for ``size`` calls or so, then nothing for twice as long or so."""
    now = 0.0
    times: list[float] = []
    while len(times) < calls:
        end = now + rng.expovariate(3 * rate / size)
        while (now := now + rng.expovariate(3 * rate)) < end:
            times.append(now)
        now = end + rng.expovariate(3 * rate / size / 2)
    return times[:calls]


def simulate(
    budget: int,
    curve: Curve,
    load: Load,
    make: Callable[[int], Policy],
    lanes: int = 1,
    spinning: float = SPINNING,
    switching: float = SWITCHING,
) -> list[float]:
    """Seconds from arrival to end of each call, in order of arrival.

    Each of ``lanes`` workers has its own FIFO, budget // lanes cores and policy (``make`` gets the cores); calls go to
    them in turn.
    """
    rate, _, capacity = curve
    cores = budget // lanes
    policies = [make(cores) for _ in range(lanes)]
    queues: list[deque[int]] = [deque() for _ in range(lanes)]
    running = [0] * lanes
    used = [0] * lanes
    total = len(load.works)
    came = [0.0] * total
    latencies = [0.0] * total
    ends: list[tuple[float, int, int, float]] = []  # the clock's reading at the end, call, threads, started
    arrivals = list(load.times)
    now = clock = 0.0
    speed = 1.0
    threads = teams = arrived = done = 0
    together = 0.0
    while done < total:
        until = (ends[0][0] - clock) / speed if ends else math.inf
        if arrivals and arrived < total and arrivals[0] < now + until:
            clock += (arrivals[0] - now) * speed
            now = heapq.heappop(arrivals)
            call, arrived = arrived, arrived + 1
            lane = call % lanes
            came[call] = now
            policies[lane].arrived(now, running[lane] + len(queues[lane]))
            queues[lane].append(call)
        else:
            now += until
            clock, call, size, started = heapq.heappop(ends)
            lane = call % lanes
            policies[lane].ended(now, running[lane] + len(queues[lane]), now - started)
            running[lane] -= 1
            used[lane] -= size
            threads -= size
            teams -= size if size > 1 else 0
            together -= rate[size]
            latencies[call] = now - came[call]
            done += 1
            if load.pauses:
                heapq.heappush(arrivals, now + load.pauses[call])
        queue = queues[lane]
        while queue:
            size = policies[lane].cores(running[lane], len(queue), cores - used[lane])
            if not size:
                break
            call = queue.popleft()
            heapq.heappush(ends, (clock + load.works[call] / rate[size], call, size, now))
            running[lane] += 1
            used[lane] += size
            threads += size
            teams += size if size > 1 else 0
            together += rate[size]
        speed = 1.0
        if threads > budget:
            above = threads / budget
            speed = 1 / (above * min(COLLAPSE, 1 + switching + spinning * (above - 1) * teams / threads))
        if together * speed > capacity:
            speed = capacity / together
    return latencies


def summarize(latencies: list[float]) -> Outcome:
    """Mean and 99th percentile without the first tenth of the calls."""
    kept = sorted(latencies[len(latencies) // 10 :])
    return Outcome(math.fsum(kept) / len(kept), kept[math.ceil(0.99 * len(kept)) - 1])


def mean_sojourn(servers: int, load: float) -> float:
    """Mean seconds from arrival to end in M/M/k: service of mean 1, ``load`` of each of k ``servers`` (Erlang C)."""
    offered = servers * load
    blocked = 1.0
    for k in range(1, servers + 1):  # Erlang B, recursively
        blocked = offered * blocked / (k + offered * blocked)
    waits = blocked / (1 - load * (1 - blocked))
    return 1 + waits / (servers * (1 - load))
