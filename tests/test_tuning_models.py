"""Real models as subjects: llama.cpp, sentence-transformers and ONNX Runtime in fresh children."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.tuning.errors import TuneError
from cgroup_threads.tuning.records import Sample, Subject, Task
from cgroup_threads.tuning.session_work import choose_shape, make_input
from cgroup_threads.tuning.subjects import make_subject
from tests.lab import require_module
from tests.lab.commands import clean_environ
from tests.lab.models import gemma_gguf, minilm_directory, minilm_gguf, run_script, tiny_gguf
from tests.lab.waiting import wait_until


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """``make_subject`` in a clean environment, where threads that have no CPU do not spin; closed in the end."""
    subjects: list[Subject] = []

    def make(target: object, **environ: str) -> Any:
        environment = clean_environ(**{"GOMP_SPINCOUNT": "0", **environ})
        subjects.append(make_subject(target, environment=environment))
        return subjects[-1]

    yield make
    for subject in subjects:
        subject.close()


def run_times(pid: int) -> dict[str, float]:
    """Seconds that each thread of a process has run."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        found[name] = int(Path(f"/proc/{pid}/task/{name}/schedstat").read_text().split()[0]) / 1e9
    return found


def measure(subject: Subject, task: Task, threads: int, seconds: float = 0.3) -> tuple[Sample, int]:
    """A sample, and how many threads of the child computed for it: ran at all, as far as clocks can tell."""
    subject.measure(task, threads, 0.0)
    (pid,) = subject.pids
    before = run_times(pid)
    sample = subject.measure(task, threads, seconds)
    ran = [seconds - before.get(name, 0.0) for name, seconds in run_times(pid).items()]
    return sample, sum(value > max(ran) / 20 for value in ran)


def check(sample: Sample, units: float) -> None:
    assert sample.units == units * len(sample.calls)
    assert sample.seconds == pytest.approx(sum(sample.calls))
    assert min(sample.calls) > 0


def test_a_decoder_decodes_and_reads_prompts_with_the_counts_asked_for(made: Callable[..., Any]) -> None:
    path = gemma_gguf()
    subject = made(path)
    assert subject.title.startswith(f"{os.path.basename(path)}, llama-cpp-python ")
    decode, prefill = subject.tasks
    assert decode == ("decode", "tokens", "n_threads")
    assert prefill == ("prefill", "tokens", "n_threads_batch")
    rates = {}
    for task in subject.tasks:
        for threads in (2, 1):
            sample, computed = measure(subject, task, threads)
            check(sample, 1 if task == decode else sample.units / len(sample.calls))
            assert computed == threads
            rates[task, threads] = sample.units / len(sample.calls) / min(sample.calls)
    # A prompt is a batch: far more tokens a second than one by one.
    assert rates[prefill, 1] > 2 * rates[decode, 1]


def test_the_size_of_a_batch_outlives_its_child(made: Callable[..., Any]) -> None:
    subject = made(gemma_gguf())
    prefill = subject.tasks[1]
    first = subject.measure(prefill, 1, 0.0)
    assert first.units in (32, 64, 128, 256, 512)
    (pid,) = subject.pids
    subject._sizes["prefill"] = 48.0
    os.kill(pid, 9)
    wait_until(lambda: subject.pids == ())
    assert subject.measure(prefill, 1, 0.0).units == 48


def test_an_encoder_in_a_gguf_file_embeds(made: Callable[..., Any]) -> None:
    subject = made(Path(minilm_gguf()))
    (task,) = subject.tasks
    assert task == ("embed", "tokens", "n_threads_batch")
    for threads in (1, 2):
        sample, computed = measure(subject, task, threads, 0.1)
        check(sample, 128)
        assert computed == threads
    identity = subject.identity
    assert identity.model.startswith("gguf bert all-MiniLM-L6-v2 ")
    assert identity.library.startswith("llama-cpp-python ")


def test_one_thread_too_many_is_survived(made: Callable[..., Any]) -> None:
    subject = made(tiny_gguf())
    (task,) = subject.tasks
    threads = 2 * (os.cpu_count() or 1)
    sample = subject.measure(task, threads, 0.0)
    assert sample.units > 0
    check(subject.measure(task, 1, 0.05), 128)


def test_a_broken_file_says_so(made: Callable[..., Any], tmp_path: Path) -> None:
    require_module("llama_cpp")
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    subject = made(path)
    with pytest.raises(TuneError, match=r"^tune, broken\.gguf, llama-cpp-python .*: ValueError: Failed to load model"):
        subject.measure(subject.tasks[0], 1, 0.0)


OBJECTS = """
import json
from cgroup_threads.tuning.subjects import make_subject
def look(target, threads=2):
    subject = make_subject(target)
    try:
        (task,) = subject.tasks
        sample = subject.measure(task, threads, 0.0)
        return [*task, sample.units, subject.identity.model.split(" ")[0]]
    finally:
        subject.close()
def show(*values): print(json.dumps(values))
"""


