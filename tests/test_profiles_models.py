"""Factories and ``govern`` with a profile of the model: real libraries, real models, and a directory of profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.detection import detect
from cgroup_threads.models.origins import directory_of
from tests.lab import require, require_module
from tests.lab.commands import quota_group
from tests.lab.models import llama_script, minilm_directory, run_script
from tests.test_models_llama_leases import gemma_script, script
from tests.test_models_onnxruntime import session_script

SAVE = """
from cgroup_threads.profiles.files import save_profile
from cgroup_threads.profiles.identity import identify_model, library_version, present_identity
from cgroup_threads.profiles.records import new_profile
def identity_of(path, distribution):
    return present_identity(identify_model(path), library_version(distribution))
def save(path, distribution, changes={}, **counts):
    which = identity_of(path, distribution)
    assert which.model and which.library
    return save_profile(new_profile(which._replace(**changes), counts, 0.95))
def said():
    from cgroup_threads.state import process
    return sorted({notice.code for notice in process.notices if notice.code.startswith("profile")})
"""
LLAMA = SAVE + "LIBRARY = 'llama-cpp-python'\n"
KINDS = "def kinds(): return sorted({(min(tokens, 2), *rest) for tokens, *rest in calls})\n"


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, str]:
    return {"CGROUP_THREADS_PROFILES": str(tmp_path)}


# --- llama ---


def test_what_the_caller_left_out_is_tuned(profiles: dict[str, str]) -> None:
    body = """
save(PATH, LIBRARY, n_threads=1, n_threads_batch=2)
given = [{}, {"n_threads": None, "n_threads_batch": 0}, {"n_threads": 3}, {"n_threads_batch": 3},
         {"n_threads": 2, "n_threads_batch": 1}]
show([counts(ct.create_llama(PATH, **some, **COMMON)) for some in given], said())
"""
    found, said = script(LLAMA + body, **profiles, CGROUP_THREADS_CORES="3")
    assert found == [[1, 2], [1, 2], [3, 2], [1, 3], [2, 1]]
    assert said == ["profile-used"]


def test_explicit_counts_need_no_profile(profiles: dict[str, str]) -> None:
    body = """
save(PATH, LIBRARY, n_threads=1, n_threads_batch=2)
show(counts(ct.create_llama(PATH, n_threads=2, n_threads_batch=2, **COMMON)), said())
"""
    assert script(LLAMA + body, **profiles) == [[2, 2], []]


def test_a_profile_of_one_count_leaves_the_other_to_the_plan(profiles: dict[str, str]) -> None:
    body = "save(PATH, LIBRARY, n_threads_batch=1)\nshow(counts(ct.create_llama(PATH, **COMMON)))"
    assert script(LLAMA + body, **profiles, CGROUP_THREADS_CORES="3") == [[3, 1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quota": 4.0}, "quota 4, here "),
        ({"usable": 7}, "7 usable cores, here 2"),
        ({"cpu": "Some CPU"}, "CPU Some CPU, here "),
        ({"library": "llama-cpp-python 0.1"}, "llama-cpp-python 0.1, here llama-cpp-python "),
    ],
)
def test_a_profile_of_elsewhere_is_not_used(changes: dict[str, Any], message: str, profiles: dict[str, str]) -> None:
    body = f"""
save(PATH, LIBRARY, {changes!r}, n_threads=1, n_threads_batch=1)
llm = ct.create_llama(PATH, **COMMON)
show(counts(llm), said(), str(ct.report()))
"""
    found, said, report = script(LLAMA + body, **profiles)
    assert (found, said) == ([2, 2], ["profile-other-machine"])
    assert message in " ".join(report.split()), "the report tells of it"


def test_the_number_of_cores_changed_since(profiles: dict[str, str]) -> None:
    """The same files, measured with 3 cores and loaded with 2."""
    body = "save(PATH, LIBRARY, n_threads=1, n_threads_batch=1)\nshow(1)"
    script(LLAMA + body, **profiles, CGROUP_THREADS_CORES="3")
    body = "show(counts(ct.create_llama(PATH, **COMMON)), said())"
    assert script(LLAMA + body, **profiles) == [[2, 2], ["profile-other-machine"]]
    assert script(LLAMA + body, **profiles, CGROUP_THREADS_CORES="3") == [[1, 1], ["profile-used"]]


def test_a_real_quota_that_differs(profiles: dict[str, str]) -> None:
    """Saved and used with 1 core of CPU time, and not where there is no such quota."""
    body = (
        LLAMA
        + """
