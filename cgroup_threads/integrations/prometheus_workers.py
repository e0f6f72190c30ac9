"""The numbers of all worker processes of one PROMETHEUS_MULTIPROC_DIR, for whichever of them is scraped.

Each process keeps a row of a shared file up to date, from a thread of its own. Two locks say whose a row is and whether
it lives; the kernel gives them up when the process ends, however it ends. Then its gauges no longer count, its counters
do, and the next newcomer takes the row and counts on: no counter goes back, and the file does not grow.

What stands in the file is hostile: rows are checked, sizes and numbers bounded.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from ..errors import first_line
from ..governor.slot_file import SlotFile, allocate, close, has_moved, open_checked, read, take_over, write
from ..governor.slot_locks import check_locks, lock, locked_by_others
from ..notices import Notice
from ..state import process
from .prometheus_activity import Activity, RunnableThreads, read_activity

PUBLISH_S: Final = 0.5
MAX_WORKERS: Final = 1024
_WORKERS: Final = "prometheus-workers"
_FORK: Final = "prometheus-fork"
_MAGIC: Final = b"ctprom01"
# active, leased, waiting, cores, scope, runnable; the five counters; checksum
_NUMBERS: Final = struct.Struct("<8s6i5d")
_CHECK: Final = struct.Struct("<I")
ROW_SIZE: Final = 128
_SCOPES: Final = ("", "process", "container")
_MAX_INT: Final = 2**31 - 1
_HUGE: Final = 1e15
_NOTHING: Final[tuple[float, ...]] = (0.0,) * 5
_READS: Final = 8  # of a row that is being written meanwhile


class Total(NamedTuple):
    """All processes together: ``alive`` of them, their sums, and the budgets by who shares them."""

    alive: int
    sums: Activity
    budgets: dict[str, int]


def add(activities: Iterable[tuple[Activity, bool]]) -> Total:
    """The sum of processes, each with whether it lives: the counters of those that have ended stay.

    Budgets of single processes are added, one that all share is counted once. ``runnable`` is None if any is.
    """
    counters = _NOTHING
    living: list[Activity] = []
    for activity, alive in activities:
        counters = _plus(counters, activity.counters)
        if alive:
            living.append(activity)
    budgets: dict[str, int] = {}
    for one in living:
        before = budgets.get(one.scope, 0)
        if one.scope:
            budgets[one.scope] = max(before, one.cores) if one.scope == "container" else before + one.cores
    known = [one.runnable for one in living if one.runnable is not None]
    sums = Activity(
        active=sum(one.active for one in living),
        leased=sum(one.leased for one in living),
        waiting=sum(one.waiting for one in living),
        runnable=sum(known) if len(known) == len(living) else None,
    )
    return Total(len(living), sums.with_counters(counters), budgets)


def _plus(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def pack_row(activity: Activity) -> bytes:
    numbers = (activity.active, activity.leased, activity.waiting, activity.cores)
    data = _NUMBERS.pack(
        _MAGIC,
        *(min(number, _MAX_INT) for number in numbers),
        _SCOPES.index(activity.scope),
        -1 if activity.runnable is None else activity.runnable,
        *activity.counters,
    )
    return (data + _CHECK.pack(zlib.crc32(data))).ljust(ROW_SIZE, b"\0")


def parse_row(data: bytes) -> Activity | None:
    """A row's numbers; None for what we did not write, or not completely."""
    if len(data) != ROW_SIZE or not data.startswith(_MAGIC):
        return None
    (check,) = _CHECK.unpack_from(data, _NUMBERS.size)
    if zlib.crc32(data[: _NUMBERS.size]) != check:
        return None
    _, active, leased, waiting, cores, scope, runnable, *counters = _NUMBERS.unpack_from(data)
    if min(active, leased, waiting, cores) < 0 or not 0 <= scope < len(_SCOPES):
        return None
    if not all(0 <= counter < _HUGE for counter in counters):  # NaN is neither
        return None
    found = Activity(active, leased, waiting, cores, _SCOPES[scope], None if runnable < 0 else runnable)
    return found.with_counters(tuple(counters))


