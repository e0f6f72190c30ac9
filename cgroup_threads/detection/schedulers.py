"""Cores granted by batch schedulers and notebook hubs through environment variables.

The variables and their precedence are those of R's ``parallelly::availableCores`` (Slurm, PBS/Torque, SGE, LSF and
Fujitsu's PJM); JupyterHub's ``CPU_LIMIT`` is added as a hint. A grant only ever lowers the count: it may have been
inherited from a launcher whose job was larger.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from ..notices import Notice, shown
from ..settings import parse_cores, parse_count
from .records import SchedulerGrant

_VARIABLES: Final = frozenset(
    (
        "SLURM_CPUS_PER_TASK",
        "SLURM_CPUS_ON_NODE",
        "SLURM_TASKS_PER_NODE",
        "PBS_NUM_PPN",
        "NCPUS",
        "NSLOTS",
        "LSB_DJOB_NUMPROC",
        "PJM_VNODE_CORE",
        "PJM_PROC_BY_NODE",
        "CPU_LIMIT",
    )
)
# As the dictionary inside ``os.environ`` has them.
_KEYS: Final = frozenset(map(os.fsencode, _VARIABLES)) if os.supports_bytes_environ else _VARIABLES


def read_grants(environ: Mapping[str, str]) -> tuple[SchedulerGrant | None, tuple[Notice, ...]]:
    """The smallest grant found, in cores, or None; values that make no sense become notices. Never raises."""
    if not _has_any(environ):
        return None, ()
    reader = _Reader(environ)
    grants = [grant for grant in (*_batch_grants(reader), reader.cores("JupyterHub", "CPU_LIMIT")) if grant is not None]
    return min(grants, key=lambda grant: grant.cores, default=None), tuple(reader.notices)


def _has_any(environ: Mapping[str, str]) -> bool:
    """Whether any of the variables is there. Most processes have none, and asking ``os.environ`` for what it has not
    takes a microsecond each: the dictionary inside it is asked."""
    inner = getattr(environ, "_data", None)
    if isinstance(inner, dict):
        return not inner.keys().isdisjoint(_KEYS)
    return not _VARIABLES.isdisjoint(environ)


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.notices: list[Notice] = []

    def text(self, name: str) -> str | None:
        value = self._environ.get(name)
        return value if value is not None and value.strip() else None

    def count(self, scheduler: str, name: str) -> SchedulerGrant | None:
        value = self.text(name)
        if value is None:
            return None
        number = parse_count(value)
        return self._grant(scheduler, name, value, None if number is None else float(number))

    def cores(self, scheduler: str, name: str) -> SchedulerGrant | None:
        """Decimals and milli-cores: hubs export ``0.5`` or ``1.6``, some deployments ``500m``."""
        value = self.text(name)
        return None if value is None else self._grant(scheduler, name, value, parse_cores(value))

    def first_node(self, scheduler: str, name: str) -> SchedulerGrant | None:
        """The first count of a list by node such as ``5,2`` or ``2(x2),1(x3)``."""
        value = self.text(name)
        if value is None:
            return None
        number = parse_count(value.split(",", 1)[0].partition("(")[0])
        return self._grant(scheduler, name, value, None if number is None else float(number))

    def _grant(self, scheduler: str, name: str, value: str, cores: float | None) -> SchedulerGrant | None:
        if cores is None:
            message = f"{name}={shown(value)} is ignored: no number of cores"
            self.notices.append(Notice("scheduler-invalid", message, "warning", f"correct or unset {name}"))
            return None
        return SchedulerGrant(scheduler, name, value, cores)


def _batch_grants(reader: _Reader) -> tuple[SchedulerGrant | None, ...]:
    return (
        _read_slurm(reader),
        # Torque sets PBS_NUM_PPN, PBS Pro NCPUS.
        reader.count("PBS", "PBS_NUM_PPN") or reader.count("PBS", "NCPUS"),
        reader.count("SGE", "NSLOTS"),
        reader.count("LSF", "LSB_DJOB_NUMPROC"),
        reader.count("PJM", "PJM_VNODE_CORE") or reader.count("PJM", "PJM_PROC_BY_NODE"),
    )


def _read_slurm(reader: _Reader) -> SchedulerGrant | None:
    """SLURM_CPUS_PER_TASK; else on one node SLURM_CPUS_ON_NODE (it is rounded up on several), else the tasks here."""
    grant = reader.count("Slurm", "SLURM_CPUS_PER_TASK")
    if grant is not None:
        return grant
    on_node, tasks = reader.text("SLURM_CPUS_ON_NODE"), reader.text("SLURM_TASKS_PER_NODE")
    if on_node is None and tasks is None:
        return None
    nodes = reader.text("SLURM_JOB_NUM_NODES") or reader.text("SLURM_NNODES") or "1"
    if parse_count(nodes) == 1:
        return reader.count("Slurm", "SLURM_CPUS_ON_NODE")
    return reader.first_node("Slurm", "SLURM_TASKS_PER_NODE")
