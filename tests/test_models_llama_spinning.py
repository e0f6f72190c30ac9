"""Explicit counts under the import hook where llama.cpp was built without OpenMP, with a stand-in for such a build.

tests/slow/test_llama_without_openmp.py has the real one.
"""

from __future__ import annotations

from typing import Any

from tests.lab.models import llama_script

# What a llama.cpp without OpenMP says of itself, and a library without its symbols. The plan is 3.
STAND_IN = """
import copy, pickle, types
import cgroup_threads
from cgroup_threads.state import process
from llama_cpp import Llama, llama_cpp as native
native.llama_print_system_info = lambda: b"CPU : SSE3 = 1 | AVX2 = 1 | REPACK = 1 | "
native._lib = types.SimpleNamespace()
def notices():
    return [notice.message for notice in process.notices if notice.code == "llama-without-openmp"]
"""


def script(body: str, **environ: str) -> Any:
    return llama_script(STAND_IN + body, **environ)


def test_a_count_above_the_usable_cores_is_lowered_with_a_notice() -> None:
    body = """
llm = Llama(PATH, n_threads=8, n_threads_batch=2, **COMMON)
other = Llama(PATH, n_threads=2, n_threads_batch=8, **COMMON)
show(counts(llm), counts(other), codes(), notices())
"""
    first, second, codes, messages = script(body)
    assert (first, second) == ([3, 2], [2, 3])
    assert codes == ["llama-threads-above-usable", "llama-without-openmp"]
    start = "this llama.cpp was built without OpenMP, its threads spin without end"
    assert messages == [f"{start}: n_threads=8: lowered to 3", f"{start}: n_threads_batch=8: lowered to 3"]


def test_what_is_missing_is_filled_as_elsewhere() -> None:
    body = """
llm = Llama(PATH, n_threads=8, **COMMON)
show(counts(llm), llm.__dict__["_cgroup_threads_filled"], codes())
"""
    codes = ["llama-threads-above-usable", "llama-threads-filled", "llama-without-openmp"]
    assert script(body) == [[3, 3], {"n_threads_batch": 3}, codes]


def test_counts_within_the_usable_cores_are_kept_in_silence() -> None:
    assert script("show(counts(Llama(PATH, n_threads=3, n_threads_batch=1, **COMMON)), codes())") == [[3, 1], []]


def test_a_pickle_has_the_counts_that_were_passed() -> None:
    """Where it is loaded they are lowered anew, to the usable cores there."""
    body = """
llm = Llama(PATH, n_threads=8, **COMMON)
state = llm.__getstate__()
passed = [state["n_threads"], state["n_threads_batch"], state["_cgroup_threads_filled"]]
data = pickle.dumps(llm)
found = [counts(pickle.loads(data)), counts(copy.copy(llm))]
cgroup_threads.apply(process.applied.plan._replace(threads=5, usable=5))
wider = counts(pickle.loads(data))
llm.context_params.n_threads = 2
show(passed, found, wider, llm.__getstate__()["n_threads"])
"""
    assert script(body) == [[8, 3, ["n_threads_batch"]], [[3, 3], [3, 3]], [5, 5], 2]


def test_after_undo_counts_are_kept() -> None:
    body = """
cgroup_threads.undo()
show(counts(Llama(PATH, n_threads=5, n_threads_batch=4, **COMMON)), notices())
"""
    assert script(body) == [[5, 4], []]


def test_a_count_that_llama_rejects_is_still_its_own_error() -> None:
    body = """
found = []
for count in (8.5, "8"):
    try:
        Llama(PATH, n_threads=count, **COMMON)
    except Exception as error:
        found.append(type(error).__name__)
show(found, "llama-hook-failed" in codes())
"""
    assert script(body) == [["TypeError", "TypeError"], True]


def test_a_build_that_cannot_be_asked_keeps_the_counts() -> None:
    """The filled ones, too."""
    body = """
def fail(): raise OSError("no such function")
native.llama_print_system_info = fail
show(counts(Llama(PATH, n_threads=5, **COMMON)), "llama-hook-failed" in codes(), notices())
"""
    assert script(body) == [[5, 3], True, []]
