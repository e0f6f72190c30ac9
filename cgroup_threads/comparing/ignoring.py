"""Which lines are left out. The search runs in a process of its own: some regular expressions never end.

Also that process's own program, run by itself: it needs the standard library alone.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

LEFT_OUT: Final = b"x"
_KEPT: Final = b"-"


def find_ignored(text: str, patterns: Sequence[str], seconds: float) -> bytes:
    """One byte a line, ``x`` for one in which a pattern is found.

    Raises TimeoutError with the pattern that was not done with all lines within ``seconds``, and ChildProcessError
    where the search failed.
    """
    from ..measuring.interpreter import find_program  # here: the program is run without its package

    given = json.dumps({"patterns": [*patterns], "text": text, "seconds": seconds}).encode()
    try:
        command = find_program(__name__, __file__)
        done = subprocess.run(command, input=given, capture_output=True, check=False, cwd="/")
    except OSError as error:
        raise ChildProcessError(error.strerror) from error
    if done.returncode == -signal.SIGALRM:
        begun = len(done.stdout.splitlines())  # the search says when it begins with a pattern
        raise TimeoutError(patterns[max(0, begun - 1)])
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ChildProcessError(words[-1] if words else f"exit code {done.returncode}")
    return done.stdout.splitlines()[-1]


def _search() -> None:
    given = json.loads(sys.stdin.buffer.read())
    # The signal ends a process in the middle of a search, and also where nobody waits for it any more. What it does was
    # inherited.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, given["seconds"])
    lines = given["text"].split("\n")
    left_out = bytearray(_KEPT * len(lines))
    for pattern in given["patterns"]:
        print(flush=True)
        search = re.compile(pattern).search
        for number, line in enumerate(lines):
            if search(line):
                left_out[number : number + 1] = LEFT_OUT
    sys.stdout.buffer.write(left_out + b"\n")


if __name__ == "__main__":
    _search()
