"""How the installed llama.cpp runs its threads, and what follows from it for thread counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..notices import Notice
from ..planning import current_plan
from ..state import process

# What libllama's dependencies export where one of them is an OpenMP runtime: GNU's, and LLVM's or Intel's.
_OPENMP: Final = ("GOMP_parallel", "__kmpc_fork_call")


def spins_without_end() -> bool:
    """Whether llama.cpp was built without OpenMP: its own threads then spin at barriers until the last one is there.

    A thread without a core holds up all others (4 threads on 1 core: 2.5 s for an embedding of 4 ms), and no variable
    ends it. False where that cannot be told. Needs llama_cpp.
    """
    from llama_cpp import llama_cpp as native

    try:
        information = native.llama_print_system_info()
    except AttributeError:
        return False
    if b"CPU" not in information or b"OPENMP = 1" in information:
        return False
    return not any(hasattr(native._lib, name) for name in _OPENMP)


def cap_where_spinning(counts: Mapping[str, int]) -> dict[str, int]:
    """``counts``, at most the usable cores each where threads spin without end; what is lowered leaves a notice."""
    usable = current_plan().usable
    above = note_endless_spin(counts, "lowered to")
    return {name: usable if name in above else count for name, count in counts.items()}


def note_endless_spin(counts: Mapping[str, int | None], done: str = "governed calls get at most") -> tuple[str, ...]:
    """The names of ``counts`` that are above the usable cores, with a notice, where threads spin without end."""
    usable = current_plan().usable
    above = tuple(name for name, count in counts.items() if count is not None and count > usable)
    if not above or not spins_without_end():
        return ()
    asked = ", ".join(f"{name}={counts[name]}" for name in above)
    message = f"this llama.cpp was built without OpenMP, its threads spin without end: {asked}: {done} {usable}"
    fix = f"pass at most {usable}, or install a llama-cpp-python built with GGML_OPENMP=ON"
    process.note(Notice("llama-without-openmp", message, "warning", fix))
    return above
