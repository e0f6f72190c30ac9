"""The page that processes sharing a budget write their demand on: its format, and bit masks of cores. Pure.

The page says nothing that counts: which cores are leased is decided by locks. Whatever stands on it (rows of the dead,
half-written rows, another version's rows, noise) is read without an error and within bounds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

MAX_SLOTS: Final = 1024
"""The most cores a shared budget can have."""
HINTED_SLOTS: Final = 256
"""Cores from here on are leased without a hint: whether they are free shows when they are tried."""
HINTED: Final = (1 << HINTED_SLOTS) - 1
ROWS: Final = 128
ROW_SIZE: Final = 64
PAGE_SIZE: Final = ROWS * ROW_SIZE
NO_ROW: Final = bytes(ROW_SIZE)
MAX_CALLS: Final = 4096
"""More running or waiting calls than this are not believed of one process."""
LOOK_LIMIT_S: Final = 0.1
"""Who waits looks every 5 to 40 ms. A process that has not looked for longer is stopped: it must not block others."""

OVERDUE_S: Final = 0.5
"""Who has waited longer comes first whatever its process runs: else one long call would keep its others out."""

_MAGIC: Final = 0x31746F6C  # "lot1": a row of this version
_HELD_SIZE: Final = HINTED_SLOTS // 8
# magic, calls running, calls waiting, token of the socket, time of the oldest waiter, time of the last look, cores held
_ROW: Final = struct.Struct(f"<IHHQdd{_HELD_SIZE}s")
_CONTENT: Final = struct.Struct(f"{ROW_SIZE}s")
_NONE_HELD: Final = bytes(_HELD_SIZE)


class View(NamedTuple):
    """What the other processes said when they last wrote. Times are those of ``time.monotonic``.

    ``calls`` are in flight or waiting, ``waiting`` those that wait, ``held`` is the mask of the cores they hold. The
    next of their waiters is one that is overdue, else the one that has waited longest in a process that runs fewest
    calls: ``oldest_s`` is since when it waits, ``oldest_row`` its process, both None without one; ``oldest_running``
    says how many calls run there.
    """

    calls: int = 0
    held: int = 0
    oldest_s: float | None = None
    oldest_row: int | None = None
    waiting: int = 0
    oldest_running: int = 0

    def ahead(self, running: int, since_s: float, now_s: float) -> bool:
        """Whether their next waiter comes before one that waits since ``since_s`` in a process that runs ``running``.

        First come, first served would often run two calls in one process while another has none: in Python they then
        wait for each other's interpreter lock, and a leased core lies idle.
        """
        if self.oldest_s is None:
            return False
        return _order(self.oldest_running, self.oldest_s, now_s) < _order(running, since_s, now_s)


def _order(running: int, since_s: float, now_s: float) -> tuple[int, float]:
    return (-1 if now_s - since_s > OVERDUE_S else running, since_s)


NOTHING_SEEN: Final = View()


def pack_row(
    token: int, running: int = 0, waiting: int = 0, oldest_s: float | None = None, look_s: float = 0.0, held: int = 0
) -> bytes:
    """A process's row. ``token`` names its socket; ``look_s`` is now."""
    return _ROW.pack(
        _MAGIC,
        running if running < MAX_CALLS else MAX_CALLS,
        waiting if waiting < MAX_CALLS else MAX_CALLS,
        token,
        0.0 if oldest_s is None else oldest_s,
        look_s,
        (held & HINTED).to_bytes(_HELD_SIZE, "little"),
    )


def parse_page(page: bytes, own_row: int, now_s: float) -> View:
    """What the rows but ``own_row`` say; any bytes are taken. Runs each time a call starts or ends, hence one loop."""
    if len(page) % ROW_SIZE:
        page = page[: len(page) // ROW_SIZE * ROW_SIZE]
    calls = held = all_waiting = 0
    oldest_s: float | None = None
    oldest_row: int | None = None
    fewest = 0
    best: tuple[int, float] = (0, 0.0)
    row = -1
    for magic, running, waiting, _, since_s, look_s, cores in _ROW.iter_unpack(page):
        row += 1
        if magic != _MAGIC or row == own_row or running > MAX_CALLS or waiting > MAX_CALLS:
            continue
        calls += running
        if cores != _NONE_HELD:
            held |= int.from_bytes(cores, "little")
        # Not-a-number fails each comparison.
        if waiting and 0.0 < since_s <= now_s and now_s - LOOK_LIMIT_S <= look_s <= now_s + LOOK_LIMIT_S:
            calls += waiting
            all_waiting += waiting
            order = _order(running, since_s, now_s)
            if oldest_s is None or order < best:
                oldest_s, oldest_row, fewest, best = since_s, row, running, order
    return View(calls, held, oldest_s, oldest_row, all_waiting, fewest)


def parse_token(row: bytes) -> int | None:
    """The token of a row's socket, or None if that is no row of this version."""
    if len(row) != ROW_SIZE:
        return None
    magic, _, _, token, *_ = _ROW.unpack(row)
    return token if magic == _MAGIC and token else None


def used_rows(page: bytes) -> list[int]:
    """The rows that are not empty, whatever is in them."""
    page = page[: len(page) // ROW_SIZE * ROW_SIZE]
    return [row for row, (content,) in enumerate(_CONTENT.iter_unpack(page)) if content != NO_ROW]


def first_run(mask: int, longest: int) -> tuple[int, int]:
    """The lowest run of adjacent bits of a ``mask`` that is not 0: its first bit and length, at most ``longest``."""
    start = (mask & -mask).bit_length() - 1
    rest = mask >> start
    length = (~rest & (rest + 1)).bit_length() - 1
    return start, length if length < longest else longest


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """All runs of adjacent bits of ``mask``, lowest first, as first bit and length."""
    while mask:
        start, length = first_run(mask, MAX_SLOTS)
        yield start, length
        mask &= ~run_mask(start, length)


def run_mask(start: int, length: int) -> int:
    """The mask of ``length`` adjacent bits from bit ``start`` on."""
    return ((1 << length) - 1) << start
