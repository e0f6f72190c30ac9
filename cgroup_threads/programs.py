"""Which program a command line starts, where its own arguments begin, and how many worker processes it makes. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from .settings import parse_count

Kind = Literal["llama.cpp", "llama-bench", "llama_cpp.server", "workers", "python", "other"]

# Programs of llama.cpp with its common options; llama-bench has a parser of its own.
LLAMA_CPP: Final = ("llama-server", "llama-cli", "llama-completion", "llama-embedding")
LLAMA_BENCH: Final = "llama-bench"
LLAMA_CPP_SERVER: Final = ("llama_cpp.server", "llama_cpp.server.__main__")
GUNICORN: Final = ("gunicorn", "gunicorn.app.wsgiapp")
MASKING: Final = ("taskset", "numactl")
CELERY: Final = "celery"
FASTAPI: Final = "fastapi"
HYPERCORN: Final = "hypercorn"
GUNICORN_CONFIG: Final = "gunicorn.conf.py"  # loaded from the working directory where no -c names another
_POOLS: Final = (*GUNICORN, "uvicorn", HYPERCORN, FASTAPI, CELERY)
# Options of celery itself that take a value: what follows is not its command.
_CELERY_OPTIONS: Final = ("-A", "--app", "-b", "--broker", "--result-backend", "--loader", "--config", "--workdir")
_PYTHON: Final = re.compile(r"(python|pythonw|pypy)(\d+(\.\d+)*)?t?")
_ASSIGNMENT: Final = re.compile(r"[^=]+=")
# Commands that run another one, with those of their options that take a value.
_WRAPPERS: Final[dict[str, tuple[str, ...]]] = {
    "env": ("-u", "--unset", "-C", "--chdir"),
    "nice": ("-n", "--adjustment"),
    "ionice": ("-c", "--class", "-n", "--classdata"),
    "nohup": (),
    "setsid": (),
    "stdbuf": ("-i", "--input", "-o", "--output", "-e", "--error"),
    "tini": ("-e", "-p"),
    "dumb-init": ("-r", "--rewrite"),
}


class Program(NamedTuple):
    """What a command line starts.

    ``position`` is the index where the program's own arguments begin, ``arguments`` are those, ``assigned`` the
    variables that an ``env`` before it sets, "" where it takes one away. ``workers`` is the number of processes it
    makes and ``workers_source`` who said so; None where nobody did. ``per_cpu`` says that it makes one for each CPU it
    sees.
    """

    kind: Kind
    name: str
    position: int
    arguments: tuple[str, ...]
    assigned: dict[str, str]
    workers: int | None = None
    workers_source: str = ""
    per_cpu: bool = False
    notes: tuple[str, ...] = ()


def recognise(
    command: Sequence[str], environ: Mapping[str, str], exists: Callable[[str], bool] = lambda _: False
) -> Program:
    """Recognise the program that ``command`` (not empty) starts in ``environ``; ``exists`` knows the files."""
    start, assigned, notes = _skip_wrappers(command, environ)
    position = min(start + 1, len(command))
    name = _stem(command[start]) if start < len(command) else ""
    python = _PYTHON.fullmatch(name) is not None
    if python:
        name, position = _find_target(command, position)
    if name in MASKING:
        notes.append(f"{name} changes the CPUs of the command after the counts are decided: put it before")
    arguments = tuple(command[position:])
    found = Program(_kind(name, python), name, position, arguments, assigned, notes=tuple(notes))
    if found.kind in ("llama.cpp", "llama-bench"):
        return found._replace(workers=1, workers_source="it is one process")
    return _count_workers(found, {**environ, **assigned}, exists) if found.kind == "workers" else found


def find_option(arguments: Sequence[str], *spellings: str, attached: bool = False) -> str | None:
    """The last value given to an option, "" where it is missing, None if the option is not there.

    ``--long=value`` counts too, and with ``attached`` also ``-svalue``.
    """
    found = None
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        for spelling in spellings:
            if argument == spelling:
                found = arguments[index + 1] if index + 1 < len(arguments) else ""
            elif argument.startswith(f"{spelling}="):
                found = argument[len(spelling) + 1 :]
            elif attached and len(spelling) == 2 and argument.startswith(spelling):
                found = argument[2:]
    return found


def reads_server_settings(program: Program) -> bool:
    """Whether N_THREADS and N_THREADS_BATCH mean llama_cpp.server's threads here: it may run under uvicorn too."""
    return program.kind == "llama_cpp.server" or (
        program.kind == "workers" and any(a.startswith("llama_cpp.server") for a in program.arguments)
    )


def _kind(name: str, python: bool) -> Kind:
    if name in _POOLS:
        return "workers"
    if python:
        return "llama_cpp.server" if name in LLAMA_CPP_SERVER else "python"
    if name == LLAMA_BENCH:
        return "llama-bench"
    return "llama.cpp" if name in LLAMA_CPP else "other"


