"""The driver of the guest with 64 CPUs: a container with a quota of 8 cores on a large host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .guest_facts import facts
    from .guest_inside import Driver, Worker, group, set_quota, until, workers
else:  # a script of its own in the guest, where pytest would take its time
    from guest_facts import facts
    from guest_inside import Driver, Worker, group, set_quota, until, workers

QUOTA = 8
POOLS = "[pool['num_threads'] for pool in __import__('threadpoolctl').threadpool_info()]"
COUNT = f"[{POOLS}, len(os.listdir('/proc/self/task'))]"
# torch's own count without Python's part of it, which takes a minute to import here.
LIBTORCH = "ctypes.CDLL(PACKAGES + '/torch/lib/libtorch_cpu.so')._ZN2at15get_num_threadsEv()"
# 64 calls enter at once; ``most`` is how many cores all open leases ever had in sum.
ENTER = """
def enter_at_once(number):
    barrier, lock = threading.Barrier(number), threading.Lock()
    held, most, done = [0], [0], []
    def call():
        barrier.wait()
        with ct.limit_threads(patience=600) as lease:
            with lock:
                held[0] += lease.threads
                most[0] = max(most[0], held[0])
            time.sleep(0.001)  # held for a while, so that the others' turns come within it
            with lock: held[0] -= lease.threads
        done.append(1)
    threads = [threading.Thread(target=call) for _ in range(number)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return [len(done), most[0], ct.statistics().overcommitted]
"""


@contextmanager
def without_us(preparation: str) -> Iterator[Worker]:
    """A process in the container that does not know the package."""
    worker = Worker(group("box", cpu_max=QUOTA), prelude="")
    try:
        worker(preparation)
        yield worker
    finally:
        worker.kill()


def shared() -> dict[str, Any]:
    """Six processes ask for cores at once; whoever has some keeps them until all are counted, and leaves."""
    found: dict[str, Any] = {"leased": [], "ends": []}
    with workers(6, group("six", cpu_max=QUOTA)) as six:
        for worker in six:
            worker("thread = wait()")
        until(lambda: all(sum(worker("now()")[::2]) == 1 for worker in six))
        left = [*six]
        while left:
            holding = until(lambda left=left: [w for w in left if w("thread.threads")])  # type: ignore[misc]
            # None of them leaves meanwhile: what is added up is held at the same time.
            found["leased"].append(sum(worker("now()")[1] for worker in six))
            holding[0]("thread.left.set()")
            until(lambda holding=holding: holding[0]("now()") == [0, 0, 0])  # type: ignore[misc]
            left.remove(holding[0])
        for worker in six:
            found["ends"].append(worker("[ct.statistics().granted, ct.statistics().overcommitted]"))
    return found


def entered_at_once() -> Any:
    with workers(1, group("once", cpu_max=QUOTA)) as (worker,):
        worker(ENTER)
        return worker("enter_at_once(64)")


def resized() -> list[Any]:
    directory = group("resized", cpu_max=QUOTA)
    found = []
    with workers(1, directory, environ={"CGROUP_THREADS_MAX_CORES": "64"}) as (worker,):
        worker("load_pools()")
        for quota in (8, 32, 63.5, None, 2):
            set_quota(directory, quota)
            worker("ct.refresh()")
            found.append([worker("core_budget().budget.cores"), *worker("limited()")[1:3]])
    return found


def numpy_counts() -> dict[str, Any]:
    """Counts as numpy is imported, and ours after it has computed."""
    with without_us("import numpy") as default:
        found = {"default": default(COUNT)}
    with workers(1, group("ours", cpu_max=QUOTA)) as (ours,):
        ours("import numpy; ones = numpy.ones((300, 300))")
        found["ours"] = [ours("float((ones @ ones).sum())"), *ours(COUNT)]
    return found


def torch_counts() -> dict[str, Any]:
    with without_us("") as default:
        found = {"default": default(LIBTORCH)}
    with workers(1, group("ours", cpu_max=QUOTA)) as (ours,):
        found["library"] = ours(LIBTORCH)
        ours("import torch; ones = torch.ones(300, 300)")
        found["ours"] = ours("[torch.get_num_threads(), float(torch.mm(ones, ones).relu().sum())]")
        found["block"] = ours("[ct.limit_threads(2).__enter__().threads, torch.get_num_threads()]")
        found["tasks"] = ours("len(os.listdir('/proc/self/task'))")
        found["codes"] = ours("codes()")
    return found


def inspected() -> dict[str, Any]:
    """numpy with the 64 threads it starts by itself, busy, and judged from outside; then one that has our counts."""
    busy = "\n".join(
        (
            "import numpy",
            "ones, begun = numpy.ones((400, 400)), threading.Event()",
            "def load():",
            "    while True: ones @ ones; begun.set()",
            "threading.Thread(target=load, daemon=True).start()",
            "begun.wait()",
        )
    )
    names = ("verdict", "usable_cores", "bound_by", "threads_total", "throttled", "runnable")
    look = f"(lambda found: {{name: found[name] for name in {names}}})"
    found = {}
    with workers(1, None) as (outside,):
        outside("from cgroup_threads.reporting.inspecting import inspect_process")
        outside("inspect_process(os.getpid(), seconds=0.1)")  # all that it imports is there before the load begins
        with without_us(busy) as default:
            found["default"] = outside(f"{look}(inspect_process({default.pid}, seconds=2).to_dict())")
        with workers(1, group("ours", cpu_max=QUOTA)) as (ours,):
            ours(busy)
            found["ours"] = outside(f"{look}(inspect_process({ours.pid}, seconds=2).to_dict())")
            found["text"] = ours("str(ct.report())")
    return found


if __name__ == "__main__":
    driver = Driver()
    driver.case("facts", lambda: facts(group("box", cpu_max=QUOTA)))
    driver.case("shared", shared)
    driver.case("at once", entered_at_once)
    driver.case("resized", resized)
    driver.case("numpy", numpy_counts)
    driver.case("inspected", inspected)
    driver.case("torch", torch_counts)
