"""Fixes that fit what is mapped and asked, on recorded samples: no process is read."""

from __future__ import annotations

import pytest

from cgroup_threads.reporting.inspecting.children import busy_children
from cgroup_threads.reporting.inspecting.records import Child, Library
from cgroup_threads.reporting.inspecting.render import render, to_dict
from cgroup_threads.reporting.inspecting.tasks import TaskStat
from cgroup_threads.reporting.inspecting.together import judge_together
from cgroup_threads.reporting.inspecting.verdict import judge
from tests.test_inspect_verdicts import LLAMA, OPENMP, limits, sample, threads

OPENBLAS = (Library("openblas", "/lib/libopenblas.so"),)
LEASES = "wrap calls in `with cgroup_threads.limit_threads():`"


@pytest.mark.parametrize("libraries", [OPENMP, OPENBLAS, (*OPENMP, *OPENBLAS)])
@pytest.mark.parametrize("owner", ["unknown", "Python"])
def test_callers_with_one_thread_each_compute_side_by_side(libraries: tuple[Library, ...], owner: str) -> None:
    found = sample(
        threads(6, owner=owner), limits=limits(2), variables=(("OMP_NUM_THREADS", "1"),), libraries=libraries
    )
    assert judge(found).fix == f"6 threads compute side by side (OMP_NUM_THREADS=1 fits): {LEASES}"


@pytest.mark.parametrize(
    ("variables", "libraries", "owner", "fix"),
    [
        ({"OMP_NUM_THREADS": "2"}, OPENMP, "unknown", f"OMP_NUM_THREADS=2 fits, so callers run side by side: {LEASES}"),
        ({"OMP_NUM_THREADS": "2"}, OPENMP, "Python", f"at least 9 Python threads have a team each: {LEASES}"),
        ({}, OPENMP, "Python", f"at least 9 Python threads have a team each: {LEASES}"),
        ({"OMP_NUM_THREADS": " "}, OPENMP, "unknown", "set OMP_NUM_THREADS=4, or `import cgroup_threads` before all"),
        ({"OPENBLAS_NUM_THREADS": "1"}, OPENBLAS, "unknown", "9 threads compute side by side (OPENBLAS_NUM_THREADS=1"),
        # The other runtime was told nothing.
        ({"OPENBLAS_NUM_THREADS": "1"}, (*OPENMP, *OPENBLAS), "unknown", "set OMP_NUM_THREADS=4, or `import"),
        # Its teams are larger than the variable says.
        ({"OMP_NUM_THREADS": "1"}, OPENMP, "OpenMP team", "OMP_NUM_THREADS=1 is not the count its teams have"),
        ({"ORT_INTRA_OP_NUM_THREADS": "1"}, (Library("onnxruntime", "/x"),), "unknown", "9 threads compute side by"),
        ({"RAYON_NUM_THREADS": "64", "OMP_NUM_THREADS": "1"}, OPENMP, "Rayon", "set RAYON_NUM_THREADS=4 (now 64)"),
    ],
)  # fmt: skip
def test_a_count_that_fits_is_never_raised(
    variables: dict[str, str], libraries: tuple[Library, ...], owner: str, fix: str
) -> None:
    found = sample(threads(9, owner=owner), limits=limits(4), variables=tuple(variables.items()), libraries=libraries)
    text = judge(found).fix
    assert text.startswith(fix)
    for name, value in variables.items():
        assert value.strip() in ("", "64") or f"set {name}" not in text


def test_llamas_arguments_are_named_and_single_callers_too() -> None:
    members = (*threads(20), *threads(5, 100, owner="Python"))
    fix = judge(sample(members, variables=(("OMP_NUM_THREADS", "1"),), libraries=LLAMA)).fix
    assert "n_threads_batch=8" in fix
    assert fix.endswith(f"5 threads compute side by side: {LEASES}")


@pytest.mark.parametrize(
    ("libraries", "variables", "why"),
    [
        ((), (), "they never sleep"),
        ((Library("tokenizers", "/x"),), (), "they never sleep"),
        (OPENMP, (("OMP_NUM_THREADS", "1"),), "they never sleep"),
        (OPENMP, (("OMP_NUM_THREADS", "4"),), "they spin at barriers"),
        (OPENMP, (), "they spin at barriers"),
        (OPENBLAS, (), "they spin at barriers"),
        (OPENBLAS, (("OPENBLAS_NUM_THREADS", "1"),), "they never sleep"),
        (LLAMA, (("OMP_NUM_THREADS", "1"),), "they spin at barriers"),
    ],
)
def test_only_pools_spin_at_barriers(
    libraries: tuple[Library, ...], variables: tuple[tuple[str, str], ...], why: str
) -> None:
    notes = judge(sample(threads(16, cpu=0.5, involuntary=90.0), libraries=libraries, variables=variables)).notes
    assert [note.rpartition(": ")[2] for note in notes if "preempted" in note] == [why]