class Workers:
    """This process's row in the file of ``directory``, and the sum of all rows."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._runnable = RunnableThreads()
        self._stop = threading.Event()
        self._ended = False
        self._file: SlotFile | None = None
        self._row = -1
        self._counted: tuple[float, ...] = _NOTHING
        """What the row says of counters: those of its earlier owners, too."""
        self._seen: tuple[float, ...] = _NOTHING
        """What this process's own counters were when they were last added."""
        self._written = b""

    def start(self) -> None:
        """Publish from a thread from now on. The first time comes later: a forked child may end or exec at once."""
        try:
            threading.Thread(target=self._run, name="cgroup_threads-metrics", daemon=True).start()
        except RuntimeError:  # the interpreter ends, or no thread can be had: a scrape of this process publishes
            return

    def total(self) -> Total | None:
        """The sum over all processes, this one included as it is now; None where the file cannot be used."""
        with self._lock:
            if not self._publish() or self._file is None:
                return None
            descriptor = self._file.descriptor
            data = read(descriptor, 0, MAX_WORKERS * ROW_SIZE)
            alive = (locked_by_others(descriptor, 2 * MAX_WORKERS) >> MAX_WORKERS) | (1 << self._row)
            found = []
            for row in range(len(data) // ROW_SIZE):
                activity = self._read_row(row, data[row * ROW_SIZE : (row + 1) * ROW_SIZE])
                if activity is not None:
                    found.append((activity, bool(alive >> row & 1)))
            return add(found)

    def publish(self) -> None:
        """Bring the row up to date."""
        with self._lock:
            self._publish()

    def end(self) -> None:
        """The process ends in order: its last counts stay."""
        self._stop.set()
        if self._lock.acquire(timeout=1.0):
            try:
                self._publish()
                self._ended = True
                self._close()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """In a forked child: the row is the parent's. The descriptor is closed, which leaves the parent's locks."""
        self._close()

    def _run(self) -> None:
        while not self._stop.wait(PUBLISH_S):
            try:
                self.publish()
            except Exception as error:  # noqa: BLE001 - it must go on, and has nobody to raise to
                _note(f"{type(error).__name__}: {first_line(error)}")

    def _publish(self) -> bool:
        if self._ended:
            return False
        now = read_activity(self._runnable.count())
        grown = tuple(
            after - before if after >= before else after  # a budget made anew counts from 0
            for before, after in zip(self._seen, now.counters, strict=True)
        )
        self._seen = now.counters
        self._counted = _plus(self._counted, grown)
        if self._file is not None and has_moved(self._file):  # the directory was emptied
            self._close()
            self._counted = self._seen
        if self._file is None and not self._open():
            return False
        assert self._file is not None
        row = pack_row(now.with_counters(self._counted))
        if row != self._written:
            if not write(self._file.descriptor, self._row * ROW_SIZE, row):
                return False
            self._written = row
        return True

    def _open(self) -> bool:
        """Take a row: the counters of its last owner are counted on."""
        if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
            _note("that needs 64-bit Linux")
            return False
        # Who may use the file is its owner: workers that change their user meet in another one.
        path = os.path.join(self.directory, f"cgroup_threads-{os.geteuid()}.workers")
        try:
            file = take_over("", path, open_checked(path))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            _note(first_line(error))
            return False
        try:
            self._take_row(file)
        except BaseException as error:
            close(file)
            if not isinstance(error, OSError):
                raise
            _note(first_line(error))
            return False
        self._file = file
        return True

    def _take_row(self, file: SlotFile) -> None:
        descriptor = file.descriptor
        check_locks(descriptor, 2 * MAX_WORKERS)
        row = next((row for row in range(MAX_WORKERS) if lock(descriptor, row, 1)), -1)
        if row < 0 or not allocate(descriptor, (row + 1) * ROW_SIZE):
            raise OSError(f"{file.path} has no room")
        before = parse_row(read(descriptor, row * ROW_SIZE, ROW_SIZE))
        counted = self._counted if before is None else _plus(self._counted, before.counters)
        # First what is true of this process, then the lock that says that it lives.
        first = pack_row(Activity().with_counters(counted))
        if not write(descriptor, row * ROW_SIZE, first) or not lock(descriptor, MAX_WORKERS + row, 1):
            raise OSError(f"{file.path} cannot be written")
        self._row, self._written, self._counted = row, first, counted

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            close(file)

    def _read_row(self, row: int, data: bytes) -> Activity | None:
        """What a row says; one that is being written is read again."""
        assert self._file is not None
        for _ in range(_READS):
            if not data.startswith(_MAGIC):
                return None
            activity = parse_row(data)
            if activity is not None:
                return activity
            data = read(self._file.descriptor, row * ROW_SIZE, ROW_SIZE)
        return None


def _note(reason: str) -> None:
    message = f"the metrics of worker processes cannot be added up: {reason}"
    process.note(Notice("report-incomplete", message, "warning", "make PROMETHEUS_MULTIPROC_DIR writable for them"))


def share_counts(directory: str) -> Workers:
    """This process's part in ``directory``; begun at the first call, and in each forked child."""
    with process.lock:
        found = process.hooks.get(_WORKERS)
        if isinstance(found, Workers) and found.directory == directory:
            return found
        if isinstance(found, Workers):
            found.end()
        made = Workers(directory)
        process.hooks[_WORKERS] = made
        if _FORK not in process.hooks:
            import atexit

            process.hooks[_FORK] = True
            atexit.register(_at_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_in_child)
    made.start()
    return made


def _at_exit() -> None:
    found = process.hooks.get(_WORKERS)
    if isinstance(found, Workers):
        found.end()


def _in_child() -> None:
    """Threads of the parent do not exist here, and its locks may be held for ever."""
    before = process.hooks.get(_WORKERS)
    if isinstance(before, Workers):
        before.abandon()
        process.hooks[_WORKERS] = made = Workers(before.directory)
        made.start()
