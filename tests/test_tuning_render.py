"""The result of a tuning as text, Markdown and JSON, from made-up results."""

from __future__ import annotations

import json
import math

import pytest

from cgroup_threads.notices import Notice
from cgroup_threads.tuning.records import Bandwidth, Identity, Point, Task
from cgroup_threads.tuning.render import WIDTH, markdown, render, to_json
from cgroup_threads.tuning.table import make_table, measure_spread, relate
from tests.tuning_samples import BANDWIDTH, DECODE, NOTICE, PREFILL, make_curve, make_result, make_wide_result

EVIL = "\x1b[31m\udcff\n\N{SNOWMAN} | `x` <b> $ {} %s"


def rows_of(text: str, task: str) -> list[list[str]]:
    """The words of each line of one task's table."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"{task}, by "))
    return [line.split() for line in lines[start + 1 :][:5]]


def test_a_table_for_each_task_with_the_knee_marked() -> None:
    text = render(make_result())
    decode, prefill = rows_of(text, "decode"), rows_of(text, "prefill")
    assert decode[0] == ["threads", "tokens/s", "spread", "ratio", "efficiency"]
    assert decode[1][:2] == ["1", "180"]
    assert decode[1][-6:] == ["%", "1.00", "100", "%", "<-", "knee"]
    assert decode[2][-4:] == ["1.01", "51", "%", "best"]
    assert decode[3][-4:] == ["0.50", "17", "%", "burst"]
    assert prefill[2][-5:] == ["1.90", "95", "%", "<-", "knee"]
    assert text.count("<- knee") == 2


def test_the_columns_are_aligned_and_lines_fit_the_terminal() -> None:
    for result in (make_result(notices=(NOTICE,), bandwidth=BANDWIDTH), make_wide_result()):
        lines = render(result).splitlines()
        assert max(map(len, lines)) <= WIDTH
        head = next(index for index, line in enumerate(lines) if "threads  tokens/s" in line)
        rows = lines[head : head + 1 + len(result.points)]
        ends = {line.index("%", line.index("+-")) for line in rows[1:]}
        assert len(ends) == 1


def test_the_lines_below_say_what_to_pass_and_how_sure_it_is() -> None:
    text = render(make_result(bandwidth=BANDWIDTH))
    lines = [line.strip() for line in text.splitlines()]
    assert "n_threads=1: 98.9 % of the best median (2 threads); 97 % of resamples agree, 90 % say 1 to 2" in lines
    assert "n_threads_batch=2: the best median; 97 % of resamples agree" in lines
    assert "Pass n_threads=1, n_threads_batch=2." in lines
    assert "Decode reads 253 MB of weights a token: 45.5 GB/s, 88 % of the 52.0 GB/s measured here." in lines
    assert "Took 48 s, 15 rounds of each count." in lines
    assert lines[:2] == [
        "model.gguf, llama-cpp-python 0.3.36",
        "2 usable cores of 4 CPUs, no CPU quota, Some CPU @ 2.1GHz",
    ]


def test_a_law_through_two_counts_is_not_called_a_good_fit() -> None:
    text = " ".join(render(make_result()).split())
    assert "from 2 counts, not tested" in text
    assert "R squared" not in text
    assert "universal law" not in text  # three parameters: none was fitted
    wide = " ".join(render(make_wide_result()).split())
    assert (wide.count("R squared"), wide.count("R squared 1.000")) == (4, 3)  # Amdahl knows no peak
    assert "not tested" not in wide


def test_what_the_laws_predict() -> None:
    n = range(1, 33)
    amdahl = make_curve(DECODE, {k: 10 * k / (1 + 0.1 * (k - 1)) for k in n}, usable=32, knee=32, noise=0.0)
    text = " ".join(render(make_result([amdahl])).split())
    assert "Amdahl's law: 10.0 % serial, at most 100 tokens/s, 10.0 times one thread; R squared 1.000" in text
    assert "crosstalk 0.00 %, no peak in sight" in text
    perfect = make_curve(DECODE, {k: 10.0 * k for k in n}, usable=32, knee=32, noise=0.0)
    assert "Amdahl's law: 0.0 % serial, no limit in sight" in render(make_result([perfect]))
    falling = {k: 10 * k / (1 + 0.05 * (k - 1) + 0.01 * k * (k - 1)) for k in n}
    text = render(make_result([make_curve(DECODE, falling, usable=32, knee=10, noise=0.0)]))
    assert "contention 5.0 %, crosstalk 1.00 %, peak at 9.75 threads with" in text


def test_throttling_has_a_column_where_there_is_a_quota() -> None:
    curve = make_curve(DECODE, {1: 10.0, 2: 15.0}, usable=1, knee=1)
    points = (curve.points[0]._replace(throttled=0.0), curve.points[1]._replace(throttled=0.874, spoilt=2))
    identity = Identity("", "", "", 1, 1.0)
    rows = rows_of(render(make_result([curve._replace(points=points)], identity=identity)), "decode")
    assert rows[0][-1] == "throttled"
    assert rows[1][-4:] == ["0", "%", "<-", "knee"]
    assert rows[2][-6:] == ["87", "%", "burst,", "2", "rounds", "spoilt"]
    assert "throttled" not in render(make_result())


def test_conditions_without_a_cpu_name_and_with_a_quota() -> None:
    text = render(make_result(identity=Identity("", "", "", 1, 1.5), cpus=1))
    assert text.splitlines()[1] == "1 usable core of 1 CPU, CPU quota of 1.5"


def test_a_command_shows_the_time_of_a_run() -> None:
    curve = make_curve(Task("command", "runs", "{threads}"), {1: 0.5, 2: 0.9}, usable=2, knee=2, noise=0.0)
    text = render(make_result([curve]))
    rows = rows_of(text, "command")
    assert rows[0] == ["threads", "runs/s", "spread", "one", "run", "ratio", "efficiency"]
    assert rows[1][:6] == ["1", "0.500", "+-", "0.0", "%", "2.00"]
    assert "Pass {threads}=2." in text
    quick = make_curve(Task("call", "calls"), {1: 500.0}, usable=1, knee=1, noise=0.0)
    assert "2.00 ms" in render(make_result([quick]))


def test_notices_come_with_their_fix_and_spoilt_rounds_are_marked() -> None:
    curve = make_curve(DECODE, {1: 10.0, 2: 15.0}, usable=2, knee=2)
    points = (curve.points[0], curve.points[1]._replace(spoilt=1, rates=(15.0,), calls=(0.1,)))
    note = Notice("x", "the weights fit the cache")
    lines = render(make_result([curve._replace(points=points)], notices=(note, NOTICE))).splitlines()
    assert lines[-6:] == [
        "Warnings",
        "  - 1 of 15 rounds was disturbed",
        "    fix: stop what else runs",
        "",
        "Notes",
        "  - the weights fit the cache",
    ]
    assert "Pass n_threads=2, but see the warnings." in lines
    assert any(line.endswith("<- knee, 1 round spoilt") for line in lines)
    assert "Took 48 s, 1 to 15 rounds of each count." in lines


def test_a_count_without_rounds_and_a_curve_without_one_thread() -> None:
    curve = make_curve(DECODE, {2: 15.0, 4: 20.0}, usable=4, knee=4)
    points = (*curve.points, Point(8, (), (), burst=True, spoilt=3))
    rows = rows_of(render(make_result([curve._replace(points=points)])), "decode")
    assert rows[1][-2:] == ["-", "-"]
    assert rows[3] == ["8", "-", "-", "-", "-", "burst,", "3", "rounds", "spoilt"]


def test_spread_and_relation() -> None:
    assert measure_spread(Point(1, (90.0, 95.0, 100.0, 105.0, 110.0), ())) == pytest.approx(0.05)
    assert measure_spread(Point(1, (90.0,), ())) is None
    assert measure_spread(Point(1, (0.0, 0.0), ())) is None
    points = (Point(1, (10.0,), ()), Point(4, (30.0,), ()))
    assert relate(points[1], points) == (3.0, 0.75)
    assert relate(points[1], points[1:]) == (None, None)


def test_foreign_text_cannot_break_the_text() -> None:
    result = make_result(
        title=EVIL, identity=Identity("", EVIL, EVIL, 2, None), notices=(Notice("x", EVIL, "info", EVIL),)
    )
    for text in (render(result), to_json(result)):
        assert text.isascii()
        assert text.replace("\n", "").isprintable()
    text = markdown(result)
    assert text.isascii()
    assert r"\|" in text
    assert r"\`x\` \<b\>" in text


def test_markdown_is_a_table_that_github_reads() -> None:
    result = make_result(bandwidth=BANDWIDTH, notices=(NOTICE,))
    lines = markdown(result).splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("| threads"))
    assert lines[head - 1] == ""  # else it is part of the paragraph above
    table = lines[head : head + 2 + len(result.points)]
    assert {line.count("|") for line in table} == {len(make_table(result.curves[0]).head) + 1}
    assert table[1] == "| ---: | ---: | ---: | ---: | ---: | --- |"
    assert table[2].endswith("| 1.00 | 100 % | **knee** |")
    assert r"- Pass n\_threads=1, n\_threads\_batch=2, but see the warnings." in lines
    assert "- Warning: 1 of 15 rounds was disturbed (fix: stop what else runs)" in lines
    assert all(not line or line.startswith(("**", "|", "- ", "2 usable")) for line in lines)


def test_json_has_everything() -> None:
    result = make_result(bandwidth=BANDWIDTH, notices=(NOTICE,))
    found = json.loads(to_json(result))
    assert found["schema"] == 1
    assert found["arguments"] == {"n_threads": 1, "n_threads_batch": 2}
    assert found["identity"]["usable"] == 2
    assert (found["cpus"], found["elapsed_seconds"]) == (4, 48.3)
    assert [task["name"] for task in found["tasks"]] == ["decode", "prefill"]
    point = found["tasks"][1]["points"][1]
    measured = result.curves[1].points[1]
    assert point["rates"] == list(measured.rates)
    assert point["median"] == measured.median
    assert point["ratio"] == pytest.approx(1.9)
    assert point["efficiency"] == pytest.approx(0.95)
    assert found["tasks"][0]["recommendation"] == result.curves[0].recommendation._asdict()
    assert found["tasks"][0]["amdahl"]["serial"] == pytest.approx(result.serial_fraction)
    assert found["tasks"][0]["universal"] is None
    assert found["bandwidth"]["share"] == pytest.approx(45.5 / 52)
    assert found["notices"] == [NOTICE._asdict()]
    assert result.to_json() == to_json(result)
    assert str(result) == render(result)


def test_json_has_no_infinities() -> None:
    n = range(1, 5)
    perfect = make_curve(PREFILL, {k: 10.0 * k for k in n}, usable=4, knee=4, noise=0.0)
    assert perfect.amdahl is not None
    assert math.isinf(perfect.amdahl.limit)
    nothing = perfect._replace(points=(Point(1, (), ()), Point(2, (math.nan,), (math.inf,))))
    text = to_json(make_result([perfect, nothing], bandwidth=Bandwidth(1, math.nan, 0.0)))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(text, parse_constant=refuse)
    assert found["tasks"][0]["amdahl"]["limit"] is None
    assert found["tasks"][1]["points"][0]["median"] is None
    assert found["bandwidth"] == {
        "weights_bytes": 1,
        "used_bytes_per_second": None,
        "machine_bytes_per_second": 0.0,
        "share": None,
    }
