"""One arm of the demo, in a process of its own: loads the workload, then runs a round for each request.

It answers ``{"loaded": true}``, ``{"ready": detail}`` after a first call, then each ``{"callers": n, "seconds": s}``
with ``{"latencies": [seconds], "elapsed": seconds}``; ``{"error": text}`` where it failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ..measuring.serving import Channel, describe
from .workloads import Workload, build_calls


def run_round(call: Callable[[int], object], callers: int, seconds: float) -> dict[str, Any]:
    """Let ``callers`` threads call back to back for ``seconds``; every caller finishes at least one call."""
    latencies: list[list[float]] = [[] for _ in range(callers)]
    errors: list[str] = []
    start = time.perf_counter()

    def serve(index: int) -> None:
        own = latencies[index]
        try:
            while not own or time.perf_counter() - start < seconds:
                begin = time.perf_counter()
                call(index)
                own.append(time.perf_counter() - begin)
        except Exception as error:  # noqa: BLE001  # handed to the parent, which ends the demo with it
            errors.append(describe(error))

    threads = [threading.Thread(target=serve, args=(index,), daemon=True) for index in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result: dict[str, Any] = {"latencies": [value for own in latencies for value in own]}
    result["elapsed"] = time.perf_counter() - start
    if errors:
        result["error"] = errors[0]
    return result


def main(options: dict[str, Any]) -> None:
    """Run the arm that ``options`` describe."""
    channel = Channel()
    try:
        calls = build_calls(Workload(*options["workload"]), options["callers"], options["governed"])
        channel.answer(loaded=True)
        calls.call(0)  # first use loads kernels and makes pools
    except Exception as error:  # noqa: BLE001  # whatever a library raises while loading ends the demo with its text
        channel.give_up(error)
    channel.answer(ready=calls.detail)
    while True:
        request = channel.next_request()
        channel.answer(**run_round(calls.call, int(request["callers"]), float(request["seconds"])))
