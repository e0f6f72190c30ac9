"""llama.cpp's performance summaries: read from real logs, and what they are said to mean."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgroup_threads.comparing.llama_reading import LlamaReading, read_llama_summary
from cgroup_threads.comparing.llama_summary import MAX_SUMMARIES, LlamaFacts, parse_facts, parse_summaries
from tests.lab.commands import COMMAND, clean_environ, run

DATA = Path(__file__).parent / "data" / "llama_summaries"


def codes(reading: LlamaReading) -> list[str]:
    return [notice.code for notice in reading.notices]


def lines(prefix: str, rows: list[str]) -> str:
    return "".join(f"{prefix}{row}\n" for row in rows)


def summary(prompt: float, tokens: int, *, load: float = 400.0, eval_ms: float = 0.0, runs: int = 1) -> str:
    """A summary in llama.cpp's layout of today."""
    total = prompt + eval_ms + 0.5
    return lines(
        "llama_perf_context_print: ",
        [
            f"       load time = {load:10.2f} ms",
            f"prompt eval time = {prompt:10.2f} ms / {tokens:5d} tokens ({prompt / tokens:8.2f} ms per token, "
            f"{1000 * tokens / prompt:8.2f} tokens per second)",
            f"       eval time = {eval_ms:10.2f} ms / {runs:5d} runs   ({eval_ms / runs:8.2f} ms per token,      inf "
            "tokens per second)",
            f"      total time = {total:10.2f} ms / {tokens + runs:5d} tokens",
            "   graphs reused =          0",
        ],
    )


# The layouts of the versions.


def test_todays_layout() -> None:
    (found,) = parse_summaries(summary(320.5, 8, load=321.25, eval_ms=100.0, runs=4))
    assert (found.load_ms, found.prompt_ms, found.prompt_tokens) == (321.25, 320.5, 8)
    assert (found.decode_ms, found.decode_tokens, found.total_ms) == (100.0, 4, 421.0)
    assert found.graphs_reused == 0
    assert found.prompt_ms_per_token == pytest.approx(40.0625)
    assert found.decode_ms_per_token == 25.0


OLD = [
    "       load time =   435.83 ms",
    "     sample time =    33.02 ms /    64 runs   (    0.52 ms per token,  1938.34 tokens per second)",
    "prompt eval time =   956.94 ms /     8 tokens (  119.62 ms per token,     8.36 tokens per second)",
    "       eval time =  9896.93 ms /    63 runs   (  157.09 ms per token,     6.37 tokens per second)",
    "      total time = 10901.13 ms",
]
COMMON = [
    "   sampling time =      57.09 ms",
    "   samplers time =      24.44 ms /   104 tokens",
    "       load time =    3252.55 ms",
    "prompt eval time =     859.74 ms /    82 tokens (   10.48 ms per token,    95.38 tokens per second)",
    "       eval time =    1355.04 ms /    21 runs   (   64.53 ms per token,    15.50 tokens per second)",
    "      total time =    2276.43 ms /   103 tokens",
    "unaccounted time =       4.57 ms /   0.2 %      (total - sampling - prompt eval - eval) / (total)",
    "   graphs reused =         20",
]
SERVER = [
    "prompt eval time =    7461.79 ms /   250 tokens (   29.85 ms per token,    33.50 tokens per second)",
    "       eval time =    1765.09 ms /    22 tokens (   84.05 ms per token,    11.90 tokens per second)",
    "      total time =    9226.88 ms /   272 tokens",
    "   graphs reused =       1290",
]


def test_layouts_of_other_versions() -> None:
    (old,) = parse_summaries(lines("llama_print_timings: ", OLD))
    assert (old.load_ms, old.prompt_tokens, old.decode_tokens, old.total_ms) == (435.83, 8, 63, 10901.13)
    assert old.graphs_reused is None
    (common,) = parse_summaries(lines("0.00.396.859 I common_perf_print: ", COMMON))
    assert (common.load_ms, common.prompt_ms, common.decode_ms) == (3252.55, 859.74, 1355.04)
    assert (common.total_ms, common.graphs_reused) == (2276.43, 20)
    (server,) = parse_summaries(lines("pod-1 | slot print_timing: id  0 | task 1314 | ", SERVER))
    assert (server.load_ms, server.prompt_tokens, server.decode_tokens) == (None, 250, 22)
    assert server.graphs_reused == 1290


def test_several_summaries_in_one_log() -> None:
    log = lines("slot print_timing: | ", SERVER) * 2 + "noise\n" + summary(5.0, 3) + lines("llama_print_timings: ", OLD)
    assert [found.prompt_tokens for found in parse_summaries(log)] == [250, 250, 3, 8]
    without_load = lines("common_perf_print: ", COMMON[3:6])
    assert len(parse_summaries(without_load * 3)) == 3


