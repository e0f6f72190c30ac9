"""The child's side of a GGUF model: llama.cpp evaluates tokens, nothing is sampled.

``decode`` evaluates one token a call after a short prompt, ``prefill`` and ``embed`` a whole batch. Which tokens they
are makes no difference to the time, but for mixtures of experts: they are those of a text, repeated.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any, Final

from .worker import Round, fit_size

PROMPT: Final = 16
GENERATED: Final = 32
"""Tokens of a decode sequence; then the context is cleared, and the prompt evaluated anew, off the clock."""
LEAST_BATCH: Final = 32
MOST_TOKENS: Final = {"prefill": 512, "embed": 128}  # a part of a prompt, as n_ubatch cuts it; a passage
BATCH_SECONDS: Final = 0.3  # of one thread
TEXT: Final = (
    "A container sees all processors of its host, but may keep only some of them busy. A program that starts a thread "
    "for each processor it sees makes its threads wait for one another, and is stopped when its time is used up. "
    "How many threads help depends on the work: reading weights from memory does not get faster past a few. "
)


def load(options: dict[str, Any]) -> LlamaWork:
    """Options: ``path``; ``arguments`` of ``llama_cpp.Llama``; ``tasks``; ``sizes`` of an earlier child, or {}."""
    return LlamaWork(options)


class LlamaWork:
    """A loaded model; see ``worker.Work``."""

    def __init__(self, options: dict[str, Any]) -> None:
        import llama_cpp
        from llama_cpp import llama_cpp as native

        counts = {"n_threads": 1, "n_threads_batch": 1}
        self._native = native
        self._llama = llama_cpp.Llama(options["path"], **{**options["arguments"], **counts, "verbose": False})
        self._context: Any = self._llama._ctx
        self._pointer = self._context.ctx
        room = int(native.llama_n_ctx(self._pointer))
        self._prompt = max(1, min(PROMPT, room // 4))
        self._generated = max(1, min(GENERATED, room - self._prompt))
        self._room = min(room, native.llama_model_n_ctx_train(self._llama._model.model) or room)
        self._room = max(1, min(self._room, int(self._llama.context_params.n_ubatch), int(self._llama.n_batch)))
        words = self._llama.tokenize(TEXT.encode(), add_bos=True)
        repeated = words * math.ceil(max(*MOST_TOKENS.values(), self._prompt + self._generated) / len(words))
        self._tokens = (native.llama_token * len(repeated))(*repeated)
        self.sizes: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        for task in options["tasks"]:
            self._calibrate(task, options["sizes"].get(task))

    def prepare(self, task: str, threads: int) -> None:
        """Both counts the same: a batch may end in one token alone, which takes the other count."""
        self._native.llama_set_n_threads(self._pointer, threads, threads)
        if task == "decode":
            self._sequence(1)
        else:
            self._batch(min(LEAST_BATCH, int(self.sizes[task])))

    def measure(self, task: str, seconds: float) -> Round:
        calls: list[float] = []
        while not calls or math.fsum(calls) < seconds:
            if task == "decode":
                calls += self._sequence(self._generated, seconds - math.fsum(calls))
            else:
                calls.append(self._batch(int(self.sizes[task])))
        return Round(self.sizes[task] * len(calls), math.fsum(calls), calls)

    def _calibrate(self, task: str, size: float | None) -> None:
        if task == "decode":
            self._sequence(1)
            self.sizes[task] = 1.0
            self.seconds[task] = min(self._sequence(2))
        elif size is None:
            top = min(MOST_TOKENS[task], self._room)
            fitting, self.seconds[task] = fit_size(self._batch, LEAST_BATCH, top, BATCH_SECONDS)
            self.sizes[task] = float(fitting)
        else:
            self._batch(min(LEAST_BATCH, int(size)))
            self.sizes[task] = size

    def _batch(self, size: int) -> float:
        """The seconds of evaluating the first ``size`` tokens at once."""
        self._context.kv_cache_clear()
        return self._evaluate(0, size)

    def _sequence(self, count: int, seconds: float = math.inf) -> list[float]:
        """The seconds of each of ``count`` tokens after the prompt; fewer if ``seconds`` are over, at least one."""
        self._batch(self._prompt)
        calls: list[float] = []
        while not calls or (len(calls) < count and math.fsum(calls) < seconds):
            calls.append(self._evaluate(self._prompt + len(calls), 1))
        return calls

    def _evaluate(self, start: int, count: int) -> float:
        native = self._native
        size = ctypes.sizeof(native.llama_token)
        tokens = (native.llama_token * count).from_buffer(self._tokens, start * size)
        batch = native.llama_batch_get_one(tokens, count)
        begin = time.perf_counter()
        code = native.llama_decode(self._pointer, batch)
        native.llama_synchronize(self._pointer)
        elapsed = time.perf_counter() - begin
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return elapsed
