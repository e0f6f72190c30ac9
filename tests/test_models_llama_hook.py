"""The import hook that fills in thread counts a caller of llama_cpp.Llama left out."""

from __future__ import annotations

import pytest

from tests.lab.models import LIBRARY_DEFAULT, llama_script


@pytest.mark.parametrize(
    "order",
    [
        "import cgroup_threads\nfrom llama_cpp import Llama",
        "from llama_cpp import Llama\nimport cgroup_threads",
        "import cgroup_threads\nfrom llama_cpp.llama import Llama",
    ],
    ids=["before", "after", "submodule"],
)
def test_both_counts_in_every_import_order(order: str) -> None:
    script = order + "\nllm = Llama(PATH, **COMMON)\nshow(counts(llm), codes())"
    assert llama_script(script) == [[3, 3], ["llama-threads-filled"]]


def test_what_is_missing_is_filled_and_what_is_given_is_kept() -> None:
    """Field cases M02 and M03: never a default of the library's, and never 0 or -1."""
    cases: list[tuple[dict[str, int | None], list[int]]] = [
        ({}, [3, 3]),
        ({"n_threads": 1}, [1, 3]),
        ({"n_threads_batch": 2}, [3, 2]),
        ({"n_threads": 1, "n_threads_batch": 2}, [1, 2]),
        ({"n_threads": None, "n_threads_batch": None}, [3, 3]),
        ({"n_threads": 0, "n_threads_batch": 0}, [3, 3]),
        ({"n_threads": -1, "n_threads_batch": -1}, [3, 3]),
        ({"n_threads": 2, "n_threads_batch": 0}, [2, 3]),
    ]
    script = "import cgroup_threads\nfrom llama_cpp import Llama\n"
    script += f"show(*[counts(Llama(PATH, **given, **COMMON)) for given in {[given for given, _ in cases]!r}])"
    assert llama_script(script) == [expected for _, expected in cases]


def test_the_notice_says_which_count_was_missing() -> None:
    script = """
import cgroup_threads
from cgroup_threads.state import process
from llama_cpp import Llama
Llama(PATH, n_threads=2, **COMMON)
show(*[notice for notice in process.notices if notice.code == "llama-threads-filled"])
"""
    message = "Llama() was given no n_threads_batch: set to 3"
    assert llama_script(script) == [["llama-threads-filled", message, "info", ""]]


def test_an_explicit_count_above_the_usable_cores_is_kept_and_noted() -> None:
    script = """
import cgroup_threads
from cgroup_threads.state import process
from llama_cpp import Llama
llm = Llama(PATH, n_threads=2, n_threads_batch=5, **COMMON)
show(counts(llm), [notice[:3] for notice in process.notices if notice.code.startswith("llama")])
"""
    notice = ["llama-threads-above-usable", "n_threads_batch=5 is above the 3 usable cores", "warning"]
    assert llama_script(script) == [[2, 5], [notice]]


@pytest.mark.parametrize("switch", [{"CGROUP_THREADS_PATCH": "0"}, {"CGROUP_THREADS_AUTO": "0"}])
def test_the_switches_leave_llama_alone(switch: dict[str, str]) -> None:
    script = LIBRARY_DEFAULT + (
        "import cgroup_threads\nfrom llama_cpp import Llama\n"
        "show(counts(Llama(PATH, **COMMON)) == library, Llama.__init__.__code__.co_filename, codes())"
    )
    library, filename, codes = llama_script(script, **switch)
    assert library
    assert filename.endswith("llama.py")
    assert codes == []


def test_undo_ends_it_and_apply_begins_it_again() -> None:
    script = LIBRARY_DEFAULT + (
        "import cgroup_threads\nfrom llama_cpp import Llama\n"
        "cgroup_threads.undo()\nfirst = counts(Llama(PATH, **COMMON)) == library\n"
        "quiet = codes()\ncgroup_threads.apply()\nshow(first, quiet, counts(Llama(PATH, **COMMON)))"
    )
    assert llama_script(script) == [True, [], [3, 3]]


