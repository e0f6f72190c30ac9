"""Slots whose page is cut or overwritten in use: it holds hints alone, and locks go on."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgroup_threads.governor.slot_rows import PAGE_SIZE, pack_row
from cgroup_threads.governor.slots import Slots, View
from tests.lab.slots import SHM, Holders, a_key, two_parties


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Slots, Slots]]:
    with two_parties(tmp_path) as both:
        yield both


def spoil(descriptor: int, rng: random.Random) -> None:
    """What a page may become: cut, noise, or rows that claim everything."""
    way = rng.randrange(4)
    if way == 0:
        os.ftruncate(descriptor, rng.choice((0, 1, 63, 100, PAGE_SIZE - 1)))
    elif way == 1:
        os.pwrite(descriptor, rng.randbytes(PAGE_SIZE), 0)
    elif way == 2:
        os.pwrite(descriptor, rng.randbytes(100), rng.randrange(PAGE_SIZE))
    else:
        row = pack_row(rng.randrange(1, 2**64), 4096, 4096, 1.0, time.monotonic(), -1)
        os.pwrite(descriptor, row * 128, 0)


def test_a_spoilt_page(pair: tuple[Slots, Slots]) -> None:
    """Nothing raises, no core has two holders, and all can still be leased whatever the rows say."""
    rng = random.Random(1)
    descriptor = os.open(pair[0].path, os.O_RDWR)
    try:
        for _ in range(400):
            spoil(descriptor, rng)
            one, two = rng.sample(pair, 2)
            view = one.look()
            assert 0 <= view.waiting <= view.calls
            for row in (view.oldest_row, rng.randrange(128)):
                one.wake(row if row is not None else 0)
            one.take(rng.randint(1, 8), 8, view.held)
            assert one.held & two.held == 0
            one.publish(1, 1, 1.0, 1.0)
            one.drain()
            if rng.random() < 0.3:
                one.reap()
            one.give(rng.randrange(256))
            assert not one.moved()
        one, two = pair
        one.give(-1)
        two.give(-1)
        two.publish(0, 0, None, 0.0)
        one.reap()
        os.pwrite(descriptor, pack_row(1, 1, 0, None, 0.0, -1) * 2, 0)  # rows of the living, which claim all
        one.publish(0, 0, None, 0.0)
        assert one.look().held & 0xFF == 0xFF
        assert one.reap()
        assert one.look().held == 0
        assert one.take(8, 8, one.look().held) == 0xFF
    finally:
        os.close(descriptor)


def test_a_page_is_whole_again_after_a_while(pair: tuple[Slots, Slots]) -> None:
    one, two = pair
    two.take(2, 4, 0)
    for spoilt in (b"", random.Random(2).randbytes(PAGE_SIZE)):
        os.truncate(one.path, 0)
        descriptor = os.open(one.path, os.O_RDWR)
        os.pwrite(descriptor, spoilt, 0)
        os.close(descriptor)
        one.reap()
        two.publish(2, 0, None, 1.0)
        one.publish(1, 0, None, 1.0)
        assert one.look() == View(2, 0b11)
        assert two.look() == View(1)
        assert os.stat(one.path).st_size == PAGE_SIZE


def test_killed_holders_on_a_page_that_is_spoilt(tmp_path: Path) -> None:
    rng = random.Random(3)
    with a_key() as key:
        holders = Holders(3, key, (4,), tmp_path / "oracle")
        descriptor = os.open(f"{SHM}/cgroup_threads-{key}.slots", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for _ in range(8):
                for _ in range(20):
                    spoil(descriptor, rng)
                holders.kill_one()
            assert holders.stop() > 0
        finally:
            os.close(descriptor)
            holders.kill()
