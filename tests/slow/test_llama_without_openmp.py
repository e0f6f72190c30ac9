"""A real llama.cpp built without OpenMP: its threads spin at barriers until the last one has had a core."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.builds import BUILD_SECONDS, llama_without_openmp
from tests.lab.commands import quota_group
from tests.lab.models import llama_script, minilm_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.where("venvs: llama.cpp without OpenMP, libmtmd"),
    pytest.mark.timeout(BUILD_SECONDS + 600),
]

# Threads live as long as one native call here, so that a second one sees what the call really computes with.
PRELUDE = """
import os, pickle, threading, time, warnings
warnings.simplefilter("ignore")  # of counts above the usable cores
def tasks(): return len(os.listdir("/proc/self/task"))
class Watch:
    '''The most threads that the process had beyond the ``alone`` that it has between two calls.'''
    def __init__(self, alone):
        self.most, self.over, self.begun = 0, threading.Event(), threading.Event()
        self.thread, self.alone = threading.Thread(target=self.look), alone
    def __enter__(self):
        deadline = time.monotonic() + 30  # the kernel may show threads that were joined for a moment
        while tasks() > self.alone and time.monotonic() < deadline:
            pass
        assert tasks() == self.alone
        self.thread.start()
        assert self.begun.wait(60)
        return self
    def look(self):
        self.begun.set()
        while not self.over.is_set():
            self.most = max(self.most, tasks() - self.alone - 1)
    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
TEXT = "threads without a core hold up all others at every barrier " * 8
def seconds(llm, text="one two three"):
    start = time.perf_counter()
    llm.embed(text)
    return time.perf_counter() - start
def messages():
    from cgroup_threads.state import process
    return [n.message.rpartition("without end: ")[2] for n in process.notices if n.code == "llama-without-openmp"]
"""


def script(body: str, **environ: str) -> Any:
    """``body`` in a process that finds this build before the installed one. The plan is 2."""
    first = f"sys.path.insert(0, {llama_without_openmp()!r})\n"
    return llama_script(first + PRELUDE + body, **{"CGROUP_THREADS_CORES": "2", **environ})


def quota_script(body: str, **environ: str) -> Any:
    """The same under a real quota of one core, which is then the plan."""
    with quota_group(1.0) as group:
        join = f"with open({group.procs!r}, 'w') as file:\n    file.write('0')\n"
        return script(join + body, **{"CGROUP_THREADS_CORES": "", **environ})


def minilm_script(body: str, **environ: str) -> Any:
    return script(f"MINILM, OPTIONS = {minilm_gguf()!r}, {{**COMMON, 'n_ctx': 512}}\n" + body, **environ)


RECOGNISE = """
import llama_cpp
from llama_cpp import llama_cpp as native
from cgroup_threads.models.llama_builds import spins_without_end
show(spins_without_end(), os.path.dirname(os.path.dirname(llama_cpp.__file__)),
     b"OPENMP = 1" in native.llama_print_system_info())
"""


def test_it_is_told_from_the_usual_build() -> None:
    assert script(RECOGNISE) == [True, llama_without_openmp(), False]
    spins, directory, _ = llama_script("import os\n" + RECOGNISE)
    assert directory != llama_without_openmp()
    assert not spins


def test_under_a_quota_of_one_core_each_way_leads_to_one_thread() -> None:
    body = """
import cgroup_threads as ct
from llama_cpp import Llama
made = ct.create_llama(PATH, n_threads=8, **COMMON)
hooked = Llama(PATH, n_threads=8, n_threads_batch=8, **COMMON)
forgotten = Llama(PATH, n_threads=1, **COMMON)
copied = pickle.loads(pickle.dumps(hooked))
state = hooked.__getstate__()
show(*[counts(llm) for llm in (made, hooked, forgotten, copied)], [state["n_threads"], state["n_threads_batch"]],
     ct.plan().bound_by, messages())
"""
    *found, passed, bound_by, messages = quota_script(body)
    assert found == [[1, 1]] * 4
    assert passed == [8, 8]
    assert bound_by == "quota"
    assert messages == ["n_threads=8: lowered to 1", "n_threads=8, n_threads_batch=8: lowered to 1"]


def test_what_it_saves_an_embedding() -> None:
    """Four threads on the one core, as the caller asked for and gets without us."""
    body = """
import cgroup_threads as ct
from llama_cpp import Llama
models = ct.create_llama(PATH, n_threads_batch=4, **COMMON), Llama(PATH, n_threads_batch=4, **COMMON)
ours = [sorted(seconds(llm) for _ in range(5))[2] for llm in models]
ct.undo()
plain = Llama(PATH, n_threads=4, n_threads_batch=4, **COMMON)
assert counts(plain) == [4, 4]
same = plain.embed("one two three") == models[0].embed("one two three") == models[1].embed("one two three")
show(max(ours), min(seconds(plain) for _ in range(3)), same)
"""
    ours, theirs, same = quota_script(body)
    assert theirs > 20 * ours
    assert same


def test_governed_calls_compute_with_at_most_the_usable_cores() -> None:
    body = """
import cgroup_threads as ct
from llama_cpp import Llama
alone = tasks()
made = ct.create_llama(MINILM, n_threads=4, n_threads_batch=4, **OPTIONS)
ct.undo()
adopted = ct.govern(Llama(MINILM, n_threads=4, n_threads_batch=4, **OPTIONS))
assert counts(adopted) == [4, 4]
ct.apply()
hooked = Llama(MINILM, n_threads=4, n_threads_batch=4, **OPTIONS)
found = []
for llm in (made, adopted, hooked):
    with Watch(alone) as watch:
        for _ in range(3):
            llm.embed(TEXT)
    found.append(watch.most)
ct.release(adopted)
with Watch(alone) as watch:
    adopted.embed(TEXT)
show(found, watch.most, messages())
"""
    found, released, messages = minilm_script(body)
    assert max(found) <= 1, "threads beside the caller's own"
    assert released == 3, "what was watched does not show the threads"
    asked = "n_threads=4, n_threads_batch=4"
    assert messages == [f"{asked}: lowered to 2", f"{asked}: governed calls get at most 2"]


@pytest.mark.parametrize("switch", ["CGROUP_THREADS_PATCH", "CGROUP_THREADS_AUTO"])
def test_the_factory_works_without_the_hook(switch: str) -> None:
    body = """
import cgroup_threads as ct
from llama_cpp import Llama
hooked = Llama(PATH, n_threads=3, n_threads_batch=3, **COMMON)
show(counts(ct.create_llama(PATH, n_threads=8, **COMMON)), counts(hooked))
"""
    assert script(body, **{switch: "0"}) == [[2, 2], [3, 3]]
