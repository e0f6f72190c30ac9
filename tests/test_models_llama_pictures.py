"""The thread count with which libmtmd loads an encoder of pictures, with a stand-in for libmtmd.

tests/slow/test_llama_pictures.py has the real one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.models import gemma_gguf, llama_script

# llama_cpp.mtmd_cpp needs libmtmd, which the installed build may not have. ``loaded`` is what reached the library.
STAND_IN = '''
import os, tempfile, warnings
import llama_cpp
MODULE = """
import ctypes
loaded = []
class mtmd_context_params(ctypes.Structure):
    _fields_ = [("use_gpu", ctypes.c_bool), ("n_threads", ctypes.c_int), ("media_marker", ctypes.c_char_p)]
def mtmd_context_params_default():
    return mtmd_context_params(True, 4, b"<media>")
def mtmd_init_from_file(path, model, parameters, /):
    loaded.append([path.decode(), parameters.use_gpu, parameters.n_threads, parameters.media_marker.decode()])
def mtmd_support_vision(ctx): return True
"""
directory = tempfile.mkdtemp()
with open(os.path.join(directory, "mtmd_cpp.py"), "w") as file:
    file.write(MODULE)
llama_cpp.__path__.insert(0, directory)
def load(llm, n_threads=None):
    """As a chat handler does it, or with the default."""
    from llama_cpp import mtmd_cpp
    parameters = mtmd_cpp.mtmd_context_params_default()
    if n_threads is not None:
        parameters.n_threads = n_threads
    before = parameters.n_threads
    mtmd_cpp.mtmd_init_from_file(b"eyes.gguf", llm.model, parameters)
    assert parameters.n_threads == before
    path, gpu, count, marker = mtmd_cpp.loaded[-1]
    assert [path, gpu, marker] == ["eyes.gguf", True, "<media>"]
    return count
def messages():
    from cgroup_threads.state import process
    start = "mtmd_init_from_file() was given "
    return [n.message.removeprefix(start) for n in process.notices if n.message.startswith(start)]
'''
GOVERNED = "import cgroup_threads as ct\nwarnings.simplefilter('ignore', ct.CgroupThreadsWarning)\n"


def script(body: str, **environ: str) -> Any:
    return llama_script(STAND_IN + body, **environ)


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_default_is_the_plans(order: str) -> None:
    first, second = "import cgroup_threads as ct\n", "from llama_cpp import mtmd_cpp\n"
    body = """
llm = llama_cpp.Llama(PATH, **COMMON)
found = [load(llm), messages()]
ct.undo()
found.append(load(llm))
ct.apply()
show(*found, load(llm))
"""
    imports = first + second if order == "before" else second + first
    assert script(imports + body) == [3, ["no n_threads: set to 3"], 4, 3]


@pytest.mark.parametrize("switch", ["CGROUP_THREADS_PATCH", "CGROUP_THREADS_AUTO"])
def test_the_switches_leave_it_alone(switch: str) -> None:
    body = "import cgroup_threads\nshow(load(llama_cpp.Llama(PATH, **COMMON)), messages())"
    assert script(body, **{switch: "0"}) == [4, []]


def test_a_count_of_the_callers_is_kept() -> None:
    """Also one above the usable cores: so is that of ``Llama``, which the chat handlers pass."""
    body = """
import cgroup_threads
llm = llama_cpp.Llama(PATH, n_threads=8, **COMMON)
show(load(llm, 1), load(llm, 4), load(llm, llm.n_threads), messages())
"""
    assert script(body) == [1, 4, 8, []]


def test_a_governed_models_encoder_has_the_count_for_prompts() -> None:
    body = (
        GOVERNED
        + """
llm = ct.create_llama(PATH, n_threads=1, n_threads_batch=2, **COMMON)
other = ct.create_llama(PATH, n_threads=1, **COMMON)
show(load(llm, llm.n_threads), load(llm), load(other, other.n_threads), messages())
"""
    )
    messages = ["n_threads=1: set to 2", "no n_threads: set to 2", "n_threads=1: set to 3"]
    assert script(body) == [2, 2, 3, messages]


def test_a_governed_models_encoder_has_at_most_the_usable_cores() -> None:
    body = (
        GOVERNED
        + """
llm = ct.create_llama(PATH, n_threads=6, n_threads_batch=5, **COMMON)
found = [load(llm, llm.n_threads), load(llm, 4), load(llm, 2)]
ct.release(llm)
show(*found, load(llm, llm.n_threads), messages())
"""
    )
    assert script(body) == [3, 3, 2, 6, ["n_threads=6: set to 3", "n_threads=4: set to 3"]]


def test_another_models_encoder_is_not_changed() -> None:
    body = (
        GOVERNED
        + """
governed = ct.create_llama(PATH, n_threads=1, n_threads_batch=2, **COMMON)
llm = llama_cpp.Llama(PATH, n_threads=1, n_threads_batch=2, **COMMON)
show(load(llm, llm.n_threads))
"""
    )
    assert script(body) == [1]


def test_where_threads_spin_without_end_it_is_lowered() -> None:
    body = """
import types
import cgroup_threads
from cgroup_threads.state import process
from llama_cpp import llama_cpp as native
native.llama_print_system_info = lambda: b"CPU : SSE3 = 1 | "
native._lib = types.SimpleNamespace()
llm = llama_cpp.Llama(PATH, **COMMON)
show(load(llm, 8), load(llm, 2), "llama-without-openmp" in codes())
"""
    assert script(body) == [3, 2, True]


def test_a_fault_of_ours_does_not_stop_the_load() -> None:
    body = """
import cgroup_threads
from cgroup_threads.state import process
llm = llama_cpp.Llama(PATH, **COMMON)
process.applied = object()
show(load(llm), load(llm, 8), "llama-hook-failed" in codes())
"""
    assert script(body) == [4, 8, True]


def test_wrapped_once_and_again_after_reload() -> None:
    body = """
import importlib, cgroup_threads
from cgroup_threads.models import hooks
from llama_cpp import mtmd_cpp
names = "mtmd_context_params_default", "mtmd_init_from_file"
first = [getattr(mtmd_cpp, name) for name in names]
hooks.install()
same = [getattr(mtmd_cpp, name) for name in names] == first
importlib.reload(mtmd_cpp)
again = [getattr(mtmd_cpp, name) for name in names]
show(same, [hasattr(function.__wrapped__, "__wrapped__") for function in first + again],
     [function.__name__ for function in again], load(llama_cpp.Llama(PATH, **COMMON)))
"""
    names = ["mtmd_context_params_default", "mtmd_init_from_file"]
    assert script(body) == [True, [False] * 4, names, 3]


def test_a_real_chat_handler_passes_through() -> None:
    body = (
        f"GEMMA = {gemma_gguf()!r}\n"
        + GOVERNED
        + """
from llama_cpp.llama_chat_format import Llava15ChatHandler
llm = ct.create_llama(GEMMA, n_threads=1, n_ctx=64, verbose=False)
eyes = Llava15ChatHandler(clip_model_path=GEMMA, verbose=False)
try:
    eyes._init_mtmd_context(llm)
except ValueError as error:  # the stand-in makes no context
    from llama_cpp import mtmd_cpp
    show([count for path, gpu, count, marker in mtmd_cpp.loaded], messages())
"""
    )
    assert script(body) == [[3], ["n_threads=1: set to 3"]]
