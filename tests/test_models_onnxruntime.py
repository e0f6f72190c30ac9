"""``create_onnx_session``, and ``govern`` and ``release`` on sessions, with a model that onnxruntime brings along."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from cgroup_threads.errors import MissingExtraError
from cgroup_threads.models.onnxruntime import create_onnx_session
from tests.lab import require_module
from tests.lab.models import run_script

PREAMBLE = """
import gc, json, os, threading, weakref
import cgroup_threads as ct
from cgroup_threads.models.governing import govern, release
from cgroup_threads.models.onnxruntime import create_onnx_session
import numpy, onnxruntime
PATH = os.path.join(os.path.dirname(onnxruntime.__file__), "datasets", "sigmoid.onnx")
SPINNING = "session.intra_op.allow_spinning"
x = numpy.linspace(-3, 3, 60, dtype=numpy.float32).reshape(3, 4, 5)
expected = 1 / (1 + numpy.exp(-x))

def right(result): return bool(numpy.allclose(result, expected, rtol=1e-5))
def granted(call):
    before = ct.statistics().granted
    result = call()
    return [ct.statistics().granted - before, right(result)]
def run(session): return session.run(None, {"x": x})[0]
def run_values(session):
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    return session.run_with_ort_values(None, {"x": value})[0].numpy()
def run_bound(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]
RUNS = (run, run_values, run_bound)

class Watched:
    '''ONNX Runtime's own session; notes the cores leased while it computes.'''
    def __init__(self, session): self.session, self.leased = session, []
    def __getattr__(self, name): return getattr(self.session, name)
    def run(self, *args):
        self.leased.append(ct.statistics().leased)
        return self.session.run(*args)
def leased(session):
    watched = session._sess = Watched(session._sess)
    run(session)
    session._sess = watched.session
    return watched.leased
def counts(session):
    options = session.get_session_options()
    try:
        spinning = options.get_session_config_entry(SPINNING)
    except RuntimeError:
        spinning = None
    return [options.intra_op_num_threads, options.inter_op_num_threads, spinning]
def bind_quota():
    from cgroup_threads.state import process
    ct.apply(process.applied.plan._replace(quota_binds=True))
def show(*values): print(json.dumps(values))
"""


def session_script(script: str, **environ: str) -> Any:
    require_module("onnxruntime")
    environ = {"CGROUP_THREADS_CORES": "3", "CGROUP_THREADS_SCOPE": "process", **environ}
    return run_script(PREAMBLE + script, **environ)


def test_a_session_of_the_plans_counts() -> None:
    script = """
session = create_onnx_session(PATH)
with open(PATH, "rb") as file:
    loaded = create_onnx_session(file.read(), providers=["CPUExecutionProvider"])
bind_quota()
bound = create_onnx_session(PATH)
show(type(session) is onnxruntime.InferenceSession, counts(session), counts(loaded), counts(bound),
     right(run(session)), right(run(loaded)))
"""
    expected = [True, [3, 1, None], [3, 1, None], [3, 1, "0"], True, True]
    assert session_script(script) == expected


def test_options_of_the_caller_are_completed_and_warned_of() -> None:
    script = """
import warnings
bind_quota()
own = onnxruntime.SessionOptions()
own.intra_op_num_threads = 5
own.add_session_config_entry(SPINNING, "1")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = create_onnx_session(PATH, sess_options=own)
found = [[str(w.message), w.filename] for w in caught if w.category is ct.CgroupThreadsWarning]
show(counts(session), found)
"""
    message = "intra_op_num_threads=5 is above the 3 usable cores"
    assert session_script(script) == [[5, 1, "1"], [[message, "<string>"]]]


def test_misspelt_names_are_refused() -> None:
    """``InferenceSession`` takes ``**kwargs`` and drops what it does not know."""
    script = """
try:
    create_onnx_session(PATH, sess_option=None)
except ct.CgroupThreadsError as error:
    show(type(error).__name__, str(error), right(run(create_onnx_session(PATH, enable_fallback=0))))
"""
    text = "InferenceSession() has no argument 'sess_option'; did you mean 'sess_options'?"
    assert session_script(script) == ["UnknownArgumentError", text, True]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cgroup-threads\[onnx\]'"):
        create_onnx_session("model.onnx")


def test_each_kind_of_run_takes_a_lease_until_it_is_released() -> None:
    script = """
session = onnxruntime.InferenceSession(PATH)
before = dict(vars(session))
assert govern(session) is session and govern(session) is session
governed = [granted(lambda: call(session)) for call in RUNS]
release(session)
show(governed, dict(vars(session)) == before, [granted(lambda: call(session)) for call in RUNS])
"""
    assert session_script(script) == [[[1, True]] * 3, True, [[0, True]] * 3]


def test_a_lease_is_for_at_most_the_sessions_own_count() -> None:
    """A session without a count of its own (0) computes with ONNX Runtime's default: it may ask for all cores."""
    script = """
def session(count):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count
    return govern(onnxruntime.InferenceSession(PATH, options))
show([leased(session(count)) for count in (1, 2, 0, 8)], leased(create_onnx_session(PATH)), ct.statistics().leased)
"""
    assert session_script(script) == [[[1], [2], [3], [3]], [3], 0]


def test_an_exception_ends_the_lease_and_the_session_is_freed() -> None:
    script = """
session = create_onnx_session(PATH)
try:
    session.run(None, {"no such input": x})
except Exception as error:
    failed = type(error).__name__
now = ct.statistics()
gc.collect()
gc.disable()
gone = weakref.ref(session)
del session
show(failed, [now.active, now.leased], gone() is None)
"""
    failed, left, gone = session_script(script)
    assert failed != ""
    assert (left, gone) == ([0, 0], True)


def test_a_bound_run_holds_its_session() -> None:
    script = """
class Own(onnxruntime.InferenceSession):
    def run(self, *args, **kwargs): return super().run(*args, **kwargs)
one_line = granted(lambda: create_onnx_session(PATH).run(None, {"x": x})[0])
bound = create_onnx_session(PATH).run
gc.collect()
later = granted(lambda: bound(None, {"x": x})[0])
own, plain = govern(Own(PATH)), onnxruntime.InferenceSession(PATH)
show(one_line, later, granted(lambda: run(own)), granted(lambda: run(plain)), granted(lambda: run(release(own))))
"""
    assert session_script(script) == [[1, True], [1, True], [1, True], [0, True], [0, True]]


def test_one_session_in_many_threads() -> None:
    script = """
session, wrong = create_onnx_session(PATH), []
def work():
    for _ in range(50):
        if not right(run(session)): wrong.append(1)
before = ct.statistics().granted
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
now = ct.statistics()
show(now.granted - before, len(wrong), [now.active, now.leased, now.waiting, now.overcommitted])
"""
    assert session_script(script) == [200, 0, [0, 0, 0, 0]]