import cgroup_threads as ct
def look():
    from cgroup_threads.state import process
    llm = ct.create_llama(PATH, **COMMON)
    show(counts(llm), [notice.message for notice in process.notices if notice.code.startswith("profile")])
"""
    )
    environ = {**profiles, "CGROUP_THREADS_CORES": ""}
    with quota_group(1.0) as group:
        join = f"with open({group.procs!r}, 'w') as file: file.write('0')\n"
        there, messages = llama_script(join + body + "save(PATH, LIBRARY, n_threads=1)\nlook()", **environ)
        assert there == [1, 1]
        assert len(messages) == 1
        assert "n_threads=1: tuned" in messages[0]
    here, messages = llama_script(body + "look()", **environ)
    require(detect().usable() > 1, "no more cores here than the quota had")
    assert here == [detect().usable()] * 2
    assert len(messages) == 1
    assert "quota 1, here " in messages[0]


@pytest.mark.parametrize("junk", ["", "[]", "{", "\\0" * 100])
def test_a_corrupt_profile_does_no_harm(junk: str, profiles: dict[str, str]) -> None:
    body = f"""
path = save(PATH, LIBRARY, n_threads=1, n_threads_batch=1)
with open(path, "w") as file:
    file.write({junk!r})
llm = ct.create_llama(PATH, **COMMON)
with open(path) as file:
    show(counts(llm), said(), file.read() == {junk!r})
"""
    assert script(LLAMA + body, **profiles) == [[2, 2], ["profile-ignored"], True]


def test_off_and_without_a_directory(tmp_path: Path) -> None:
    body = """
save_profile(new_profile(identity_of(PATH, LIBRARY), {"n_threads": 1}, 0.9), DIRECTORY)
show(counts(ct.create_llama(PATH, **COMMON)), said(), "cgroup_threads.profiles.identity" in sys.modules)
"""
    directory = f"DIRECTORY = {str(tmp_path / 'p')!r}\n"
    off = script(LLAMA + directory + body, CGROUP_THREADS_PROFILES="0")
    assert off[:2] == [[2, 2], []]
    body = "show(counts(ct.create_llama(PATH, **COMMON)), 'cgroup_threads.profiles.identity' in sys.modules)"
    assert script(body, CGROUP_THREADS_PROFILES=str(tmp_path / "empty")) == [[2, 2], False]


def test_the_default_directory(tmp_path: Path) -> None:
    body = """
path = save(PATH, LIBRARY, n_threads=1)
show(path, counts(ct.create_llama(PATH, **COMMON)))
"""
    path, found = script(LLAMA + body, XDG_CACHE_HOME=str(tmp_path), CGROUP_THREADS_PROFILES="")
    assert path.startswith(f"{tmp_path}/cgroup_threads/profiles/")
    assert found == [1, 2]


def test_decode_and_prefill_compute_with_their_own_counts(profiles: dict[str, str]) -> None:
    """A prompt has 2 threads, each token 1; the context's counts change once a prompt and once after it."""
    body = """
save(GEMMA, LIBRARY, n_threads=1, n_threads_batch=2)
llm = ct.create_llama(GEMMA, **options)
changes = []
real = native.llama_set_n_threads
def watched(ctx, *pair):
    changes.append(pair)
    real(ctx, *pair)
native.llama_set_n_threads = watched
def tell():
    changes.clear()
    granted = leases(lambda: llm("Tell a story of the sea, please:", max_tokens=12, temperature=0))
    return [granted == len(calls), len(calls), kinds(), list(changes)]
first, second = tell(), tell()
release(llm)
show(counts(llm), first, second[2:], live(llm))
"""
    found, first, second, after = gemma_script(LLAMA + KINDS + body, **profiles)
    assert found == after == [1, 2]
    each, number, kinds, changes = first
    assert each
    assert number > 8
    assert kinds == [[1, 1, 1, 1], [2, 2, 2, 2]]
    assert changes == [[2, 2], [1, 1]]
    assert [*map(len, second)] == [2, 2] or second[0] == [[1, 1, 1, 1]], "the second prompt was in the cache"


