"""Tens of thousands of encodes in threads whose counts change at every call: the same vectors, and no crash.

Each run is a child process: a crash inside a native library is then a failed test that names the signal.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.lab.commands import clean_environ
from tests.lab.models import minilm_directory

pytestmark = [pytest.mark.slow, pytest.mark.where("long: 20 000 encodes"), pytest.mark.timeout(1800)]

# Sixteen cores to share: none of the four callers gets less than it asks for, and none waits.
ENVIRON = {"CGROUP_THREADS_CORES": "16", "MKL_DYNAMIC": "FALSE", "HF_HUB_OFFLINE": "1"}
CALLERS = 4

# ``tiny`` has the tokenizer of MiniLM and one random layer, wide enough that a text of 120 words is computed by a team.
SCRIPT = """
import json, os, sys, tempfile, threading, time
import cgroup_threads as ct
import numpy, torch
from cgroup_threads.pools import describe
from sentence_transformers import SentenceTransformer

kind, source, callers, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def tiny():
    import transformers
    from sentence_transformers.models import Pooling, Transformer
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=128, num_hidden_layers=1, num_attention_heads=2, intermediate_size=512,
        max_position_embeddings=128)
    with tempfile.TemporaryDirectory() as directory:
        transformers.BertModel(config).save_pretrained(directory)
        transformers.AutoTokenizer.from_pretrained(source).save_pretrained(directory)
        return SentenceTransformer(modules=[Transformer(directory), Pooling(config.hidden_size)])

model = tiny() if kind == "tiny" else SentenceTransformer(source)
texts = ["threads must not change results " * 20, "the pod was given a single core", "four " * 120, "short"]
def encode(index): return model.encode(texts[index % len(texts)], show_progress_bar=False)
def counts(): return [torch.get_num_threads(), *(pool.threads for pool in describe())]
with ct.limit_threads(1):
    reference = [encode(index) for index in range(len(texts))]
before = counts()
errors, given, wrong, kept = [0.0] * callers, [{} for _ in range(callers)], [0] * callers, [None] * callers
started, most = threading.Barrier(callers), [0] * callers
def tasks(): return len(os.listdir("/proc/self/task"))
alone = tasks()

def caller(number):
    own = torch.get_num_threads()
    started.wait()
    for call in range(calls):
        with ct.limit_threads((number + call) % 2 + 1) as lease:
            vector = encode(call)
            wrong[number] += torch.get_num_threads() != lease.threads
            most[number] = max(most[number], tasks())
        given[number][lease.threads] = given[number].get(lease.threads, 0) + 1
        errors[number] = max(errors[number], float(numpy.abs(vector - reference[call % len(texts)]).max()))
    kept[number] = torch.get_num_threads() == own

began = time.monotonic()
threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
now = ct.statistics()
print(json.dumps({
    "s": time.monotonic() - began, "error": max(errors), "given": given, "wrong": sum(wrong), "kept": kept,
    "helpers": max(most) - alone - callers, "baseline": [before, counts()],
    "open": [now.active, now.leased, now.waiting], "above": now.overcommitted}))
"""


def encode_in_threads(kind: str, calls: int) -> dict[str, Any]:
    """What SCRIPT tells after ``calls`` encodes in each of four threads."""
    command = [sys.executable, "-X", "faulthandler", "-c", SCRIPT, kind, minilm_directory(), str(CALLERS), str(calls)]
    environ = clean_environ(**ENVIRON)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1500, check=False)
    end = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit {done.returncode}"
    assert done.returncode == 0, f"the process ended by {end}\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


# MiniLM takes 25 to 45 ms a call in four threads of two busy cores: 20 000 calls would take over eight minutes.
@pytest.mark.parametrize(("kind", "calls"), [("tiny", 5000), ("minilm", 500)])
def test_encodes_under_changing_counts(kind: str, calls: int) -> None:
    told = encode_in_threads(kind, calls)
    assert told["error"] <= 1e-5
    assert told["given"] == [{"1": calls // 2, "2": calls // 2}] * CALLERS
    assert told["wrong"] == 0, "torch had another count in the block than the lease"
    assert told["helpers"] > 0, "no call of two threads started a second one: nothing was tested"
    before, after = told["baseline"]
    assert before == after
    assert before[0] > 2, "the blocks lowered nothing"
    assert told["kept"] == [True] * CALLERS
    assert [told["open"], told["above"]] == [[0, 0, 0], 0]
