"""The service benchmark's own arithmetic, its table from made-up runs, and its load generator on a tiny server."""

from __future__ import annotations

import asyncio
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import service, service_load
from benchmarks.service_cells import (
    ARMS,
    DEFAULT_ARMS,
    WORKLOADS,
    Cell,
    Store,
    choose_cells,
    distinct_arms,
    estimate_seconds,
    families,
    finished,
    load_records,
    parse_cell,
    rotate,
    thread_variables,
)
from benchmarks.service_load import Answer, Job, Load, build_request, parse_head, quantile
from benchmarks.service_servers import Sampler, parse_stat
from benchmarks.service_table import collect, compare, geometric_mean, render

CELL = Cell(1.5, 10, 4, "st-small")


def run_record(
    arm: str, rate: float, milliseconds: float, cell: Cell = CELL, turn: int = 0, n: int = 100
) -> dict[str, Any]:
    """A measurement in which every request took ``milliseconds``."""
    return {
        "kind": "run",
        "cell": cell.name,
        "arm": arm,
        "round": turn,
        "requests": n,
        "seconds": 2.0,
        "rate": rate,
        "latencies": [round(milliseconds * 10)] * n,
        "spread": [n],
        "errors": 0,
        "drained": True,
        "generator_cpu": 0.02,
        "threads": 12,
        "running_max": 4,
        "running_mean": 1.5,
        "samples": 100,
        "cpu": 1.8,
        "throttled": 0.5,
    }


# Cells and arms.


def test_names_of_cells_lead_back_to_them() -> None:
    cells = choose_cells([])
    assert len(cells) == len({cell.name for cell in cells}) == 3 * 4 * 2 * len(WORKLOADS)
    assert [parse_cell(cell.name) for cell in cells] == cells
    assert CELL.name == "q1.5-c10-w4-st-small"


def test_patterns_choose_cells() -> None:
    assert choose_cells([CELL.name]) == [CELL]
    assert {cell.quota for cell in choose_cells(["q1-*"])} == {1.0}
    assert {cell.callers for cell in choose_cells(["*-c4-*", "*-c32-*"])} == {4, 32}
    assert choose_cells(["q3-*"]) == []
    assert set(choose_cells([], quick=True)) < set(choose_cells([]))


def test_a_family_comes_once() -> None:
    found = [family for family, _ in families(choose_cells([]))]
    assert len(found) == len(set(found)) == 3 * 2 * 2


@pytest.mark.parametrize(
    ("arm", "quota", "threads"),
    [
        ("defaults", 2.0, None),
        ("ours", 2.0, None),
        ("omp1", 2.0, "1"),
        ("host24", 1.0, "24"),
        ("quota", 2.0, "2"),
        ("quota", 1.5, "1"),
        ("quota", 0.5, "1"),
    ],
)
def test_thread_variables(arm: str, quota: float, threads: str | None) -> None:
    assert thread_variables(ARMS[arm], quota).get("OMP_NUM_THREADS") == threads


def test_only_counts_above_the_machine_switch_mkl_dynamic_off() -> None:
    assert "MKL_DYNAMIC" in thread_variables(ARMS["host24"], 2.0)
    assert "MKL_DYNAMIC" not in thread_variables(ARMS["quota"], 2.0)


def test_the_same_settings_are_measured_once() -> None:
    arms, same = distinct_arms(DEFAULT_ARMS, 1.5)
    assert [arm.name for arm in arms] == ["defaults", "host24", "omp1", "ours"]
    assert same == {"quota": "omp1"}
    assert distinct_arms(DEFAULT_ARMS, 2.0)[1] == {}


def test_each_arm_is_first_once() -> None:
    arms = [ARMS[name] for name in DEFAULT_ARMS]
    turns = [rotate(arms, turn) for turn in range(len(arms))]
    assert {turn[0] for turn in turns} == set(arms)
    assert all(set(turn) == set(arms) for turn in turns)


def test_the_estimate_counts_measurements_and_starts() -> None:
    cell = choose_cells(["q2-c1-w1-np-10"])
    one, two = (estimate_seconds(cell, ["omp1", "ours"], rounds, 7.5) for rounds in (1, 2))
    assert two - one == pytest.approx(2 * 8.1)
    assert one > 2 * 8.1


