"""Verdicts on recorded samples: no process is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cgroup_threads.detection.records import CpuLimits, Topology
from cgroup_threads.detection.throttling import Throttling
from cgroup_threads.reporting.inspecting.records import Library, Sample, Thread
from cgroup_threads.reporting.inspecting.render import WIDTH, render, to_dict
from cgroup_threads.reporting.inspecting.together import judge_together
from cgroup_threads.reporting.inspecting.verdict import find_confined, judge

EIGHT = frozenset(range(8))


def limits(cpus: int = 8, quota: float | None = None, **changes: Any) -> CpuLimits:
    affinity = frozenset(range(cpus))
    return CpuLimits(
        quota=quota,
        status="unlimited" if quota is None else "limited",
        affinity=affinity,
        affinity_source="sched_getaffinity",
        cpuset=None,
        host_cpus=cpus,
        physical_cores=cpus,
        bound_by="host" if quota is None else "quota",
        topology=Topology(physical_cores=cpus, online=affinity),
    )._replace(**changes)


def threads(count: int, start: int = 1, **values: Any) -> tuple[Thread, ...]:
    values = {"owner": "OpenMP team", "cpu": 1.0, "runnable": 1.0, "affinity": EIGHT, **values}
    return tuple(Thread(tid, "python", **values) for tid in range(start, start + count))


def sample(members: Sequence[Thread] = (), **changes: Any) -> Sample:
    """By default a batch job of 8 threads on 8 cores, as one was recorded."""
    members = tuple(members) or threads(8, cpu=0.98, involuntary=4.0, voluntary=2.0)
    values: dict[str, Any] = {
        "pid": 42,
        "name": "python",
        "command": "python batch.py",
        "state": "S",
        "limits": limits(),
        "seconds": 2.0,
        "looks": 38,
        "cpu": sum(member.cpu for member in members),
        "runnable": sum(member.runnable for member in members),
        "total": len(members),
        "threads": members,
        **changes,
    }
    return Sample(**values)


OPENMP = (Library("libgomp", "/lib/libgomp.so.1"),)
LLAMA = (*OPENMP, Library("llama", "/lib/libllama.so"))


def test_a_busy_batch_job_of_eight_threads_on_eight_cores_is_healthy() -> None:
    verdict = judge(sample(libraries=OPENMP))
    assert (verdict.code, verdict.level, verdict.fix, verdict.notes) == ("healthy", "ok", "", ())
    assert verdict.line == "healthy: 8.0 runnable threads on 8 usable cores, 7.8 cores busy; nothing to mend"


def test_eight_bound_threads_each_on_its_own_cpu_are_healthy() -> None:
    members = [Thread(cpu, "python", "OpenMP team", 1.0, 1.0, affinity=frozenset({cpu})) for cpu in range(8)]
    helpers = threads(40, 100, cpu=0.0, runnable=0.0, affinity=frozenset({0}))
    found = judge(sample([*members, *helpers], binding="OMP_PROC_BIND", libraries=OPENMP))
    assert found.code == "healthy"


@pytest.mark.parametrize(
    ("count", "cpus", "code", "level"),
    [
        (9, 8, "healthy", "ok"),
        (11, 8, "healthy", "ok"),
        (13, 8, "crowded", "warning"),
        (16, 8, "oversubscribed", "problem"),
        (240, 8, "oversubscribed", "problem"),
        (1, 1, "healthy", "ok"),
        (2, 1, "crowded", "warning"),
        (3, 1, "oversubscribed", "problem"),
        (3, 2, "crowded", "warning"),
        (4, 2, "oversubscribed", "problem"),
    ],
)
def test_where_oversubscription_begins(count: int, cpus: int, code: str, level: str) -> None:
    verdict = judge(sample(threads(count), limits=limits(cpus)))
    assert (verdict.code, verdict.level) == (code, level)
    assert bool(verdict.fix) == (level != "ok")


def test_the_line_of_the_field_case() -> None:
    members = (*threads(230), *threads(10, 300, owner="Python"))
    verdict = judge(sample(members, variables=(("OMP_NUM_THREADS", "24"),), libraries=OPENMP))
    assert verdict.line == (
        "oversubscribed: 240 runnable threads on 8 usable cores (30x): set OMP_NUM_THREADS=8 (now 24); at least 10 "
        "Python threads have a team each: wrap calls in `with cgroup_threads.limit_threads():`"
    )


def test_the_forgotten_argument_is_named_where_no_variable_asks_too_much() -> None:
    verdict = judge(sample(threads(64), limits=limits(8, 1.0), variables=(("OMP_NUM_THREADS", "1"),), libraries=LLAMA))
    assert verdict.code == "oversubscribed"
    assert "n_threads_batch=1" in verdict.fix
    assert "OMP_NUM_THREADS" not in verdict.fix


@pytest.mark.parametrize(
    ("libraries", "words"),
    [
        ((), "run at most 8 workers or threads at once"),
        (OPENMP, "set OMP_NUM_THREADS=8, or `import cgroup_threads` before all else"),
        ((Library("onnxruntime", "/x"),), "intra_op_num_threads=8"),
    ],
)
def test_fixes_follow_what_is_mapped(libraries: tuple[Library, ...], words: str) -> None:
    assert words in judge(sample(threads(32), libraries=libraries)).fix


def test_a_hundred_sleeping_threads_are_idle_whatever_they_would_ask() -> None:
    sleepers = threads(100, cpu=0.0, runnable=0.0)
    verdict = judge(sample(sleepers, variables=(("OMP_NUM_THREADS", "24"), ("MKL_NUM_THREADS", "abc"))))
    assert (verdict.code, verdict.level) == ("idle", "ok")
    assert verdict.notes == (
        "OMP_NUM_THREADS=24 does not fit 8 usable cores",
        "MKL_NUM_THREADS='abc' does not fit 8 usable cores",
    )


def test_bound_to_one_cpu_wins_over_oversubscription() -> None:
    members = threads(10, affinity=frozenset({3}))
    found = judge(sample(members, binding="OMP_PROC_BIND", variables=(("OMP_PROC_BIND", "true"),), libraries=OPENMP))
    assert (found.code, found.level) == ("one-cpu", "problem")
    assert found.message == (
        "bound to one CPU: 10 of 10 busy threads may run on CPU 3 only, of 8 usable cores (OMP_PROC_BIND=true)"
    )


def test_one_cpu_is_no_loss_where_the_quota_is_one_core() -> None:
    members = threads(10, cpu=0.0, runnable=0.0, affinity=frozenset({3}))
    assert judge(sample(members, limits=limits(8, 1.0), binding="OMP_PROC_BIND", libraries=OPENMP)).code == "idle"


def test_a_mask_of_one_cpu_without_a_variable_is_a_question() -> None:
    alone = limits(1, affinity=frozenset({3}), cpuset=EIGHT)
    quiet = threads(4, cpu=0.0, runnable=0.0, affinity=frozenset({3}))
    verdict = judge(sample(quiet, limits=alone, libraries=OPENMP))
    assert (verdict.code, verdict.level) == ("one-cpu", "warning")
    assert "taskset" in verdict.fix
    assert judge(sample(threads(4, affinity=frozenset({3})), limits=alone, libraries=OPENMP)).level == "problem"
    # Without an OpenMP runtime nothing but the user can have done it.
    assert judge(sample(quiet, limits=alone)).code == "idle"


def test_confined_threads() -> None:
    one, wide = threads(4, affinity=frozenset({1})), threads(1, 50)
    assert find_confined([*one, *wide]) == (1, 4)
    assert find_confined([*one, *wide, *threads(1, 60)]) is None
    assert find_confined(one[:1]) is None
    assert find_confined(threads(3, affinity=None)) is None
    assert find_confined([]) is None


@pytest.mark.parametrize(
    ("throttled", "level"), [(0, "ok"), (1, "ok"), (2, "warning"), (4, "warning"), (5, "problem"), (20, "problem")]
)
def test_throttling_alone(throttled: int, level: str) -> None:
    verdict = judge(sample(threads(2), limits=limits(8, 2.0), throttling=Throttling("/g/cpu.stat", 20, throttled, 1.0)))
    assert verdict.level == level
    assert (verdict.code == "throttled") == (level != "ok")


def test_one_thread_too_many_is_a_problem_where_the_quota_stops_them() -> None:
    found = sample(threads(2), limits=limits(8, 1.0), throttling=Throttling("/g/cpu.stat", 20, 10, 1.0))
    assert judge(found).code == "oversubscribed"
    assert judge(found._replace(throttling=None)).code == "crowded"


def test_few_periods_say_nothing() -> None:
    few = Throttling("/g/cpu.stat", 9, 9, 1.0)
    assert judge(sample(threads(2), limits=limits(8, 2.0), throttling=few)).code == "healthy"


def test_unknown_limits_are_said() -> None:
    unknown = sample(limits=limits(status="unknown"), unread=("its quota (why)",))
    assert "as far as limits could be read" in judge(unknown).line
    text = render(unknown, judge(unknown))
    assert "quota unknown, so it may be less" in text
    assert "not read     its quota (why)" in text


def test_notes_on_runtimes_and_spinning() -> None:
    two = (*OPENMP, Library("libiomp5", "/x/libiomp5.so"))
    members = threads(16, involuntary=90.0, voluntary=1.0, cpu=0.5)
    notes = judge(sample(members, libraries=two)).notes
    assert any("2 different OpenMP runtimes are mapped (libgomp, libiomp5)" in note for note in notes)
    assert any("16 threads hold on to CPUs and are preempted 1440 times a second" in note for note in notes)
    copies = (*OPENMP, Library("libgomp", "/other/libgomp-a.so"))
    assert judge(sample(libraries=copies)).notes == ("2 copies of libgomp are mapped: each keeps threads of its own",)


def test_neighbours_are_named_where_they_have_the_cpus() -> None:
    verdict = judge(sample(threads(8, cpu=0.1)))
    assert verdict.code == "healthy"
    assert verdict.notes == ("it got 0.8 of 8.0 cores it could have used: other processes have the CPUs (--all)",)


def test_processes_that_are_too_much_together() -> None:
    workers = [sample(pid=pid) for pid in range(4)]
    assert all(judge(worker).level == "ok" for worker in workers)
    (verdict,) = judge_together(workers)
    assert verdict.line == (
        "oversubscribed together: 32 runnable threads of 4 processes on 8 usable cores (4x): "
        "2 threads a process (CGROUP_THREADS_WORKERS=4), or fewer workers"
    )
    assert judge_together(workers[:1]) == []
    # In groups with quotas of their own they do not share.
    apart = [sample(limits=limits(64, 8.0), group=f"/g{at}") for at in range(4)]
    assert judge_together(apart) == []
    assert judge_together([worker._replace(group="/g") for worker in apart]) != []


def test_text_and_json_of_anything() -> None:
    odd = sample(
        [Thread(1, "\x1b[31m", "x", affinity=None)],
        variables=(("OMP_NUM_THREADS", "\x1b]0;evil\x07" * 50),),
        command="a" * 5000,
        unread=("its stacks",),
    )
    verdict = judge(odd)
    text = render(odd, verdict)
    assert "\x1b" not in text
    assert all(len(line) <= WIDTH + 200 for line in text.splitlines())
    assert json.loads(json.dumps(to_dict(odd, verdict)))["threads"][0]["affinity"] is None
