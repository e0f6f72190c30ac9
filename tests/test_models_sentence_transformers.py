"""The factories of sentence-transformers on torch, and what they hand to the other back ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.errors import InvalidArgumentError, MissingExtraError
from cgroup_threads.models.back_ends import onnx_arguments, openvino_arguments
from cgroup_threads.models.sentence_transformers import create_sentence_transformer
from cgroup_threads.planning import ThreadPlan
from tests.lab import require, require_module
from tests.lab.commands import clean_environ
from tests.lab.models import minilm_directory, run_script

PREAMBLE = """
import json
PATH = {path!r}
def codes():
    from cgroup_threads.state import process
    return sorted({{notice.code for notice in process.notices if notice.code.split("-")[0] in ("torch", "interop")}})
def show(*values): print(json.dumps(values))
"""


def encoder_script(script: str, **environ: str) -> Any:
    script = PREAMBLE.format(path=minilm_directory()) + script
    return run_script(script, **{"CGROUP_THREADS_CORES": "1", **environ})


def test_the_real_class_with_torch_at_the_plans_counts() -> None:
    """Field cases E09 (torch follows MKL_NUM_THREADS where the two differ), L08 (inter-op is set once for all)."""
    script = """
import cgroup_threads as ct, os
import torch
from sentence_transformers import SentenceTransformer
calls = []
real = torch.set_num_interop_threads
torch.set_num_interop_threads = lambda count: (calls.append(count), real(count))
first, second = ct.create_sentence_transformer(PATH), ct.create_sentence_transformer(PATH)
show(type(first) is SentenceTransformer, torch.get_num_threads(), torch.get_num_interop_threads(), codes(),
     os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"], calls)
"""
    *found, calls = encoder_script(script)
    assert found == [True, 1, 1, [], "1", "1"]
    assert calls in ([1], [])  # none where torch starts with one, as on a single CPU


def test_torch_is_lowered_where_the_environment_came_too_late() -> None:
    """Field cases E02 (variables after the library), L07 (set in the main thread, asked in another)."""
    script = """
import torch
torch.set_num_threads(2)
import cgroup_threads as ct, warnings
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)
torch.set_num_threads(2)
before = torch.get_num_interop_threads()
ct.create_sentence_transformer(PATH)
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    other = pool.submit(torch.get_num_threads).result()
show(torch.get_num_threads(), other, before > 1, torch.get_num_interop_threads(), codes())
"""
    assert encoder_script(script) == [1, 1, True, 1, ["torch-threads-lowered"]]


def test_torch_is_never_raised() -> None:
    script = """
import cgroup_threads as ct
import torch
torch.set_num_threads(1)
ct.create_sentence_transformer(PATH)
show(torch.get_num_threads(), codes())
"""
    assert encoder_script(script, CGROUP_THREADS_CORES="3") == [1, []]


def test_the_users_own_variable_is_kept_and_warned_of() -> None:
    script = """
import cgroup_threads as ct, torch, warnings
before = torch.get_num_threads()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ct.create_sentence_transformer(PATH)
warned = [str(w.message) for w in caught if w.category is ct.CgroupThreadsWarning]
show(before, torch.get_num_threads(), warned, codes())
"""
    text = "torch has 2 threads of OMP_NUM_THREADS, above the 1 usable cores"
    environ = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE"}
    before, after, messages, found = encoder_script(script, **environ)
    assert (before, after, found) == (2, 2, [])
    assert messages == [text]


def test_a_latched_inter_op_count_becomes_a_notice() -> None:
    """Field case L08: a second call, or one after parallel work, raises RuntimeError in torch."""
    script = """
import torch
torch.set_num_interop_threads(2)
import cgroup_threads as ct, warnings
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)
ct.create_sentence_transformer(PATH)
first = codes()
ct.create_sentence_transformer(PATH)
from cgroup_threads.state import process
notices = [notice for notice in process.notices if notice.code == "interop-latched"]
show(first, torch.get_num_interop_threads(), len(notices), notices[0].level)
"""
    assert encoder_script(script) == [["interop-latched"], 2, 1, "info"]


def test_numba_does_not_bring_torch_back_up() -> None:
    """Field case L09: numba's first parallel work sets the shared OpenMP count again."""
    require_module("numba")
    script = """
import cgroup_threads as ct
import torch
ct.create_sentence_transformer(PATH)
import numba
numba.get_num_threads()
show(torch.get_num_threads(), numba.get_num_threads())
"""
    assert encoder_script(script) == [1, 1]