def _stem(path: str) -> str:
    name = path.replace("\\", "/").rpartition("/")[2]
    return name[:-4] if name.lower().endswith(".exe") else name


def _skip_wrappers(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, dict[str, str], list[str]]:
    """Where the wrapped program is, the variables that are set for it, and what is to be said of the wrappers."""
    assigned: dict[str, str] = {}
    notes: list[str] = []
    index, empty = 0, False
    while index < len(command) and (name := _stem(command[index])) in _WRAPPERS:
        index += 1
        while index < len(command) and (command[index].startswith("-") or name == "env"):
            word = command[index]
            if word.startswith("-"):
                if name == "env" and word in ("-", "-i", "--ignore-environment") and not empty:
                    assigned.update(dict.fromkeys((*environ, *assigned), ""))
                    notes.append(f"env {word} takes the variables away again: the command gets the arguments alone")
                    empty = True
                index += 2 if word in _WRAPPERS[name] else 1
                if name == "env" and (gone := find_option([word, *command[index - 1 : index]], "-u", "--unset")):
                    assigned[gone] = ""
                if word == "--" and name != "env":
                    break
            elif _ASSIGNMENT.match(word):
                variable, _, value = word.partition("=")
                assigned[variable] = value
                empty = False
                index += 1
            else:
                break
    return index, assigned, notes


def _find_target(command: Sequence[str], index: int) -> tuple[str, int]:
    """The module or script that a Python interpreter runs ("" if neither), and where its arguments begin."""
    while index < len(command):
        word = command[index]
        index += 1
        if not word.startswith("-") or word == "-":
            return _stem(word).removesuffix(".py"), index
        if word.startswith("--"):
            index += word == "--check-hash-based-pycs"
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter == "c":
                return "", len(command)
            if letter == "m":
                value = word[place:]
                return (value, index) if value else (_at(command, index), min(index + 1, len(command)))
            if letter in "WX":
                index += place == len(word)
                break
    return "", len(command)


def _at(command: Sequence[str], index: int) -> str:
    return command[index] if index < len(command) else ""


def _count_workers(program: Program, environ: Mapping[str, str], exists: Callable[[str], bool]) -> Program:
    """The number of worker processes, from the strongest source that tells it."""
    name, arguments = program.name, program.arguments
    if name == CELERY:
        return _count_celery(program)
    if name == FASTAPI and "run" not in arguments:  # "dev" is one process that reloads
        return program._replace(workers=1, workers_source="fastapi without run is one process")
    options = ("-w", "--workers") if name in (*GUNICORN, HYPERCORN) else ("--workers",)
    sources = [(f"{name} {options[-1]}", find_option(arguments, *options, attached=True))]
    config = find_option(arguments, "-c", "--config", attached=True) if name == HYPERCORN else None
    if name in GUNICORN:
        extra = _split(environ.get("GUNICORN_CMD_ARGS", ""))
        sources.append(("GUNICORN_CMD_ARGS", find_option(extra, *options, attached=True)))
        config = find_option((*extra, *arguments), "-c", "--config", attached=True)
        if config is None and exists(GUNICORN_CONFIG):
            config = GUNICORN_CONFIG
    for source, text in sources:
        count = parse_count(text or "")
        if count is not None:
            return program._replace(workers=count, workers_source=source)
    notes = program.notes
    if config is not None:  # what it says is stronger than WEB_CONCURRENCY
        file = "./gunicorn.conf.py" if config == GUNICORN_CONFIG else "config file"
        notes = (*notes, f"{name}'s {file} is not read: give --workers where it sets workers")
    count = parse_count(environ.get("WEB_CONCURRENCY", "")) if name != HYPERCORN else None
    source = f"{name}'s default" if count is None else "WEB_CONCURRENCY"
    return program._replace(workers=count or 1, workers_source=source, notes=notes)


def _count_celery(program: Program) -> Program:
    arguments = _after_celery_options(program.arguments)
    if arguments[:1] != ["worker"]:
        return program
    pool = find_option(arguments, "-P", "--pool", attached=True)
    if pool not in (None, "", "prefork", "processes"):
        return program._replace(workers=1, workers_source=f"celery --pool {pool}")
    scale = find_option(arguments, "--autoscale")
    if scale is not None:
        count = parse_count(scale.partition(",")[0])
        return program._replace(workers=count, workers_source="celery --autoscale") if count else program
    count = parse_count(find_option(arguments, "-c", "--concurrency", attached=True) or "")
    if count is not None:
        return program._replace(workers=count, workers_source="celery --concurrency")
    return program._replace(per_cpu=True, workers_source="celery starts one for each CPU it sees")


def _after_celery_options(arguments: Sequence[str]) -> list[str]:
    """From celery's command on: an application may be called like one."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        index += 2 if arguments[index] in _CELERY_OPTIONS else 1
    return [*arguments[index:]]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return []