# The file.


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    store = Store(path)
    store.append({"kind": "about"})
    store.append(run_record("ours", 10, 5))
    with path.open("a") as file:
        file.write('{"kind":"run","cell":"q1-c')
    assert finished(load_records(path)) == {(CELL.name, "ours", 0)}


def test_what_is_missing_is_measured_in_turns(tmp_path: Path) -> None:
    arguments = ["--arms", "omp1", "ours", "--rounds", "2", "--json", str(tmp_path / "f")]
    run = service.Run(service.parse(arguments), [CELL], [run_record("omp1", 1, 1)])
    assert [(turn, arm.name) for turn, arm in run.missing(CELL)] == [(0, "ours"), (1, "ours"), (1, "omp1")]
    assert run.progress.total == 3


def test_files_are_not_mixed_unasked(tmp_path: Path) -> None:
    path = tmp_path / "f"
    options = service.parse(["--json", str(path)])
    assert service.known_records(options) == []
    Store(path).append(service.describe(options))
    with pytest.raises(SystemExit, match="--resume"):
        service.known_records(options)
    again = ["--json", str(path), "--resume"]
    assert len(service.known_records(service.parse(again))) == 1
    with pytest.raises(SystemExit, match="other settings"):
        service.known_records(service.parse([*again, "--seconds", "9"]))


def test_a_measurement_with_errors_is_taken_again_and_replaced() -> None:
    bad, good = {**run_record("ours", 1, 1), "errors": 3}, run_record("ours", 10, 5)
    assert finished([bad]) == set()
    assert finished([bad, good]) == {(CELL.name, "ours", 0)}
    assert collect([bad, good])[CELL]["ours"].rate == 10


# The table.


def test_ours_is_compared_with_the_best_arm_of_each_figure() -> None:
    records = [run_record("defaults", 50, 40), run_record("omp1", 100, 80), run_record("ours", 110, 50)]
    arms = collect(records)[CELL]
    compared = compare(CELL, arms.pop("ours"), arms)
    assert compared is not None
    assert compared.throughput == pytest.approx(1.1)
    assert compared.tail == pytest.approx(1.25)
    assert (compared.throughput_arm, compared.tail_arm, compared.tail_name) == ("omp1", "defaults", "p95")


def test_p99_needs_a_thousand_requests_of_both() -> None:
    many = [run_record(arm, 100, 10, turn=turn, n=500) for arm in ("omp1", "ours") for turn in (0, 1)]
    arms = collect(many)[CELL]
    compared = compare(CELL, arms["ours"], {"omp1": arms["omp1"]})
    assert compared is not None
    assert compared.tail_name == "p99"
    few = collect(many[:-1])[CELL]
    compared = compare(CELL, few["ours"], {"omp1": few["omp1"]})
    assert compared is not None
    assert compared.tail_name == "p95"


def test_rounds_are_summarised_by_their_median() -> None:
    records = [run_record("ours", rate, 10, turn=turn) for turn, rate in enumerate((90, 100, 10))]
    summary = collect(records)[CELL]["ours"]
    assert (summary.rate, summary.spread, summary.requests, summary.rounds) == (90, (10, 100), 300, 3)
    assert summary.cpu == pytest.approx(0.9)


def test_cells_that_stand_out_are_named() -> None:
    slow, late = parse_cell("q1-c10-w1-st-small"), parse_cell("q2-c1-w1-np-10")
    text = render(
        [
            service.describe(service.parse([])),
            *(run_record(arm, rate, 10, slow) for arm, rate in (("omp1", 100), ("ours", 80))),
            *(run_record(arm, 100, ms, late) for arm, ms in (("omp1", 10), ("ours", 15))),
        ]
    )
    assert "Below 0.85 x throughput: q1-c10-w1-st-small 0.80." in text
    assert "Above 1.3 x tail latency: q2-c1-w1-np-10 1.50 (p95)." in text
    assert f"| geometric mean of 2 | {math.sqrt(0.8):.2f} |" in text
    assert "| q1-c10-w1-st-small | quota | the same settings as omp1 |" in text
    assert "| q2-c1-w1-np-10 | quota |" not in text
    widths = [line.count("|") for line in text.splitlines() if line.startswith("| q") and "req/s" not in line]
    assert set(widths) == {13, 6}


