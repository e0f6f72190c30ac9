"""Which program a command line starts, where its own arguments begin, and how many worker processes it makes. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from .settings import parse_count

Kind = Literal["llama.cpp", "llama-bench", "llama_cpp.server", "workers", "python", "other"]

# Programs of llama.cpp with its common options; llama-bench has a parser of its own.
LLAMA_CPP: Final = ("llama-server", "llama-cli", "llama-completion", "llama-embedding")
LLAMA_BENCH: Final = "llama-bench"
LLAMA_CPP_SERVER: Final = ("llama_cpp.server", "llama_cpp.server.__main__")
GUNICORN: Final = ("gunicorn", "gunicorn.app.wsgiapp")
MASKING: Final = ("taskset", "numactl")
_POOLS: Final = (*GUNICORN, "uvicorn", "celery")
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
    variables that an ``env`` before it sets. ``workers`` is the number of processes it makes and ``workers_source``
    who said so; None where nobody did. ``per_cpu`` says that it makes one for each CPU it sees.
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


def recognise(command: Sequence[str], environ: Mapping[str, str]) -> Program:
    """Recognise the program that ``command`` (not empty) starts in ``environ``."""
    start, assigned, notes = _skip_wrappers(command)
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
    return _count_workers(found, {**environ, **assigned}) if found.kind == "workers" else found


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


def _skip_wrappers(command: Sequence[str]) -> tuple[int, dict[str, str], list[str]]:
    """Where the wrapped program is, the variables that are set for it, and what is to be said of the wrappers."""
    index, assigned, notes = 0, {}, []
    while index < len(command) and (name := _stem(command[index])) in _WRAPPERS:
        index += 1
        while index < len(command) and (command[index].startswith("-") or name == "env"):
            word = command[index]
            if word.startswith("-"):
                if name == "env" and word in ("-", "-i", "--ignore-environment"):
                    notes.append(f"env {word} takes the variables away again: the command gets the arguments alone")
                index += 2 if word in _WRAPPERS[name] else 1
                if word == "--" and name != "env":
                    break
            elif _ASSIGNMENT.match(word):
                variable, _, value = word.partition("=")
                assigned[variable] = value
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
            value = word[place:]
            if letter == "c":
                return "", len(command)
            if letter == "m":
                return (value, index) if value else (command[index] if index < len(command) else "", index + 1)
            if letter in "WX":
                index += not value
                break
    return "", len(command)


def _count_workers(program: Program, environ: Mapping[str, str]) -> Program:
    """The number of worker processes, from the strongest source that tells it."""
    if program.name == "celery":
        return _count_celery(program)
    options = ("-w", "--workers") if program.name in GUNICORN else ("--workers",)
    sources = [(f"{program.name} {options[-1]}", find_option(program.arguments, *options, attached=True))]
    notes = program.notes
    if program.name in GUNICORN:
        extra = _split(environ.get("GUNICORN_CMD_ARGS", ""))
        sources.append(("GUNICORN_CMD_ARGS", find_option(extra, *options, attached=True)))
        if find_option((*program.arguments, *extra), "-c", "--config", attached=True) is not None:
            notes = (*notes, "gunicorn's config file is not read: give --workers where it sets workers")
    sources.append(("WEB_CONCURRENCY", environ.get("WEB_CONCURRENCY")))
    for source, text in sources:
        count = parse_count(text or "")
        if count is not None:
            return program._replace(workers=count, workers_source=source)
    return program._replace(workers=1, workers_source=f"{program.name}'s default", notes=notes)


def _count_celery(program: Program) -> Program:
    arguments = program.arguments
    if "worker" not in arguments:
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


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return []
