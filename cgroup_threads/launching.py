"""What ``cgroup-threads exec`` passes to a command, and why. Pure: the command does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from .environment import WORKERS
from .marker import MARKER, Marker, Origin, computed_values, read_marker, write_marker
from .notices import shown
from .planning import ThreadPlan
from .programs import Program, find_option, reads_server_settings
from .settings import WORKER_VARIABLES, Settings, parse_count
from .variables import BY_NAME, VARIABLES, judge

Action = Literal["set", "kept", "unset"]

LLAMA_THREADS: Final = "LLAMA_ARG_THREADS"
LLAMA_BATCH: Final = "LLAMA_ARG_THREADS_BATCH"
CPU_COUNT: Final = "PYTHON_CPU_COUNT"
_SERVER_NAMES: Final = ("N_THREADS", "N_THREADS_BATCH")
_BATCH: Final = {"--threads": "--threads-batch", "--n_threads": "--n_threads_batch"}
_PYTHON_KINDS: Final = ("llama_cpp.server", "workers", "python")
_KEPT: Final = {
    "fine": "yours",
    "malformed": "yours; its library cannot read it",
    "harmful": "yours; above the usable cores",
    "wasteful": "yours; 1 leaves cores idle",
}


class Argument(NamedTuple):
    """An option and the words added for it, none where the user's value stands, and why."""

    option: str
    words: tuple[str, ...]
    reason: str


class VariableChange(NamedTuple):
    """What becomes of one variable, and why. ``value`` is None where it is unset."""

    name: str
    action: Action
    value: str | None
    reason: str


class Launch(NamedTuple):
    """A command as it will run: its words and its whole environment, and how they came about."""

    command: tuple[str, ...]
    environment: dict[str, str]
    summary: str
    arguments: tuple[Argument, ...]
    variables: tuple[VariableChange, ...]
    notes: tuple[str, ...]


def choose_workers(program: Program, asked: int | None, settings: Settings, usable: int) -> tuple[int | None, str]:
    """How many processes share the cores, and who says so: the argument, our setting, then the program's own.

    None leaves it to the settings.
    """
    if asked is not None:
        return asked, "--workers"
    if settings.workers is not None and settings.workers_source == WORKERS:
        return settings.workers, WORKERS
    if program.per_cpu:
        return usable, program.workers_source
    if program.workers is not None:
        return program.workers, program.workers_source
    return settings.workers, settings.workers_source


def decide(
    command: Sequence[str],
    program: Program,
    plan: ThreadPlan,
    source: str,
    before: Mapping[str, str],
    child: Mapping[str, str],
) -> Launch:
    """Decide what ``command`` gets.

    ``plan`` is for one of its workers, ``source`` says who counted those. ``before`` is the environment this process
    was started with, ``child`` the one computed for a child of it. Names that mean something else in other programs
    are left to the programs they are meant for.
    """
    inherited = _marked(before)
    marker = read_marker(child.get(MARKER))[0] or Marker(Origin(), {})
    computed = {name: value for name, value in marker.values.items() if _concerns(name, program)}
    if program.per_cpu and CPU_COUNT in computed:
        computed[CPU_COUNT] = str(plan.usable)  # it is what celery makes its processes from
    after = dict(before)
    for name in (*BY_NAME, WORKERS):
        users = before[name] if name in before and name not in inherited else None
        value = computed.get(name, child.get(name) if name not in marker.values else users)
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    after[MARKER] = write_marker(Marker(marker.origin, computed))

    users_own = {n: v for n, v in after.items() if n not in computed} | program.assigned
    users_own = {n: v for n, v in users_own.items() if v.strip()}  # a blank counts as unset
    added = _decide_arguments(program, plan.threads, users_own)
    words = [word for argument in added for word in argument.words]
    return Launch(
        command=(*command[: program.position], *words, *command[program.position :]),
        environment=after,
        summary=_summarise(plan, source),
        arguments=tuple(added),
        variables=tuple(_explain(plan, source, before, after, inherited, computed)),
        notes=program.notes,
    )


def _marked(environ: Mapping[str, str]) -> dict[str, str]:
    """The values that a governed parent computed and that still hold."""
    marker, _ = read_marker(environ.get(MARKER))
    return computed_values(environ, marker.values) if marker is not None else {}


def _concerns(name: str, program: Program) -> bool:
    """Whether a computed variable is meant for the program."""
    if BY_NAME[name].stage != "child":
        return True
    if name in _SERVER_NAMES:
        return reads_server_settings(program)
    if name == LLAMA_THREADS:  # where --threads is passed as well, llama.cpp's programs complain of the variable
        return program.kind == "other"
    return program.kind in _PYTHON_KINDS or (program.kind == "other" and name != "NPROC")