def test_governing_a_model_that_exists(profiles: dict[str, str]) -> None:
    """Its counts were filled in with the plan's: the tuned ones are its most while it is governed, and not after."""
    body = """
save(GEMMA, LIBRARY, n_threads=1, n_threads_batch=2)
llm = llama_cpp.Llama(GEMMA, **options)
before = attributes(llm)
govern(llm)
leases(lambda: llm("The capital of France is", max_tokens=4, temperature=0))
first = kinds()
same = attributes(llm) == before
llm.n_threads = 2  # its user's word from here on
leases(lambda: llm("One, two, three and", max_tokens=4, temperature=0))
second = kinds()
release(llm)
show(before, first, same, second, live(llm), said())
"""
    found = gemma_script(LLAMA + KINDS + body, **profiles, CGROUP_THREADS_CORES="3")
    assert found[:3] == [[3, 3, 3, 3], [[1, 1, 1, 1], [2, 2, 2, 2]], True]
    assert found[3] == [[1, 2, 2, 2], [2, 2, 2, 2]]
    assert found[4:] == [[2, 3], ["profile-used"]]


def test_governing_keeps_what_its_maker_said(profiles: dict[str, str]) -> None:
    body = """
save(GEMMA, LIBRARY, n_threads=1, n_threads_batch=1)
llm = govern(llama_cpp.Llama(GEMMA, n_threads=2, n_threads_batch=2, **options))
leases(lambda: llm("The capital of France is", max_tokens=4, temperature=0))
show(kinds(), said())
"""
    assert gemma_script(LLAMA + KINDS + body, **profiles) == [[[1, 2, 2, 2], [2, 2, 2, 2]], []]


def test_a_knee_stays_and_all_the_cores_do_not(profiles: dict[str, str]) -> None:
    """Where the budget grows later: 1 of 2 cores was enough, and of both nobody knows."""
    body = """
save(GEMMA, LIBRARY, n_threads=1, n_threads_batch=2)
llm = ct.create_llama(GEMMA, **options)
ct.configure(cores=3)
leases(lambda: llm("The capital of France is", max_tokens=4, temperature=0))
show(kinds())
"""
    assert gemma_script(LLAMA + KINDS + body, **profiles) == [[[1, 1, 1, 1], [2, 3, 3, 3]]]


def test_a_pickle_carries_no_tuned_counts(profiles: dict[str, str]) -> None:
    """It may be loaded on another machine: counts that were ours are filled in anew there."""
    body = """
save(PATH, LIBRARY, n_threads=1, n_threads_batch=1)
llm = ct.create_llama(PATH, n_threads_batch=1, **COMMON)
show(counts(llm), counts(pickle.loads(pickle.dumps(llm))))
"""
    assert script(LLAMA + body, **profiles, CGROUP_THREADS_CORES="3") == [[1, 1], [3, 1]]


def test_outputs_are_the_same(profiles: dict[str, str]) -> None:
    body = """
def answer(llm):
    return llm("The capital of France is", max_tokens=8, temperature=0, seed=1)["choices"][0]["text"]
plain = answer(ct.create_llama(GEMMA, **options))
save(GEMMA, LIBRARY, n_threads=1, n_threads_batch=2)
show(plain == answer(ct.create_llama(GEMMA, **options)), said())
"""
    assert gemma_script(LLAMA + body, **profiles) == [True, ["profile-used"]]


# --- sentence-transformers ---

ENCODER = (
    """
import json, os, sys
import cgroup_threads as ct
from cgroup_threads.models.governing import govern, release
def show(*values): print(json.dumps(values))
def watch(model):
    '''Cores leased, and torch's threads, in each forward pass.'''
    import torch
    seen = []
    def look(*_):
        seen.append([ct.statistics().leased, torch.get_num_threads()])
    handle = model[0].register_forward_pre_hook(look)
    model.encode(["a sentence", "another one"])
    handle.remove()
    return seen
"""
    + SAVE
)


def encoder_script(body: str, **environ: str) -> Any:
    body = f"PATH = {minilm_directory()!r}\n" + ENCODER + body
    return run_script(body, **{"CGROUP_THREADS_CORES": "2", "CGROUP_THREADS_SCOPE": "process", **environ})


