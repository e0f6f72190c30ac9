"""Looking again: what may have changed is read each time, and nothing that need not be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from cgroup_threads.detection.schedulers import read_grants
from tests.lab.commands import run_python

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# The soft limits as detection knows them and as the kernel writes them, before and after each change.
RLIMITS = """
import json, resource
import cgroup_threads as ct
from cgroup_threads.detection.linux import _read_resource_limits
from cgroup_threads.detection.procfs import Files

seen = []
def look(): seen.append([_read_resource_limits(Files(), "self", first=first) for first in (True, False)])
ct.detect()
look()
for kind, limit in (
    (resource.RLIMIT_NPROC, 30000),
    (resource.RLIMIT_AS, 1 << 40),
    (resource.RLIMIT_STACK, 1 << 20),
):
    resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    look()
print(json.dumps([seen, list(ct.detect().address_space)]))
"""
FILES = """
import os, sys
import cgroup_threads as ct
for _ in range(3): ct.detect()
opened = []
sys.addaudithook(lambda event, arguments: opened.append(os.fspath(arguments[0])) if event == "open" else None)
ct.detect()
print("\\n".join(opened))
"""


@needs_linux
def test_resource_limits_are_the_kernels_text_and_followed() -> None:
    seen, space = json.loads(run_python(RLIMITS).stdout)
    for from_file, from_kernel in seen:
        assert from_file == from_kernel
    assert seen[1][1][0] == 30000
    assert seen[2][1][1] == 1 << 40
    assert seen[3][1][2] == 1 << 20
    assert space == [1 << 40, 1 << 20]


@needs_linux
def test_the_dear_files_are_not_read_again() -> None:
    """The kernel writes mountinfo and the table of limits anew at each read."""
    opened = run_python(FILES).stdout.splitlines()
    assert "/proc/self/cgroup" in opened
    assert "/sys/devices/system/cpu/online" in opened
    assert not {"/proc/self/mountinfo", "/proc/self/limits"} & set(opened)
    assert len(opened) == len(set(opened)), "each file once"


@pytest.mark.parametrize("name", ["SLURM_CPUS_PER_TASK", "NSLOTS", "CPU_LIMIT"])
def test_grants_of_schedulers_are_seen_as_they_come(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others: tuple[Mapping[str, str], ...] = ({name: "3"}, MappingProxyType({name: "3"}))
    monkeypatch.delenv(name, raising=False)
    before = read_grants(os.environ)[0]
    assert before is None or before.variable != name
    monkeypatch.setenv(name, "1")
    grant = read_grants(os.environ)[0]
    assert grant is not None
    assert (grant.variable, grant.cores) == (name, 1.0)
    for environ in others:
        grant = read_grants(environ)[0]
        assert grant is not None
        assert grant.cores == 3.0
    assert read_grants({"PATH": "/bin"}) == (None, ())
