"""Watching processes: thread states are read again and again over an interval, all else at its beginning and end.

Processes and threads may end, change or be replaced at any moment; what is gone is left out. The work is bounded: at
most MAX_THREADS threads are followed, and reading takes at most a fifth of one core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from .access import GONE, MEDIUM, SMALL, read_bytes
from .children import busy_children, take_census
from .following import Target, find_living_task
from .owners import find_kind, runs_python
from .records import Child, InspectError, Sample
from .tasks import TaskStat, parse_maps, parse_stat, parse_status, printable

PAUSE: Final = 0.05  # seconds between two looks
_REST: Final = 4  # times the CPU time of a look, at least
_MAX_PROCESSES: Final = 1 << 16
_MAX_MAPS: Final = 4 << 20
_PROGRAMS: Final = ("llama-", "python")


def watch(pids: Sequence[int], seconds: float) -> list[Sample | InspectError]:
    """Watch all of ``pids`` over the same interval."""
    items: list[Target | InspectError] = []
    for pid in pids:
        try:
            items.append(Target(pid, check_process(pid)))
        except InspectError as error:
            items.append(error)
    targets = [item for item in items if isinstance(item, Target)]
    before, began = take_census(), time.monotonic()
    if targets:
        _look_on(targets, seconds)
    after = take_census()
    ticks = max(time.monotonic() - began, 1e-3) * os.sysconf("SC_CLK_TCK")
    return [
        item if isinstance(item, InspectError) else _finish(item, busy_children(item.pid, before, after, ticks))
        for item in items
    ]


def _look_on(targets: Sequence[Target], seconds: float) -> None:
    for target in targets:
        target.look()
    end = time.monotonic() + seconds
    spent = 0.0
    while True:
        # Rests go by the CPU time a look takes: among hundreds of runnable threads it may wait for a CPU for long.
        time.sleep(max(0.0, min(max(PAUSE, _REST * spent), end - time.monotonic())))
        last = time.monotonic() >= end
        before = time.thread_time()
        for target in targets:
            target.look(last)
        spent = time.thread_time() - before
        if last:
            return


def _finish(target: Target, children: tuple[Child, ...]) -> Sample | InspectError:
    try:
        again = check_process(target.pid)
        if again.start != target.stat.start:
            message = f"process {target.pid} ended while it was watched, and its number was given to another"
            return InspectError(target.pid, "gone", message)
    except InspectError as error:
        if error.reason != "gone":
            return error
        return InspectError(target.pid, "gone", f"process {target.pid} ended while it was watched")
    return target.finish(children)


def check_process(pid: int) -> TaskStat:
    """The stat of a process that can be judged; InspectError says in one line why one cannot."""
    stat_file = read_bytes(f"/proc/{pid}/stat")
    stat = parse_stat(stat_file.data)
    if stat is None:
        raise _explain_missing(pid, stat_file.problem)
    if stat.kernel:
        raise InspectError(
            pid, "kernel", f"process {pid} ({stat.name}) is a kernel thread: it has no libraries to tune"
        )
    status = parse_status(read_bytes(f"/proc/{pid}/status", MEDIUM).data)
    if status.group not in (None, pid):
        raise InspectError(pid, "thread", f"{pid} is a thread of process {status.group}: inspect that")
    if stat.state in "ZX" and not _outlives(pid):
        raise InspectError(pid, "gone", f"process {pid} ({stat.name}) has exited; its parent has not collected it yet")
    readable = not _denied(pid)
    if not readable and status.uid not in (None, os.geteuid()):
        message = f"process {pid} ({stat.name}) belongs to {_user(status.uid or 0)}: run this as that user or as root"
        if os.geteuid() == 0:
            message = f"process {pid} ({stat.name}) belongs to {_user(status.uid or 0)}: CAP_SYS_PTRACE is needed"
        raise InspectError(pid, "foreign", message)
    return stat


def _outlives(pid: int) -> bool:
    """Whether other threads live on after the first has ended."""
    return find_living_task(pid) != pid


def _denied(pid: int) -> bool:
    environ = read_bytes(f"/proc/{pid}/task/{find_living_task(pid)}/environ")
    return environ.problem not in ("", GONE, f"cut at {SMALL} bytes")


def _explain_missing(pid: int, problem: str) -> InspectError:
    if problem and problem != GONE:
        return InspectError(pid, "unreadable", f"process {pid} cannot be read: {problem}")
    if not os.path.exists("/proc/self/stat"):
        return InspectError(pid, "unreadable", "there is no /proc here: other processes cannot be inspected")
    try:
        os.kill(pid, 0)  # no signal is sent: it only asks whether the process is there
    except PermissionError:
        return InspectError(pid, "foreign", f"process {pid} is hidden from this user (/proc is mounted with hidepid)")
    except (OSError, OverflowError):
        pass
    return InspectError(pid, "gone", f"there is no process {pid} (it has exited, or lives in another PID namespace)")


def _user(uid: int) -> str:
    import pwd  # not on every platform

    try:
        return f"{printable(pwd.getpwuid(uid).pw_name.encode())} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def find_processes() -> tuple[list[int], int]:
    """Processes of this container (of our PID namespace) that run Python or llama or have native pools mapped, and how
    many of its processes could not be read. Our own is left out."""
    found: list[int] = []
    unread = 0
    namespace = _namespace("self")
    for pid in _list_processes():
        stat = parse_stat(read_bytes(f"/proc/{pid}/stat").data)
        if stat is None or stat.kernel or pid == os.getpid() or (stat.state in "ZX" and not _outlives(pid)):
            continue
        if namespace and _namespace(str(pid)) not in ("", namespace):
            continue
        maps = read_bytes(f"/proc/{pid}/task/{find_living_task(pid)}/maps", _MAX_MAPS)
        if not maps.data:
            unread += maps.problem not in ("", GONE)
            continue
        paths = parse_maps(maps.data)[2]
        if stat.name.startswith(_PROGRAMS) or runs_python(paths) or any(find_kind(path) for path in paths):
            found.append(pid)
    return found, unread


def _list_processes() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from sorted(int(name) for name in names if name.isascii() and name.isdigit())[:_MAX_PROCESSES]


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # another user's process, or no such file
        return ""
