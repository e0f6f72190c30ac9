"""What ``exec`` would pass, decided without effects."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cgroup_threads.commands.exec import quote, render, to_json
from cgroup_threads.launching import Launch, choose_workers, decide
from cgroup_threads.marker import MARKER, Marker, Origin, read_marker, write_marker
from cgroup_threads.planning import ThreadPlan
from cgroup_threads.precedence import settle
from cgroup_threads.programs import recognise
from cgroup_threads.settings import Settings, read_settings

CHILD_NAMES = {"NPROC", "N_THREADS", "N_THREADS_BATCH", "LLAMA_ARG_THREADS", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT"}


def launch(
    *command: str, threads: int = 4, before: Mapping[str, str] | None = None, workers: int | None = None
) -> Launch:
    """The launch on a machine of 4 cores, or one with ``threads`` of them, as the command would make it."""
    user = dict(before or {})
    inherited, _ = read_marker(user.get(MARKER))
    for name, value in (inherited.values if inherited else {}).items():
        if user.get(name) == value:
            del user[name]
    settings = read_settings(user)
    program = recognise(command, user)
    count, source = choose_workers(program, workers, settings, threads)
    share = max(1, threads // (count or 1))
    plan = ThreadPlan(share, 1, threads, count or 1, 1, "quota", True, {})
    decision = settle(plan, user, settings, host_cpus=64, stages=("import", "opt-in", "child"))
    child = user | decision.set | {MARKER: write_marker(Marker(Origin(), decision.set))}
    return decide(command, program, plan, source, before or {}, child)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("llama-server -m x", "llama-server --threads 4 --threads-batch 4 -m x"),
        ("/opt/llama.cpp/llama-cli", "/opt/llama.cpp/llama-cli --threads 4 --threads-batch 4"),
        ("llama-embedding.exe -p y", "llama-embedding.exe --threads 4 --threads-batch 4 -p y"),
        ("llama-server -t 64", "llama-server --threads-batch 4 -t 64"),
        ("llama-server --threads 2", "llama-server --threads-batch 2 --threads 2"),
        ("llama-server --threads=1", "llama-server --threads-batch 4 --threads=1"),
        ("llama-server -tb 2", "llama-server --threads 4 -tb 2"),
        ("llama-server --threads_batch 2", "llama-server --threads 4 --threads_batch 2"),
        ("llama-server -t 1 -tb 2", "llama-server -t 1 -tb 2"),
        ("llama-server -t", "llama-server --threads-batch 4 -t"),
        ("llama-server --threads-http 9 -td 2", "llama-server --threads 4 --threads-batch 4 --threads-http 9 -td 2"),
        ("llama-bench -m x", "llama-bench -t 4 -m x"),
        ("llama-bench -t 1,2", "llama-bench -t 1,2"),
        ("llama-bench --threads 2", "llama-bench --threads 2"),
        ("nice -n 5 llama-server", "nice -n 5 llama-server --threads 4 --threads-batch 4"),
        ("nice -5 nohup env A=1 -u B llama-cli", "nice -5 nohup env A=1 -u B llama-cli --threads 4 --threads-batch 4"),
        ("tini -g -- llama-server", "tini -g -- llama-server --threads 4 --threads-batch 4"),
        ("env -- llama-server", "env -- llama-server --threads 4 --threads-batch 4"),
        ("env LLAMA_ARG_THREADS=3 llama-server", "env LLAMA_ARG_THREADS=3 llama-server --threads-batch 3"),
        ("env LLAMA_ARG_THREADS= llama-server", "env LLAMA_ARG_THREADS= llama-server --threads 4 --threads-batch 4"),
        ("llama-quantize a b", "llama-quantize a b"),
        ("my-llama-server", "my-llama-server"),
        ("python llama-server", "python llama-server"),
        ("env", "env"),
        ("nice -n", "nice -n"),
        ("python -m llama_cpp.server --model x",
         "python -m llama_cpp.server --n_threads 4 --n_threads_batch 4 --model x"),
        ("/usr/bin/python3.13t -X dev -um llama_cpp.server",
         "/usr/bin/python3.13t -X dev -um llama_cpp.server --n_threads 4 --n_threads_batch 4"),
        ("pypy3 -mllama_cpp.server", "pypy3 -mllama_cpp.server --n_threads 4 --n_threads_batch 4"),
        ("python -m llama_cpp.server --n_threads=2",
         "python -m llama_cpp.server --n_threads_batch 2 --n_threads=2"),
        ("python -m llama_cpp.server --n_threads 1", "python -m llama_cpp.server --n_threads_batch 4 --n_threads 1"),
        ("python -m llama_cpp.server --n_threads 64", "python -m llama_cpp.server --n_threads_batch 4 --n_threads 64"),
        ("python -m llama_cpp.server --n_threads_b 2", "python -m llama_cpp.server --n_threads 4 --n_threads_b 2"),
        ("python -m llama_cpp.server --config_file c", "python -m llama_cpp.server --config_file c"),
        ("python -c llama_cpp.server -m llama_cpp.server", "python -c llama_cpp.server -m llama_cpp.server"),
        ("python train.py -m llama_cpp.server", "python train.py -m llama_cpp.server"),
        ("python -m", "python -m"),
        ("python", "python"),
        ("ipython -m llama_cpp.server", "ipython -m llama_cpp.server"),
    ],
)  # fmt: skip
def test_what_is_added(command: str, expected: str) -> None:
    assert " ".join(launch(*command.split()).command) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({"LLAMA_ARG_THREADS": "8"}, "--threads-batch 4"),
        ({"LLAMA_ARG_THREADS": " "}, "--threads 4 --threads-batch 4"),
        ({"LLAMA_ARG_THREADS_BATCH": "2"}, "--threads 4"),
        ({"LLAMA_ARG_THREADS": "2", "LLAMA_ARG_THREADS_BATCH": "2"}, ""),
        ({"LLAMA_ARG_THREADS": "2", MARKER: "1;-;-;LLAMA_ARG_THREADS=2"}, "--threads 4 --threads-batch 4"),
        ({"LLAMA_ARG_THREADS": "2", "CGROUP_THREADS_OVERRIDE": "1"}, "--threads-batch 2"),
    ],
)
def test_llamas_variables_count_as_given(before: dict[str, str], expected: str) -> None:
    """But not those that a governed parent computed, and none of ours is left for its programs to complain of."""
    done = launch("llama-server", before=before)
    assert " ".join(done.command[1:]) == expected
    mine = before.get("LLAMA_ARG_THREADS") if MARKER not in before else None
    assert done.environment.get("LLAMA_ARG_THREADS") == mine


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({"N_THREADS": "2"}, "--n_threads_batch 2"),
        ({"n_threads": "1"}, "--n_threads_batch 4"),
        ({"N_THREADS": " "}, "--n_threads 4 --n_threads_batch 4"),
        ({"n_threads_batch": "2"}, "--n_threads 4"),
        ({"CONFIG_FILE": "x"}, ""),
        ({"N_THREADS": "2", MARKER: "1;-;-;N_THREADS=2"}, "--n_threads 4 --n_threads_batch 4"),
    ],
)
def test_the_servers_variables_count_as_given(before: dict[str, str], expected: str) -> None:
    done = launch("python", "-m", "llama_cpp.server", before=before)
    assert " ".join(done.command[3:]) == expected


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("llama-server", set()),
        ("llama-bench", set()),
        ("python app.py", {"NPROC", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT"}),
        ("gunicorn app", {"NPROC", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT"}),
        ("uvicorn --factory llama_cpp.server.app:create_app", CHILD_NAMES - {"LLAMA_ARG_THREADS"}),
        ("python -m llama_cpp.server", CHILD_NAMES - {"LLAMA_ARG_THREADS"}),
        ("./start.sh", {"LLAMA_ARG_THREADS", "PYTHON_CPU_COUNT", "LOKY_MAX_CPU_COUNT"}),
    ],
)
def test_generic_names_are_for_the_command_concerned(command: str, names: set[str]) -> None:
    done = launch(*command.split())
    assert CHILD_NAMES & done.environment.keys() == names
    marker, problem = read_marker(done.environment[MARKER])
    assert problem is None
    assert marker is not None
    assert marker.values.keys() == done.environment.keys() - {MARKER}
    assert done.environment["OMP_NUM_THREADS"] == "4"


def test_generic_names_of_the_users_stay_and_a_parents_go() -> None:
    before = {"NPROC": "9", "N_THREADS": "4", "PYTHON_CPU_COUNT": "4", MARKER: "1;-;-;N_THREADS=4,PYTHON_CPU_COUNT=4"}
    done = launch("llama-server", before=before)
    assert done.environment["NPROC"] == "9"
    assert not {"N_THREADS", "PYTHON_CPU_COUNT"} & done.environment.keys()
    changes = {change.name: (change.action, change.value) for change in done.variables}
    assert changes["NPROC"] == ("kept", "9")
    assert changes["N_THREADS"] == ("unset", None)
    assert changes["OMP_NUM_THREADS"] == ("set", "4")


def test_workers_divide() -> None:
    done = launch("gunicorn", "-w", "2", "app")
    assert (done.environment["OMP_NUM_THREADS"], done.environment["RAYON_NUM_THREADS"]) == ("2", "2")
    assert done.summary == "4 usable cores, 2 workers (gunicorn --workers), 2 threads each"
    assert launch("llama-server", workers=2).command[1:] == ("--threads", "2", "--threads-batch", "2")


def test_celery_makes_as_many_processes_as_there_are_cores() -> None:
    """Where Python 3.13 reads PYTHON_CPU_COUNT, one for each usable core; elsewhere more, each with one thread."""
    done = launch("celery", "-A", "a", "worker")
    assert (done.environment["OMP_NUM_THREADS"], done.environment["PYTHON_CPU_COUNT"]) == ("1", "4")
    marker, _ = read_marker(done.environment[MARKER])
    assert marker is not None
    assert marker.values["PYTHON_CPU_COUNT"] == "4"


def test_a_config_file_and_masks_are_said() -> None:
    assert "config file" in launch("gunicorn", "-c", "conf.py", "app").notes[0]
    assert launch("gunicorn", "-c", "conf.py", "-w", "2", "app").notes == ()
    assert "put it before" in launch("taskset", "-c", "0", "llama-server").notes[0]
    assert "takes the variables away" in launch("env", "-i", "python", "app.py").notes[0]


@pytest.mark.parametrize("wrapper", ["env -u LLAMA_ARG_THREADS", "env --unset=LLAMA_ARG_THREADS", "env -i"])
def test_a_variable_that_env_takes_away_is_not_given(wrapper: str) -> None:
    done = launch(*wrapper.split(), "llama-server", before={"LLAMA_ARG_THREADS": "2"})
    assert done.command[-5:] == ("llama-server", "--threads", "4", "--threads-batch", "4")


def test_the_users_values_are_kept_and_judged() -> None:
    before = {"OMP_NUM_THREADS": "64", "MKL_NUM_THREADS": "500m", "NUMBA_NUM_THREADS": "1", "BLIS_NUM_THREADS": "2"}
    done = launch("python", before=before)
    assert before.items() <= done.environment.items()
    found = {change.name: (change.action, change.reason) for change in done.variables}
    assert found["OMP_NUM_THREADS"] == ("kept", "yours; above the usable cores")
    assert found["MKL_NUM_THREADS"] == ("kept", "yours; its library cannot read it")
    assert found["NUMBA_NUM_THREADS"] == ("kept", "yours; 1 leaves cores idle")
    assert found["BLIS_NUM_THREADS"] == ("kept", "yours")
    low = launch("python", before={"OMP_NUM_THREADS": "2"})
    assert low.environment["OPENBLAS_NUM_THREADS"] == "2"
    assert {c.name: c.reason for c in low.variables}["OPENBLAS_NUM_THREADS"] == "follows your OMP_NUM_THREADS"
    replaced = launch("python", before={"OMP_NUM_THREADS": "64", "CGROUP_THREADS_OVERRIDE": "1"})
    assert replaced.environment["OMP_NUM_THREADS"] == "4"
    assert replaced.variables[0].reason == "in place of your '64' (CGROUP_THREADS_OVERRIDE)"


def test_other_variables_pass_as_they_are() -> None:
    before = {"A": "", "B": "a\n\udcff='", "": "x", "LC_CTYPE": "C"}
    done = launch("python", before=before)
    assert before.items() <= done.environment.items()


HOSTILE = ("it's", "two\nlines", "\udcff\udcfea", "\N{SNOWMAN}", "\x1b[31m", "", "-n", '$HOME `x` \\ "')


def test_the_text_is_one_line_a_row_and_printable_ascii() -> None:
    done = launch(*("llama-server", *HOSTILE), before={"OMP_NUM_THREADS": "\n".join(HOSTILE) * 9})
    text = render(done)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert sum("OMP_NUM_THREADS=" in line for line in text.splitlines()) == 1
    assert to_json(done).isascii()
    assert quote("plain-word") == "plain-word"


def test_columns_are_aligned() -> None:
    done = launch("python", "a.py")
    rows = render(done).splitlines()[-len(done.variables) :]
    assert len({row.index(change.reason) for row, change in zip(rows, done.variables, strict=True)}) == 1


def test_settings_of_another_kind_do_not_count_workers() -> None:
    program = recognise(["python", "a.py"], {})
    assert choose_workers(program, None, Settings(), 8) == (None, "")
