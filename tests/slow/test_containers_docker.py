"""Containers of a real Docker daemon on cgroup v1. It is quick; what it needs is large."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.contained import FLAGS, INSIDE, ONE, check
from tests.lab.containers import Docker, docker

pytestmark = [pytest.mark.slow, pytest.mark.where("containers: Docker")]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Docker]:
    with docker() as started:
        yield started


@pytest.mark.parametrize("flags", FLAGS)
def test_flags(flags: str, daemon: Docker) -> None:
    check(daemon.run(INSIDE, *flags.split()), FLAGS[flags])


@pytest.mark.parametrize("flags", ["--read-only", "--cgroupns private", "--ipc none --tmpfs /tmp"])
def test_a_quota_of_one(flags: str, daemon: Docker) -> None:
    right = ONE._replace(slots=frozenset({"slots-elsewhere"})) if "none" in flags else ONE
    check(daemon.run(INSIDE, "--cpus", "1", *flags.split()), right)
