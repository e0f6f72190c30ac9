"""The text and JSON of a report, from made-up evidence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cgroup_threads.detection.records import CgroupLevel, SchedulerGrant
from cgroup_threads.errors import InvalidArgumentError
from cgroup_threads.notices import Notice
from cgroup_threads.reporting import Report, report
from cgroup_threads.reporting.counters import ThreadGroup, Throttling
from cgroup_threads.reporting.judge import find_problems
from cgroup_threads.reporting.records import Evidence, VariableState
from cgroup_threads.reporting.render import WIDTH, render
from cgroup_threads.reporting.values import to_dict
from cgroup_threads.settings import Settings
from cgroup_threads.variables import VARIABLES
from tests.report_samples import POD, make_evidence, make_level, make_limits, make_pool

SCREEN = 40  # lines


def show(evidence: Evidence) -> str:
    return render(evidence, find_problems(evidence))


def make_rich_evidence() -> Evidence:
    computed = tuple(VariableState(v.name, None, "2", "computed") for v in VARIABLES if v.stage == "import")
    states = (VariableState("OMP_NUM_THREADS", "64", "64", "user"), *computed[1:])
    pools = (
        make_pool("libgomp", 64, path="/venv/torch/lib/libgomp-1a2b.so.1"),
        make_pool("openblas", 2, "process", path="/venv/numpy.libs/libscipy_openblas64_-fdde.so", detail="pthreads"),
        make_pool("mkl", 2),
        make_pool("torch", 2),
    )
    return make_evidence(
        variables=states,
        pools=pools,
        threads=(ThreadGroup("python3.11", 12, 3), ThreadGroup("openblas", 2, 0)),
        python_threads=3,
        throttling=Throttling(f"{POD}/cpu.stat", 1234, 700, 12.3),
        notices=(Notice("late-import", "numpy was imported before cgroup_threads", "warning", "import it first"),),
    )


def test_the_answer_and_what_bound_it_come_first() -> None:
    first = show(make_rich_evidence()).splitlines()[0]
    assert first == "2 usable cores, bound by quota (2.5 cores, rounded down)"


def test_an_ordinary_report_fits_one_screen() -> None:
    lines = show(make_rich_evidence()).splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= WIDTH + 40  # paths are not broken


def test_each_constraint_shows_its_file_and_raw_text() -> None:
    text = show(make_rich_evidence())
    assert f"quota      2.5 cores  cgroup v2 {POD}/cpu.max is '250000 100000'" in text
    assert "no limit   cgroup v2 /sys/fs/cgroup/kubepods.slice/cpu.max is 'max 100000'" in text
    assert "57 %       of 1234 periods so far, 12.3 s stopped" in text


def test_d23_the_source_that_won_and_the_others() -> None:
    text = show(make_evidence(make_limits(quota=None, cpus=2, host=20, affinity=frozenset({0, 1}))))
    assert text.splitlines()[0] == "2 usable cores, bound by affinity (2 of 20 host CPUs)"
    assert "affinity  2 CPUs    0-1 (sched_getaffinity)" in text


def test_a_missing_quota_file_is_said() -> None:
    level = CgroupLevel(2, "/sys/fs/cgroup", "/sys/fs/cgroup/cpu.max", None, None)
    text = show(make_evidence(make_limits(quota=None, levels=(level,))))
    assert "quota     no limit  cgroup v2 /sys/fs/cgroup/cpu.max is not there" in text


def test_an_unknown_quota_is_not_shown_as_no_limit() -> None:
    text = show(make_evidence(make_limits(quota=None, levels=(), status="unknown")))
    assert "quota     unknown" in text


def test_many_levels_are_cut_but_limits_stay() -> None:
    levels = [make_level(None, f"/sys/fs/cgroup/{'a/' * depth}x") for depth in range(30, 0, -1)]
    levels[20] = make_level(2.0, "/sys/fs/cgroup/limiting")
    text = show(make_evidence(make_limits(levels=tuple(levels))))
    assert "/sys/fs/cgroup/limiting/cpu.max" in text
    assert "and 24 more levels without a smaller quota" in text
    assert len(text.splitlines()) <= SCREEN


def test_overrides_and_schedulers_are_named() -> None:
    grant = SchedulerGrant("Slurm", "SLURM_CPUS_PER_TASK", "3", 3.0)
    text = show(make_evidence(make_limits(scheduler=grant, bound_by="scheduler")))
    assert "bound by scheduler (Slurm)" in text
    assert "Slurm, SLURM_CPUS_PER_TASK='3'" in text
    text = show(make_evidence(make_limits(override=1.5, bound_by="override")))
    assert "1 usable core, bound by override (CGROUP_THREADS_CORES=1.5)" in text


def test_workers_are_named_with_their_source() -> None:
    settings = Settings(workers=2, workers_source="WEB_CONCURRENCY")
    text = show(make_evidence(make_limits(quota=8.0), settings))
    assert "4 threads a pool, bound by workers (2 workers, WEB_CONCURRENCY)" in text


def test_equal_variables_share_a_line() -> None:
    text = show(make_rich_evidence())
    rows = text[text.index("Variables") : text.index("Pools")].splitlines()
    assert rows[1].split() == ["asked", "effective"]
    assert rows[2].split() == ["64", "64", "kept", "OMP_NUM_THREADS"]
    assert rows[3].split()[:4] == ["-", "2", "set", "MKL_NUM_THREADS,"]


def test_malformed_and_late_variables_are_marked() -> None:
    states = (
        VariableState("OMP_NUM_THREADS", "500m", None, "user"),
        VariableState("MKL_NUM_THREADS", None, "2", "computed", late=True),
    )
    text = show(make_evidence(variables=states))
    assert "500m   invalid    kept       OMP_NUM_THREADS" in text
    assert "-      2          set, late  MKL_NUM_THREADS" in text


def test_l15_pools_show_count_and_scope() -> None:
    rows = {line.split()[0]: line for line in show(make_rich_evidence()).splitlines() if line.startswith("  ")}
    assert "64       calling thread" in rows["libgomp"]
    assert "2        process, shared pool  libscipy_openblas64_-fdde.so, pthreads" in rows["openblas"]
    assert "14 native threads (3 run Python, 3 runnable now): python3.11 x 12, openblas x 2" in show(
        make_rich_evidence()
    )


def test_details_do_not_repeat_the_scope() -> None:
    pools = (
        make_pool("numexpr", path="/venv/numexpr/__init__.py", detail="one pool for the process; backend threads"),
        make_pool("mkl", path="/venv/libmkl.so", detail="each thread has its own count"),
    )
    lines = show(make_evidence(pools=pools)).splitlines()
    assert "  numexpr 1.0  2        calling thread  backend threads" in lines
    assert "  mkl 1.0      2        calling thread  libmkl.so" in lines


def test_no_pools_and_pools_that_cannot_be_seen_are_told_apart() -> None:
    assert "no native library with a thread pool is loaded" in show(make_evidence())
    text = show(make_evidence(notices=(Notice("pools-unseen", "maps", "warning"),)))
    assert "no native library" not in text
    assert "unknown: which libraries are loaded could not be read" in text


def test_v1_quota_and_period_are_two_values() -> None:
    level = CgroupLevel(1, "/g", "/g/cpu.cfs_quota_us", "150000 100000", 1.5)
    text = show(make_evidence(make_limits(quota=1.5, levels=(level,))))
    assert "cgroup v1 /g/cpu.cfs_quota_us is '150000', period '100000'" in text


def test_where_nothing_limits_the_first_line_tells_whether_the_quota_is_known() -> None:
    limits = make_limits(quota=None, cpus=2, host=2, bound_by="host")
    assert "(2 CPUs, no smaller limit)" in show(make_evidence(limits)).splitlines()[0]
    unknown = limits._replace(status="unknown")
    assert "(2 CPUs, the quota is unknown)" in show(make_evidence(unknown)).splitlines()[0]


def test_findings_with_one_fix_share_it() -> None:
    notices = [Notice("n", f"finding {number}", "warning", "do this") for number in range(3)]
    lines = show(make_evidence(notices=(*notices, Notice("m", "other", "warning", "do that")))).splitlines()
    start = lines.index("  - finding 0")
    assert lines[start + 3 :] == ["    fix for these 3: do this", "  - other", "    fix: do that"]


def test_problems_come_with_their_fix() -> None:
    text = show(make_rich_evidence())
    problem = text.index("- libgomp would run 64 threads on 2 usable cores")
    assert text.index("Problems") < problem < text.index("fix: unset OMP_NUM_THREADS or set it to 2")


@pytest.mark.parametrize("evil", ["\x1b[31m", "a\nb", "\0", "\udc80", "x" * 10_000, "\N{SNOWMAN}"])
def test_foreign_text_cannot_break_the_screen(evil: str) -> None:
    level = CgroupLevel(2, f"/sys/{evil}", f"/sys/{evil}/cpu.max", f"{evil} 1", 2.0)
    evidence = make_evidence(
        make_limits(levels=(level,)),
        variables=(VariableState("OMP_NUM_THREADS", evil, evil, "user"),),
        pools=(make_pool(path=f"/lib/{evil}", version=evil, detail=evil),),
        threads=(ThreadGroup(evil, 1, 0),),
        notices=(Notice("odd", f"odd {evil}", "warning", evil),),
    )
    text = show(evidence)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    json.loads(json.dumps(to_dict(evidence, ())))


def test_long_lists_of_findings_are_cut_in_the_text_alone() -> None:
    notices = tuple(Notice("n", f"finding {number}", "warning") for number in range(50))
    evidence = make_evidence(notices=notices)
    assert "and 38 more (--json has all)" in show(evidence)
    assert len(to_dict(evidence, notices)["warnings"]) == 50


def test_v04_json_has_stable_keys() -> None:
    evidence = make_rich_evidence()
    found = json.loads(Report(evidence, find_problems(evidence)).to_json())
    assert list(found) == [
        *("schema", "version", "pid", "python", "usable_cores", "bound_by", "limits", "plan", "settings", "variables"),
        *("pools", "threads", "throttling", "pressure", "counters", "budget", "hidden_limit"),
        *("address_space", "start_method", "modules", "other_counts"),
        *("problems", "warnings", "notes"),
    ]
    assert found["schema"] == 1
    assert found["usable_cores"] == 2
    assert found["limits"]["levels"][0]["raw"] == "250000 100000"
    assert found["throttling"]["share"] == pytest.approx(700 / 1234)
    assert found["pools"][0] == {
        "name": "libgomp",
        "path": "/venv/torch/lib/libgomp-1a2b.so.1",
        "version": "1.0",
        "scope": "thread",
        "threads": 64,
        "detail": "",
    }
    assert found["problems"][0].keys() == {"code", "message", "level", "fix"}


def test_repr_is_short() -> None:
    evidence = make_evidence()
    assert repr(Report(evidence, ())) == "<Report: 2 usable cores, bound by quota, 0 problems>"


def test_a_section_that_fails_says_so() -> None:
    found = show(make_evidence(pools=(make_pool()._replace(path=None),)))  # type: ignore[arg-type]
    assert found.startswith("2 usable cores, bound by quota")
    assert "\n\nConstraints\n" in found
    assert "\n\nPools\n  could not be shown: " in found


@pytest.mark.parametrize("interval", [-1, 3601, float("nan"), "10s", None, True])
def test_an_interval_is_a_number_of_seconds(interval: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="interval"):
        report(interval=interval)