def test_many_threads_add_no_openmp_team_of_their_own() -> None:
    """Field case S01: each request thread that enters OpenMP got a team of host size, until thread creation failed."""
    script = """
import cgroup_threads as ct
import os, threading
model = ct.create_sentence_transformer(PATH, device="cpu")
model.encode("warm up", show_progress_bar=False)
before = len(os.listdir("/proc/self/task"))
done, hold = threading.Barrier(21), threading.Barrier(21)
def work():
    with ct.limit_threads(1):
        model.encode("one sentence", show_progress_bar=False)
    done.wait()
    hold.wait()
threads = [threading.Thread(target=work) for _ in range(20)]
for thread in threads: thread.start()
done.wait()
grown = len(os.listdir("/proc/self/task")) - before
hold.wait()
for thread in threads: thread.join()
show(grown)
"""
    require_module("torch")
    assert encoder_script(script)[0] <= 22


def test_outputs_are_bit_equal_at_equal_counts() -> None:
    script = """
import torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
texts = ["threads must not change results", "a b c d e f g h " * 12]
plain = SentenceTransformer(PATH, device="cpu").encode(texts)
import cgroup_threads as ct, warnings, numpy
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)
governed = ct.create_sentence_transformer(PATH, device="cpu").encode(texts)
torch.set_num_threads(2)
wider = SentenceTransformer(PATH, device="cpu").encode(texts)
show(bool((plain == governed).all()), float(numpy.abs(plain - wider).max() / numpy.abs(plain).max()) < 1e-5)
"""
    assert encoder_script(script) == [True, True]


def test_names_of_arguments_and_kinds_of_models() -> None:
    script = """
import cgroup_threads as ct
def failure(**arguments):
    try:
        ct.create_sentence_transformer(PATH, **arguments)
    except ct.CgroupThreadsError as error:
        return [type(error).__name__, str(error)]
model = ct.create_sentence_transformer(PATH, tokenizer_kwargs={"model_max_length": 16})
length = model.tokenizer.model_max_length
import pathlib, numpy
first = ct.create_sentence_transformer(pathlib.Path(PATH), device="cpu", truncate_dim=8)
second = ct.create_sentence_transformer(list(first), device="cpu", truncate_dim=8)
show(failure(model_kwarg={}), failure(INFERENCE_NUM_THREADS=2), failure(provider_options={})[0], length,
     len(first.encode("a")), bool(numpy.allclose(first.encode("a"), second.encode("a"))))
"""
    misspelt, top_level, provider, length, dimensions, equal = encoder_script(script)
    text = "SentenceTransformer() has no argument 'model_kwarg'; did you mean 'model_kwargs'?"
    assert misspelt == ["UnknownArgumentError", text]
    assert top_level == ["UnknownArgumentError", "SentenceTransformer() has no argument 'INFERENCE_NUM_THREADS'"]
    assert provider == "UnknownArgumentError"
    assert (length, dimensions, equal) == (16, 8, True)


def test_an_unknown_back_end() -> None:
    with pytest.raises(InvalidArgumentError, match="backend must be 'torch', 'onnx' or 'openvino', not 'tensorrt'"):
        create_sentence_transformer("model", backend="tensorrt")  # type: ignore[arg-type]  # the point of the test


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cgroup-threads\[sentence-transformers\]'"):
        create_sentence_transformer("model")


def make_plan(threads: int, *, quota_binds: bool = False) -> ThreadPlan:
    return ThreadPlan(threads, 1, threads, 1, 1, "quota", quota_binds, {})


SPINNING = "session.intra_op.allow_spinning"


def test_onnx_options_are_made_with_the_plans_counts() -> None:
    require_module("onnxruntime")
    arguments, message = onnx_arguments(None, make_plan(3))
    options = arguments["session_options"]
    assert (options.intra_op_num_threads, options.inter_op_num_threads, message) == (3, 1, "")
    with pytest.raises(RuntimeError):
        options.get_session_config_entry(SPINNING)