def test_no_summary() -> None:
    for text in ("", "no such thing\n", "load time = 3.00 ms\n", "prompt eval time = x ms"):
        reading = read_llama_summary(text)
        assert (reading.summaries, reading.notices) == ((), ())
        assert str(reading) == "no performance summary of llama.cpp was found"
    assert read_llama_summary().summaries == ()


def test_facts_of_a_log() -> None:
    log = (
        "print_info: file size   = 361.00 MiB (4.50 BPW)\nprint_info: model params     = 595.78 M\n"
        "system_info: n_threads = 8 (n_threads_batch = 256) / 256 | CPU : SSE3 = 1 |\n"
    )
    assert parse_facts(log) == LlamaFacts(361 * 2.0**20, 595.78e6, 8, 256, 256)
    assert parse_facts("system_info: n_threads = 8 / 256 | AVX = 1") == LlamaFacts(None, None, 8, 8, 256)
    assert parse_facts("") == LlamaFacts()
    assert "llama-threads-batch" in codes(read_llama_summary(log + summary(5.0, 8)))


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    read_llama_summary(text)
    read_llama_summary(f"prompt eval time = {text} ms / {text} tokens")


def test_a_log_without_end_is_read_to_a_bound() -> None:
    assert len(parse_summaries(summary(5.0, 3) * (MAX_SUMMARIES + 10))) == MAX_SUMMARIES


# What they mean. A model of 0.6 billion parameters in 361 MiB, as in the docs.

MODEL = "print_info: file size   = 361.00 MiB (4.50 BPW)\nprint_info: model params     = 595.78 M\n"


def test_time_that_does_not_grow_with_the_input_is_the_threads() -> None:
    reading = read_llama_summary(MODEL + summary(320_000, 8), summary(321_000, 16))
    assert codes(reading)[:2] == ["llama-impossible", "llama-flat-prompt"]
    assert {notice.level for notice in reading.notices[:2]} == {"problem"}
    assert all("n_threads_batch" in notice.fix for notice in reading.notices[:2])
    assert "takes 320000 ms for 8 tokens and 321000 ms for 16" in reading.notices[1].message


def test_time_that_grows_with_the_input_is_computation() -> None:
    reading = read_llama_summary(MODEL + summary(400, 8) + summary(800, 16))
    assert "llama-grows" in codes(reading)
    assert {notice.level for notice in reading.notices} == {"info"}


def test_a_short_time_that_is_flat_is_no_problem() -> None:
    reading = read_llama_summary(MODEL + summary(20, 8) + summary(21, 16))
    assert "llama-flat-short" in codes(reading)
    assert {notice.level for notice in reading.notices} == {"info"}


def test_prompts_of_about_the_same_length_tell_nothing() -> None:
    found = codes(read_llama_summary(summary(400, 8) + summary(400, 9)))
    assert not {"llama-grows", "llama-flat-prompt", "llama-flat-short"} & set(found)


def test_one_summary_can_be_impossible() -> None:
    """40 s a token at 0.6 billion parameters: no disk and no core is as slow as that."""
    reading = read_llama_summary(MODEL + summary(320_000, 8, load=321_000))
    assert "llama-impossible" in codes(reading)
    assert "0.596 billion parameters" in reading.notices[0].message


@pytest.mark.parametrize(
    ("text", "impossible"),
    [
        (MODEL + summary(5_000, 8), False),  # 5 s for 8 tokens: a slow core
        (MODEL + summary(60_000, 8, load=61_000), False),  # the first evaluation, from a slow disk
        (MODEL + summary(60_000, 8), True),  # a later one
        (summary(70_000, 8), False),  # of a model that may be large
        (summary(320_000, 8), True),
        (MODEL + summary(100, 8, eval_ms=400_000, runs=10), True),  # decoding
        (MODEL + summary(100, 8, eval_ms=10_000, runs=10), False),
    ],
)
def test_what_is_impossible(text: str, impossible: bool) -> None:
    assert ("llama-impossible" in codes(read_llama_summary(text))) is impossible


def test_load_time_includes_the_first_evaluation() -> None:
    reading = read_llama_summary(summary(300, 8, load=310))
    told = next(notice for notice in reading.notices if notice.code == "llama-load-time")
    assert told.level == "info"
    assert "300 of its 310 ms are that" in told.message
    assert "llama-load-time" not in codes(read_llama_summary(summary(300, 8, load=900)))


def test_which_count_the_time_depends_on() -> None:
    assert "llama-batch-path" in codes(read_llama_summary(summary(300, 8)))
    assert "llama-decode-path" in codes(read_llama_summary(summary(3, 8, eval_ms=500, runs=20)))
    both = codes(read_llama_summary(summary(300, 8, eval_ms=300, runs=20)))
    assert not {"llama-batch-path", "llama-decode-path"} & set(both)


def test_a_token_of_a_batch_is_cheaper_than_one_by_itself() -> None:
    wrong = read_llama_summary(summary(4000, 8, eval_ms=200, runs=20))
    assert "llama-batch-slower" in codes(wrong)
    assert "llama-batch-slower" not in codes(read_llama_summary(summary(40, 8, eval_ms=200, runs=20)))
    assert "llama-batch-slower" not in codes(read_llama_summary(summary(160, 8, eval_ms=60, runs=20)))  # too short


