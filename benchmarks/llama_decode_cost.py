"""What governing adds to a decode call: one gemma-3-270m, blocks of 30 tokens, governed and released in turn.

The same tokens at the same positions in every block, with one thread count throughout: nothing differs but the lease.
"plain" and "again" are both released: their difference is what such a comparison cannot see. Beside it the same two
calls with llama.cpp's own function replaced by one that does nothing: the lease alone, its memory warm.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

from benchmarks.gguf_models import gemma
from benchmarks.llama_arms import FIRST_IMPORT, Child, build, emit
from benchmarks.quota_group import quota_group
from benchmarks.service import Progress
from benchmarks.service_cells import Store, rotate

TOKENS = 30
CALLS = 3000
LIMIT = 0.01
MODES = ("plain", "governed", "again")


def decode_block(llm: Any, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[float, str]:
    """Median seconds of a token, and a digest of the last one's logits."""
    llm.reset()
    llm.eval(prompt)
    times = []
    for token in tokens:
        start = time.perf_counter()
        llm.eval([token])
        times.append(time.perf_counter() - start)
    logits = ctypes.string_at(llm._ctx.get_logits(), 4 * llm.n_vocab())
    return statistics.median(times), hashlib.sha256(logits).hexdigest()


def stubbed(llm: Any) -> float:
    """Microseconds of a decode call in which llama.cpp does nothing."""
    from llama_cpp import llama_cpp as native

    real = native.llama_decode
    native.llama_decode = lambda context, batch: 0
    try:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(CALLS):
                llm._ctx.decode(llm._batch)
            times.append((time.perf_counter() - start) / CALLS)
    finally:
        native.llama_decode = real
    return statistics.median(times) * 1e6


def run_child(spec: dict[str, Any]) -> None:
    """Print a line for each block, and one for the lease alone."""
    cores = spec["cores"]
    common = {"n_ctx": 256, "n_threads": cores, "n_threads_batch": cores, "verbose": False}
    llm = build(FIRST_IMPORT + "llm = Llama(path, **common)", spec["path"], common)
    import cgroup_threads

    cgroup_threads.configure(cores=cores)
    words = llm.tokenize(
        b"The keeper of the lighthouse wrote down what he saw at sea, day after day, for thirty years."
    )
    prompt, tokens = words, (words * TOKENS)[:TOKENS]
    decode_block(llm, prompt, tokens)  # the weights come into memory
    for number in range(spec["blocks"]):
        modes: Sequence[Any] = rotate(cast(Any, MODES), number)
        for mode in modes:
            before = cgroup_threads.statistics().granted
            if mode == "governed":
                cgroup_threads.govern(llm)
            seconds, digest = decode_block(llm, prompt, tokens)
            cgroup_threads.release(llm)
            leases = cgroup_threads.statistics().granted - before
            emit(mode=mode, number=number, seconds=seconds, digest=digest, leases=leases)
    plain = stubbed(llm)
    governed = stubbed(cgroup_threads.govern(llm))
    emit(mode="stub", plain=plain, governed=governed)


def summarise(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each mode, and of the differences from "plain" block by block, in microseconds, with quartiles."""
    blocks = {mode: [line for line in lines if line["mode"] == mode] for mode in MODES}
    seconds = {mode: [line["seconds"] for line in blocks[mode]] for mode in MODES}
    summary: dict[str, Any] = {"token": statistics.median(seconds["plain"]) * 1e6}
    for mode in MODES[1:]:
        apart = [(one - plain) * 1e6 for one, plain in zip(seconds[mode], seconds["plain"], strict=True)]
        summary[mode] = statistics.quantiles(apart, n=4, method="inclusive")
    stub = next(line for line in lines if line["mode"] == "stub")
    summary["lease"] = stub["governed"] - stub["plain"]
    summary["equal"] = len({line["digest"] for line in lines if "digest" in line}) == 1
    summary["leases"] = {mode: statistics.median(line["leases"] for line in blocks[mode]) for mode in MODES}
    return summary


def render(summary: dict[str, Any], cores: int) -> str:
    token = summary["token"]
    lines = [f"gemma-3-270m, {cores} thread(s), blocks of {TOKENS} tokens; a token takes {token:.0f} us"]
    for mode, title in (("governed", "governed - released"), ("again", "released - released")):
        low, middle, high = summary[mode]
        lines.append(f"{title}: {middle:+.1f} us ({middle / token:+.3%}), quartiles {low:+.1f} to {high:+.1f}")
    lines.append(
        f"the lease alone, nothing decoded: {summary['lease']:.2f} us ({summary['lease'] / token:.3%} of a token)"
    )
    lines.append(f"leases a block: {summary['leases']}; logits {'equal' if summary['equal'] else 'DIFFERENT'}")
    return "\n".join(lines)


def main(cores: int, blocks: int, store: Store) -> int:
    """Measure and print; 1 if the median difference is not below 1 % of a token, or an output differs."""
    progress = Progress(blocks * len(MODES), blocks * len(MODES) * 0.5)
    lines = []
    with quota_group(2.0) as group:
        spec = {"path": str(gemma()), "cores": cores, "blocks": blocks}
        with Child("benchmarks.llama_decode_cost", spec, group, {}) as child:
            for line in child.lines(60):
                lines.append(line)
                store.append(line)
                progress.done = min(len(lines), blocks * len(MODES))
                if progress.bar or len(lines) % 30 == 0:
                    progress.show(line["mode"])
    progress.close()
    summary = summarise(lines)
    print(render(summary, cores))
    return int(summary["governed"][1] >= LIMIT * summary["token"] or not summary["equal"])


if __name__ == "__main__":
    run_child(json.loads(sys.argv[2]))  # --child SPEC
