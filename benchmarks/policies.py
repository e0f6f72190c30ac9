"""Policies of the simulation: how many cores a call gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks.simulated_calls import (
    Cell,
    Curve,
    Load,
    Policy,
    curve_of,
    load_of,
    mean_sojourn,
    simulate,
    summarize,
)
from cgroup_threads.governor import arbitration


class Entry(NamedTuple):
    """A row of the table. ``make`` gets the cores and the top; ``lanes`` is how many workers split the budget.

    ``knows_top`` 0: the top is not known; 1: it is; between: the least number of threads that reaches this part of the
    best rate counts as the top.
    """

    title: str
    make: Callable[[int, int], Policy]
    knows_top: float = 0.0
    lanes: int = 1


class Unobserving:
    """A policy that keeps no count of its own."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def arrived(self, now: float, calls: int) -> None:
        pass

    def ended(self, now: float, calls: int, seconds: float) -> None:
        pass


class Governor:
    """Ours, as the runtime calls it."""

    def __init__(self, budget: int, top: int, wait_for_half: bool = True) -> None:
        self.budget, self.top, self.wait_for_half = budget, top, wait_for_half
        self.mean = self.duration = self.at = 0.0

    def arrived(self, now: float, calls: int) -> None:
        self.mean = arbitration.smooth(self.mean, calls, now - self.at, self.duration)
        self.at = now

    def ended(self, now: float, calls: int, seconds: float) -> None:
        self.arrived(now, calls)
        self.duration = arbitration.smooth_duration(self.duration, seconds)

    def cores(self, running: int, waiting: int, free: int) -> int:
        calls = running + waiting
        want = arbitration.share(self.budget, calls, self.mean if self.duration else calls, self.top)
        return arbitration.grant(want, free, running, wait_for_half=self.wait_for_half)


class Fixed(Unobserving):
    """The same number of threads for each call, which waits for them if ``admission``."""

    def __init__(self, budget: int, threads: int, admission: bool) -> None:
        super().__init__(budget)
        self.threads, self.admission = threads, admission

    def cores(self, running: int, waiting: int, free: int) -> int:
        return 0 if self.admission and free < self.threads else self.threads


