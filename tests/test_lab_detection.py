"""Real cgroup v1 groups and a real container: the right answer in each.

D01 and D06 (the group is not where the mount is), D10 (quota and cpuset together), D28 (a mask hides no quota).
"""

from __future__ import annotations

import os

import pytest

from tests.lab import require
from tests.lab.cgroup1 import LAYOUTS, Layout, ask

pytestmark = pytest.mark.where("cgroup v1: real groups")


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.title.replace(" ", "-"))
def test_layout(layout: Layout) -> None:
    require((os.cpu_count() or 1) >= 2, "one CPU only")
    answer = ask(layout)
    usable = layout.usable if layout.title != "no limit" else len(os.sched_getaffinity(0))
    assert answer["cgroup_threads"] == usable, answer
    quotas = [quota for quota in (layout.quota, layout.parent_quota) if quota is not None]
    assert answer["quota"] == min(quotas, default=None), answer
    assert answer["status"] == ("limited" if quotas else "unlimited"), answer
    if layout.cpus == "0":  # one CPU is less than any quota above it
        assert (answer["cpuset"], answer["bound_by"]) == ([0], "cpuset"), answer
    elif usable == 1:
        assert answer["bound_by"] == "quota", answer


def test_a_hierarchy_under_another_mount_is_unknown() -> None:
    """mountinfo still lists the covered mounts: that their files are not there says nothing."""
    answer = ask(Layout("quota 1, covered", "covered", 1, quota=1.0))
    assert (answer["quota"], answer["status"]) == (None, "unknown"), answer