def test_the_constructor_looks_as_before() -> None:
    script = """
import inspect
from llama_cpp import Llama
before = inspect.signature(Llama.__init__), Llama.__init__.__doc__, Llama.__init__.__qualname__
import cgroup_threads
after = inspect.signature(Llama.__init__), Llama.__init__.__doc__, Llama.__init__.__qualname__
show(before == after, Llama.__init__.__code__.co_filename.endswith("llama_hook.py"))
"""
    assert llama_script(script) == [True, True]


def test_wrapped_once_and_again_after_reload() -> None:
    script = """
import importlib, cgroup_threads, llama_cpp
from cgroup_threads.models import hooks, llama_hook
first = llama_cpp.llama.Llama
wrapped = first.__init__
hooks.install()
llama_hook.govern_llama(llama_cpp.llama)
assert first.__init__ is wrapped and not hasattr(wrapped.__wrapped__, "__wrapped__")
second = importlib.reload(llama_cpp.llama).Llama
assert second is not first
show(counts(first(PATH, **COMMON)), counts(second(PATH, **COMMON)), hasattr(second.__init__.__wrapped__, "__wrapped__"))
"""
    assert llama_script(script) == [[3, 3], [3, 3], False]


def test_subclasses_and_wrappers_pass_through() -> None:
    script = """
import functools
import cgroup_threads
from llama_cpp import Llama
class Quiet(Llama):
    def __init__(self, path, n_threads=None):
        super().__init__(path, n_threads=n_threads, **COMMON)
class Plain(Llama):
    pass
class Wrapper:
    def __init__(self, **options):
        self.client = Llama(PATH, **{"n_threads": None, **options})
partial = functools.partial(Llama, model_path=PATH)
show(counts(Quiet(PATH)), counts(Quiet(PATH, 2)), counts(Plain(model_path=PATH, **COMMON)),
     counts(Wrapper(**COMMON).client), counts(partial(**COMMON)))
"""
    assert llama_script(script) == [[3, 3], [2, 3], [3, 3], [3, 3], [3, 3]]


def test_from_pretrained_passes_through() -> None:
    script = """
import os, sys, types
hub = types.ModuleType("huggingface_hub")  # offline: what from_pretrained asks of it, answered from the directory
class HfFileSystem:
    def ls(self, repo_id, recursive): return [f"{repo_id}/{os.path.basename(PATH)}"]
hub.HfFileSystem, hub.hf_hub_download = HfFileSystem, lambda **arguments: PATH
hub.utils = types.ModuleType("huggingface_hub.utils")
hub.utils.validate_repo_id = lambda repo_id: None
sys.modules |= {"huggingface_hub": hub, "huggingface_hub.utils": hub.utils}
import cgroup_threads
from llama_cpp import Llama
name, directory = os.path.basename(PATH), os.path.dirname(PATH)
show(counts(Llama.from_pretrained("owner/model", name, local_dir=directory, **COMMON)),
     counts(Llama.from_pretrained("owner/model", name, local_dir=directory, n_threads=1, **COMMON)))
"""
    assert llama_script(script) == [[3, 3], [1, 3]]


def test_a_constructor_that_takes_counts_by_position_is_left_alone() -> None:
    script = """
import types
import cgroup_threads
from cgroup_threads.models.llama_hook import govern_llama
class Old:
    def __init__(self, model_path, n_threads=None, *, n_threads_batch=None):
        self.counts = [n_threads, n_threads_batch]
    def __getstate__(self): return {}
class Without:
    def __init__(self, model_path): pass
    def __getstate__(self): return {}
for cls in (Old, Without):
    govern_llama(types.SimpleNamespace(Llama=cls))
Without("path")
from cgroup_threads.state import process
show(Old("path", 2).counts, Old("path").counts, [n.message for n in process.notices if n.code == "llama-hook-failed"])
"""
    start = "thread counts of llama_cpp left as they came: TypeError: Llama() takes"
    messages = [f"{start} n_threads_batch by keyword", f"{start} none of them by keyword"]
    assert llama_script(script) == [[2, 3], [None, 3], messages]


