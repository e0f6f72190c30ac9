"""llama.cpp's performance summary, read from text. Pure.

The lines have had several names (``llama_print_timings:``, ``llama_perf_context_print:``, ``common_perf_print:``, the
server's ``print_timing``) and one layout; whatever stands before it, such as a log's time stamp, is skipped.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_SUMMARIES: Final = 1000
_COUNT: Final = r"(\d{1,18})"  # longer ones are nobody's: int() refuses them, float() makes them infinite
_NUMBER: Final = r"(\d{1,18}(?:\.\d{1,18})?)"
_TIME: Final = re.compile(
    rf"(?<![\w-])(load|prompt eval|eval|total) time =\s*{_NUMBER} ms"
    rf"(?:\s*/\s*{_COUNT} (?:tokens|runs?))?"
)
_REUSED: Final = re.compile(rf"(?<!\w)graphs reused =\s*{_COUNT}(?!\d)")
_THREADS: Final = re.compile(rf"n_threads = {_COUNT}(?: \(n_threads_batch = {_COUNT}\))? / {_COUNT}(?!\d)")
_SIZE: Final = re.compile(rf"(?:file|model) size\s*=\s*{_NUMBER} (MiB|GiB|MB|GB)")
_PARAMETERS: Final = re.compile(rf"model params\s*=\s*{_NUMBER} (K|M|B|T)\b")
_UNITS: Final = {"MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class LlamaSummary(NamedTuple):
    """One summary; times in milliseconds, None for lines that are missing.

    ``prompt`` is the evaluation of prompts and embeddings in batches (``n_threads_batch`` threads), ``decode`` that of
    single tokens as they are generated (``n_threads`` threads).
    """

    load_ms: float | None = None
    prompt_ms: float | None = None
    prompt_tokens: int = 0
    decode_ms: float | None = None
    decode_tokens: int = 0
    total_ms: float | None = None
    graphs_reused: int | None = None

    @property
    def prompt_ms_per_token(self) -> float | None:
        """Milliseconds a token of the prompt; None without any."""
        return self.prompt_ms / self.prompt_tokens if self.prompt_ms and self.prompt_tokens else None

    @property
    def decode_ms_per_token(self) -> float | None:
        """Milliseconds a generated token; None without any. (llama.cpp writes ``1 runs`` for none, with 0.00 ms.)"""
        return self.decode_ms / self.decode_tokens if self.decode_ms and self.decode_tokens else None


class LlamaFacts(NamedTuple):
    """What else a log says: the file's bytes and parameters, and the threads with the CPUs llama.cpp saw."""

    weights: float | None = None
    parameters: float | None = None
    threads: int | None = None
    threads_batch: int | None = None
    cpus: int | None = None


def parse_summaries(text: str) -> tuple[LlamaSummary, ...]:
    """All summaries in ``text``, in order, at most ``MAX_SUMMARIES``."""
    found: list[dict[str, float]] = []
    if "eval time =" not in text:  # most outputs: not worth a look at each line
        return ()
    for line in text.splitlines():
        entries = _read_line(line)
        # The load time is the head of a summary; where it is missing, a line that is there already tells of the next.
        if entries and (not found or "load_ms" in entries or entries.keys() & found[-1].keys()):
            if len(found) == MAX_SUMMARIES:
                break
            found.append({})
        if entries:
            found[-1].update(entries)
    return tuple(_make(entries) for entries in found if "prompt_ms" in entries or "decode_ms" in entries)


def parse_facts(text: str) -> LlamaFacts:
    """The first of each fact in ``text``."""
    size, parameters, threads = _SIZE.search(text), _PARAMETERS.search(text), _THREADS.search(text)
    count, batch, cpus = threads.groups() if threads else (None, None, None)
    return LlamaFacts(
        weights=float(size[1]) * _UNITS[size[2]] if size else None,
        parameters=float(parameters[1]) * _UNITS[parameters[2]] if parameters else None,
        threads=int(count) if count else None,
        threads_batch=int(batch or count) if count else None,
        cpus=int(cpus) if cpus else None,
    )


def _read_line(line: str) -> dict[str, float]:
    found = _TIME.search(line)
    if found is None:
        reused = _REUSED.search(line)
        return {"graphs_reused": float(reused[1])} if reused else {}
    name, milliseconds, count = found[1], float(found[2]), float(found[3] or "0")
    if name == "prompt eval":
        return {"prompt_ms": milliseconds, "prompt_tokens": count}
    if name == "eval":
        return {"decode_ms": milliseconds, "decode_tokens": count}
    return {f"{name}_ms": milliseconds}


def _make(entries: dict[str, float]) -> LlamaSummary:
    reused = entries.get("graphs_reused")
    return LlamaSummary(
        load_ms=entries.get("load_ms"),
        prompt_ms=entries.get("prompt_ms"),
        prompt_tokens=int(entries.get("prompt_tokens", 0)),
        decode_ms=entries.get("decode_ms"),
        decode_tokens=int(entries.get("decode_tokens", 0)),
        total_ms=entries.get("total_ms"),
        graphs_reused=None if reused is None else int(reused),
    )
