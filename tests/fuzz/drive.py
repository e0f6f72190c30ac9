"""The fuzzed process: ``python -m tests.fuzz.drive TARGET SECONDS`` and libFuzzer's arguments. Needs atheris."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # in an environment of its own


def main() -> None:
    name, seconds, arguments = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    with atheris.instrument_imports(include=["cgroup_threads"]):
        from . import targets
    atheris.Setup([sys.argv[0], *arguments], lambda data: targets.try_input(name, data, seconds))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