def test_no_reused_graphs_are_no_finding() -> None:
    told = [n for n in read_llama_summary(summary(300, 8)).notices if n.code == "llama-graphs-reused"]
    assert [notice.level for notice in told] == ["info"]
    assert "no finding" in told[0].message


# Real logs of llama-cpp-python 0.3.36, verbose=True: excerpts with all summaries. "forgotten" are runs without
# n_threads_batch on a host that seemed to have 8 CPUs, in a quota of one core.


def real(name: str) -> LlamaReading:
    return read_llama_summary((DATA / name).read_text(encoding="utf-8"))


def test_a_real_log_of_embeddings() -> None:
    reading = real("embedding.txt")
    assert [found.prompt_tokens for found in reading.summaries] == [8, 26, 8]
    assert [found.prompt_ms for found in reading.summaries] == [15.96, 40.16, 12.31]
    assert reading.facts.parameters == 22.57e6
    assert codes(reading) == ["llama-grows", "llama-batch-path", "llama-graphs-reused"]
    assert {notice.level for notice in reading.notices} == {"info"}


def test_a_real_log_of_embeddings_without_the_argument() -> None:
    reading = real("embedding_forgotten_batch.txt")
    levels = {notice.code: notice.level for notice in reading.notices}
    assert levels == {
        "llama-impossible": "problem",
        "llama-flat-prompt": "problem",
        "llama-batch-path": "info",
        "llama-load-time": "info",
        "llama-graphs-reused": "info",
    }
    assert "prompt eval: 1546 ms a token" in reading.notices[0].message  # the worst, and not the first, from the disk


def test_a_real_log_of_a_decoder() -> None:
    reading = real("decode.txt")
    assert (reading.summaries[0].decode_tokens, reading.summaries[0].graphs_reused) == (23, 22)
    assert codes(reading) == ["llama-load-time"]
    wrong = real("decode_forgotten_batch.txt")
    assert codes(wrong) == ["llama-batch-slower", "llama-batch-path", "llama-load-time"]


# The command line.


def test_a_pasted_log_is_explained(tmp_path: Path) -> None:
    log = MODEL + summary(320_000, 8) + summary(321_000, 16)
    done = subprocess.run(
        [*COMMAND, "compare", "--check", "--read-llama", "-"],
        env=clean_environ(), input=log, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem: prompt eval: 40000 ms a token is not computation" in done.stdout
    assert " ".join(done.stdout.split()).count("set n_threads_batch (--threads-batch)") == 1  # once, for both findings
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(summary(320_000, 8))
    second.write_text(summary(321_000, 16))
    both = run([*COMMAND, "compare", "--json", "--read-llama", str(first), "--read-llama", str(second)])
    assert both.returncode == 0, both.stderr
    found = json.loads(both.stdout)
    assert [each["prompt_tokens"] for each in found["summaries"]] == [8, 16]
    assert "llama-flat-prompt" in [notice["code"] for notice in found["notices"]]


def test_a_log_without_a_summary_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\0nothing")
    done = run([*COMMAND, "compare", "--read-llama", str(log)])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cgroup-threads: error: compare: no performance summary of llama.cpp was found")


EMBED = """
import sys
from llama_cpp import Llama
llm = Llama(sys.argv[1], embedding=True, n_ctx=512, n_batch=512, n_ubatch=512, verbose=True,
            n_threads=1, **({"n_threads_batch": 1} if sys.argv[2] == "right" else {}))
for text in ("threads must never change any result", "threads must never change any result " * 4):
    llm.embed(text)
"""
DECODE = """
import sys
from llama_cpp import Llama
llm = Llama(sys.argv[1], n_ctx=256, verbose=True, n_threads=1, n_threads_batch=1)
llm("The capital of France is", max_tokens=16, temperature=0.0)
"""


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_numbers_without_end_are_no_numbers(digits: int) -> None:
    """int() refuses more than 4300 digits, and float() makes infinity of 400, which is no JSON."""
    big = "9" * digits
    text = (
        f"load time = 1 ms\nprompt eval time = {big} ms / 1 tokens\neval time = 5 ms / {big} runs\n"
        f"total time = {big}.{big} ms\ngraphs reused = {big}\nn_threads = {big} (n_threads_batch = {big}) / {big}\n"
        f"model params = {big} B\nfile size = {big} GiB\n"
    )
    found = read_llama_summary(text)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.facts == LlamaFacts()
    assert [(one.prompt_ms, one.decode_tokens, one.total_ms) for one in found.summaries] == [(None, 0, None)]


def test_a_model_of_no_size_is_an_unknown_one() -> None:
    found = read_llama_summary(summary(90_000, 1) + "model params = 0 B\n")
    assert "a model of 5 billion parameters (the log does not say" in found.notices[0].message
