"""The load generator of the service benchmark: closed-loop callers on kept-alive connections, one process.

    echo '{"port": 8000, "path": "/encode", "body": "{}", "callers": 10, ...}' | python -m benchmarks.service_load

Prints JSON lines: ``{"start": t}`` after the warm-up, ``{"end": t}`` (monotonic seconds), then the result. Requests are
built once and answers are counted in protocol callbacks, so that a request costs some 0.05 ms here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

REQUESTS_SECONDS = 600.0  # a window that counts requests is given up so long after the warm-up


class Job(NamedTuple):
    """What to ask for. ``requests`` (if not 0) ends the window instead of ``seconds``; ``patience`` bounds the rest.

    ``spread`` "even" deals the connections to ``pids`` in turn by connecting again until the kernel has chosen the
    wanted process; "kernel" takes them as they come.
    """

    port: int
    path: str
    body: str
    callers: int
    pids: list[int]
    spread: str = "even"
    warmup: float = 1.5
    seconds: float = 6.0
    requests: int = 0
    patience: float = 60.0


class Answer(NamedTuple):
    started: float
    ended: float
    worker: int


def build_request(job: Job) -> bytes:
    head = f"POST {job.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(job.body.encode())}\r\n\r\n{job.body}".encode()


def parse_head(head: bytes) -> tuple[int, int, int]:
    """Status, process id of the worker and length of the body, from the head of an answer."""
    status, worker, length = int(head[9:12]), 0, 0
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
        elif name == b"x-worker":
            worker = int(value)
    return status, worker, length


class Caller(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, answered: Callable[[Caller, float], None], lost: Callable[[Caller], None]) -> None:
        self._answered, self._lost = answered, lost
        self._buffer = bytearray()
        self._end = 0
        self.transport: Any = None
        self.started = 0.0
        self.status = self.worker = 0
        self.waiting = False

    def ask(self, request: bytes) -> None:
        self.waiting = True
        self.started = time.monotonic()
        self.transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting:
            self._lost(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._end:
            head = buffer.find(b"\r\n\r\n")
            if head < 0:
                return
            self.status, self.worker, length = parse_head(bytes(buffer[:head]))
            self._end = head + 4 + length
        if len(buffer) >= self._end:
            ended = time.monotonic()
            buffer.clear()
            self._end = 0
            self.waiting = False
            self._answered(self, ended)


class Load:
    """All callers of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.request = build_request(job)
        self.callers: list[Caller] = []
        self.answers: list[Answer] = []
        self.errors = 0
        self.asking = True
        self.changed = asyncio.Event()
        self.nobody = asyncio.Event()
        self.start = self.end = 0.0
        self.wanted = 0

    async def connect(self) -> None:
        """Open the connections, spread over the workers as asked."""
        counts = Counter(dict.fromkeys(self.job.pids, 0))
        for _ in range(self.job.callers):
            for attempt in range(400):
                caller, worker = await self._connect_once()
                if self.job.spread == "kernel" or not counts or counts[worker] == min(counts.values()):
                    break
                if attempt < 399:
                    caller.transport.close()
            counts[worker] += 1
            caller._answered, caller._lost = self.answered, self.lost
            self.callers.append(caller)

    async def _connect_once(self) -> tuple[Caller, int]:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[int] = loop.create_future()

        def answered(caller: Caller, ended: float) -> None:
            ready.set_result(caller.worker)

        def lost(caller: Caller) -> None:
            ready.set_exception(ConnectionError("the server closed the connection"))

        _, caller = await loop.create_connection(lambda: Caller(answered, lost), "127.0.0.1", self.job.port)
        caller.ask(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        return caller, await asyncio.wait_for(ready, self.job.patience)

    def answered(self, caller: Caller, ended: float) -> None:
        self.answers.append(Answer(caller.started, ended, caller.worker))
        if caller.status != 200:
            self.errors += 1
        if self.asking:
            caller.ask(self.request)
        if not self.asking or 0 < self.wanted <= len(self.answers):
            self.changed.set()

    def lost(self, caller: Caller) -> None:
        self.errors += 1
        caller.waiting = False
        self.changed.set()
        if not any(other.waiting for other in self.callers):
            self.nobody.set()

    async def _sleep(self, seconds: float) -> None:
        """Let the callers ask; over at once if all connections are lost."""
        await _expires(self.nobody, seconds)

    async def _answers(self, count: int, until: float) -> None:
        """Wait for ``count`` answers in all, at most until then."""
        self.wanted = count
        while len(self.answers) < count and not self.nobody.is_set():
            self.changed.clear()
            if await _expires(self.changed, until - time.monotonic()):
                break
        self.wanted = 0

    async def run(self, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Warm up, measure, let the last answers come; returns the result."""
        job = self.job
        await self.connect()
        for caller in self.callers:
            caller.ask(self.request)
        await self._sleep(job.warmup)
        before, self.start = len(self.answers), time.monotonic()
        cpu = time.process_time()
        say({"start": self.start})
        if not job.requests:
            await self._sleep(job.seconds)
        # However slow it is, each caller's worth of answers is seen, unless patience ends.
        longest = (REQUESTS_SECONDS if job.requests else job.seconds) + job.patience
        await self._answers(before + (job.requests or job.callers), self.start + longest)
        self.end = time.monotonic()
        cpu = time.process_time() - cpu
        say({"end": self.end})
        self.asking = False
        drained = await self._drain()
        for caller in self.callers:
            caller.waiting = False
            caller.transport.abort()
        answers = [answer for answer in self.answers if self.start <= answer.ended <= self.end]
        return {
            **summarise(answers, self.end - self.start),
            "errors": self.errors,
            "drained": drained,
            "generator_cpu": cpu / (self.end - self.start),
        }

    async def _drain(self) -> bool:
        until = time.monotonic() + self.job.patience
        while any(caller.waiting for caller in self.callers):
            self.changed.clear()
            if await _expires(self.changed, until - time.monotonic()):
                return False
        return True


async def _expires(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except asyncio.TimeoutError:
        return True
    return False


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value with at least the share ``q`` of all at or below it; ``values`` sorted, not empty."""
    return values[max(0, min(len(values) - 1, -int(-q * len(values) // 1) - 1))]


def summarise(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Rate, latencies in tenths of a millisecond (sorted), and how the answers spread over the workers."""
    return {
        "requests": len(answers),
        "seconds": seconds,
        "rate": len(answers) / seconds,
        "latencies": sorted(round((answer.ended - answer.started) * 10_000) for answer in answers),
        "spread": sorted(Counter(answer.worker for answer in answers).values(), reverse=True),
    }


def run_ahead() -> bool:
    """Put this thread before ordinary ones, as a client on another machine would be; False where that is refused."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def main() -> None:
    job = Job(**json.load(sys.stdin))

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), flush=True)

    async def work() -> None:
        load = Load(job)
        say(await load.run(say))

    run_ahead()
    asyncio.run(work())


if __name__ == "__main__":
    main()
