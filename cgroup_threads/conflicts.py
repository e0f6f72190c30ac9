"""Where the user's variables work against each other or against the affinity mask. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from .notices import Notice, shown
from .variables import NUMEXPR, NUMEXPR_MAX, OMP, OMP_LIMIT, VARIABLES, Verdict

_MAX_TEXT = 1000
_MAX_CPUS = 8192  # NR_CPUS of distribution kernels
_BINDINGS = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "VLLM_CPU_OMP_THREADS_BIND")


def find_conflicts(
    user: Mapping[str, str], kept: Mapping[str, Verdict], threads: int, affinity: Collection[int]
) -> Iterator[Notice]:
    """Notices on the values ``kept``; ``threads`` is what OpenMP gets where the user said nothing."""
    asked = kept[OMP].threads if OMP in kept else None
    for variable in VARIABLES:
        verdict = kept.get(variable.name)
        if variable.falls_back and verdict and verdict.threads and asked and verdict.threads != asked:
            message = f"{variable.name}={verdict.text} overrides {OMP}={kept[OMP].text} for {variable.library}"
            yield Notice("variables-disagree", message, "info", f"set {OMP} and {variable.name} to the same number")
    yield from _find_numexpr(kept)
    yield from _find_limit(kept, threads)
    if affinity:
        yield from _find_bindings(user, asked or threads, affinity)


def _find_numexpr(kept: Mapping[str, Verdict]) -> Iterator[Notice]:
    if NUMEXPR in kept and NUMEXPR_MAX in kept:
        threads, maximum = kept[NUMEXPR].threads, kept[NUMEXPR_MAX].threads
        if threads and maximum and threads > maximum:
            message = f"{NUMEXPR}={threads} is above {NUMEXPR_MAX}={maximum}: numexpr refuses it"
            yield Notice("variables-disagree", message, "problem", f"raise {NUMEXPR_MAX} to {threads}")


def _find_limit(kept: Mapping[str, Verdict], threads: int) -> Iterator[Notice]:
    """A limit does not change what libraries believe to have: torch asks for more and gets a smaller team."""
    limit = kept[OMP_LIMIT].threads if OMP_LIMIT in kept else None
    if not limit:
        return
    # The verdict on OMP_NUM_THREADS is capped by the limit already; its text is what the user wrote.
    asked = kept[OMP].text if OMP in kept else str(threads)
    first = asked.partition(",")[0]
    below = first.isdigit() and limit < int(first)
    message = f"{OMP_LIMIT}={limit} kept" + (f", below {OMP}={asked}: OpenMP teams get {limit}" if below else "")
    fix = f"unset {OMP_LIMIT}: oneDNN's convolution backward hangs if torch is asked for more threads than the limit"
    yield Notice("omp-thread-limit", message, "warning" if below else "info", fix)


def _find_bindings(user: Mapping[str, str], threads: int, affinity: Collection[int]) -> Iterator[Notice]:
    for name in _BINDINGS:
        text = user.get(name, "")
        outside = sorted((parse_cpus(text) or set()) - set(affinity))
        if outside:
            cpus = ", ".join(map(str, outside[:8])) + (", ..." if len(outside) > 8 else "")
            message = f"{name}={shown(text)} names CPUs outside the affinity mask: {cpus}"
            yield Notice("binding-outside-mask", message, "warning", f"unset {name}, or name CPUs of the mask")
    bind = user.get("OMP_PROC_BIND", "")[:_MAX_TEXT].strip().lower()
    placed = any(user.get(name, "").strip() for name in ("OMP_PLACES", "GOMP_CPU_AFFINITY"))
    binds = bind.partition(",")[0] in ("true", "close", "spread", "master", "primary")
    if binds and not placed and threads < len(affinity):
        message = f"OMP_PROC_BIND={bind} with {threads} threads on {len(affinity)} CPUs: all processes take the first"
        yield Notice("binding-shared", message, "warning", "unset OMP_PROC_BIND, or set OMP_PLACES for each process")


def parse_cpus(text: str) -> set[int] | None:
    """CPU numbers of a binding: ``0 3 4-15:2`` (libgomp), ``{0:4},{8:4:2}`` (OMP_PLACES) or ``0-31|32-63`` (vLLM).

    None for words such as ``auto`` and ``cores`` and for forms not understood.
    """
    if len(text) > _MAX_TEXT or not text.isascii():
        return None
    places = "{" in text
    found: set[int] = set()
    for token in text.translate(str.maketrans("{},|", "    ")).split():
        span, *rest = token.split(":")
        first, dash, last = span.partition("-")
        numbers = [first, *([last] if dash else []), *rest]
        if not all(number.isdigit() and int(number) < _MAX_CPUS for number in numbers) or len(rest) > 2:
            return None
        start, stride = int(first), int(rest[-1]) if len(rest) > int(places) else 1
        stop = start + int(rest[0]) * stride if places and rest else (int(last) if dash else start) + 1
        found.update(range(start, min(stop, _MAX_CPUS), max(1, stride)))
    return found
