"""The child's side of a sentence-transformers model: sentences are encoded in batches."""

from __future__ import annotations

import time
from typing import Any, Final

from .worker import Round, fit_size, repeat

MOST_SENTENCES: Final = 32  # the library's own batch size
BATCH_SECONDS: Final = 0.5  # of one thread
SENTENCES: Final = (
    "How many cores may this container keep busy?",
    "The quota of a control group limits processor time, not the number of processors that a program sees.",
    "Embeddings of short texts are computed in a few milliseconds, and most of that time goes into small products of "
    "matrices that several threads share.",
    "Past a certain number, more threads are a waste.",
)


def load(options: dict[str, Any]) -> EncoderWork:
    """Options: ``path`` of the directory; ``dtype`` and ``max_seq_length`` or None; ``sizes`` of an earlier child."""
    return EncoderWork(options)


class EncoderWork:
    """A loaded model on torch; see ``worker.Work``."""

    def __init__(self, options: dict[str, Any]) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self._torch = torch
        self._model = SentenceTransformer(options["path"], device="cpu")
        if options["dtype"]:
            self._model.to(getattr(torch, options["dtype"]))
        if options["max_seq_length"]:
            self._model.max_seq_length = options["max_seq_length"]
        torch.set_num_threads(1)
        self.seconds: dict[str, float] = {}
        size = options["sizes"].get("encode")
        if size is None:
            size, self.seconds["encode"] = fit_size(self._encode, 1, MOST_SENTENCES, BATCH_SECONDS)
        self.sizes: dict[str, float] = {"encode": float(size)}

    def prepare(self, task: str, threads: int) -> None:
        # Whatever OMP_NUM_THREADS says: this sets what OpenMP and MKL compute with in this thread.
        self._torch.set_num_threads(threads)
        self._encode(int(self.sizes[task]))

    def measure(self, task: str, seconds: float) -> Round:
        size = int(self.sizes[task])
        return repeat(lambda: self._encode(size), size, seconds)

    def _encode(self, count: int) -> float:
        texts = [SENTENCES[index % len(SENTENCES)] for index in range(count)]
        begin = time.perf_counter()
        self._model.encode(texts, batch_size=count, show_progress_bar=False)
        return time.perf_counter() - begin
