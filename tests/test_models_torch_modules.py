"""``govern`` and ``release`` on torch modules: a lease for each forward pass, and nothing else changed."""

from __future__ import annotations

from typing import Any

from tests.lab import require_module
from tests.lab.models import run_script

# The module notes the threads torch has inside, and the cores leased at that moment.
PREAMBLE = """
import copy, gc, inspect, io, json, pickle, sys, threading, weakref
import cgroup_threads as ct
from cgroup_threads.models.governing import govern, release
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.seen = []
    def forward(self, x, *, scale: float = 1.0) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.seen.append([torch.get_num_threads(), ct.statistics().leased])
        return torch.relu(self.layer(x)) * scale

def granted(call, *args):
    before = ct.statistics().granted
    result = call(*args)
    return ct.statistics().granted - before, result

torch.manual_seed(0)
model, x = Model().eval(), torch.ones(32, 64)
expected = model(x)
model.seen.clear()
def show(*values): print(json.dumps(values))
"""


def module_script(script: str, **environ: str) -> Any:
    """On 2 cores; torch begins with 3 threads, the user's own number."""
    require_module("torch")
    counts = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "MKL_DYNAMIC": "FALSE", "CGROUP_THREADS_SCOPE": "process"}
    environ = {"CGROUP_THREADS_CORES": "2", **counts, **environ}
    return run_script(PREAMBLE + script, **environ)


def test_a_forward_pass_takes_a_lease_and_computes_with_its_threads() -> None:
    script = """
before = torch.get_num_threads()
govern(model)
called, first = granted(model, x)
direct, second = granted(model.forward, x)
now = ct.statistics()
show(before, called, direct, model.seen, torch.get_num_threads(), [now.active, now.leased],
     [torch.allclose(result, expected, rtol=1e-5) for result in (first, second)])
"""
    assert module_script(script) == [3, 1, 1, [[2, 2], [2, 2]], 3, [0, 0], [True, True]]


def test_release_leaves_no_trace() -> None:
    script = """
before = dict(vars(model))
assert govern(model) is model and govern(model) is model  # the second changes nothing
state = list(model.state_dict())
assert release(model) is model and release(model) is model
same = dict(vars(model)) == before
count, _ = granted(model, x)
own = model.forward = lambda x: x + 1  # an attribute of the object itself, as accelerate sets one
govern(model)
over = granted(model, x)
release(model)
show(same, state, count, over[0], bool((over[1] == x + 1).all()), vars(model)["forward"] is own, model.seen[-1])
"""
    *found, seen = module_script(script)
    assert found == [True, ["layer.weight", "layer.bias"], 0, 1, True, True]
    assert seen == [3, 0], "a released model still leases"


def test_modules_inside_one_another_share_one_lease() -> None:
    script = """
outer = torch.nn.Sequential(model, torch.nn.Linear(64, 8))
govern(model), govern(outer), govern(outer[1])
count, _ = granted(outer, x)
inner, _ = granted(model, x)
release(outer)
show(count, inner, model.seen[0], granted(outer, x)[0], granted(model, x)[0])
"""
    assert module_script(script) == [1, 1, [2, 2], 2, 1]


def test_an_exception_ends_the_lease() -> None:
    script = """
govern(model)
try:
    model(torch.ones(3, 5))
except RuntimeError as error:
    text = str(error)
now = ct.statistics()
show("shapes" in text, [now.active, now.leased], torch.get_num_threads(), granted(model, x)[0])
"""
    assert module_script(script) == [True, [0, 0], 3, 1]


def test_many_threads_at_once_on_one_model() -> None:
    script = """
lock, running, sums = threading.Lock(), {}, []
class Counting(torch.nn.Module):
    def forward(self, x):
        me = threading.get_ident()
        with lock:
            running[me] = torch.get_num_threads()
            sums.append(sum(running.values()))
        for _ in range(20):
            y = torch.mm(x, x.T)
        with lock:
            del running[me]
        return y
counting, wrong = govern(Counting()), []
want = torch.mm(x, x.T)
def work():
    for _ in range(25):
        if not torch.allclose(counting(x), want, rtol=1e-5):
            wrong.append(1)
def all_of_them():
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
count, _ = granted(all_of_them)
now = ct.statistics()
show(count, max(sums), len(wrong), [now.active, now.leased, now.waiting, now.overcommitted])
"""
    count, most, wrong, left = module_script(script)
    assert (count, wrong, left) == (100, 0, [0, 0, 0, 0])
    assert most <= 2, f"{most} threads ran at once on 2 cores"


def test_copies_and_pickles_are_governed_themselves() -> None:
    script = """
govern(model)
def save():
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)
found = []
for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), save()):
    count, result = granted(other, x)
    own = other.forward.__self__ is other
    with torch.no_grad():
        other.layer.weight.zero_()  # its own weights, and its own forward computes with them
    changed = not torch.equal(other(x), expected)
    release(other)
    found.append([count, torch.equal(result, expected), own, changed, "forward" in vars(other)])
shallow = copy.copy(model)
shared = torch.equal(shallow(x), expected)
govern(shallow)
bound = shallow.forward.__self__ is shallow
release(shallow)
show(found, shared, bound, "forward" in vars(shallow), torch.equal(model(x), expected), granted(model, x)[0])
"""
    found, *shallow = module_script(script)
    assert found == [[1, True, True, True, False]] * 3
    assert shallow == [True, True, False, True, 1]


