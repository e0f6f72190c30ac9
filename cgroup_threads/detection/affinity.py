"""The affinity mask of this process on Linux, also where an OpenMP runtime has narrowed it for one thread.

With OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY or KMP_AFFINITY set, libgomp pins the thread that loads it (libomp and
libiomp5 the one that uses them first) to a single place. That is a placement of one thread, not a limit of the process,
but ``sched_getaffinity`` shows nothing else from then on, and new threads and children inherit it.
"""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..notices import Notice
from .cgroup import read_cgroups
from .procfs import LARGE, Files

SYSCALL: Final = "sched_getaffinity"
_RUNTIMES: Final = ("libgomp", "libiomp5", "libomp")
_MAX_THREADS: Final = 256  # whose masks are asked


class Affinity(NamedTuple):
    """A mask of CPUs and where it comes from."""

    cpus: frozenset[int]
    source: str
    notices: tuple[Notice, ...] = ()


def find_binding(environ: Mapping[str, str]) -> str | None:
    """The variable that makes an OpenMP runtime pin threads, or None."""
    proc_bind = environ.get("OMP_PROC_BIND", "").strip().lower()
    if proc_bind == "false":
        return None
    if proc_bind:
        return "OMP_PROC_BIND"
    for name in ("GOMP_CPU_AFFINITY", "OMP_PLACES"):
        if environ.get(name, "").strip():
            return name
    words = environ.get("KMP_AFFINITY", "").strip().lower().split(",")
    return None if words == [""] or "none" in words or "disabled" in words else "KMP_AFFINITY"


def take_snapshot(environ: Mapping[str, str], files: Files | None = None) -> Affinity | None:
    """The mask of this process at import, widened if an OpenMP runtime was loaded before and has pinned this thread.

    libgomp still knows how many CPUs there were; which ones they were, other threads or the effective cpuset tell.
    None where the platform has no masks, or a sandbox refuses to tell.
    """
    try:
        mask = frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None
    binding = find_binding(environ)
    if binding is None:
        return Affinity(mask, SYSCALL)
    files = files or Files()
    runtimes = find_runtimes(files.read("/proc/self/maps", LARGE).text or "")
    if not runtimes:
        return Affinity(mask, SYSCALL)
    count = _ask_libgomp(runtimes)
    if count is not None and count <= len(mask):
        return Affinity(mask, SYSCALL)
    return restore_mask(mask, count, binding, _other_threads(), read_cgroups(files).cpuset)


def restore_mask(
    mask: frozenset[int], count: int | None, binding: str, others: frozenset[int], cpuset: frozenset[int] | None
) -> Affinity:
    """The mask before the pinning: ``others`` (masks of other threads) if wide enough, else the ``cpuset``.

    ``count`` is how many CPUs there were, or None if nobody knows.
    """
    wanted = len(mask) + 1 if count is None else count
    reduced = _reduced(mask, binding)
    fix = "import cgroup_threads before numpy, torch and other native libraries"
    for cpus, source in ((others | mask, "other threads"), ((cpuset or frozenset()) | mask, "cpuset")):
        if len(cpus) >= wanted:
            kept = sorted(cpus, key=lambda cpu: (cpu not in mask, cpu))[:count]
            message = f"{reduced}; {len(kept)} CPUs are taken from {source}"
            return Affinity(frozenset(kept), source, (Notice("affinity-reduced", message, "warning", fix),))
    message = f"{reduced}, and nothing tells how many there were"
    return Affinity(mask, SYSCALL, (Notice("affinity-reduced", message, "warning", fix),))


def read_affinity(
    snapshot: frozenset[int] | None, environ: Mapping[str, str], cpuset: frozenset[int] | None
) -> Affinity | None:
    """The mask of the calling thread, or the snapshot where a binding variable has narrowed it since.

    A mask narrowed without such a variable was meant for this process and counts. None if the kernel does not tell.
    """
    try:
        mask = frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # no such call on this platform, or a sandbox denies it
        return None
    if snapshot is None or not mask < snapshot:
        return Affinity(mask, SYSCALL)
    binding = find_binding(environ)
    if binding is None:
        return Affinity(mask, SYSCALL)
    wide = snapshot & cpuset if cpuset else snapshot
    if not mask < wide:
        return Affinity(mask, SYSCALL)
    message = f"{_reduced(mask, binding)}; the {len(wide)} CPUs noted at import count"
    return Affinity(wide, "snapshot at import", (Notice("affinity-reduced", message),))


def _reduced(mask: frozenset[int], binding: str) -> str:
    return f"affinity of this thread was reduced to {len(mask)} CPU{'s' if len(mask) > 1 else ''} by {binding}"


def find_runtimes(maps: str) -> list[str]:
    """Paths of the OpenMP runtimes in the text of /proc/self/maps."""
    found: dict[str, None] = {}
    for line in maps.split("\n"):
        at = line.find("/")
        if at >= 0 and line[line.rfind("/") + 1 :].startswith(_RUNTIMES):
            found[line[at:]] = None
    return list(found)


def _ask_libgomp(runtimes: list[str]) -> int | None:
    """CPUs that libgomp found when it was loaded; None if it is not among the runtimes.

    Others are not asked: the question would initialise (and pin) them.
    """
    import ctypes

    counts = []
    for path in runtimes:
        if os.path.basename(path).startswith("libgomp"):
            try:
                counts.append(int(ctypes.CDLL(path).omp_get_num_procs()))
            except (OSError, AttributeError):  # the file was replaced since, or it is no libgomp
                continue
    return max(counts, default=None)


def _other_threads() -> frozenset[int]:
    """The CPUs any other thread of this process may use."""
    cpus: set[int] = set()
    try:
        for thread in os.listdir("/proc/self/task")[:_MAX_THREADS]:
            cpus.update(os.sched_getaffinity(int(thread)))
    except (OSError, ValueError):  # a thread has ended, or there is no /proc
        pass
    return frozenset(cpus)
