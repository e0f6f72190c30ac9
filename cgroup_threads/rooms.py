"""How many threads of a pool the limits on tasks and address space have room for. Pure.

A library that cannot start a thread does not go on with fewer: libgomp ends the process, numpy's OpenBLAS interrupts
its import. This is loaded only where such a limit is near.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .notices import Notice, shown

if TYPE_CHECKING:
    from .detection.records import CpuLimits
    from .detection.tasks import AddressSpace, TaskLimit

POOLS: Final = 4
"""An encoder with numpy, scipy, torch and a tokenizer has two BLAS pools, an OpenMP team and a rayon pool. With what
else they were seen to start they come to four tasks for each thread of a pool."""
HEAP: Final = 64 << 20
"""Bytes of address space that glibc reserves for the heap of a thread that allocates memory, beside its stack. A thread
of OpenBLAS takes 32 MiB for its buffer instead."""


class Room(NamedTuple):
    """The ``threads`` of a pool that one limit has room for; ``text`` says how large it is, ``fix`` how to get more.

    ``enough`` is False where there is no room for the pools even with one thread each.
    """

    bound_by: str
    threads: int
    enough: bool
    text: str
    fix: str


def find_rooms(limits: CpuLimits, workers: int) -> tuple[Room, ...]:
    """What ``limits`` have room for in each of ``workers`` processes that share the tasks; the smallest first."""
    rooms = [_find_task_room(task, workers) for task in limits.tasks]
    if limits.address_space is not None:
        rooms.append(_find_address_room(limits.address_space))
    return tuple(sorted(rooms, key=lambda room: room.threads))


def _find_task_room(task: TaskLimit, workers: int) -> Room:
    """Of several workers some may have started: none has more than its part of all, nor more than is left."""
    left = task.allowance if workers == 1 else min(task.allowance, task.limit // workers)
    text = f"{task.name} is {task.limit}, of which others use {task.used - task.own} ({shown(task.file, 200)})"
    fix = (
        "raise `ulimit -u`, or run as another user"
        if task.name == "RLIMIT_NPROC"
        else "raise the group's pids.max (Docker: --pids-limit)"
    )
    return Room(task.name, max(1, left // POOLS), left >= POOLS, text, fix)


def _find_address_room(space: AddressSpace) -> Room:
    """Half of the address space is left to programs and their data."""
    need = space.stack + HEAP
    threads = 1 + space.limit // 2 // (POOLS * need)
    text = f"RLIMIT_AS is {space.limit / 2**30:.2g} GiB, of which a thread reserves {need >> 20} MiB"
    return Room("RLIMIT_AS", threads, True, text, "raise `ulimit -v`, or limit memory by cgroup alone")


def judge_rooms(rooms: tuple[Room, ...], wanted: int) -> tuple[Notice, ...]:
    """What is to be said where ``wanted`` threads a pool do not fit."""
    found = []
    for room in rooms:
        if not room.enough:
            message = f"{room.text}: 1 thread a pool, and a library that starts one nevertheless may end the process"
            found.append(Notice("threads-limited", message, "problem", room.fix))
        elif room.threads < wanted:
            message = f"{room.text}: {count_threads(room.threads)} a pool instead of {wanted}, which might not start"
            if room.bound_by == "RLIMIT_AS":
                found.append(Notice("address-space-limited", message, "warning", room.fix))
            else:
                found.append(Notice("threads-limited", message, "warning", room.fix))
    return tuple(found)


def judge_value(name: str, text: str, ceiling: int) -> Notice:
    """What is to be said of a user's value above the ``ceiling``."""
    room = count_threads(ceiling)
    message = f"{name}={text} kept, but there is room for {room} a pool: its library may end the process"
    fix = f"set {name}={ceiling}, unset it, or raise the limit on tasks or address space"
    return Notice("threads-limited", message, "problem", fix)


def count_threads(threads: int) -> str:
    """``1 thread``, ``2 threads``."""
    return "1 thread" if threads == 1 else f"{threads} threads"
