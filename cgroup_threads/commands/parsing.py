"""Types of command-line arguments: each returns the value, or says what is wrong with the text."""

from __future__ import annotations

import argparse
from typing import Final

from ..settings import parse_cores, parse_count, parse_seconds

MAX_CALLERS: Final = 256
RAW: Final = argparse.RawDescriptionHelpFormatter  # examples keep their lines


def seconds(text: str) -> float:
    number = parse_seconds(text)  # not parse_cores: "2m" would be 2 ms to it, and 2 minutes to whoever types it
    if number is None or number > 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600, such as 2, 0.5s or 500ms")
    return number


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_CALLERS and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_CALLERS}")
    return int(text)


def quota(text: str) -> float:
    number = parse_cores(text)
    if number is None or not 0.01 <= number <= 4096:  # the kernel's least quota is 1 ms of a 100 ms period
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cores such as 1, 0.5 or 1500m")
    return number


def module_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of module names")
    return names


def worker_count(text: str) -> int:
    number = parse_count(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def confidence(text: str) -> float:
    number = parse_cores(text)
    if number is None or not 0.5 <= number <= 0.999:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0.5 to 0.999, such as 0.95")
    return number
