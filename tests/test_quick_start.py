"""README.md and docs/index.md: what they tell a newcomer to type works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.lab import models, require_module
from tests.lab.commands import COMMAND, clean_environ, run, run_python

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "index.md").read_text()


# One request to a FastAPI application, without a server: what comes back is (status, body).
REQUEST = """
import asyncio, json
def request(method, path, content=None):
    sent = []
    async def receive(): return {"type": "http.request", "body": json.dumps(content).encode(), "more_body": False}
    async def send(message): sent.append(message)
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
             "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
"""


def run_blocks(text: str, directory: Path, number: int, *checks: str) -> None:
    """Run the Python blocks of a page in order in ``directory``, where the models they name are, then ``checks``."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == number
    (directory / "model.gguf").symlink_to(models.tiny_gguf())
    (directory / "all-MiniLM-L6-v2").symlink_to(models.minilm_directory())
    script = "\n".join([f"import os; os.chdir({str(directory)!r})", *blocks, *checks])
    run_python(script, CGROUP_THREADS_CORES="3", HF_HUB_OFFLINE="1")


def test_the_python_blocks_run_in_order(tmp_path: Path) -> None:
    run_blocks(
        TEXT,
        tmp_path,
        3,
        "assert vectors.shape == (2, 384)",
        "assert lease.threads == 3",
        "assert (llm.n_threads, llm.n_threads_batch) == (3, 3)",
        "assert ct.report().problems == (), ct.report()",
    )


def test_the_readmes_python_blocks_run_in_order(tmp_path: Path) -> None:
    require_module("fastapi")
    run_blocks(
        (ROOT / "README.md").read_text(),
        tmp_path,
        2,
        "assert vectors.shape == (2, 384)",
        "assert len(vector) == llm.n_embd()",
        REQUEST,
        "status, found = request('POST', '/embed', texts)",
        "assert status == 200, found",
        "assert [len(one) for one in found] == [384, 384]",
        "status, found = request('GET', '/threads')",
        "assert (status, found['usable_cores'], found['problems']) == (200, 3, []), found",
    )


def test_the_readmes_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_the_commands_are_understood() -> None:
    commands = re.findall(r"(?:^    |`|\$\()cgroup-threads((?: [a-z-]+)*)", TEXT, re.MULTILINE)
    assert {words.strip() for words in commands} == {"", "--check", "cores", "env", "demo"}
    for words in commands:
        arguments = shlex.split(words)
        done = run([*COMMAND, *arguments, "--help"], clean_environ())
        assert done.returncode == 0, words


def test_links_lead_somewhere() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            there = ROOT / "docs" / (target or page.name)
            assert there.exists(), f"{page.name}: {target}"
            heads = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in [head.lower().replace(" ", "-") for head in heads], f"{page.name}: #{anchor}"
