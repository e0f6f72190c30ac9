"""Targets: variables, markers, command lines, and what other programs print."""

from __future__ import annotations

import hashlib
import json
import math

from cgroup_threads.comparing.llama_reading import read_llama_summary
from cgroup_threads.comparing.outputs import compare_outputs
from cgroup_threads.comparing.records import Output
from cgroup_threads.conflicts import parse_cpus
from cgroup_threads.detection.probe import conclude
from cgroup_threads.detection.records import Observation, Topology
from cgroup_threads.errors import InvalidArgumentError
from cgroup_threads.marker import MAX_VALUE, computed_values, read_marker, write_marker
from cgroup_threads.planning import decide, with_environment
from cgroup_threads.precedence import settle
from cgroup_threads.programs import find_option, reads_server_settings, recognise
from cgroup_threads.settings import MAX_COUNT, ROUNDINGS, SCOPES, read_settings
from cgroup_threads.tuning.command_subject import check_command
from cgroup_threads.variables import BY_NAME, VARIABLES, judge

from .checks import SEPARATOR, check_line, check_notices, environ_of, pieces, steady, text_of

_CPUS = frozenset(range(8))
_ALSO = ("NPROC", "N_THREADS", "N_THREADS_BATCH", "LLAMA_ARG_THREADS", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT")
_MOST_OUTPUTS = 6


def check_settings(data: bytes) -> None:
    settings = steady(lambda: read_settings(environ_of(data)))
    check_notices(settings.notices)
    assert settings.cores is None or 0 < settings.cores <= MAX_COUNT
    assert settings.max_cores is None or 1 <= settings.max_cores <= MAX_COUNT
    assert settings.workers is None or 1 <= settings.workers <= MAX_COUNT
    assert settings.patience is None or 0 <= settings.patience < math.inf
    assert settings.rounding in ROUNDINGS
    assert settings.scope in SCOPES
    assert settings.profiles is None or "\0" not in settings.profiles


def check_variables(data: bytes) -> None:
    """A user's whole environment on a machine of eight CPUs with a quota of two and a half."""
    environ = environ_of(data)
    settings = read_settings(environ)
    seen = Observation(_CPUS, "affinity", 8, Topology(physical_cores=8, mask=_CPUS), quota=2.5, status="limited")
    limits = conclude(seen, environ, settings.cores)
    check_notices(limits.notices)
    plan = with_environment(decide(limits, settings), settings)
    assert 1 <= plan.threads <= plan.usable
    decision = steady(lambda: settle(plan, environ, settings, host_cpus=8, affinity=_CPUS, also=_ALSO))
    check_notices(decision.notices)
    assert all(value.isdigit() and 1 <= int(value) < 2**31 for value in decision.set.values())
    for kept in decision.kept:
        assert environ[kept.name] == kept.value
        assert kept.threads is None or kept.threads >= 1
        assert bool(kept.replaced) == (kept.name in decision.set)
    for variable in VARIABLES:
        verdict = judge(variable.name, environ.get(variable.name, ""), plan.usable)
        check_line(verdict.text)
    for name in ("GOMP_CPU_AFFINITY", "OMP_PLACES", "VLLM_CPU_OMP_THREADS_BIND"):
        cpus = parse_cpus(environ.get(name, ""))
        assert cpus is None or all(0 <= cpu < 8192 for cpu in cpus)


def check_marker(data: bytes) -> None:
    text = text_of(data)
    marker, notice = steady(lambda: read_marker(text))
    if notice is not None:
        check_notices([notice])
        assert marker is None
    if marker is not None:
        assert all(
            name in BY_NAME and value.isdigit() and len(value) <= MAX_VALUE for name, value in marker.values.items()
        )
        assert read_marker(write_marker(marker)) == (marker, None)
        assert computed_values(marker.values, marker.values) == marker.values


def check_command_line(data: bytes) -> None:
    """A command line, an environment and the files that are there."""
    words, variables, files = pieces(data, 3)
    command = [text_of(word) for word in words.split(b"\0")]
    environ = environ_of(variables)
    program = steady(lambda: recognise(command, environ, lambda name: name.encode("utf-8", "replace") in files))
    assert 0 <= program.position <= len(command)
    assert list(program.arguments) == command[program.position :]
    assert program.workers is None or program.workers >= 1
    assert reads_server_settings(program) in (True, False)
    find_option(command, "-t", "--threads", attached=True)
    for template in (command, [*command, "{threads}"]):
        try:
            check_command(template)
        except InvalidArgumentError as error:
            check_line(str(error))
        else:
            assert any("{threads}" in word for word in template)


def check_llama(data: bytes) -> None:
    texts = [text_of(piece) for piece in pieces(data, 2)]
    reading = steady(lambda: read_llama_summary(*texts))
    check_notices(reading.notices)
    json.dumps(reading.to_dict(), allow_nan=False)
    for line in str(reading).split("\n"):
        check_line(line)
    for summary in reading.summaries:
        for value in summary:
            assert value is None or 0 <= value < math.inf


def check_outputs(data: bytes) -> None:
    """The first half of the pieces is one arm's, the rest the other's."""
    parts = data.split(SEPARATOR)[:_MOST_OUTPUTS]
    outputs = [Output(hashlib.sha256(part).hexdigest(), len(part), part) for part in parts]
    plain, governed = outputs[: (len(outputs) + 1) // 2], outputs[(len(outputs) + 1) // 2 :]
    verdict = steady(lambda: compare_outputs(plain, governed))
    assert verdict.state in ("equal", "close", "varies", "differ", "unknown")
    assert verdict.runs == len(outputs)
    assert verdict.error is None or verdict.error >= 0.0
    if plain and governed:
        swapped = compare_outputs(governed, plain)
        assert (swapped.state, swapped.error) == (verdict.state, verdict.error)
        assert compare_outputs(plain[:1], plain[:1]).state == "equal"
