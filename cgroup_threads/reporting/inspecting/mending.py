"""What lowers the number of runnable threads, from what is mapped and what its variables ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...variables import BY_NAME, OMP, parse_threads
from ...variables import judge as judge_variable
from .owners import LLAMA_KINDS, OPENBLAS, OPENMP, OPENMP_KINDS, PYTHON
from .records import Sample

# Which variable tells a kind of library its count; the first that is set.
_TOLD: Final = {
    **dict.fromkeys(OPENMP_KINDS, (OMP,)),
    "openblas": ("OPENBLAS_NUM_THREADS", OMP),
    "mkl": ("MKL_NUM_THREADS", OMP),
    "onnxruntime": ("ORT_INTRA_OP_NUM_THREADS",),
}
_POOLS: Final = (*OPENMP_KINDS, "openblas", "mkl")
_LEASES: Final = "wrap calls in `with cgroup_threads.limit_threads():`"


class Told(NamedTuple):
    """A count that a variable gives a library."""

    name: str
    threads: int


def has(sample: Sample, kinds: Iterable[str]) -> bool:
    """Whether a library of one of these kinds is mapped."""
    wanted = frozenset(kinds)
    return any(library.kind in wanted for library in sample.libraries)


def find_told(sample: Sample, kind: str) -> Told | None:
    """The count that a variable gives libraries of ``kind``; None if none does, or none that they can read."""
    values = dict(sample.variables)
    for name in _TOLD.get(kind, ()):
        count = parse_threads(name, values.get(name, ""))
        if count is not None:
            return Told(name, count)
    return None


def asked_too_much(sample: Sample) -> list[tuple[str, str]]:
    """Thread variables whose count is above the usable cores, or that no library can read."""
    found = []
    for name, text in sample.variables:
        if name in BY_NAME and BY_NAME[name].kind in ("threads", "pool", "cores"):
            verdict = judge_variable(name, text, sample.usable)
            if verdict.state in ("harmful", "malformed"):
                found.append((name, verdict.text))
    return found


def waits_busily(sample: Sample) -> bool:
    """Whether a library is mapped whose threads spin at barriers, with a team of more than one."""
    if has(sample, LLAMA_KINDS):  # its counts are arguments
        return True
    for kind in (*OPENMP_KINDS, "openblas"):
        if has(sample, (kind,)):
            told = find_told(sample, kind)
            if (told.threads if told is not None else len(sample.limits.affinity)) > 1:
                return True
    return False


def mend_counts(sample: Sample) -> str:
    """The fix for too many runnable threads. A count that fits is never to be raised."""
    usable = sample.usable
    fixes = []
    asked = asked_too_much(sample)
    if asked:
        names = " ".join(f"{name}={usable}" for name, _ in asked[:3])
        fixes.append(f"set {names} (now {', '.join(text for _, text in asked[:3])})")
    if has(sample, LLAMA_KINDS):
        fixes.append(
            f"pass both n_threads={usable} and n_threads_batch={usable} to llama.cpp (left out, the second is every "
            "CPU of the host, and no variable lowers it)"
        )
    if has(sample, ("onnxruntime",)) and not asked and find_told(sample, "onnxruntime") is None:
        fixes.append(f"set SessionOptions.intra_op_num_threads={usable}")
    callers = _mend_callers(sample, alone=not fixes)
    if callers:
        fixes.append(callers)
    if not fixes:
        fixes.append(f"run at most {usable} workers or threads at once")
    return "; ".join(fixes)


def _mend_callers(sample: Sample, alone: bool) -> str:
    """What is to be said of threads that call pools side by side; "" if nothing. ``alone``: no other cause is known."""
    kinds = [kind for kind in _POOLS if has(sample, (kind,))]
    if has(sample, ("onnxruntime",)) and find_told(sample, "onnxruntime") is not None:
        kinds.append("onnxruntime")
    if not kinds:
        return ""
    told = [found for kind in kinds if (found := find_told(sample, kind)) is not None]
    most = max(told, key=lambda found: found.threads) if len(told) == len(kinds) else None
    if most is not None and most.threads == 1:
        return _mend_single(sample, most.name, alone)
    python = _count_python(sample)
    if python > 1:
        return f"at least {python} Python threads have a team each: {_LEASES}"
    if not alone:
        return ""
    if most is not None:  # a larger one was said to be so
        return f"{most.name}={most.threads} fits, so callers run side by side: {_LEASES}"
    return f"set {OMP}={sample.usable}, or `import cgroup_threads` before all else"


def _mend_single(sample: Sample, name: str, alone: bool) -> str:
    """The same where variable ``name`` gives each call one thread."""
    if alone and sum(thread.owner in (OPENMP, OPENBLAS) for thread in sample.busy) > sample.usable:
        return (
            f"{name}=1 is not the count its teams have: look for one set in its code "
            "(torch.set_num_threads, omp_set_num_threads)"
        )
    # A thread that never slept has no known owner, but where no pool has a second thread all are callers.
    count = len(sample.busy) if alone else _count_python(sample)
    fits = f" ({name}=1 fits)" if alone else ""
    return f"{count} threads compute side by side{fits}: {_LEASES}" if count > 1 else ""


def _count_python(sample: Sample) -> int:
    return sum(thread.owner == PYTHON for thread in sample.threads)