def test_onnx_stops_spinning_under_a_quota() -> None:
    """Field case L17: idle pools of several sessions kept cores busy."""
    require_module("onnxruntime")
    arguments, _ = onnx_arguments({"file_name": "onnx/model.onnx"}, make_plan(2, quota_binds=True))
    assert arguments["session_options"].get_session_config_entry(SPINNING) == "0"
    assert arguments["file_name"] == "onnx/model.onnx"


def test_onnx_options_of_the_caller_are_completed_not_replaced() -> None:
    require_module("onnxruntime")
    from onnxruntime import SessionOptions

    own = SessionOptions()
    own.intra_op_num_threads = 8
    own.add_session_config_entry(SPINNING, "1")
    given = {"session_options": own}
    arguments, message = onnx_arguments(given, make_plan(2, quota_binds=True))
    assert arguments["session_options"] is own
    assert arguments is not given
    assert (own.intra_op_num_threads, own.inter_op_num_threads) == (8, 1)
    assert own.get_session_config_entry(SPINNING) == "1"
    assert message == "intra_op_num_threads=8 is above the 2 usable cores"


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cgroup-threads\[onnx\]'"):
        onnx_arguments(None, make_plan(2))


def test_openvino_configuration_is_merged_and_the_callers_wins(tmp_path: Path) -> None:
    assert openvino_arguments(None, make_plan(3)) == ({"ov_config": {"INFERENCE_NUM_THREADS": 3}}, "")
    bound, _ = openvino_arguments({"export": True}, make_plan(3, quota_binds=True))
    assert bound == {"export": True, "ov_config": {"INFERENCE_NUM_THREADS": 3, "ENABLE_CPU_PINNING": False}}
    given = {"ov_config": {"INFERENCE_NUM_THREADS": 2, "ENABLE_CPU_PINNING": True, "CACHE_DIR": ""}}
    assert openvino_arguments(given, make_plan(3, quota_binds=True)) == (given, "")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"CACHE_DIR": "x"}))
    for name in (path, str(path)):
        merged, _ = openvino_arguments({"ov_config": name}, make_plan(3))
        assert merged == {"ov_config": {"INFERENCE_NUM_THREADS": 3, "CACHE_DIR": "x"}}
    missing = {"ov_config": str(tmp_path / "missing.json")}  # the constructor's own error says so
    assert openvino_arguments(missing, make_plan(3)) == (missing, "")


@pytest.mark.parametrize(("count", "warned"), [(4, True), ("4", True), (3, False), ("AUTO", False), (0, False)])
def test_openvino_counts_above_the_usable_cores(count: object, warned: bool) -> None:
    _, message = openvino_arguments({"ov_config": {"INFERENCE_NUM_THREADS": count}}, make_plan(3))
    assert bool(message) is warned


def granted_script(script: str, **environ: str) -> Any:
    counting = """
import cgroup_threads as ct
from cgroup_threads.models.governing import govern, release
def granted(call):
    before = ct.statistics().granted
    result = call()
    return ct.statistics().granted - before, result
"""
    return encoder_script(counting + script, CGROUP_THREADS_SCOPE="process", **environ)


def test_a_lease_for_each_batch_of_encode() -> None:
    script = """
import numpy, torch
from sentence_transformers import SentenceTransformer
seen = []
def note(module, args): seen.append([torch.get_num_threads(), ct.statistics().leased])
texts = [f"the pod number {index}" for index in range(10)]
plain = SentenceTransformer(PATH, device="cpu")
expected = plain.encode(texts, batch_size=4)
model = ct.create_sentence_transformer(PATH, device="cpu")
model[0].register_forward_pre_hook(note)
count, vectors = granted(lambda: model.encode(texts, batch_size=4))
adopted, _ = granted(lambda: govern(plain).encode(texts, batch_size=4))
release(plain), release(model)
show(count, seen, adopted, granted(lambda: plain.encode(texts))[0] + granted(lambda: model.encode(texts))[0],
     bool(numpy.abs(vectors - expected).max() <= 1e-5 * numpy.abs(expected).max()),
     [name for name in ("forward", "start_multi_process_pool") if name in vars(model)])
"""
    # The last one ran after the release.
    assert granted_script(script) == [3, [[1, 1], [1, 1], [1, 1], [1, 0]], 3, 0, True, []]


