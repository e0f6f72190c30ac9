"""docs/index.md: what it tells a newcomer to type works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.lab import models
from tests.lab.commands import COMMAND, clean_environ, run, run_python

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "index.md").read_text()


def test_the_python_blocks_run_in_order(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    (tmp_path / "model.gguf").symlink_to(models.tiny_gguf())
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(models.minilm_directory())
    script = "\n".join(
        [
            *blocks,
            "assert vectors.shape == (2, 384)",
            "assert (llm.n_threads, llm.n_threads_batch) == (3, 3)",
            "assert ct.report().problems == (), ct.report()",
        ]
    )
    run_python(f"import os; os.chdir({str(tmp_path)!r})\n{script}", CGROUP_THREADS_CORES="3", HF_HUB_OFFLINE="1")


def test_the_commands_are_understood() -> None:
    commands = re.findall(r"(?:^    |`|\$\()cgroup-threads((?: [a-z-]+)*)", TEXT, re.MULTILINE)
    assert {words.strip() for words in commands} == {"", "--check", "cores", "env", "demo"}
    for words in commands:
        arguments = shlex.split(words)
        done = run([*COMMAND, *arguments, "--help"], clean_environ())
        assert done.returncode == 0, words


def test_links_lead_somewhere() -> None:
    for page in ("index.md", "report.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "docs" / page).read_text()):
            assert (ROOT / "docs" / target).exists(), f"{page}: {target}"
