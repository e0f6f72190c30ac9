"""One arm of the demo, in a process of its own: loads the workload, then runs a round for each line it is sent.

Protocol, one JSON object a line: on standard output ``{"loaded": true}``, ``{"ready": detail}`` after a first call,
then for each ``{"callers": n, "seconds": s}`` read from standard input one ``{"latencies": [seconds], "elapsed":
seconds}``; ``{"error": text}`` where it failed. It ends when its input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import first_line
from .workloads import Workload, build_calls


def describe(error: Exception) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {first_line(error)}"


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


def main(config: str) -> None:
    """Run an arm described by the JSON object ``config``."""
    # Libraries write to standard output as they like: keep it for the protocol alone.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    options = json.loads(config)
    try:
        calls = build_calls(Workload(*options["workload"]), options["callers"], options["governed"])
        print(json.dumps({"loaded": True}), file=channel, flush=True)
        calls.call(0)  # first use loads kernels and makes pools
    except Exception as error:  # noqa: BLE001  # whatever a library raises while loading ends the demo with its text
        print(json.dumps({"error": describe(error)}), file=channel, flush=True)
        return
    print(json.dumps({"ready": calls.detail}), file=channel, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        result = run_round(calls.call, int(request["callers"]), float(request["seconds"]))
        print(json.dumps(result), file=channel, flush=True)
    # Threads of native pools may still spin: leave without waiting for them.
    channel.close()
    os._exit(0)
