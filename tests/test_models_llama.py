"""``create_llama``: the real class, with both thread counts."""

from __future__ import annotations

import sys

import pytest

from cgroup_threads.errors import MissingExtraError
from cgroup_threads.models.llama import create_llama
from tests.lab import require_module
from tests.lab.models import LIBRARY_DEFAULT, gemma_gguf, llama_script, minilm_gguf

FACTORY = """
import warnings
import cgroup_threads as ct
from cgroup_threads.state import process
def build(**arguments):
    return ct.create_llama(PATH, **arguments, **COMMON)
def failure(**arguments):
    try:
        build(**arguments)
    except ct.CgroupThreadsError as error:
        return [type(error).__name__, str(error)]
"""


def test_it_returns_the_real_class_with_both_counts() -> None:
    script = FACTORY + "import llama_cpp\nllm = build()\nshow(type(llm) is llama_cpp.Llama, counts(llm))"
    assert llama_script(script) == [True, [3, 3]]


@pytest.mark.parametrize("switch", ["CGROUP_THREADS_PATCH", "CGROUP_THREADS_AUTO"])
def test_it_works_without_the_hook(switch: str) -> None:
    script = FACTORY + (
        "llm = build(n_threads=1)\nimport pickle\nshow(counts(llm), counts(pickle.loads(pickle.dumps(llm))), codes())"
    )
    assert llama_script(script, **{switch: "0"}) == [[1, 3], [1, 3], []]


def test_each_count_is_respected_by_itself() -> None:
    """Field cases M02 (both counts, each for itself), M03 (None, 0 and -1), M08 (different counts)."""
    cases: list[tuple[dict[str, int | None], list[int]]] = [
        ({"n_threads": 2}, [2, 3]),
        ({"n_threads_batch": 2}, [3, 2]),
        ({"n_threads": 1, "n_threads_batch": 2}, [1, 2]),
        ({"n_threads": None, "n_threads_batch": 0}, [3, 3]),
        ({"n_threads": -1, "n_threads_batch": -1}, [3, 3]),
    ]
    script = FACTORY + f"show(*[counts(build(**given)) for given in {[given for given, _ in cases]!r}])"
    assert llama_script(script) == [expected for _, expected in cases]


