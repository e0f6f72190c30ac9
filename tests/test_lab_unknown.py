"""A budget whose limits can no longer be read stays what it was: not to know is no reason to take more."""

from __future__ import annotations

import pytest

from cgroup_threads.detection.records import CpuLimits, Topology
from cgroup_threads.governor.sizing import Size, keep_known
from tests.lab.cgroup1 import group
from tests.lab.commands import run_python
from tests.lab.shared_budget import workers

pytestmark = pytest.mark.where("cgroup v1: real groups")

EXHAUST = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
"""


def test_a_process_out_of_descriptors_keeps_its_budget() -> None:
    """Its quota cannot be read then, and the host has more cores."""
    look = "[ct.detect().status, ct.detect().quota, ct.refresh().cores, ct.statistics().bound_by, enter(), leave()]"
    with group(quota=1.0) as name, workers(name, 1) as (worker,):
        limited = ["limited", 1.0, 1, "quota", 1, None]
        assert worker(look) == limited
        worker(f"exec({EXHAUST!r})")
        assert worker(look) == limited
        worker("[os.close(descriptor) for descriptor in held]")
        assert worker(look) == limited


def test_only_what_a_quota_gave_is_kept() -> None:
    cpus = frozenset(range(8))
    unknown = CpuLimits(None, "unknown", cpus, "sched_getaffinity", None, 8, 8, "host", Topology(8))
    after = Size(8, "process", "host")
    assert keep_known(Size(2, "process", "quota", extra=1), after, unknown) == Size(2, "process", "quota", extra=1)
    assert keep_known(Size(2, "process", "affinity"), after, unknown) == after
    assert keep_known(Size(12, "process", "quota"), after, unknown) == after  # less is safe
    assert keep_known(Size(2, "process", "quota"), after, unknown._replace(status="unlimited")) == after
    assert keep_known(Size(2, "process", "quota"), after, unknown._replace(override=8.0)) == after


CAPPED = """
from cgroup_threads.detection.records import CpuLimits, Topology
from cgroup_threads.governor import core_budget
from cgroup_threads.governor.following import Following
from cgroup_threads.settings import Settings

cpus = frozenset(range(64))
limited = CpuLimits(4.0, "limited", cpus, "sched_getaffinity", None, 64, 64, "quota", Topology(64))
unknown = limited._replace(quota=None, status="unknown", bound_by="host")
now = limited
core_budget._limits = lambda settings: now
core = core_budget.CoreBudget(Settings(scope="process"))
bound = unknown._replace(affinity=frozenset({0}), bound_by="affinity")
looks = [(limited, 2), (unknown, 2), (unknown, None), (unknown, 1), (bound, None), (unknown, None), (limited, None)]
for now, cap in looks:
    core.sampler.following = Following(cap)
    core.follow()
    print(core.budget.cores, core.statistics().bound_by)
"""


def test_a_quota_is_kept_below_a_hidden_limit_too() -> None:
    """The budget follows the lower of both; when the hidden limit is gone, what the quota gave is still known."""
    found = run_python(CAPPED).stdout.splitlines()
    assert found == [
        "2 hidden limit",
        "2 hidden limit",
        "4 quota",
        "1 hidden limit",
        "1 affinity",
        "4 quota",
        "4 quota",
    ]