def test_cross_encoders_and_sparse_encoders() -> None:
    script = """
import os, tempfile, torch, transformers
from cgroup_threads.models.sentence_transformers import create_cross_encoder, create_sparse_encoder
transformers.utils.logging.set_verbosity_error()
torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=1)
with tempfile.TemporaryDirectory() as directory:
    def saved(cls):
        path = os.path.join(directory, cls.__name__)
        cls(config).save_pretrained(path)
        transformers.AutoTokenizer.from_pretrained(PATH).save_pretrained(path)
        return path
    cross = create_cross_encoder(saved(transformers.BertForSequenceClassification), device="cpu")
    sparse = create_sparse_encoder(saved(transformers.BertForMaskedLM), device="cpu")
def refused(create):
    try:
        create(PATH, devise="cpu")
    except ct.CgroupThreadsError as error:
        return str(error)
pairs = [("a query", f"document {index}") for index in range(5)]
first, scores = granted(lambda: cross.predict(pairs, batch_size=2))
second, _ = granted(lambda: sparse.encode([text for _, text in pairs], batch_size=2))
ranked, _ = granted(lambda: cross.rank("a query", ["one", "two"]))
release(cross), release(sparse)
again, same = granted(lambda: cross.predict(pairs, batch_size=2))
show(type(cross).__name__, type(sparse).__name__, first, second, ranked, again, float(abs(scores - same).max()) <= 1e-5,
     refused(create_cross_encoder), refused(create_sparse_encoder))
"""
    found = granted_script(script)
    assert found[:7] == ["CrossEncoder", "SparseEncoder", 3, 3, 1, 0, True]
    texts = [f"{name}() has no argument 'devise'; did you mean 'device'?" for name in ("CrossEncoder", "SparseEncoder")]
    assert found[7:] == texts


# Workers are spawned, so the script is a file that can be imported. Each forward pass writes when it ran, in which
# process and with how many threads.
POOL = """
import json, os, sys, time
import cgroup_threads as ct
import torch
from sentence_transformers import SentenceTransformer
from cgroup_threads.models.governing import govern

PATH, LOG = sys.argv[1:3]

class Noting(torch.nn.Module):
    def forward(self, features):
        began = time.monotonic()
        while time.monotonic() < began + 0.05:  # computes: what runs at once is counted
            torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        line = [os.getpid(), began, time.monotonic(), torch.get_num_threads(), ct.statistics().cores]
        with open(LOG, "a") as file:
            file.write(json.dumps(line) + "\\n")
        return features

def main():
    model = govern(SentenceTransformer(modules=[*SentenceTransformer(PATH, device="cpu"), Noting()], device="cpu"))
    texts = [f"the pod number {index}" for index in range(24)]
    expected = model.encode(texts)
    os.unlink(LOG)
    before = dict(os.environ)
    vectors = model.encode(texts, device=["cpu", "cpu"], chunk_size=2, batch_size=2)
    error = float(abs(vectors - expected).max())
    print(json.dumps([error, dict(os.environ) == before, os.getpid(), ct.statistics().scope]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("scope", ["process", "container"])
def test_processes_of_a_pool_share_the_cores(scope: str, tmp_path: Path) -> None:
    """Each of the two has half of the four cores, or both lease from the slots of the container."""
    path, log = tmp_path / "pool.py", tmp_path / "log"
    path.write_text(POOL)
    counts = {"CGROUP_THREADS_CORES": "4", "MKL_DYNAMIC": "FALSE", "CGROUP_THREADS_SCOPE": scope}
    command = [sys.executable, str(path), minilm_directory(), str(log)]
    environ = clean_environ(HF_HUB_OFFLINE="1", **counts)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "CgroupThreadsWarning" not in done.stderr
    error, restored, parent, found = json.loads(done.stdout.splitlines()[-1])
    require(found == scope, "no slots can be shared here")
    assert error <= 1e-5
    assert restored, "the variables of the workers stayed in the parent"
    passes = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(passes) == 12
    workers = {pid for pid, *_ in passes}
    assert parent not in workers
    for _, moment, *_ in passes:
        at_once = [threads for _, began, ended, threads, _ in passes if began <= moment < ended]
        assert sum(at_once) <= 4, f"{at_once} threads at once on 4 cores"
    if scope == "process":
        assert {(threads, cores) for *_, threads, cores in passes} == {(2, 2)}
    else:
        assert {cores for *_, cores in passes} == {4}