def test_a_batch_leases_at_most_the_tuned_count(profiles: dict[str, str]) -> None:
    body = """
before = watch(ct.create_sentence_transformer(PATH))
save(PATH, "torch", threads=1)
model = ct.create_sentence_transformer(PATH)
after = watch(model)
release(model)
from sentence_transformers import SentenceTransformer
plain = SentenceTransformer(PATH)
show(before, after, watch(model), watch(plain), watch(govern(plain)), said())
"""
    before, after, released, plain, governed, said = encoder_script(body, **profiles)
    assert before == [[2, 2]]
    assert after == governed == [[1, 1]]
    assert released == plain == [[0, 2]]
    assert said == ["profile-used"]


def test_an_encoder_of_elsewhere(profiles: dict[str, str]) -> None:
    body = """
save(PATH, "torch", {"library": "torch 1.0"}, threads=1)
show(watch(ct.create_sentence_transformer(PATH)), said())
"""
    assert encoder_script(body, **profiles) == [[[2, 2]], ["profile-other-machine"]]


def test_a_model_by_its_name_on_the_hub(profiles: dict[str, str], tmp_path: Path) -> None:
    """In the hub's cache the same files are links, below a directory named after the model."""
    body = f"""
HOME = {str(tmp_path / "hub")!r}
os.environ["HF_HOME"] = HOME
base = os.path.join(HOME, "hub", "models--someone--minilm")
revision = "0" * 40
snapshot = os.path.join(base, "snapshots", revision)
os.makedirs(os.path.join(base, "refs"))
os.makedirs(os.path.dirname(snapshot))
with open(os.path.join(base, "refs", "main"), "w") as file:
    file.write(revision)
os.symlink(PATH, snapshot)
save(PATH, "torch", threads=1)
from cgroup_threads.models.origins import directory_of
model = ct.create_sentence_transformer("someone/minilm")
from sentence_transformers import SentenceTransformer
made = SentenceTransformer(modules=list(model))
made_of_others = SentenceTransformer(modules=[model[0]])
show(os.path.realpath(directory_of(model)) == os.path.realpath(PATH), watch(model), said())
"""
    assert encoder_script(body, **profiles) == [True, [[1, 1]], ["profile-used"]]


def test_models_without_files_are_governed_as_before(profiles: dict[str, str]) -> None:
    body = """
import torch
from sentence_transformers import SentenceTransformer
class Own(torch.nn.Module):
    def forward(self, features):
        features["sentence_embedding"] = torch.zeros(len(features["texts"]), 4)
        return features
    def tokenize(self, texts, **_):
        return {"texts": texts}
    preprocess = tokenize
save(PATH, "torch", threads=1)
from cgroup_threads.models.origins import directory_of, find_top
model = ct.create_sentence_transformer([Own()])
show(directory_of(model), find_top(model), find_top(torch.nn.Linear(2, 2)), said())
"""
    assert encoder_script(body, **profiles) == [None, None, None, []]


# --- onnxruntime ---


def test_a_session_has_the_tuned_count(profiles: dict[str, str]) -> None:
    body = """
save(PATH, "onnxruntime", intra_op_num_threads=2)
given = onnxruntime.SessionOptions()
given.intra_op_num_threads = 1
first = create_onnx_session(PATH)
with open(PATH, "rb") as file:
    loaded = create_onnx_session(file.read())
options = onnxruntime.SessionOptions()
show(counts(first)[0], leased(first), right(run(first)), counts(create_onnx_session(PATH, sess_options=given))[0],
     counts(create_onnx_session(PATH, sess_options=options))[0], counts(loaded)[0], said())
"""
    assert session_script(SAVE + body, **profiles) == [2, [2], True, 1, 2, 3, ["profile-used"]]


def test_a_session_of_elsewhere(profiles: dict[str, str]) -> None:
    require_module("onnxruntime")
    body = """
save(PATH, "onnxruntime", {"cpu": "Some CPU"}, intra_op_num_threads=1)
show(counts(create_onnx_session(PATH))[0], said())
"""
    assert session_script(SAVE + body, **profiles) == [3, ["profile-other-machine"]]


def test_older_models_keep_their_transformer_inside(tmp_path: Path) -> None:
    class Config:
        _name_or_path = str(tmp_path / "0_Transformer")

    class Stand:
        config = Config()

        def modules(self) -> list[object]:
            return [object(), self]

    (tmp_path / "0_Transformer").mkdir()
    assert directory_of(Stand()) == str(tmp_path / "0_Transformer")
    (tmp_path / "modules.json").touch()
    assert directory_of(Stand()) == str(tmp_path)
    Config._name_or_path = str(tmp_path / "gone")
    assert directory_of(Stand()) is None
