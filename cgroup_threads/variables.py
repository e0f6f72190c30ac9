"""The thread variables of native libraries: one table that feeds the code, the report and docs/variables.md. Pure."""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
from collections.abc import Collection
from typing import Final, Literal, NamedTuple

from .notices import Notice, shown

Kind = Literal["threads", "pool", "maximum", "cores", "cpus", "interop", "spin", "limit"]
Stage = Literal["import", "child", "opt-in"]
VerdictState = Literal["fine", "blank", "malformed", "harmful", "wasteful"]

OMP: Final = "OMP_NUM_THREADS"
OMP_LIMIT: Final = "OMP_THREAD_LIMIT"
NUMEXPR: Final = "NUMEXPR_NUM_THREADS"
NUMEXPR_MAX: Final = "NUMEXPR_MAX_THREADS"
NUMBA: Final = "NUMBA_NUM_THREADS"
SPIN: Final = "GOMP_SPINCOUNT"
SPINCOUNT: Final = 2000  # covers gaps of about 20 us between parallel regions, then costs about 22 us a region
ABSURD: Final = 4  # times the host's CPUs: nobody means that many threads
_MAX_TEXT: Final = 1000


class Variable(NamedTuple):
    """One variable: who reads it, what it caps, when it is read for good, and what still works afterwards.

    ``kind`` says which number it gets: "threads" the plan's, "pool" the plan's or the resize ceiling
    (``CGROUP_THREADS_MAX_CORES``) for pools that cannot grow, "maximum" likewise for an upper bound, "cores" the usable
    cores or that ceiling, "cpus" the usable cores, "interop", "spin" or "limit". ``stage`` is "import" (set by
    importing), "child" (set for a child process alone: generic names) or "opt-in". ``falls_back`` marks libraries
    that read OMP_NUM_THREADS where their own variable is missing.
    """

    name: str
    library: str
    caps: str
    kind: Kind
    latched: str
    setter: str
    stage: Stage = "import"
    falls_back: bool = False


VARIABLES: Final = (
    Variable(OMP, "OpenMP (libgomp, libomp, libiomp5)", "threads of a team", "threads", "load", "omp_set_num_threads"),
    Variable("MKL_NUM_THREADS", "MKL; torch, where it is built with MKL", "threads of a call", "threads",
             "first use; torch: import", "MKL_Set_Num_Threads_Local", falls_back=True),
    Variable("OPENBLAS_NUM_THREADS", "OpenBLAS (pthreads builds: numpy, scipy)", "threads of a call", "threads",
             "load", "openblas_set_num_threads", falls_back=True),
    Variable("BLIS_NUM_THREADS", "BLIS", "threads of a call", "threads", "load", "bli_thread_set_num_threads",
             falls_back=True),
    Variable("VECLIB_MAXIMUM_THREADS", "Apple Accelerate", "threads of a call", "threads", "load", "none"),
    Variable(NUMEXPR, "numexpr", "threads in use", "threads", "import", "numexpr.set_num_threads, up to the maximum",
             falls_back=True),
    Variable(NUMEXPR_MAX, "numexpr", "the pool's maximum", "maximum", "import", "none"),
    Variable(NUMBA, "numba", "threads of the pool", "pool", "import; the pool: first parallel call",
             "numba.set_num_threads, downwards, per thread"),
    Variable("OPENCV_FOR_THREADS_NUM", "OpenCV", "threads of a loop", "threads", "first use", "cv2.setNumThreads"),
    Variable("TF_NUM_INTRAOP_THREADS", "TensorFlow", "threads inside an operator", "threads", "first operator",
             "none: tf.config raises after the first operator"),
    Variable("ORT_INTRA_OP_NUM_THREADS", "onnxruntime (recent releases)", "threads inside an operator", "threads",
             "each session", "SessionOptions.intra_op_num_threads of the next session"),
    Variable("RAYON_NUM_THREADS", "Rust's rayon (tokenizers)", "threads of the pool", "cores", "first use", "none"),
    Variable("POLARS_MAX_THREADS", "polars", "threads of the pool", "cores", "import", "none"),
    Variable("TF_NUM_INTEROP_THREADS", "TensorFlow", "operators side by side", "interop", "first operator", "none"),
    Variable("ORT_INTER_OP_NUM_THREADS", "onnxruntime (recent releases)", "operators side by side", "interop",
             "each session", "SessionOptions.inter_op_num_threads of the next session"),
    Variable(SPIN, "libgomp", "busy waiting, in loop rounds", "spin", "load", "none"),
    Variable(OMP_LIMIT, "OpenMP (libgomp, libomp, libiomp5)", "all threads, explicit num_threads(n) included",
             "limit", "load", "none", "opt-in"),
    Variable("NPROC", "JAX (XLA on CPU)", "threads of the pool", "threads", "first use", "none", "child"),
    Variable("N_THREADS", "llama_cpp.server and others", "threads of decoding", "threads", "start", "none", "child"),
    Variable("N_THREADS_BATCH", "llama_cpp.server and others", "threads of prompts and embeddings", "threads",
             "start", "none", "child"),
    Variable("LLAMA_ARG_THREADS", "llama.cpp's programs", "threads of decoding and prompts", "threads", "start",
             "none", "child"),
    Variable("PYTHON_CPU_COUNT", "os.cpu_count() of Python 3.13 and newer", "the number reported", "cpus", "start",
             "none", "child"),
    Variable("LOKY_MAX_CPU_COUNT", "joblib and loky", "the number reported", "cpus", "each call", "none", "child"),
)  # fmt: skip  # one row a variable reads better than one argument a line
BY_NAME: Final = {variable.name: variable for variable in VARIABLES}