def test_a_llama_object_is_loaded_anew_with_its_arguments() -> None:
    script = f"""{OBJECTS}
import llama_cpp
llm = llama_cpp.Llama({tiny_gguf()!r}, embedding=True, n_ctx=96, n_batch=72, n_ubatch=72, pooling_type=1, verbose=False)
subject = make_subject(llm)
sent = subject._spec.options["arguments"]
names = ("n_ctx", "n_batch", "n_ubatch", "embedding", "pooling_type", "flash_attn")
show([sent[name] for name in names], "n_threads" in sent, look(llm))
"""
    assert run_script(script) == [
        [96, 72, 72, True, 1, False],
        False,
        ["embed", "tokens", "n_threads_batch", 64.0, "gguf"],
    ]


def test_a_sentence_transformer_encodes_whatever_the_environment_says(made: Callable[..., Any]) -> None:
    subject = made(minilm_directory(), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    (task,) = subject.tasks
    assert task == ("encode", "sentences", "threads")
    for threads in (2, 1):
        sample, computed = measure(subject, task, threads, 0.5)
        assert sample.units / len(sample.calls) in (1, 2, 4, 8, 16, 32)
        assert computed == threads
    assert subject.identity.model.startswith("model bert ")
    assert subject.identity.library.startswith("torch ")


def test_a_sentence_transformer_object(tmp_path: Path) -> None:
    script = f"""{OBJECTS}
from sentence_transformers import SentenceTransformer
import glob, os, tempfile
model = SentenceTransformer({minilm_directory()!r}, device="cpu")
model.max_seq_length = 16
options = make_subject(model)._spec.options
in_memory = SentenceTransformer(modules=list(model), device="cpu")
for module in in_memory.modules():
    if hasattr(module, "config"): module.config._name_or_path = ""
copied = look(in_memory)
left = glob.glob(os.path.join(tempfile.gettempdir(), "cgroup-threads-*"))
show(options["path"], options["max_seq_length"], copied[:3], copied[4], left)
"""
    path, length, copied, model, left = run_script(script, timeout=280, GOMP_SPINCOUNT="0", TMPDIR=str(tmp_path))
    assert os.path.samefile(path, minilm_directory())
    assert length == 16
    assert copied == ["encode", "sentences", "threads"]
    assert model == ""
    assert left == []


def onnx_file(name: str) -> str:
    require_module("onnxruntime")
    import importlib.util

    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "datasets" / name)


@pytest.mark.parametrize("name", ["sigmoid.onnx", "mul_1.onnx", "logreg_iris.onnx"])
def test_an_onnx_file_runs(made: Callable[..., Any], name: str) -> None:
    subject = made(onnx_file(name))
    (task,) = subject.tasks
    assert task == ("run", "calls", "intra_op_num_threads")
    for threads in (1, 2, 1):
        assert subject.measure(task, threads, 0.01).units > 1
    assert subject.identity.library.startswith("onnxruntime ")


def test_an_onnx_session_object() -> None:
    script = f"""{OBJECTS}
import onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession({onnx_file("sigmoid.onnx")!r}, options, providers=["CPUExecutionProvider"])
sent = make_subject(session)._spec.options
with open({onnx_file("sigmoid.onnx")!r}, "rb") as file:
    loose = onnxruntime.InferenceSession(file.read(), providers=["CPUExecutionProvider"])
try:
    make_subject(loose)
except ValueError as error:
    refused = str(error)
show(sent["settings"], sent["spinning"], sent["providers"], look(session)[:3], refused)
"""
    settings, spinning, providers, found, refused = run_script(script)
    assert settings["graph_optimization_level"] == 0
    assert spinning == "0"
    assert providers == ["CPUExecutionProvider"]
    assert found == ["run", "calls", "intra_op_num_threads"]
    assert "an InferenceSession that was made from a file" in refused


def test_a_broken_onnx_file_says_so(made: Callable[..., Any], tmp_path: Path) -> None:
    require_module("onnxruntime")
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"junk")
    subject = made(path)
    with pytest.raises(TuneError, match=r"^tune, broken\.onnx, onnxruntime .*: InvalidProtobuf: "):
        subject.measure(subject.tasks[0], 1, 0.0)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ([3, 4, 5], (3, 4, 5)),
        (["batch", "sequence"], (1, 64)),
        ([None, 4], (1, 4)),
        (["n", 3, "height", "width"], (1, 3, 224, 224)),
        (["sequence", "batch_size"], (1, 1)),
        ([0, -1], (1, 64)),
        ([], ()),
    ],
)
def test_shapes_for_dynamic_sizes(declared: list[int | str | None], expected: tuple[int, ...]) -> None:
    assert choose_shape(declared) == expected


def test_inputs_are_safe_for_tables_and_masks() -> None:
    require_module("numpy")
    assert make_input("input_ids", "tensor(int64)", (1, 2), 1).tolist() == [[1, 1]]
    assert make_input("token_type_ids", "tensor(int64)", (1, 2), 1).tolist() == [[0, 0]]
    assert make_input("attention_mask", "tensor(int32)", (1, 2), 0).tolist() == [[1, 1]]
    assert make_input("x", "tensor(float16)", (2,), 1).dtype == "float16"
    assert make_input("x", "tensor(string)", (1,), 1).tolist() == ["text"]
    with pytest.raises(ValueError, match=r"its input 'x' is a seq\(tensor\(float\)\)"):
        make_input("x", "seq(tensor(float))", (1,), 1)
    with pytest.raises(ValueError, match="has the size"):
        make_input("x", "tensor(float)", (1 << 20, 1 << 20), 1)
