"""A report as JSON-ready values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..notices import Notice
from .records import Evidence

SCHEMA: Final = 1  # raised when a key changes its meaning or goes away; new keys do not raise it


def to_dict(evidence: Evidence, findings: Sequence[Notice]) -> dict[str, Any]:
    """The report as values ``json.dumps`` takes. Cores are numbers, times seconds, sizes bytes, shares 0 to 1."""
    limits, plan, topology = evidence.limits, evidence.plan, evidence.limits.topology
    running = sum(group.running for group in evidence.threads)
    return {
        "schema": SCHEMA,
        "version": evidence.version,
        "pid": evidence.pid,
        "python": evidence.python,
        "usable_cores": plan.usable,
        "bound_by": limits.bound_by,
        "limits": {
            "quota": limits.quota,
            "status": limits.status,
            "affinity": sorted(limits.affinity),
            "affinity_source": limits.affinity_source,
            "cpuset": None if limits.cpuset is None else sorted(limits.cpuset),
            "host_cpus": limits.host_cpus,
            "physical_cores": limits.physical_cores,
            "performance_cpus": sorted(topology.performance_cpus),
            "scheduler": None if limits.scheduler is None else limits.scheduler._asdict(),
            "override": limits.override,
            "levels": [level._asdict() for level in limits.levels],
            "tasks": [task._asdict() for task in limits.tasks],
        },
        "plan": {name: value for name, value in plan._asdict().items() if name != "notices"},
        "settings": {name: value for name, value in evidence.settings._asdict().items() if name != "notices"},
        "variables": [state._asdict() for state in evidence.variables],
        "pools": [pool._asdict() for pool in evidence.pools],
        "threads": {
            "total": sum(group.threads for group in evidence.threads),
            "python": evidence.python_threads,
            "running": running,
            "names": [group._asdict() for group in evidence.threads],
        },
        "throttling": None
        if evidence.throttling is None
        else {**evidence.throttling._asdict(), "share": evidence.throttling.share, "interval": evidence.interval},
        "pressure": None if evidence.pressure is None else evidence.pressure._asdict(),
        "counters": None if evidence.counters is None else evidence.counters.to_dict(),
        "budget": None if evidence.budget is None else evidence.budget.to_dict(),
        "hidden_limit": None if evidence.hidden is None else {**evidence.hidden._asdict(), "cap": evidence.hidden_cap},
        "address_space": evidence.address_space,
        "start_method": evidence.start_method,
        "modules": list(evidence.modules),
        "other_counts": dict(evidence.other_counts),
        "problems": [notice._asdict() for notice in findings if notice.level == "problem"],
        "warnings": [notice._asdict() for notice in findings if notice.level == "warning"],
        "notes": [notice._asdict() for notice in findings if notice.level == "info"],
    }
