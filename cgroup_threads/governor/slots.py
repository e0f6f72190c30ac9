"""Slots: one core budget for all worker processes of a container.

A slot is one core of the budget. Whoever holds it has a lock on its byte of a shared file, made through an open file
description of the process's own: the kernel gives the lock up when the process ends, however it ends. The rest of the
file is a page of hints (who runs, waits and holds what). A wrong hint costs time, never cores.

The page is read and written, not mapped: a mapping would keep a dead parent's locks in its forked child, and end the
process where the file is cut.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import Final

from ..notices import Notice, shown
from .slot_clock import clock_shift
from .slot_cores import CoreLocks
from .slot_file import (
    SlotFile,
    SlotsUnavailable,
    allocate,
    close,
    has_moved,
    is_lost,
    open_checked,
    open_file,
    read,
    remove,
    reopen,
    slot_key,
    take_over,
    unavailable,
    write,
)
from .slot_locks import check_locks, lock, locked_by_others, unlock
from .slot_rows import (
    MAX_SLOTS,
    NO_ROW,
    NOTHING_SEEN,
    PAGE_SIZE,
    ROW_SIZE,
    ROWS,
    View,
    pack_row,
    parse_page,
    parse_token,
    used_rows,
)
from .slot_wakes import MAX_WAKES, drain, listen, send
from .slot_wakes import close as close_socket

__all__ = ["MAX_SLOTS", "Slots", "SlotsUnavailable", "View", "open_slots", "slot_key"]

_ROW_LOCKS: Final = 4096
"""Where the bytes begin whose locks say that a row's process lives; those of the cores begin at 0."""
_MAX_OPENS: Final = 20


def open_slots(key: str, *, directory: str = "/dev/shm") -> Slots:
    """The slots called ``key``: in ``directory``, or with a notice in the temporary one if no file can be made there.

    Raises SlotsUnavailable, also where something stands in the file's place that this user did not make.
    """
    for _ in range(_MAX_OPENS):
        slots = Slots(open_file(key, directory))
        if not slots.moved():
            return slots
        slots.close()  # the last one left it and took the file along, between our opening and our row
    raise SlotsUnavailable(slots.path, "it is removed again and again")


