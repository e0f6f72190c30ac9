"""The web server of llama-cpp-python: its computed defaults are not the user's."""

from __future__ import annotations

import pytest

from tests.lab import require_module
from tests.lab.models import LIBRARY_DEFAULT, llama_script

SERVER = """
import cgroup_threads
from llama_cpp.server.model import LlamaProxy
from llama_cpp.server.settings import ModelSettings, Settings, ConfigFileSettings
def load(settings):
    return counts(LlamaProxy([settings])())
COMMON = {"model": PATH, "n_ctx": 64, "embedding": True, "verbose": False}
"""


@pytest.fixture
def server() -> None:
    for module in ("pydantic_settings", "fastapi", "starlette_context", "sse_starlette"):
        require_module(module)


@pytest.mark.usefixtures("server")
def test_the_servers_own_defaults_do_not_count_as_explicit() -> None:
    script = SERVER + (
        "show(load(ModelSettings(**COMMON)), load(ModelSettings(**COMMON, n_threads=1)),\n"
        "     load(ModelSettings(**COMMON, n_threads_batch=2)), load(ModelSettings(**COMMON, n_threads=-1)),\n"
        "     load(ModelSettings(**COMMON, n_threads=2, n_threads_batch=-1)), load(Settings(**COMMON)),\n"
        "     load(ConfigFileSettings.model_validate_json(json.dumps({'models': [COMMON]})).models[0]), codes())"
    )
    assert llama_script(script) == [
        [3, 3],
        [1, 3],
        [3, 2],
        [3, 3],
        [2, 3],
        [3, 3],
        [3, 3],
        ["llama-threads-filled"],
    ]


@pytest.mark.usefixtures("server")
def test_the_servers_environment_and_command_line_are_explicit() -> None:
    script = (
        SERVER
        + """
import argparse
from llama_cpp.server.cli import add_args_from_model, parse_model_from_args
parser = argparse.ArgumentParser()
add_args_from_model(parser, Settings)
line = ["--model", PATH, "--n_ctx", "64", "--verbose", "false", "--n_threads_batch", "2"]
show(load(ModelSettings(**COMMON)), load(parse_model_from_args(ModelSettings, parser.parse_args(line))))
"""
    )
    assert llama_script(script, N_THREADS="1") == [[1, 3], [1, 2]]


@pytest.mark.usefixtures("server")
def test_the_server_app_imported_before_us() -> None:
    script = """
from llama_cpp.server.app import create_app
import llama_cpp.server.app as app
from llama_cpp.server.settings import Settings
import cgroup_threads
create_app(settings=Settings(model=PATH, n_ctx=64, verbose=False))
show(counts(app._llama_proxy()), codes())
"""
    assert llama_script(script) == [[3, 3], ["llama-threads-filled"]]


@pytest.mark.usefixtures("server")
def test_the_switch_leaves_the_server_alone() -> None:
    script = LIBRARY_DEFAULT + SERVER + "show(load(ModelSettings(**COMMON)) == library)"
    assert llama_script(script, CGROUP_THREADS_PATCH="0") == [True]
