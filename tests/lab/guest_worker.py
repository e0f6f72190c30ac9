"""What a process knows that is told what to do: Python that ``guest_inside`` runs in a guest, and a part of which
``shared_budget`` runs in a group of this machine."""

from __future__ import annotations

# Leases, one at a time. A guest reads this file without the package that it lies in.
LEASING = """
import cgroup_threads as ct
from cgroup_threads.governor.core_budget import core_budget
blocks, inside = [], []
def now():
    found = ct.statistics()
    return [found.active, found.leased, found.waiting]
def enter(threads=None, patience=None):
    block = ct.limit_threads(threads, patience=patience)
    lease = block.__enter__()
    blocks.append(block)
    return lease.threads
def leave(): blocks.pop().__exit__(None, None, None)
def touch():
    # One lease in a thread of its own: nested ones ask no budget.
    def work():
        with ct.limit_threads(1, patience=0): pass
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
def wait():
    # In a thread, until it is told to leave.
    left = threading.Event()
    def work():
        with ct.limit_threads(patience=600) as lease:  # no impatience on a slow machine
            inside.append([lease.threads, lease.waited_s])
            thread.threads = lease.threads
            left.wait()
    thread = threading.Thread(target=work, daemon=True)
    thread.left, thread.threads = left, 0
    thread.start()
    return thread
"""

# ``blas`` is OpenBLAS as numpy brings it, without numpy: a pool that all threads share.
WORKER = (
    LEASING
    + """
def limits():
    found = ct.detect()
    return {
        "quota": found.quota, "status": found.status, "bound_by": found.bound_by, "usable": found.usable(),
        "cpuset": found.cpuset and sorted(found.cpuset), "affinity": sorted(found.affinity),
        "host": found.host_cpus, "physical": found.physical_cores,
        "levels": [[level.path, level.raw, level.quota] for level in found.levels],
        "notices": [notice.code for notice in found.notices],
    }
def planned():
    found = ct.plan()
    return {"threads": found.threads, "usable": found.usable, "bound_by": found.bound_by,
            "binds": found.quota_binds, "omp": found.environment.get("OMP_NUM_THREADS"),
            "variable": os.environ.get("OPENBLAS_NUM_THREADS")}
def load_pools():
    global blas, gomp
    (path,) = glob.glob(PACKAGES + "/numpy.libs/libscipy_openblas64_*.so")
    ctypes.CDLL("libgomp.so.1")
    blas, gomp = ctypes.CDLL(path).scipy_openblas_get_num_threads64_, ctypes.CDLL("libgomp.so.1")
def team():
    members = []
    gomp.GOMP_parallel(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: members.append(1)), None, 0, 0)
    return len(members)
def counts(): return [blas(), team()]
def limited():
    seen = [counts()]
    with ct.limit_threads() as lease: seen.append([lease.threads, *counts()])
    with ct.limit_threads(1) as lease: seen.append([lease.threads, *counts()])
    return [*seen, counts()]
def contend(mine, other, times, most):
    # Cells of shared memory say what each of two processes holds, and that it has begun; the other's is read while
    # one's own lease is open.
    worst, met = 0, 0
    cells[2 + mine] = 1
    until(lambda: cells[2 + other])
    for number in range(times):
        with ct.limit_threads(number % most + 1, patience=600) as lease:
            cells[mine] = lease.threads
            time.sleep(0.001)  # a lease that is held for a while, so that the other's turn comes within it
            theirs = cells[other]
            worst, met = max(worst, lease.threads + theirs), met + bool(theirs)
            cells[mine] = 0
    return [worst, ct.statistics().overcommitted, met]
def command(*arguments):
    # What the command line prints, in this process.
    import contextlib, io
    from cgroup_threads.cli import main
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = main(list(arguments))
    return [status, out.getvalue()]
def reported():
    status, text = command("report", "--json")
    found = json.loads(text)
    return {"status": status, "usable": found["usable_cores"], "bound_by": found["bound_by"],
            "limits": [found["limits"]["quota"], found["limits"]["status"]], "threads": found["plan"]["threads"],
            "scope": found["budget"]["scope"], "problems": [problem["code"] for problem in found["problems"]]}
def codes(): return [notice.code for notice in ct.report().notices]
"""
)
