"""The page of hints: what is written comes back, any bytes are taken, and nothing is believed beyond its bounds."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from cgroup_threads.governor.slot_rows import (
    HINTED,
    LOOK_LIMIT_S,
    MAX_CALLS,
    MAX_SLOTS,
    NO_ROW,
    NOTHING_SEEN,
    OVERDUE_S,
    PAGE_SIZE,
    ROW_SIZE,
    ROWS,
    View,
    first_run,
    pack_row,
    parse_page,
    parse_token,
    run_mask,
    runs,
    used_rows,
)

NOW = 1000.0
MASKS = st.integers(0, (1 << MAX_SLOTS) - 1)
TOKENS = st.integers(1, 2**64 - 1)
WAITERS = st.builds(
    lambda token, running, waiting, since, age, held: (
        pack_row(token, running, waiting, since if waiting else None, NOW - age, held),
        running + waiting,
        waiting,
        since if waiting else None,
        held & HINTED,
    ),
    TOKENS,
    st.integers(0, 100),
    st.integers(0, 100),
    st.floats(1.0, NOW),
    st.floats(0.0, LOOK_LIMIT_S * 0.9),
    MASKS,
)
DAMAGED = st.lists(
    st.one_of(
        st.just(NO_ROW),
        st.binary(min_size=ROW_SIZE, max_size=ROW_SIZE),
        # Right in its first bytes, which is all that is looked at first.
        st.binary(min_size=ROW_SIZE - 4, max_size=ROW_SIZE - 4).map(lambda noise: pack_row(1)[:4] + noise),
    ),
    max_size=8,
).map(b"".join)


@given(st.lists(WAITERS, max_size=12), st.integers(-1, 12))
def test_what_others_wrote_comes_back(written: list[tuple[bytes, int, int, float | None, int]], own: int) -> None:
    view = parse_page(b"".join(row[0] for row in written), own, NOW)
    others = [row for index, row in enumerate(written) if index != own]
    held = 0
    for row in others:
        held |= row[4]
    # Of a row: all its calls, those that wait, since when the first does. Overdue or fewest running, then the oldest.
    waiting = [(row[1] - row[2], row[3]) for row in others if row[3] is not None]
    fewest, oldest = min(
        waiting, key=lambda one: (-1 if NOW - one[1] > OVERDUE_S else one[0], one[1]), default=(0, None)
    )
    assert (view.calls, view.waiting) == (sum(row[1] for row in others), sum(row[2] for row in others))
    assert (view.held, view.oldest_s, view.oldest_running) == (held, oldest, fewest)
    assert (view.oldest_row is None) == (oldest is None)
    if view.oldest_row is not None:
        assert view.oldest_row != own
        assert written[view.oldest_row][3] == oldest


@given(DAMAGED, st.binary(max_size=ROW_SIZE), st.integers(-1, ROWS), st.floats(0.0, 1e9))
@example(b"\xff" * PAGE_SIZE, b"", 0, NOW)
@example(b"", b"\xff", 0, NOW)
def test_any_page_is_taken(page: bytes, rest: bytes, own: int, now_s: float) -> None:
    view = parse_page(page + rest, own, now_s)
    rows = (len(page) + len(rest)) // ROW_SIZE
    assert 0 <= view.calls <= 2 * MAX_CALLS * rows
    assert 0 <= view.waiting <= view.calls
    assert 0 <= view.held <= HINTED
    assert (view.oldest_s is None) == (view.oldest_row is None) == (view.waiting == 0)
    if view.oldest_s is not None and view.oldest_row is not None:
        assert 0.0 < view.oldest_s <= now_s
        assert 0 <= view.oldest_row < rows
        assert view.oldest_row != own
    used = used_rows(page + rest)
    assert used == sorted(set(used))
    assert all(0 <= row < rows for row in used)
    for row in used:
        token = parse_token(page[row * ROW_SIZE : (row + 1) * ROW_SIZE])
        assert token is None or 0 < token < 2**64


def test_noise_is_no_row() -> None:
    assert parse_page(b"\xff" * PAGE_SIZE, 0, NOW) == parse_page(bytes(PAGE_SIZE), 0, NOW) == NOTHING_SEEN
    assert parse_token(b"\xff" * ROW_SIZE) is None
    assert parse_token(b"") is None
    assert parse_token(pack_row(7)) == 7


def test_who_has_not_looked_lately_does_not_wait() -> None:
    for age, waits in ((0.0, True), (0.9, True), (1.1, False), (1e6, False), (-0.9, True), (-1.1, False)):
        page = pack_row(1, 2, 3, NOW - 1, NOW - age * LOOK_LIMIT_S, 0b101)
        assert parse_page(page, -1, NOW) == (View(5, 0b101, NOW - 1, 0, 3, 2) if waits else View(2, 0b101)), age


def test_times_that_are_none() -> None:
    for odd in (math.nan, math.inf, -math.inf, -1.0, 0.0, NOW + 1):
        assert parse_page(pack_row(1, 0, 1, odd, NOW), -1, NOW) == NOTHING_SEEN
        if odd > 0:
            continue
        assert parse_page(pack_row(1, 0, 1, NOW, odd), -1, NOW) == NOTHING_SEEN


def test_many_calls_are_bounded() -> None:
    assert parse_page(pack_row(1, 10**6, 10**6, NOW, NOW), -1, NOW).calls == 2 * MAX_CALLS


@given(MASKS)
def test_runs_are_the_mask(mask: int) -> None:
    found = list(runs(mask))
    total, end = 0, -1
    for start, length in found:
        assert length > 0
        assert start > end  # lowest first, and never two adjacent ones
        end = start + length
        total |= run_mask(start, length)
    assert total == mask


@given(MASKS.filter(bool), st.integers(1, MAX_SLOTS))
def test_the_first_run_is_the_lowest(mask: int, longest: int) -> None:
    start, length = first_run(mask, longest)
    assert mask & run_mask(start, length) == run_mask(start, length)
    assert mask & ((1 << start) - 1) == 0
    assert 1 <= length <= longest
    assert length == longest or not mask >> (start + length) & 1


def test_whose_turn_it_is() -> None:
    """A process that runs less comes first; of equals, who has waited longer."""
    theirs = View(3, 0b1, NOW - 0.1, 5, 1, oldest_running=1)
    assert theirs.ahead(2, NOW - 0.4, NOW)
    assert not theirs.ahead(0, NOW, NOW)
    assert theirs.ahead(1, NOW, NOW)
    assert not theirs.ahead(1, NOW - 0.2, NOW)
    assert not View().ahead(9, NOW, NOW)


def test_who_is_overdue_comes_first_whatever_its_process_runs() -> None:
    theirs = View(3, 0b1, NOW - 0.1, 5, 1, oldest_running=0)
    assert not theirs.ahead(2, NOW - 0.6, NOW)
    assert theirs._replace(oldest_s=NOW - 0.7).ahead(2, NOW - 0.6, NOW)
    page = pack_row(1, 0, 1, NOW - 0.1, NOW, 0) + pack_row(2, 9, 1, NOW - 0.6, NOW, 0)
    assert parse_page(page, -1, NOW).oldest_row == 1
