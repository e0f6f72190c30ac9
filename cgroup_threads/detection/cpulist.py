"""The kernel's two text forms of a set of CPUs: lists (``0-3,8``) and hexadecimal masks (``ff,00000003``).

Both are read from files that may hold anything: the parsers give None for junk and do bounded work, whatever the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_CPUS: Final = 1 << 16  # no kernel is built for more than 8192 CPUs
_MAX_DIGITS: Final = 6
_WORD_DIGITS: Final = 8  # a mask is printed in words of 32 bits


def parse_number(text: str, digits: int = _MAX_DIGITS) -> int | None:
    """A whole number of at most ``digits`` ASCII digits, else None (``int`` takes ``1_0``, ``+1`` and other digits)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def parse_cpulist(text: str) -> frozenset[int] | None:
    """The CPUs of a list such as ``0-3,8-11`` or ``0-6:2/3`` (2 of each group of 3, so 0, 1, 3, 4 and 6).

    Blank text is the empty set; None means junk. Format: lib/bitmap-str.c, ``bitmap_parselist``.
    """
    text = text.strip()
    if not text:
        return frozenset()
    cpus: set[int] = set()
    work = 0
    for piece in text.split(","):
        span = _parse_piece(piece)
        if span is None:
            return None
        first, last, used, group = span
        work += last - first + 1
        if work > 2 * MAX_CPUS:  # only made-up text names the same CPUs again and again
            return None
        if used == group:
            cpus.update(range(first, last + 1))
        else:
            for start in range(first, last + 1, group):
                cpus.update(range(start, min(start + used, last + 1)))
    return frozenset(cpus)


def _parse_piece(piece: str) -> tuple[int, int, int, int] | None:
    """(first, last, used, group) of ``first[-last[:used/group]]``; used equals group where all CPUs count."""
    span, colon, stride = piece.partition(":")
    low, dash, high = span.partition("-")
    first = parse_number(low)
    last = parse_number(high) if dash else first
    if first is None or last is None or not first <= last < MAX_CPUS:
        return None
    if not colon:
        return first, last, 1, 1
    before, slash, after = stride.partition("/")
    used, group = parse_number(before), parse_number(after)
    if not (dash and slash and used and group) or used > group:
        return None
    return first, last, used, group


def parse_mask(text: str) -> frozenset[int] | None:
    """The CPUs of a mask such as ``ff`` or ``00000001,00000000`` (CPU 32): words of 32 bits, highest first.

    None means junk. Masks above 1024 CPUs are longer, nothing else; the bound is MAX_CPUS.
    """
    words = text.strip().split(",")
    if len(words) * 32 > MAX_CPUS:
        return None
    value = 0
    for word in words:
        if not word or len(word) > _WORD_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in word):
            return None
        value = value << 32 | int(word, 16)
    return frozenset(cpu for cpu in range(value.bit_length()) if value >> cpu & 1)


def format_cpulist(cpus: Iterable[int]) -> str:
    """The list form of ``cpus`` as the kernel prints it: ``0-3,8``; empty for no CPUs."""
    spans: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
