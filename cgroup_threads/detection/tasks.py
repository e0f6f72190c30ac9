"""How many tasks (processes and threads) and how much address space this process may still have.

A native library that cannot start its threads ends the process, so a plan must fit. This is loaded only where a limit
is near (``linux``). Sources: setrlimit(2), proc_pid_status(5), and the kernel document ``admin-guide/cgroup-v1/pids``
(cgroup v2 has the same files).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from .cpulist import parse_number
from .procfs import MAX_DIGITS, MEDIUM, Files

_THREAD_STACK: Final = 2 << 20  # bytes; glibc's where RLIMIT_STACK is unlimited
_EXEMPT: Final = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN and CAP_SYS_RESOURCE: RLIMIT_NPROC does not bind them
_MAX_PROCESSES: Final = 8192  # looked at to count a user's tasks
_UNITS: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class TaskLimit(NamedTuple):
    """A limit on tasks (processes and threads): the ``limit``, how many it counts now (``used``), and how many of those
    are this process's ``own``. ``file`` is where it stands."""

    name: Literal["pids.max", "RLIMIT_NPROC"]
    limit: int
    used: int
    own: int
    file: str

    @property
    def allowance(self) -> int:
        """The tasks this process may have, those that it has included."""
        return max(0, self.limit - max(0, self.used - self.own))


class AddressSpace(NamedTuple):
    """RLIMIT_AS, and what the stack of a thread takes of it. In bytes."""

    limit: int
    stack: int


class Owner(NamedTuple):
    """Of /proc/PID/status: the real user, the effective capabilities as bits, and the number of threads."""

    uid: int
    capabilities: int
    threads: int


def parse_owner(text: str) -> Owner | None:
    """Parse /proc/PID/status; None if a line is missing or makes no sense."""
    values: dict[str, int] = {}
    for line in text.split("\n"):
        name, _, rest = line.partition(":")
        if name in ("Uid", "CapEff", "Threads"):
            field = (rest.split(None, 1) or [""])[0]
            number = _parse_hex(field) if name == "CapEff" else parse_number(field, MAX_DIGITS)
            if number is None:
                return None
            values.setdefault(name, number)
    if len(values) < 3:
        return None
    return Owner(values["Uid"], values["CapEff"], max(1, values["Threads"]))


def _parse_hex(field: str) -> int | None:
    return int(field, 16) if 0 < len(field) <= 16 and not field.strip("0123456789abcdef") else None


def parse_stack_size(text: str) -> int | None:
    """Bytes of an OMP_STACKSIZE such as ``16M``; a number alone is in KiB. None for junk."""
    text = text.strip().lower()
    unit = text[-1:] if text[-1:] in _UNITS else ""
    number = parse_number(text[: len(text) - len(unit)].strip(), MAX_DIGITS)
    return None if number is None else number * _UNITS[unit or "k"]


def read_task_limits(
    files: Files,
    pid: str,
    pids: Sequence[tuple[int, int, str]],
    processes: int | None,
    known: Sequence[TaskLimit] = (),
) -> tuple[TaskLimit, ...]:
    """What limits the tasks of process ``pid``: ``pids`` are limits of cgroups with what is used of them and their
    file, ``processes`` is RLIMIT_NPROC where it is near. Never raises.

    The user's other tasks are counted once: ``known`` is what was found before.
    """
    owner = parse_owner(files.read(f"/proc/{pid}/status", MEDIUM).text or "")
    own = owner.threads if owner is not None else 1
    found = [TaskLimit("pids.max", limit, max(own, used), own, file) for limit, used, file in pids]
    if processes is not None and owner is not None and not is_exempt(files, pid, owner):
        before = [task.used - task.own for task in known if task.name == "RLIMIT_NPROC"]
        others = before[0] if before else count_others(files, owner)
        if others is not None:
            found.append(TaskLimit("RLIMIT_NPROC", processes, others + own, own, files.locate(f"/proc/{pid}/limits")))
    return tuple(found)


def make_address_space(limit: int, stack: int | None, omp_stack: str = "") -> AddressSpace:
    """RLIMIT_AS with the larger of RLIMIT_STACK (None: unlimited) and the stack that the user asked OpenMP for."""
    return AddressSpace(limit, max(_THREAD_STACK if stack is None else stack, parse_stack_size(omp_stack) or 0))


def is_exempt(files: Files, pid: str, owner: Owner) -> bool:
    """Whether RLIMIT_NPROC does not bind. Root of a user namespace of its own is a plain user to the kernel."""
    if owner.uid != 0 and not owner.capabilities & _EXEMPT:
        return False
    return (files.read(f"/proc/{pid}/uid_map").text or "0 0 4294967295").split() == ["0", "0", "4294967295"]


def count_others(files: Files, owner: Owner) -> int | None:
    """The tasks of the user's other processes, as far as /proc shows them; None where that cannot be known."""
    if files.locate(""):  # a copied tree says nothing of them
        return None
    count = 0
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()][:_MAX_PROCESSES]
    except OSError:
        return None
    for name in names:
        try:
            if os.stat(f"/proc/{name}").st_uid == owner.uid:
                count += max(1, os.stat(f"/proc/{name}/task").st_nlink - 2)  # a link for each thread
        except OSError:  # it has ended
            continue
    return max(0, count - owner.threads)