def test_counts_above_the_usable_cores_are_kept_with_one_warning() -> None:
    script = (
        FACTORY
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    llm = build(n_threads=4, n_threads_batch=5)
found = [warning for warning in caught if warning.category is ct.CgroupThreadsWarning]
show(counts(llm), [str(warning.message) for warning in found], found[0].filename, codes())
"""
    )
    text = "n_threads=4 is above the 3 usable cores; n_threads_batch=5 is above the 3 usable cores"
    assert llama_script(script) == [[4, 5], [text], "<string>", ["llama-threads-above-usable"]]


def test_rejected_counts() -> None:
    values = ["True", "2.0", "'4'", "-2", "False"]
    calls = [f"failure({name}={value})" for name in ("n_threads", "n_threads_batch") for value in values]
    assert llama_script(FACTORY + f"show({', '.join(calls)})") == [
        ["InvalidThreadsError", f"{name} must be a positive integer, not {value}"]
        for name in ("n_threads", "n_threads_batch")
        for value in values
    ]


def test_misspelt_names() -> None:
    script = FACTORY + "show(failure(n_thread_batch=2), failure(threads=2), failure(wibble_wobble=1))"
    assert llama_script(script) == [
        ["UnknownArgumentError", "Llama() has no argument 'n_thread_batch'; did you mean 'n_threads_batch'?"],
        ["UnknownArgumentError", "Llama() has no argument 'threads'; did you mean 'n_threads'?"],
        ["UnknownArgumentError", "Llama() has no argument 'wibble_wobble'"],
    ]


def test_every_declared_argument_passes() -> None:
    script = (
        FACTORY
        + """
import inspect, llama_cpp
from cgroup_threads.models.keywords import reject_unknown
names = [p.name for p in inspect.signature(llama_cpp.Llama.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY]
reject_unknown(names, llama_cpp.Llama.__init__, "Llama")
show(len(names) > 30)
"""
    )
    assert llama_script(script) == [True]


def test_a_path_object_and_the_librarys_own_errors() -> None:
    script = (
        FACTORY
        + """
import pathlib
llm = ct.create_llama(pathlib.Path(PATH), **COMMON)
try:
    ct.create_llama("/nowhere.gguf", **COMMON)
except ValueError as error:
    show(counts(llm), str(error))
"""
    )
    assert llama_script(script) == [[3, 3], "Model path does not exist: /nowhere.gguf"]


def test_a_pickle_of_the_factorys_model_follows_the_process() -> None:
    script = (
        FACTORY
        + """
import pickle
data = pickle.dumps(build(n_threads=2))
ct.apply(process.applied.plan._replace(threads=1))
show(counts(pickle.loads(data)))
"""
    )
    assert llama_script(script) == [[2, 1]]


def test_a_late_import_warns_once() -> None:
    require_module("torch")
    script = (
        FACTORY.replace("import warnings", "import torch\nimport warnings")
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    build(), build()
found = [warning for warning in caught if warning.category is ct.CgroupThreadsWarning]
show(len(found), str(found[0].message), found[0].filename)
"""
    )
    number, message, filename = llama_script(script)
    assert (number, filename) == (1, "<string>")
    assert "imported before cgroup_threads" in message
    assert "torch" in message


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cgroup-threads\[llama\]'"):
        create_llama("model.gguf")


def test_a_broken_library_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
        monkeypatch.delitem(sys.modules, name)
    with open(f"{tmp_path}/llama_cpp.py", "w") as file:
        file.write("import a_module_it_needs\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_it_needs"):
        create_llama("model.gguf")
    sys.modules.pop("llama_cpp", None)


EMBEDDINGS = (
    LIBRARY_DEFAULT
    + """
import hashlib, llama_cpp
TEXTS = ["one", "threads must not change results", "a b c d e f g h " * 12]
def digest(llm):
    return hashlib.sha256(json.dumps(llm.embed(TEXTS)).encode()).hexdigest()
plain = [digest(llama_cpp.Llama(PATH, n_threads=g, n_threads_batch=b, **COMMON)) for g, b in ((1, 1), (1, 2), (2, 4))]
import cgroup_threads as ct, warnings
warnings.simplefilter("ignore", ct.CgroupThreadsWarning)  # libraries came first
governed = [digest(llama_cpp.Llama(PATH, **COMMON)), digest(ct.create_llama(PATH, **COMMON)),
            digest(ct.create_llama(PATH, n_threads=1, n_threads_batch=2, **COMMON))]
show(len(set(plain + governed)))
"""
)


def test_embeddings_are_bit_equal_at_any_count() -> None:
    assert llama_script(EMBEDDINGS) == [1]


def test_embeddings_of_a_real_model_are_bit_equal_at_any_count() -> None:
    script = f"PATH, COMMON['n_ctx'] = {minilm_gguf()!r}, 256\n" + EMBEDDINGS
    assert llama_script(script) == [1]


def test_generation_is_equal_at_any_count() -> None:
    script = (
        f"PATH = {gemma_gguf()!r}\n"
        + """
import cgroup_threads as ct
import llama_cpp
def generate(llm):
    answer = llm("The capital of France is", max_tokens=8, temperature=0, seed=1)
    return answer["choices"][0]["text"]
options = {"n_ctx": 64, "verbose": False}
counts = ((1, 1), (1, 2), (2, 1))
texts = [generate(llama_cpp.Llama(PATH, n_threads=g, n_threads_batch=b, **options)) for g, b in counts]
texts.append(generate(ct.create_llama(PATH, **options)))
show(len(set(texts)), len(texts[0].strip()) > 0)
"""
    )
    assert llama_script(script, CGROUP_THREADS_CORES="2") == [1, True]


def test_the_low_level_default_is_four_and_not_ours() -> None:
    """docs/models.md says so: contexts made with the C API are left alone."""
    script = """
import cgroup_threads, llama_cpp
parameters = llama_cpp.llama_context_default_params()
show(parameters.n_threads, parameters.n_threads_batch)
"""
    assert llama_script(script) == [4, 4]