class Split(Unobserving):
    """At entry: the budget by the calls in flight, no admission."""

    def cores(self, running: int, waiting: int, free: int) -> int:
        return max(1, self.budget // (running + 1))


class Clamp(Unobserving):
    """clamp(budget // n, 1, free), n the calls in flight and waiting."""

    def cores(self, running: int, waiting: int, free: int) -> int:
        return min(max(1, self.budget // (running + waiting)), free)


TABLE: Final = {
    "ours-top": Entry("ours, top known", Governor, knows_top=1.0),
    "ours": Entry("ours, top unknown", Governor),
    "ours-nowait": Entry("ours, top unknown, no waiting for half", lambda b, t: Governor(b, t, wait_for_half=False)),
    "clamp": Entry("clamp(budget // n, 1, free)", lambda b, t: Clamp(b)),
    "entry": Entry("split at entry, no admission", lambda b, t: Split(b)),
    "workers-ours": Entry("4 workers, ours in each", Governor, lanes=4),
    "workers": Entry("4 workers, budget / 4 each, one call at a time", lambda b, t: Fixed(b, b, True), lanes=4),
    "one-queue": Entry("1 thread each, with admission", lambda b, t: Fixed(b, 1, True)),
    "one": Entry("1 thread each", lambda b, t: Fixed(b, 1, False)),
    "all-queue": Entry("budget threads, one call at a time", lambda b, t: Fixed(b, b, True)),
    "all": Entry("budget threads each", lambda b, t: Fixed(b, b, False)),
}
OURS: Final = ("ours-top", "ours", "ours-nowait")


def fixed_sizes(budget: int) -> dict[str, Entry]:
    """Fixed sizes with admission between 1 and all: no rows, but the best policy of a cell may be one of them."""
    sizes = [2**i for i in range(1, budget.bit_length()) if 2**i < budget]
    return {f"fixed-{n}": Entry(f"{n} threads each, with admission", _fixed(n)) for n in sizes}


def _fixed(threads: int) -> Callable[[int, int], Policy]:
    return lambda budget, top: Fixed(budget, threads, True)


class Rule(NamedTuple):
    """Our rule with its numbers as fields; the defaults are what arbitration.py does (a test compares them)."""

    durations: float = arbitration.DURATIONS_PER_TAU
    weight: float = arbitration.DURATION_WEIGHT
    idle: bool = False
    """Time without calls counts in the mean."""
    low: float = 0.5
    high: float = 2.0
    """Between which multiples of the present number the mean is trusted."""
    running_only: bool = False
    """The present number is the calls in flight and the one that asks, without the others that wait."""
    slack: float = 0.0
    """What the expected number is raised by, in standard deviations of a Poisson number."""
    counting: str = "nearest"
    """How the expected number becomes whole."""
    rounding: str = "up"
    """How budget / expected number becomes whole."""
    most: float = 1.0
    """The part of the budget that a call gets at most."""
    half: float = 0.5
    """The part of the share that must be free."""


WHOLE: Final[dict[str, Callable[[float], int]]] = {
    "down": math.floor,
    "up": math.ceil,
    "nearest": lambda value: math.floor(value + 0.5),
}


class Varied:
    """``Rule`` at work."""

    def __init__(self, budget: int, top: int, rule: Rule) -> None:
        self.budget, self.rule = budget, rule
        self.top = min(top, math.ceil(rule.most * budget))
        self.mean = self.duration = self.at = 0.0

    def arrived(self, now: float, calls: int) -> None:
        tau = self.rule.durations * self.duration
        if calls or self.rule.idle:
            self.mean = calls + (self.mean - calls) * math.exp((self.at - now) / tau) if tau else float(calls)
        self.at = now

    def ended(self, now: float, calls: int, seconds: float) -> None:
        self.arrived(now, calls)
        self.duration += (self.rule.weight if self.duration else 1.0) * (seconds - self.duration)

    def cores(self, running: int, waiting: int, free: int) -> int:
        rule = self.rule
        calls = running + (1 if rule.running_only else waiting)
        mean = self.mean if self.duration else calls
        expected = min(max(mean, calls * rule.low), calls * rule.high)
        expected = max(1, WHOLE[rule.counting](expected + rule.slack * math.sqrt(expected)))
        want = max(1, min(WHOLE[rule.rounding](self.budget / expected), self.top))
        if free < 1 or (running and free < rule.half * want):
            return 0
        return min(want, free)


def variants() -> dict[str, Entry]:
    """Rows of --variants: each changes one thing of the rule, the last ones two or three."""
    rules = {f"mean over {n} durations": Rule(durations=n) for n in (10, 20, 50, 100)}
    rules |= {f"waits for {part:g} of the share": Rule(half=part) for part in (0.0, 0.25, 0.6, 0.75)}
    clips = ((1.0, 1.0), (0.5, 1.0), (1.0, 2.0), (0.5, 1.5), (0.7, 1.5), (0.25, 4.0))
    rules |= {f"mean trusted within {low:g} n and {high:g} n": Rule(low=low, high=high) for low, high in clips}
    rules |= {
        "counts running calls only": Rule(running_only=True),
        "duration weighs 0.02": Rule(weight=0.02),
        "expects half a standard deviation more": Rule(slack=0.5),
        "rounds the expected number up": Rule(counting="up"),
        "rounds the expected number down": Rule(counting="down"),
        "a call gets 3/4 of the budget at most": Rule(most=0.75),
        "a call gets half of the budget at most": Rule(most=0.5),
        "idle time counts": Rule(idle=True),
        "idle time does not count": Rule(idle=False),
        "rounds shares down": Rule(rounding="down"),
        "rounds shares to the nearest": Rule(rounding="nearest"),
        "rounds shares up": Rule(rounding="up"),
        "rounds shares up, idle time does not count": Rule(rounding="up", idle=False),
        "the same, and waits for 0.6 of the share": Rule(rounding="up", idle=False, half=0.6),
    }
    rules = {title: rule for title, rule in rules.items() if rule != Rule()}
    rows = {}
    for known in (False, True):
        for title, rule in rules.items():
            rows[f"{title}, top {'known' if known else 'unknown'}"] = Entry(title, _varied(rule), float(known))
    for part in (0.95, 0.9, 0.8):
        title = f"top: where {part:.0%} of the best rate is reached"
        rows[title] = Entry(title, Governor, part)
    return rows


def _varied(rule: Rule) -> Callable[[int, int], Policy]:
    return lambda budget, top: Varied(budget, top, rule)


def latencies_of(entry: Entry, cell: Cell, curve: Curve, load: Load) -> list[float]:
    """Seconds from arrival to end of each call of ``load`` in ``cell`` under ``entry``."""

    top = cell.budget
    if entry.knows_top:
        top = next(k for k, rate in enumerate(curve.rate) if rate >= entry.knows_top * curve.rate[curve.top])

    def make(cores: int) -> Policy:
        return entry.make(cores, min(top, cores))

    return simulate(cell.budget, curve, load, make, min(entry.lanes, cell.budget))


def theory(seed: int, calls: int) -> list[tuple[str, float, float]]:
    """What is being compared, the exact mean sojourn and the simulated one."""
    found = []
    for servers, load in ((1, 0.5), (8, 0.7), (64, 0.9)):
        latencies = _poisson(servers, load, "exponential", "one-queue", seed, calls)
        title = f"M/M/{servers} at {load:.0%}: 1 thread each, with admission"
        found.append((title, mean_sojourn(servers, load), latencies))
    # An M/G/1 queue that shares its server has the mean of M/M/1, whatever the law of work: 8 servers here are one that
    # is 8 times as fast.
    exact = mean_sojourn(1, 0.6) / 8
    found.append(("M/G/1-PS at 60%: 8 threads each", exact, _poisson(8, 0.6, "mixed", "all", seed, calls)))
    return found


def _poisson(servers: int, load: float, work: str, name: str, seed: int, calls: int) -> float:
    """Mean sojourn with Poisson arrivals and calls that speed up linearly; threads above the cores cost nothing."""
    curve = curve_of("linear", servers)
    arriving = load_of(Cell(servers, "linear", f"poisson{load * 100:.0f}", work), calls, seed)
    entry = TABLE[name]
    make = entry.make
    return summarize(
        simulate(servers, curve, arriving, lambda cores: make(cores, cores), spinning=0.0, switching=0.0)
    ).mean
