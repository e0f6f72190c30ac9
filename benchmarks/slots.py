"""What slots cost: the parts of a lease, a whole one, and handing a core over to another process.

A whole lease is look, take, publish as a call starts and give, publish, look as it ends. Three other processes have a
row, one of which holds a core. For the hand-over two processes pass one core to and fro: the waiter sleeps in ``poll``
until it is woken, looks, and takes the core; measured from just before the core is given to just after it is taken.

    python benchmarks/slots.py            table
    python benchmarks/slots.py --json     the same as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from cgroup_threads.governor.slots import Slots, open_slots

BUDGET = 64
CALLS = 50  # a round is to end within a time slice
OTHERS = 3


def time_calls(call: Callable[[], object]) -> float:
    """Microseconds a call."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS / 1000


def arms(slots: Slots) -> dict[str, Callable[[], object]]:
    def take_and_give() -> None:
        slots.give(slots.take(1, BUDGET, 1))

    def publish() -> None:
        slots.publish(1, 0, None, time.monotonic())

    def lease() -> None:
        mask = slots.take(1, BUDGET, slots.look().held)
        slots.publish(1, 0, None, time.monotonic())
        slots.give(mask)
        slots.publish(0, 0, None, time.monotonic())
        slots.look()

    return {
        "look": slots.look,
        "take and give a core": take_and_give,
        "take and give 8 cores": lambda: slots.give(slots.take(8, BUDGET, 1)),
        "take, none free": lambda: slots.take(1, 1, 0),
        "publish": publish,
        "a whole lease": lease,
        "reap": slots.reap,
        "moved": slots.moved,
    }


def measure_parts(key: str, rounds: int) -> dict[str, list[float]]:
    with ExitStack() as stack:
        others = [stack.enter_context(closing(open_slots(key))) for _ in range(OTHERS)]
        others[0].take(1, BUDGET, 0)
        for other in others:
            other.publish(1, 0, None, time.monotonic())
        slots = stack.enter_context(closing(open_slots(key)))
        calls = arms(slots)
        results: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(rounds + 1):
            for name, call in calls.items():
                took = time_calls(call)
                if turn:  # the first round warms up
                    results[name].append(took)
        return results


def pass_on(slots: Slots, given_at: int, turns: int, first: bool) -> list[float]:
    """Take the core when the other process gives it, give it, and so on; returns microseconds from give to take."""
    poll = select.poll()
    poll.register(slots.fileno(), select.POLLIN)
    took: list[float] = []
    stamp = struct.Struct("q")
    mask = slots.take(1, 1, 0) if first else 0
    while len(took) < turns:
        if mask:
            deadline = time.monotonic() + 1.0
            while slots.look().oldest_row is None and time.monotonic() < deadline:
                time.sleep(0.0002)  # until the other one sleeps
            time.sleep(0.0002)
            os.pwrite(given_at, stamp.pack(time.monotonic_ns()), 0)
            slots.give(mask)
            mask = 0
            slots.publish(0, 0, None, time.monotonic())
            row = slots.look().oldest_row
            if row is not None:
                slots.wake(row)
            time.sleep(0.0005)  # the other one is to have it
        now = time.monotonic()
        slots.publish(0, 1, now, now)
        poll.poll(10)
        slots.drain()
        mask = slots.take(1, 1, slots.look().held)
        if mask:
            took.append((time.monotonic_ns() - stamp.unpack(os.pread(given_at, 8, 0))[0]) / 1000)
            slots.publish(1, 0, None, time.monotonic())
    slots.give(mask)
    slots.publish(0, 0, None, time.monotonic())
    return took


def measure_hand_over(key: str, turns: int) -> list[float]:
    given_at = os.memfd_create("given_at")
    os.pwrite(given_at, struct.pack("q", time.monotonic_ns()), 0)
    with closing(open_slots(key)) as slots:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            child = slots.abandon_in_child()
            if child is None:
                os._exit(1)
            os.write(writer, b"x")
            pass_on(child, given_at, turns, False)
            os._exit(0)
        os.read(reader, 1)
        took = pass_on(slots, given_at, turns, True)
        os.waitpid(pid, 0)
    for descriptor in (given_at, reader, writer):
        os.close(descriptor)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=401, help="rounds in which the arms take turns (default: 401)")
    parser.add_argument("--turns", type=int, default=2000, help="hand-overs to each of the two (default: 2000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    key = f"benchmark-{os.getpid()}"
    with closing(open_slots(key)) as slots:
        path = slots.path
    parts = measure_parts(key, options.rounds)
    took = measure_hand_over(key, options.turns)
    percentiles = statistics.quantiles(took, n=100)
    hand_over = {"p50_us": percentiles[49], "p99_us": percentiles[98], "longest_us": max(took), "number": len(took)}
    medians = {name: statistics.median(values) for name, values in parts.items()}
    if options.json:
        rows = {name: {"median_us": medians[name], "rounds": values} for name, values in parts.items()}
        print(json.dumps({"path": path, "parts": rows, "hand_over": hand_over}, indent=2))
        return 0
    print(f"{path}, {OTHERS} other rows")
    print(f"{'part':<24}{'median us':>11}{'quartiles':>16}{'least':>8}")
    for name, values in parts.items():
        low, _, high = statistics.quantiles(values, n=4)
        print(f"{name:<24}{medians[name]:>11.2f}{f'{low:.2f} - {high:.2f}':>16}{min(values):>8.2f}")
    print(
        "\nhand-over to another process, us: " + ", ".join(f"{name} {value:.0f}" for name, value in hand_over.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
