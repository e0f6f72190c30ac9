"""Which program a command line starts, and who counts its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgroup_threads.environment import WORKERS
from cgroup_threads.launching import choose_workers
from cgroup_threads.programs import find_option, recognise
from cgroup_threads.settings import read_settings
from tests.lab.commands import COMMAND, run


@pytest.mark.parametrize(
    ("command", "before", "workers", "source"),
    [
        ("gunicorn -w 2 app", {}, 2, "gunicorn --workers"),
        ("gunicorn -w2 app", {}, 2, "gunicorn --workers"),
        ("gunicorn --workers=2 -w 3 app", {}, 3, "gunicorn --workers"),
        ("gunicorn app -- -w 3", {}, 1, "gunicorn's default"),
        ("python -m gunicorn app", {"GUNICORN_CMD_ARGS": "--workers 2", "WEB_CONCURRENCY": "4"}, 2,
         "GUNICORN_CMD_ARGS"),
        ("gunicorn app", {"GUNICORN_CMD_ARGS": "--workers '2", "WEB_CONCURRENCY": "4"}, 4, "WEB_CONCURRENCY"),
        ("env WEB_CONCURRENCY=2 gunicorn app", {"WEB_CONCURRENCY": "4"}, 2, "WEB_CONCURRENCY"),
        ("gunicorn -w 1 app", {"WEB_CONCURRENCY": "4"}, 1, "gunicorn --workers"),
        ("gunicorn -w many app", {}, 1, "gunicorn's default"),
        ("python /venv/bin/gunicorn -w 2 app", {}, 2, "gunicorn --workers"),
        ("uvicorn --workers 2 app", {}, 2, "uvicorn --workers"),
        ("uvicorn -w 2 app", {}, 1, "uvicorn's default"),
        ("python -m uvicorn app", {"WEB_CONCURRENCY": "2"}, 2, "WEB_CONCURRENCY"),
        ("celery -A a worker -c 2", {}, 2, "celery --concurrency"),
        ("celery -A a worker --concurrency=2 -P solo", {}, 1, "celery --pool solo"),
        ("celery -A a worker --autoscale=3,1", {}, 3, "celery --autoscale"),
        ("celery -A a worker", {}, 4, "celery starts one for each CPU it sees"),
        ("celery -A a beat", {}, None, ""),
        ("celery -A worker beat", {}, None, ""),
        ("celery -b worker --workdir worker -A worker worker -c 3", {}, 3, "celery --concurrency"),
        ("celery --app=worker -q inspect ping", {}, None, ""),
        ("celery worker -A worker -c 2", {}, 2, "celery --concurrency"),
        ("fastapi run --workers 3 app.py", {"WEB_CONCURRENCY": "2"}, 3, "fastapi --workers"),
        ("python -m fastapi run", {"WEB_CONCURRENCY": "2"}, 2, "WEB_CONCURRENCY"),
        ("fastapi dev app.py", {"WEB_CONCURRENCY": "2"}, 1, "fastapi without run is one process"),
        ("hypercorn -w 3 app:app", {}, 3, "hypercorn --workers"),
        ("python -m hypercorn --workers=2 app:app", {}, 2, "hypercorn --workers"),
        ("hypercorn app:app", {"WEB_CONCURRENCY": "2"}, 1, "hypercorn's default"),
        ("env -u WEB_CONCURRENCY gunicorn app", {"WEB_CONCURRENCY": "4"}, 1, "gunicorn's default"),
        ("gunicorn -w 2 app", {WORKERS: "4"}, 4, WORKERS),
        ("python app.py", {"WEB_CONCURRENCY": "2"}, 2, "WEB_CONCURRENCY"),
        ("llama-server", {"WEB_CONCURRENCY": "2"}, 1, "it is one process"),
        ("python app.py", {}, None, ""),
    ],
)  # fmt: skip
def test_who_counts_the_workers(command: str, before: dict[str, str], workers: int | None, source: str) -> None:
    words = command.split()
    settings = read_settings(before)
    assert choose_workers(recognise(words, before), None, settings, 4) == (workers, source)
    assert choose_workers(recognise(words, before), 7, settings, 4) == (7, "--workers")


@pytest.mark.parametrize(
    ("command", "environ", "words"),
    [
        ("gunicorn app", {}, "./gunicorn.conf.py is not read"),
        ("gunicorn app", {"WEB_CONCURRENCY": "2"}, "./gunicorn.conf.py is not read"),
        ("gunicorn -c conf.py app", {"WEB_CONCURRENCY": "2"}, "config file is not read"),
        ("gunicorn app", {"GUNICORN_CMD_ARGS": "-c conf.py", "WEB_CONCURRENCY": "2"}, "config file is not read"),
        ("hypercorn -c conf.toml app", {}, "hypercorn's config file is not read"),
        ("gunicorn -w 2 app", {}, ""),
        ("gunicorn app", {"GUNICORN_CMD_ARGS": "-w 2"}, ""),
        ("uvicorn app", {}, ""),
    ],
)
def test_config_files_that_may_set_workers_are_said(command: str, environ: dict[str, str], words: str) -> None:
    notes = recognise(command.split(), environ, {"gunicorn.conf.py"}.__contains__).notes
    assert bool(notes) == bool(words)
    assert words in "".join(notes)


def test_find_option() -> None:
    assert find_option(["-w", "1", "-w"], "-w") == ""
    assert find_option(["-w1"], "-w") is None
    assert find_option(["-w=3"], "-w") == "3"
    assert find_option(["-w3"], "-w", attached=True) == "3"
    assert find_option([], "-w") is None


def test_exec_looks_for_the_config_file_where_it_runs(tmp_path: Path) -> None:
    command = [*COMMAND, "exec", "--dry-run", "--", "gunicorn", "app"]
    assert "not read" not in run(command, cwd=str(tmp_path)).stdout
    (tmp_path / "gunicorn.conf.py").write_text("workers = 4")
    assert "./gunicorn.conf.py is not read: give --workers" in run(command, cwd=str(tmp_path)).stdout