def test_an_arm_without_answers_is_no_rival() -> None:
    records = [run_record("host24", 0, 0, n=0), run_record("omp1", 10, 5), run_record("ours", 10, 5)]
    assert "host24 | 0 (0-0) | - " in render(records)
    arms = collect(records)[CELL]
    assert compare(CELL, arms["ours"], {"host24": arms["host24"]}) is None


def test_figures_of_an_arm_with_errors_are_shown_and_not_compared() -> None:
    records = [run_record("omp1", 10, 5), {**run_record("ours", 99, 1), "errors": 3}]
    text = render(records)
    assert "100, 3 errors" in text
    assert "geometric mean" not in text


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1)
    assert math.isnan(geometric_mean([]))


# Seen from outside.


def test_a_stat_file_is_read_behind_the_name() -> None:
    fields = ["S", *map(str, range(4, 53))]
    state, _, threads = parse_stat(f"7 (py) R (x) {' '.join(fields)}")
    assert (state, threads) == ("S", 20)
    assert parse_stat(Path("/proc/thread-self/stat").read_text())[0] == "R"


def test_the_sampler_sees_this_thread_running() -> None:
    sampler = Sampler([os.getpid()])
    sampler.sample()
    found = sampler.result()
    assert found["running_max"] >= 1
    assert found["threads"] >= found["running_max"]


# The load generator.


@pytest.mark.parametrize(("q", "expected"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.95, 4), (1.0, 4)])
def test_quantile(q: float, expected: int) -> None:
    assert quantile([1, 2, 3, 4], q) == expected


def test_the_head_of_an_answer() -> None:
    assert parse_head(b"HTTP/1.1 200 OK\r\nX-Worker: 17\r\ncontent-length: 5") == (200, 17, 5)


def test_the_request_carries_its_length_in_bytes() -> None:
    request = build_request(Job(1, "/encode", "\u00e9", 1, []))
    assert b"content-length: 2\r\n" in request
    assert request.endswith(b"\r\n\r\n\xc3\xa9")


def test_answers_are_summarised() -> None:
    found = service_load.summarise([Answer(0, 0.25, 5), Answer(0, 0.5, 6), Answer(1, 1.01, 6)], 2.0)
    assert (found["rate"], found["latencies"], found["spread"]) == (1.5, [100, 2500, 5000], [2, 1])


def load_server(job: dict[str, Any], answers: int | None = None) -> tuple[dict[str, Any], list[int]]:
    """Run a job against a server of this process, which names worker 1 and 2 in turn and closes after ``answers``."""
    bodies: list[int] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        worker = connections % 2 + 1
        try:
            while answers is None or len(bodies) < answers:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"post"):
                    length = int(head.split(b"content-length:")[1].split()[0])
                    bodies.append(len(await reader.readexactly(length)))
                text = f"HTTP/1.1 200 OK\r\nx-worker: {worker}\r\ncontent-length: 3\r\n\r\n"
                writer.write(text.encode())
                await writer.drain()
                writer.write(b"abc")  # an answer may come in pieces
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def work() -> dict[str, Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            lines: list[dict[str, Any]] = []
            result = await Load(Job(port=port, path="/x", body=json.dumps({"a": 1}), **job)).run(lines.append)
            assert [list(line) for line in lines] == [["start"], ["end"]]
            return result
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(work()), bodies


def test_callers_ask_in_a_closed_loop_and_spread_evenly() -> None:
    result, bodies = load_server({"callers": 4, "pids": [1, 2], "warmup": 0, "requests": 200, "patience": 20})
    assert result["requests"] >= 200
    assert (result["errors"], result["drained"]) == (0, True)
    assert len(result["spread"]) == 2
    assert set(bodies) == {len('{"a": 1}')}
    assert len(result["latencies"]) == result["requests"]


def test_lost_connections_are_errors_and_end_the_run() -> None:
    job = {"callers": 2, "pids": [1, 2], "warmup": 30, "seconds": 30, "patience": 30}
    result, _ = load_server(job, answers=20)
    assert result["errors"] >= 2
    assert result["requests"] == 0