def test_together_is_not_what_one_alone_explains() -> None:
    alone, healthy = sample(threads(20), pid=1), sample(pid=2)
    assert judge(alone).code == "oversubscribed"
    assert judge_together([alone, healthy]) == []
    # The others are too much without it.
    (verdict,) = judge_together([alone, healthy, sample(pid=3)])
    assert "16 runnable threads of 2 processes" in verdict.message
    # Several that are too wide may share a cause, and will not fit together when each is mended.
    assert judge_together([alone, alone._replace(pid=4)]) != []


def test_together_with_a_thread_each_only_fewer_workers_help() -> None:
    singles = [sample(threads(1), pid=pid) for pid in range(20)]
    (verdict,) = judge_together(singles)
    assert verdict.fix == "they have about one thread each already, so run at most 8 of them at once"
    (verdict,) = judge_together([sample(threads(2), pid=pid) for pid in range(10)])
    assert verdict.fix == "1 thread a process (CGROUP_THREADS_WORKERS=10), and at most 8 workers"


def test_a_guessed_mask_is_said_and_taskset_named() -> None:
    members = threads(5, cpu=0.0, runnable=0.0, affinity=frozenset({3}))
    guess = sample(
        members, binding="OMP_PROC_BIND", variables=(("OMP_PROC_BIND", "true"),), guessed="its parent", libraries=OPENMP
    )
    verdict = judge(guess)
    assert "(OMP_PROC_BIND=true, or taskset: the other CPUs are guessed from its parent)" in verdict.message
    assert "start it without OMP_PROC_BIND" in verdict.fix
    assert "taskset" in verdict.fix
    assert "CPUs 0-7 (guessed from its parent)" in " ".join(render(guess, verdict).split())
    assert to_dict(guess, verdict)["affinity_guessed"] is True
    assert "taskset" not in judge(guess._replace(guessed="")).line


EVIL = "true\x1b]0;evil\x07\nprocess 1: healthy\N{SNOWMAN}"


def test_no_text_of_the_target_reaches_the_terminal_raw() -> None:
    bound = threads(5, affinity=frozenset({3}))
    names = ("OMP_PROC_BIND", "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "CGROUP_THREADS_ROUNDING")
    for members in (bound, threads(40)):
        found = sample(
            members, binding="OMP_PROC_BIND", variables=tuple((name, EVIL) for name in names), libraries=OPENMP
        )
        verdict = judge(found)
        for line in (verdict.line, *verdict.notes, *render(found, verdict).splitlines()):
            assert line.isprintable(), line
            assert line.isascii(), line
            assert not line.startswith("process 1")


def test_the_rounding_of_the_process_counts() -> None:
    found = sample(threads(2), limits=limits(8, 1.5))
    assert (found.usable, found._replace(rounding="ceil").usable) == (1, 2)
    up = found._replace(rounding="ceil")
    assert "quota 1.5 (CGROUP_THREADS_ROUNDING=ceil)" in render(up, judge(up))


def test_busy_children_of_an_idle_process_are_named() -> None:
    idle = sample(threads(1, cpu=0.0, runnable=0.0), children=tuple(Child(pid, "cc1", 0.5) for pid in range(7, 14)))
    verdict = judge(idle)
    assert verdict.line.endswith("the 7 processes below it kept 3.5 cores busy: inspect them (7 8 9 10 ...)")
    assert "nothing to mend" not in verdict.line
    assert len(to_dict(idle, verdict)["children"]) == 7
    assert judge(idle._replace(children=())).line.endswith("nothing to mend")


def test_children_are_found_by_two_censuses() -> None:
    def stat(parent: int, ticks: int, start: int = 1, state: str = "R") -> TaskStat:
        return TaskStat("cc1", state, parent, False, ticks, start)

    before = {1: stat(0, 0), 2: stat(1, 10), 3: stat(2, 50), 4: stat(1, 90)}
    after = {
        1: stat(0, 0), 2: stat(1, 10), 3: stat(2, 150), 4: stat(1, 30, start=9), 5: stat(9, 500),
        6: stat(3, 99, state="Z"),        7: stat(7, 0), 8: stat(1, 3),
    }  # fmt: skip
    # 3 is a grandchild, 4 a number given again, 5 somebody else's, 6 has ended, 8 sleeps.
    assert busy_children(1, before, after, 100) == (Child(3, "cc1", 1.0), Child(4, "cc1", 0.3))
    assert busy_children(7, before, after, 100) == ()