def _decide_arguments(program: Program, threads: int, users: Mapping[str, str]) -> list[Argument]:
    if program.kind == "llama_cpp.server":
        return _decide_server(program, threads, users)
    if program.kind not in ("llama.cpp", "llama-bench"):
        return []
    words = [w.replace("_", "-") if w.startswith("--") else w for w in program.arguments]  # as its parser does
    count = find_option(words, "-t", "--threads")
    if program.kind == "llama-bench":
        return [_keep("-t") if count is not None else _add("-t", threads, "llama-bench reads no variable")]
    from_variable = count is None and LLAMA_THREADS in users
    given = users[LLAMA_THREADS] if from_variable else count
    if given is None:
        found = [_add("--threads", threads, "decoding; its default is the host's cores")]
    else:
        found = [_keep("--threads", LLAMA_THREADS if from_variable else "")]
    if find_option(words, "-tb", "--threads-batch") is not None:
        found.append(_keep("--threads-batch"))
    elif LLAMA_BATCH in users:
        found.append(_keep("--threads-batch", LLAMA_BATCH))
    else:
        found.append(_add_batch("--threads", given, threads, "prompts and embeddings; it has no variable"))
    return found


def _decide_server(program: Program, threads: int, users: Mapping[str, str]) -> list[Argument]:
    """llama_cpp.server: its parser takes abbreviations, its settings variables in any case."""
    values = {name.upper(): value for name, value in users.items()}
    words = [word.partition("=")[0] for word in program.arguments]
    batch = any(len(w) > len("--n_threads") and "--n_threads_batch".startswith(w) for w in words)
    if "CONFIG_FILE" in values or any(len(w) > 3 and "--config_file".startswith(w) for w in words):
        return [Argument("--config_file", (), "yours: it says the threads, the variables what it leaves out")]
    option = find_option(program.arguments, "--n_threads")
    if option is not None or "N_THREADS" in values:
        found = [_keep("--n_threads", "" if option is not None else "N_THREADS")]
    else:
        found = [_add("--n_threads", threads, "decoding; its default is half the host's CPUs")]
    if batch or "N_THREADS_BATCH" in values:
        found.append(_keep("--n_threads_batch", "" if batch else "N_THREADS_BATCH"))
    else:
        given = values.get("N_THREADS") if option is None else option
        reason = "prompts and embeddings; its default is the host's CPUs"
        found.append(_add_batch("--n_threads", given, threads, reason))
    return found


def _add_batch(option: str, given: str | None, threads: int, reason: str) -> Argument:
    """The count for prompts: equal to the one ``given`` for decoding, unless that is 1 or above the plan."""
    # Unequal counts above 1 make libgomp build its team anew at each switch.
    number = parse_count(given or "")
    if number is None or not 1 < number < threads:
        return _add(_BATCH[option], threads, reason)
    return _add(_BATCH[option], number, f"equal to your {option}")


def _add(option: str, number: int, reason: str) -> Argument:
    return Argument(option, (option, str(number)), reason)


def _keep(option: str, variable: str = "") -> Argument:
    return Argument(option, (), f"yours, as {variable}" if variable else "yours")


def _summarise(plan: ThreadPlan, source: str) -> str:
    cores = f"{plan.usable} usable core{'s' if plan.usable > 1 else ''}"
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"
    if plan.workers > 1:
        return f"{cores}, {plan.workers} workers ({source}), {threads} each"
    return f"{cores}, {threads}, bound by {plan.bound_by}"


def _explain(
    plan: ThreadPlan,
    source: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    inherited: Mapping[str, str],
    computed: Mapping[str, str],
) -> list[VariableChange]:
    found = []
    for variable in VARIABLES:
        name = variable.name
        old, value = before.get(name), after.get(name)
        if name in computed:
            reason = f"{variable.library}: {variable.caps}"
            if old is not None and old.strip() and name not in inherited:
                reason = f"in place of your {shown(old, 20)} (CGROUP_THREADS_OVERRIDE)"
            elif variable.falls_back and (parse_count(computed[name]) or plan.threads) < plan.threads:
                reason = "follows your OMP_NUM_THREADS"
            found.append(VariableChange(name, "set", value, reason))
        elif value is not None:
            verdict = judge(name, value, plan.usable, share=plan.threads)
            found.append(VariableChange(name, "kept", value, _KEPT.get(verdict.state, "yours; blank")))
        elif old is not None:
            found.append(VariableChange(name, "unset", None, "computed by a parent process; not for this command"))
    workers = after.get(WORKERS)
    if workers is not None:
        action: Action = "kept" if workers == before.get(WORKERS) else "set"
        reason = "yours" if action == "kept" else f"for those that compute anew; {source}"
        found.append(VariableChange(WORKERS, action, workers, reason))
    found.append(VariableChange(MARKER, "set", after[MARKER], "tells Python children which values were computed"))
    for name in WORKER_VARIABLES[1:]:
        if after.get(name, "").strip():
            found.append(VariableChange(name, "kept", after[name], "yours"))
    return found