def test_a_method_copied_or_pickled_alone_has_its_model() -> None:
    script = """
import functools
govern(model)
found = []
for method in (pickle.loads(pickle.dumps(model.forward)), copy.deepcopy(functools.partial(model.forward)).func,
               copy.deepcopy([model.forward])[0]):
    gc.collect()
    count, result = granted(method, x)
    other = method.__self__
    found.append([count, torch.equal(result, expected), other is not model, other.forward is method])
gone = weakref.ref(other)
del method, other
gc.collect()
both, = copy.deepcopy([(model, model.forward)])
show(found, gone() is None, both[1].__self__ is both[0])
"""
    assert module_script(script) == [[[1, True, True, True]] * 3, True, True]


def test_models_that_pickle_what_they_are_made_of() -> None:
    """Their ``__reduce__`` names their ``__dict__``, and so the method, before there is an object."""
    script = """
class Own(Model):
    def __reduce__(self): return rebuild, (dict(self.__dict__),)
def rebuild(attributes):
    made = Own.__new__(Own)
    made.__dict__.update(attributes)
    return made
class Plain(torch.nn.Module):  # what fx can trace
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
    def forward(self, x): return torch.relu(self.layer(x))
def save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)
own = Own().eval()
own.load_state_dict(model.state_dict())
graph = torch.fx.symbolic_trace(Plain(model.layer)).eval()
found = []
for first in (own, graph):
    govern(first)
    for copied in (lambda: copy.deepcopy(first), lambda: pickle.loads(pickle.dumps(first)), lambda: save(first)):
        other = copied()
        gc.collect()
        results = [granted(other, x), granted(govern(other), x), granted(first, x)]
        found.append([torch.equal(result, expected) for _, result in results] + [count for count, _ in results[1:]])
        release(other)
        found[-1] += granted(other, x)[:1]
show(found)
"""
    assert module_script(script) == [[[True, True, True, 1, 1, 0]] * 6]


def test_traced_and_scripted_modules() -> None:
    script = """
import warnings
warnings.simplefilter("ignore")  # torch's own
plain = torch.nn.Sequential(model.layer, torch.nn.ReLU()).eval()
traced = torch.jit.trace(plain, (x,))
file = io.BytesIO()
torch.jit.save(traced, file)
file.seek(0)
found = []
for module in (traced, torch.jit.load(file), torch.jit.script(plain)):
    govern(module)
    results = [granted(module, x) for _ in range(3)]
    release(module)
    results.append(granted(module, x))
    found.append([[count for count, _ in results], all(torch.allclose(r, expected, rtol=1e-5) for _, r in results)])
show(found)
"""
    assert module_script(script) == [[[[1, 1, 1, 0], True]] * 3]


def test_replicas_compute_with_their_own_parameters() -> None:
    """What ``DataParallel`` does for each device, without one."""
    script = """
def replicate(model):
    replica, layer = model._replicate_for_data_parallel(), model.layer._replicate_for_data_parallel()
    layer.weight, layer.bias = torch.zeros(64, 64), torch.full((64,), 7.0)
    replica._modules["layer"] = layer
    return replica
govern(model)
replica = replicate(model)
count, result = granted(replica, x)
again = replicate(copy.deepcopy(model))(x)
show(bool((result == 7).all()), bool((again == 7).all()), count, "forward" in vars(replica), granted(model, x)[0])
"""
    assert module_script(script) == [True, True, 0, False, 1]


def test_a_governed_model_is_freed_with_its_last_user() -> None:
    script = """
gc.collect()
gc.disable()
gone = weakref.ref(govern(model))
method = model.forward
method(x)
del model
try:
    method(x)
except ReferenceError as error:
    show(gone() is None, str(error))
"""
    text = "the object that this forward belongs to is gone: keep a reference to it"
    assert module_script(script) == [True, text]


def test_forward_looks_like_the_models_own() -> None:
    """transformers reads the signature of ``forward`` to check arguments of ``generate``."""
    script = """
own = [str(inspect.signature(model.forward)), model.forward.__name__, str(model.forward.__annotations__)]
govern(model)
show(own == [str(inspect.signature(model.forward)), model.forward.__name__, str(model.forward.__annotations__)],
     hasattr(model.forward, "anything"))
"""
    assert module_script(script) == [True, False]


def test_compiled_exported_and_traced_models() -> None:
    """aot_eager: torch's compiler without a C++ compiler. ``fullgraph`` raises where our code would break the graph."""
    script = """
import warnings
warnings.simplefilter("ignore")  # torch's own
def check(call, again=True):
    if again: call(x)
    count, result = granted(call, x)
    return [count, torch.allclose(result, expected, rtol=1e-5)]
govern(model)
found = {"compiled": check(torch.compile(model, backend="aot_eager", fullgraph=True))}
found["exported"] = torch.allclose(torch.export.export(model, (x,)).module()(x), expected)
found["traced"] = torch.allclose(torch.jit.trace(model, (x,), check_trace=False)(x), expected)
release(model)
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
compiled(x)
govern(compiled)
found["governed after"] = check(compiled), "forward" in vars(model)
release(compiled)
found["released"] = check(compiled)
model.compile(backend="aot_eager", fullgraph=True)
model(x)
govern(model)
found["in place"] = check(model)
release(model)
found["in place, released"] = check(model)
show(found)
"""
    (found,) = module_script(script)
    assert found == {
        "compiled": [1, True],
        "exported": True,
        "traced": True,
        "governed after": [[1, True], False],
        "released": [0, True],
        "in place": [1, True],
        "in place, released": [0, True],
    }


def test_what_cannot_be_governed() -> None:
    script = """
def failure(call):
    try:
        call(torch.ones(2))
    except ct.CgroupThreadsError as error:
        return [type(error).__name__, "Tensor" in str(error)]
show(failure(govern), failure(release))
"""
    assert module_script(script) == [["InvalidArgumentError", True]] * 2
