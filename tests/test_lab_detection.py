"""Real cgroup v1 groups and a real container: the right answer in each."""

from __future__ import annotations

import os

import pytest

from tests.lab import require
from tests.lab.cgroup1 import LAYOUTS, Layout, ask


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title.replace(" ", "-"))
def test_layout(layout: Layout) -> None:
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    answer = ask(layout)
    usable = layout.usable if layout.title != "no limit" else len(os.sched_getaffinity(0))
    assert answer["cgroup_threads"] == usable, answer
    quotas = [quota for quota in (layout.quota, layout.parent_quota) if quota is not None]
    assert answer["quota"] == min(quotas, default=None), answer
    assert answer["status"] == ("limited" if quotas else "unlimited"), answer
