"""Libraries whose functions raise, or do not do what was asked: one of them must not cost the others their limit."""

from __future__ import annotations

from tests.lab.native import pool_script

# A controller that another package registers with threadpoolctl; ``fails`` says which of its functions raise.
FOREIGN = """
import threadpoolctl, numpy, zlib
fails = set()
class Alarm(Exception): pass
class Controller(threadpoolctl.LibController):
    user_api = internal_api = "foreign"
    filename_prefixes = ("libffi",)
    count = 8
    def get_num_threads(self):
        if "get" in fails: raise RuntimeError("not now")
        return self.count
    def set_num_threads(self, count):
        if "set" in fails: raise RuntimeError("not now")
        if "alarm" in fails:
            fails.clear()
            raise Alarm
        type(self).count = count
    def get_version(self): return "1"
    def set_additional_attributes(self):
        if "look" in fails: raise RuntimeError("not now")
threadpoolctl.register(Controller)
blas = next(c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.user_api == "blas")
blas.set_num_threads(4)
def blocks():
    counts = []
    for _ in range(2):
        with ct.limit_threads(1): counts.append(blas.get_num_threads())
        counts.append(blas.get_num_threads())
    return counts
def retired(): return sum(code == "pool-retired" for code in notices())
"""


def test_a_setter_that_raises_retires_its_pool_alone() -> None:
    for what in ("set", "get", "look"):
        script = f"{FOREIGN}\nfails.add({what!r})\nseen.update(blas=blocks(), said=retired())"
        assert pool_script(script, modules=("numpy",)) == {"blas": [1, 4, 1, 4], "said": 1}, what


def test_a_setter_that_raises_later_leaves_the_others_as_they_were() -> None:
    script = f"""{FOREIGN}
with ct.limit_threads(1):
    seen["inside"] = blas.get_num_threads(), Controller.count
    fails.add("set")
seen["after"] = blas.get_num_threads(), Controller.count
seen.update(blas=blocks(), said=retired())
"""
    seen = pool_script(script, modules=("numpy",))
    assert seen == {"inside": [1, 1], "after": [4, 1], "blas": [1, 4, 1, 4], "said": 1}


def test_an_exception_that_is_not_the_librarys_is_passed_on() -> None:
    """A signal handler may raise while a library's function runs."""
    script = f"""{FOREIGN}
fails.add("alarm")
try:
    with ct.limit_threads(1): seen["entered"] = True
except Alarm: seen["raised"] = True
seen.update(blas=blocks(), said=retired(), count=Controller.count)
"""
    assert pool_script(script, modules=("numpy",)) == {"raised": True, "blas": [1, 4, 1, 4], "said": 0, "count": 8}


def test_a_late_import_lowers_the_others() -> None:
    script = f"""{FOREIGN}
fails.add("set")
from cgroup_threads.pools import lower_live
seen["codes"] = [notice.code for notice in lower_live(2)]
seen.update(blas=blas.get_num_threads(), said=retired())
"""
    assert pool_script(script, modules=("numpy",)) == {"codes": [], "blas": 2, "said": 1}


def test_numexpr_is_reported_as_it_is() -> None:
    script = """
import numexpr
from cgroup_threads.pools import describe
stop = threading.Event()
thread = threading.Thread(target=stop.wait); thread.start()
with ct.limit_threads(1):
    seen["real"] = numexpr.get_num_threads()
    seen["described"] = [pool.threads for pool in describe() if pool.name == "numexpr"]
    seen["said"] = "limit-not-followed" in notices()
stop.set(); thread.join()
"""
    assert pool_script(script, modules=("numexpr",)) == {"real": 3, "described": [3], "said": True}


def test_a_module_that_was_hidden_is_not_imported() -> None:
    script = """
sys.modules["torch"] = sys.modules["cv2"] = sys.modules["numba"] = None
import warnings
warnings.simplefilter("error")
ct.apply(ct.plan(workers=2))
with ct.limit_threads(1): pass
seen.update(late=ct.apply().late, modules=ct.report().evidence.modules, notices=notices())
seen["child"] = child(lambda: "cv2-left-alone" in ct.state.process.hooks)
"""
    seen = pool_script(script)
    assert "cv2" not in seen["modules"]
    assert "torch" not in seen["late"] + seen["modules"]
    assert "numba" not in seen["late"] + seen["modules"]
    assert seen["child"] is False


def test_a_lease_says_what_holds_right_after_a_new_library() -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
def entered():
    with ct.limit_threads(4) as lease: return lease.threads
with ThreadPoolExecutor(1, initializer=ct.initializer, initargs=(1,)) as pool:
    seen["before"] = pool.submit(entered).result()
    import numpy
    ct.state.process.ledger.registry.dirty = True
    seen["right after"] = pool.submit(entered).result()
"""
    assert pool_script(script, modules=("numpy",)) == {"before": 1, "right after": 1}