class Counts(NamedTuple):
    """The numbers a plan comes down to: threads, operators side by side, cores; the ceilings of pools that cannot
    grow; whether to shorten busy waiting; the OMP_THREAD_LIMIT or None."""

    threads: int
    interop: int
    cores: int
    thread_ceiling: int
    core_ceiling: int
    spin: bool = False
    limit: int | None = None


def value_of(kind: Kind, counts: Counts) -> int | None:
    """The number a variable of this kind gets; None if it is not to be set."""
    return {
        "threads": counts.threads,
        "pool": counts.thread_ceiling,
        "maximum": counts.thread_ceiling,
        "cores": counts.core_ceiling,
        "cpus": counts.cores,
        "interop": counts.interop,
        "spin": SPINCOUNT if counts.spin else None,
        "limit": counts.limit,
    }[kind]


def clean_environment(counts: Counts, stages: Collection[Stage] = ("import", "opt-in")) -> dict[str, str]:
    """The variables as they would be set where the user set none of them."""
    values = {v.name: value_of(v.kind, counts) for v in VARIABLES if v.stage in stages}
    return {name: str(value) for name, value in values.items() if value is not None}


class Verdict(NamedTuple):
    """What is to be said of one user's value: ``threads`` is the count it asks for (of a list the first level's),
    None if it is malformed or not a count. ``text`` is the value fit for one line."""

    name: str
    state: VerdictState
    threads: int | None
    text: str
    notice: Notice | None = None


def parse_threads(name: str, raw: str) -> int | None:
    """The thread count in ``raw`` as its library reads it, or None if malformed.

    OMP_NUM_THREADS may be a list, one number a nesting level (``4,3,2``): the first counts, and one bad element
    makes the whole list invalid, as in libgomp. All other libraries know a single number alone. Numbers beyond any
    machine are returned too: libgomp wraps them to 32 bits without a word.
    """
    if len(raw) > _MAX_TEXT:
        return None
    levels = raw.split(",") if name == OMP else [raw]
    numbers = [level.strip() for level in levels]
    if not all(number.isascii() and number.isdigit() and number.strip("0") for number in numbers):
        return None
    return int(numbers[0])


def judge(
    name: str,
    raw: str,
    usable: int,
    *,
    share: int | None = None,
    host_cpus: int | None = None,
    limit: int | None = None,
) -> Verdict:
    """Judge a user's value of a variable of the table.

    ``usable`` are the cores the container may keep busy, ``share`` this process's part of them (default: all),
    ``host_cpus`` the host's CPUs if known, ``limit`` the OMP_THREAD_LIMIT that caps it. A value is "malformed" if
    its library cannot read it, "harmful" above ``usable``, "wasteful" if it is 1 where the share is more.
    """
    kind = BY_NAME[name].kind
    if not raw.strip():
        message = f"{name} is blank and counts as unset"
        return Verdict(name, "blank", None, "''", Notice("variable-blank", message))
    if kind == "spin":  # a number with a unit, or INFINITE: any value is the user's choice
        return Verdict(name, "fine", None, shown(raw))
    share = usable if share is None else share
    threads = parse_threads(name, raw)
    if threads is None:
        message = f"{name}={shown(raw)} kept, but {BY_NAME[name].library} cannot read it; usable cores {usable}"
        fix = f"set {name} to a whole number of at least 1 (here {share}), or unset it"
        return Verdict(name, "malformed", None, shown(raw), Notice("variable-malformed", message, "problem", fix))
    text = "".join(raw.split())[:60]
    if limit is not None and limit < threads:
        threads = limit
    fix = f"unset {name}, set it to {share}, or set CGROUP_THREADS_OVERRIDE=1"
    if threads > usable and kind not in ("maximum", "limit"):  # an upper bound does not start threads
        message = f"{name}={text} kept; usable cores {usable}"
        if host_cpus is not None and threads > ABSURD * host_cpus:
            message += f"; more than {ABSURD} times the host's {host_cpus} CPUs"
        return Verdict(name, "harmful", threads, text, Notice("variable-harmful", message, "problem", fix))
    if threads == 1 < share and kind not in ("interop", "cpus"):
        message = f"{name}={text} kept; usable cores {usable} (left by torchrun, Ray or an old fix?)"
        return Verdict(name, "wasteful", threads, text, Notice("variable-wasteful", message, "warning", fix))
    return Verdict(name, "fine", threads, text)
