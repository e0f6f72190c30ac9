"""How many cores this library and others see in real cgroup v1 groups and in a runc container.

    python -m benchmarks.detection_peers            the table of docs/detection.md
    python -m benchmarks.detection_peers --json

Needs root, writable cgroup v1 hierarchies, and runc for the container.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.lab.cgroup1 import LAYOUTS, ask

COLUMNS = ("cgroup_threads", "joblib", "proclimits", "os.cpu_count")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = []
    for layout in LAYOUTS:
        print(f"\r\033[K{layout.title}", end="", file=sys.stderr)
        rows.append({"layout": layout.title, "view": layout.view, "right": layout.usable, **ask(layout)})
    print("\r\033[K", end="", file=sys.stderr)
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print("| layout | view | right |", " | ".join(COLUMNS), "|")
    print("|---" * (3 + len(COLUMNS)) + "|")
    for row in rows:
        print(f"| {row['layout']} | {row['view']} | {row['right']} |", " | ".join(str(row[c]) for c in COLUMNS), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
