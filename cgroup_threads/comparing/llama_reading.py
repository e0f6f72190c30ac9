"""What llama.cpp's performance summaries mean: which thread count the time depends on, and what is no finding. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..notices import Notice
from .llama_summary import LlamaFacts, LlamaSummary, parse_facts, parse_summaries
from .wording import say_notices

BATCH_SHARE: Final = 0.9  # of the total, in prompt evaluation
SAME_SHARE: Final = 0.9  # of the load time, in the first prompt evaluation
MORE_TOKENS: Final = 1.5  # between two prompts that are to be compared
FLAT: Final = 0.25  # of the growth in tokens
WORTH_MS: Final = 200.0  # below that a fixed cost is nobody's trouble
SLOWER: Final = 3.0  # a token in a batch against a generated one; it should be cheaper
# What the slowest machine would do: bytes of weights and operations a second (two a parameter and token), and the
# bytes a second of the disk they come from at the first evaluation.
_SLOW_MEMORY: Final = 1e9
_SLOW_CORE: Final = 1e9
_SLOW_DISK: Final = 5e6
_PARAMETERS_PER_BYTE: Final = 2.0  # 4-bit weights
_UNKNOWN_MODEL: Final = 5e9  # parameters, where the log does not tell
_WIDTHS: Final = (11, 13, 8, 11, 13, 8, 11, 13)
_FIX: Final = (
    "set n_threads_batch (--threads-batch) as well as n_threads, both to what `cgroup-threads cores` prints; "
    "`import cgroup_threads` first in a Python program, or `cgroup-threads exec` before one of llama.cpp, does it"
)


class LlamaReading(NamedTuple):
    """The summaries found in some logs, what else those say, and what follows. ``str()`` is the text."""

    summaries: tuple[LlamaSummary, ...]
    facts: LlamaFacts
    notices: tuple[Notice, ...]

    def __str__(self) -> str:
        return "\n".join([*_table(self.summaries), "", *say_notices(self.notices)]).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "schema": 1,
            "summaries": [summary._asdict() for summary in self.summaries],
            "facts": self.facts._asdict(),
            "notices": [notice._asdict() for notice in self.notices],
        }


def read_llama_summary(*texts: str) -> LlamaReading:
    """Read all performance summaries in ``texts``, which are logs of one model with inputs of different lengths.

    Never raises: a text without a summary adds none.
    """
    summaries = tuple(summary for text in texts for summary in parse_summaries(text))
    facts = parse_facts("\n".join(texts))
    return LlamaReading(summaries, facts, tuple(_judge(summaries, facts)))


def _judge(summaries: Sequence[LlamaSummary], facts: LlamaFacts) -> list[Notice]:
    if not summaries:
        return []
    found = _judge_possible(summaries, facts)
    found += _judge_flat(summaries, slow=bool(found))
    found += _judge_against_decode(summaries)
    found += _judge_counts(facts)
    found += _judge_path(summaries)
    found += _judge_load(summaries)
    if all(summary.graphs_reused == 0 for summary in summaries):
        message = "graphs reused = 0 is no finding: a graph is kept only for batches of the same shape"
        found.append(Notice("llama-graphs-reused", message))
    return found


def _judge_possible(summaries: Sequence[LlamaSummary], facts: LlamaFacts) -> list[Notice]:
    """The time that is furthest beyond what any machine needs for the arithmetic."""
    loaded: set[float | None] = set()  # the load time is printed again with each later call
    found: list[tuple[float, str]] = []
    for summary in summaries:
        cold = _is_first(summary) and summary.load_ms not in loaded
        loaded.add(summary.load_ms)
        for name, each, most in (
            ("prompt eval", summary.prompt_ms_per_token, _most_ms(facts, summary.prompt_tokens, cold=cold)),
            ("eval", summary.decode_ms_per_token, _most_ms(facts, 1, cold=False)),
        ):
            if each is not None and each > most:
                message = (
                    f"{name}: {_figure(each)} ms a token is not computation: {_say_model(facts)} takes less than "
                    f"{_figure(most)} on one slow core. Threads wait for each other"
                )
                found.append((each / most, message))
    return [Notice("llama-impossible", max(found)[1], "problem", _FIX)] if found else []


def _most_ms(facts: LlamaFacts, tokens: int, *, cold: bool) -> float:
    """Milliseconds a token that one evaluation of ``tokens`` may take on one slow core."""
    parameters = facts.parameters or (facts.weights or 0.0) * _PARAMETERS_PER_BYTE or _UNKNOWN_MODEL
    weights = facts.weights or parameters / _PARAMETERS_PER_BYTE
    seconds = weights / _SLOW_MEMORY + 2 * parameters * tokens / _SLOW_CORE + (weights / _SLOW_DISK if cold else 0.0)
    return (1000 * seconds + WORTH_MS) / max(1, tokens)


def _say_model(facts: LlamaFacts) -> str:
    if facts.parameters:
        return f"a model of {facts.parameters / 1e9:.3g} billion parameters"
    if facts.weights:
        return f"a model of {facts.weights / 1e9:.3g} GB"
    return f"a model of {_UNKNOWN_MODEL / 1e9:.0f} billion parameters (the log does not say how many this one has)"


def _judge_flat(summaries: Sequence[LlamaSummary], *, slow: bool) -> list[Notice]:
    """Does the time grow with the input?"""
    times: dict[int, list[float]] = {}
    for summary in summaries:
        if summary.prompt_ms and summary.prompt_tokens:
            times.setdefault(summary.prompt_tokens, []).append(summary.prompt_ms)
    if len(times) < 2 or max(times) < MORE_TOKENS * min(times):
        return []
    few, many = min(times), max(times)
    first, last = statistics.median(times[few]), statistics.median(times[many])
    said = f"prompt eval takes {_figure(first)} ms for {few} tokens and {_figure(last)} ms for {many}"
    if last / first >= 1 + FLAT * (many / few - 1):
        return [Notice("llama-grows", f"{said}: it grows with the input, as computation does")]
    if last < WORTH_MS:
        return [Notice("llama-flat-short", f"{said}: flat, but too short to matter")]
    message = f"{said}: a fixed cost of each call, so it is the threads, not the model or the input"
    return [Notice("llama-flat-prompt", message, "problem" if slow else "warning", _FIX)]


def _judge_against_decode(summaries: Sequence[LlamaSummary]) -> list[Notice]:
    """A token costs less in a batch than by itself: the weights are read once for all."""
    for summary in summaries:
        batch, single = summary.prompt_ms_per_token, summary.decode_ms_per_token
        enough = min(summary.prompt_tokens, summary.decode_tokens) >= 4 and (summary.prompt_ms or 0.0) > WORTH_MS
        if enough and batch and single and batch > SLOWER * single:
            message = (
                f"a token of the prompt takes {_figure(batch)} ms and a generated one {_figure(single)}, though in a "
                "batch it is cheaper: n_threads fits, n_threads_batch does not (or the weights came from the disk)"
            )
            return [Notice("llama-batch-slower", message, "warning", _FIX)]
    return []


def _judge_counts(facts: LlamaFacts) -> list[Notice]:
    threads, batch, cpus = facts.threads, facts.threads_batch, facts.cpus
    if threads is None or batch is None or cpus is None or not threads < batch or batch < cpus:
        return []
    message = f"n_threads = {threads}, but n_threads_batch = {batch}, as many as the {cpus} CPUs it saw"
    return [Notice("llama-threads-batch", message, "warning", _FIX)]


def _judge_path(summaries: Sequence[LlamaSummary]) -> list[Notice]:
    """Which of the two counts the time depends on, in the longest of the summaries."""
    timed = [summary for summary in summaries if summary.total_ms and summary.prompt_ms is not None]
    if not timed:
        return []
    longest = max(timed, key=lambda summary: summary.total_ms or 0.0)
    assert longest.total_ms is not None
    assert longest.prompt_ms is not None
    share = longest.prompt_ms / longest.total_ms
    if share >= BATCH_SHARE:
        message = f"prompt eval is {100 * share:.0f} % of the total: the time is in the batch path (n_threads_batch)"
        return [Notice("llama-batch-path", message)]
    decode = (longest.decode_ms or 0.0) / longest.total_ms
    if decode >= BATCH_SHARE:
        message = f"eval is {100 * decode:.0f} % of the total: the time is in generating single tokens (n_threads)"
        return [Notice("llama-decode-path", message)]
    return []


def _judge_load(summaries: Sequence[LlamaSummary]) -> list[Notice]:
    for summary in summaries:
        if _is_first(summary) and summary.load_ms and summary.prompt_ms:
            message = (
                f"load time ends with the first evaluation: {_figure(summary.prompt_ms)} of its "
                f"{_figure(summary.load_ms)} ms are that, so it does not say that loading is slow"
            )
            return [Notice("llama-load-time", message)]
    return []


def _is_first(summary: LlamaSummary) -> bool:
    """Whether the load time is hardly more than the prompt's, which it then includes."""
    load, prompt = summary.load_ms or 0.0, summary.prompt_ms or 0.0
    return load > 0 and SAME_SHARE * load <= prompt <= 1.02 * load


def _table(summaries: Sequence[LlamaSummary]) -> list[str]:
    if not summaries:
        return ["no performance summary of llama.cpp was found"]
    heads = ("load ms", "prompt ms", "tokens", "a token", "eval ms", "tokens", "a token", "total ms")
    lines = ["".join(f"{head:>{width}}" for head, width in zip(heads, _WIDTHS, strict=True))]
    for s in summaries:
        decoded = s.decode_tokens if s.decode_ms else 0
        cells = (
            *(s.load_ms, s.prompt_ms, s.prompt_tokens, s.prompt_ms_per_token),
            *(s.decode_ms, decoded, s.decode_ms_per_token, s.total_ms),
        )
        lines.append("".join(f"{_cell(value):>{width}}" for value, width in zip(cells, _WIDTHS, strict=True)))
    return lines


def _figure(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 999.5 else f"{milliseconds:.3g}"


def _cell(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"