def test_speculative_decoding_fills_the_counts_too() -> None:
    script = """
import cgroup_threads
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
llm = Llama(PATH, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=2), **COMMON)
show(counts(llm))
"""
    assert llama_script(script) == [[3, 3]]


def test_a_fault_of_ours_does_not_stop_llama() -> None:
    script = LIBRARY_DEFAULT + (
        "import cgroup_threads\nfrom cgroup_threads.state import process\nfrom llama_cpp import Llama\n"
        "process.applied = object()\n"
        "show(counts(Llama(PATH, **COMMON)) == library, codes())"
    )
    assert llama_script(script) == [True, ["llama-hook-failed"]]


def test_errors_of_the_constructor_stay_its_own() -> None:
    script = """
import cgroup_threads
from llama_cpp import Llama
found = []
for arguments in [{"model_path": "/nowhere.gguf"}, {}, {"model_path": PATH, "n_threads": "4"}]:
    try:
        Llama(**arguments, **COMMON)
    except Exception as error:
        found.append([type(error).__name__, str(error)[:30]])
show(*found)
"""
    missing, without, text = llama_script(script)
    assert missing == ["ValueError", "Model path does not exist: /no"]
    assert without[0] == "TypeError"
    assert text[0] == "TypeError"


PICKLE = """
import cgroup_threads, pickle, base64, copy
from llama_cpp import Llama
llm = Llama(PATH, n_threads=2, **COMMON)
"""


def test_a_pickle_remembers_which_count_was_ours() -> None:
    text, before, again, copied, explicit = llama_script(
        PICKLE + "data = pickle.dumps(llm)\n"
        "show(base64.b64encode(data).decode(), counts(llm), counts(pickle.loads(data)), counts(copy.copy(llm)),\n"
        "     sorted(set(llm.__getstate__()) - set(Llama.__getstate__.__wrapped__(llm))))"
    )
    assert before == again == copied == [2, 3]
    assert explicit == ["_cgroup_threads_filled"]
    load = "\nimport pickle, base64\nllm = pickle.loads(base64.b64decode(" + repr(text) + "))\nshow(counts(llm))"
    # A process with another plan fills in its own; one without us takes the numbers as they are.
    assert llama_script("import cgroup_threads" + load, CGROUP_THREADS_CORES="1") == [[2, 1]]
    assert llama_script(load) == [[2, 3]]


def test_a_count_changed_since_is_the_callers() -> None:
    script = PICKLE + (
        "llm = Llama(PATH, **COMMON)\nllm.context_params.n_threads = 1\n"
        "show(counts(pickle.loads(pickle.dumps(llm))), llm.__getstate__()['_cgroup_threads_filled'])"
    )
    assert llama_script(script) == [[1, 3], ["n_threads_batch"]]


def test_a_pickle_without_our_counts_is_the_librarys_own() -> None:
    script = PICKLE + (
        "llm = Llama(PATH, n_threads=2, n_threads_batch=1, **COMMON)\n"
        "show(counts(pickle.loads(pickle.dumps(llm))), llm.__getstate__() == Llama.__getstate__.__wrapped__(llm))"
    )
    assert llama_script(script) == [[2, 1], True]


def test_a_subclass_with_its_own_constructor_pickles_as_before() -> None:
    script = (
        PICKLE
        + """
class Strict(Llama):
    def __init__(self, model_path, **options):
        assert "_cgroup_threads_filled" not in options
        super().__init__(model_path, **options)
llm = Strict(PATH, **COMMON)
show(counts(pickle.loads(pickle.dumps(llm))))
"""
    )
    assert llama_script(script) == [[3, 3]]