class Slots(CoreLocks):
    """One process's part in the slots. Its methods are called under one lock of the caller's; none of them blocks.

    ``held`` is the mask of the cores it holds; ``hints`` is False while the page cannot be written.
    """

    __slots__ = (
        "_disproved",
        "_file",
        "_row",
        "_shift_s",
        "_socket",
        "_span",
        "_token",
        "hints",
    )

    def __init__(self, file: SlotFile) -> None:
        """Takes over ``file``, whose descriptor must have a description of its own."""
        super().__init__(file.descriptor)
        self.hints = False
        self._file = file
        self._disproved = 0
        """Cores that rows name but nobody held at the last ``reap``."""
        self._row = -1
        self._shift_s = clock_shift()
        """What is on the page is on the machine's clock."""
        self._span = PAGE_SIZE
        """How much of the page is read: the used rows, and an empty one."""
        try:
            check_locks(self._descriptor, PAGE_SIZE)
            self._socket, self._token = listen()
        except OSError as error:
            os.close(self._descriptor)
            raise unavailable(file.path, error) from error
        except BaseException:
            os.close(self._descriptor)
            raise
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    @property
    def key(self) -> str:
        return self._file.key

    @property
    def path(self) -> str:
        return self._file.path

    # A call starts or ends: the hot path.

    def look(self) -> View:
        """What the other processes do, as they say."""
        if not self.hints:
            return NOTHING_SEEN
        page = read(self._descriptor, 0, self._span)
        if page[-ROW_SIZE:] != NO_ROW and self._span < PAGE_SIZE:  # somebody came, or the file was cut
            self._measure(page := read(self._descriptor, 0, PAGE_SIZE))
        shift = self._shift_s
        view = parse_page(page, self._row, monotonic() - shift)
        if shift and view.oldest_s is not None:
            view = view._replace(oldest_s=view.oldest_s + shift)
        if self._disproved & view.held:
            return view._replace(held=view.held & ~self._disproved)
        return view

    def publish(self, calls_running: int, waiting: int, oldest_s: float | None, now_s: float) -> None:
        """Tell the others how many calls run and wait here, since when the first of them waits, and what is held."""
        if self._row >= 0 and self.hints:
            shift = self._shift_s
            since_s = None if oldest_s is None else oldest_s - shift
            row = pack_row(self._token, calls_running, waiting, since_s, now_s - shift, self.held)
            self.hints = write(self._descriptor, self._row * ROW_SIZE, row)

    def wake(self, row: int) -> None:
        """Make the ``fileno`` of that row's process readable, if there is one in this network namespace."""
        if self.hints and 0 <= row < ROWS:
            token = parse_token(read(self._descriptor, row * ROW_SIZE, ROW_SIZE))
            if token is not None:
                send(self._socket, token)

    def wake_self(self) -> None:
        """Make the own ``fileno`` readable."""
        send(self._socket, self._token)

    # Now and then, and around waiting.

    def reap(self) -> bool:
        """Empty the rows of processes that ended, and find what hints name as held but is not. True if anything was."""
        if self._descriptor < 0 or is_lost(self._file):
            return False
        if self._row < 0 or not self.hints:
            self._join()
        page = read(self._descriptor, 0, PAGE_SIZE)
        if len(page) < PAGE_SIZE:
            self.hints = allocate(self._descriptor, PAGE_SIZE)
        found = False
        for row in used_rows(page):
            if row != self._row and lock(self._descriptor, _ROW_LOCKS + row, 1):
                # Nobody takes the row before its lock is given up.
                found = write(self._descriptor, row * ROW_SIZE, NO_ROW) or found
                unlock(self._descriptor, _ROW_LOCKS + row, 1)
        if found:
            page = read(self._descriptor, 0, PAGE_SIZE)
        self._measure(page)
        hinted = parse_page(page, self._row, 0.0).held & ~self.held
        self._disproved = hinted & ~locked_by_others(self._descriptor, MAX_SLOTS) if hinted else 0
        return found or bool(self._disproved)

    def fileno(self) -> int:
        """A descriptor for ``poll`` or ``add_reader`` that is readable after another process's ``wake``."""
        return self._socket.fileno()

    def drain(self, most: int = MAX_WAKES) -> None:
        """Forget the wakes so far, at most ``most``."""
        drain(self._socket, most)

    def moved(self) -> bool:
        """Whether the file was removed (temporary files are cleaned up): newcomers meet in another one."""
        if self._descriptor < 0:
            return False
        if is_lost(self._file):  # nothing may be written there
            self.held, self.hints, self._row = 0, False, -1
            return True
        return has_moved(self._file)

    def leave(self) -> None:
        """Give up the row at the process's end, and the file if nobody else is there; cores that are held stay."""
        if self._descriptor < 0 or is_lost(self._file):
            return
        # Nobody else has a core or a row if all their bytes can be had, nor gets one before the name is gone; who has
        # opened the file by then finds out (``open_slots``).
        if not self.held and lock(self._descriptor, 0, _ROW_LOCKS + ROWS):
            if not self.moved():
                remove(self._file)
        elif self._row >= 0:
            write(self._descriptor, self._row * ROW_SIZE, NO_ROW)
        self._row = -1
        # By hand: a copy of the descriptor in a child forked behind Python's back would keep the locks.
        start = _ROW_LOCKS if self.held else 0
        unlock(self._descriptor, start, _ROW_LOCKS + ROWS - start)

    def close(self) -> None:
        """Give everything back and leave."""
        if self._descriptor >= 0:
            self.held = 0  # ``leave`` unlocks all
            self.leave()
            self._drop()

    def abandon_in_child(self) -> Slots | None:
        """In a forked child: leave the parent's part alone and take one of one's own; None if there is none to be had.

        Unlocking here would take the parent's cores away; keeping its descriptor open would hold them after its death.
        """
        if self._descriptor < 0:
            return None
        file = self._file
        descriptor = reopen(file)
        self._drop()
        try:
            if descriptor < 0:
                file = take_over(file.key, file.path, open_checked(file.path), file.notices)
            else:
                file = file._replace(descriptor=descriptor)
            return Slots(file)
        except OSError:
            return None

    @property
    def notices(self) -> tuple[Notice, ...]:
        notices = self._file.notices
        if not self.hints and self._descriptor >= 0:
            message = f"{shown(self.path)} has no room: processes that share its cores do not see each other's calls"
            notices += (Notice("slots-without-hints", message, "warning", "make room in its file system"),)
        elif self._row < 0 <= self._descriptor:
            message = f"more than {ROWS} processes share {shown(self.path)}: the calls of this one are not counted"
            notices += (Notice("slots-full", message),)
        return notices

    # Rows.

    def _join(self) -> None:
        """Make the page, and take the first row that is free."""
        self.hints = allocate(self._descriptor, PAGE_SIZE)
        row = 0
        while self._row < 0 and row < ROWS:
            if lock(self._descriptor, _ROW_LOCKS + row, 1):
                self._row = row
            row += 1
        self.publish(0, 0, None, 0.0)
        self._measure(read(self._descriptor, 0, PAGE_SIZE))

    def _measure(self, page: bytes) -> None:
        used = used_rows(page)
        self._span = min((used[-1] + 2) * ROW_SIZE, PAGE_SIZE) if used else ROW_SIZE

    def _drop(self) -> None:
        """Close without unlocking."""
        self._descriptor, self._row, self.held, self.hints = -1, -1, 0, False
        close(self._file)
        close_socket(self._socket, self._token)
