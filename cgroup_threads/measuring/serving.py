"""The side of a fresh interpreter that measures: what goes over the pipes. ``child.py`` is its parent's side.

One JSON object a line. The process ends at once when its input ends, even in the middle of a call.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import IO, Any, NoReturn

from ..errors import first_line


class Channel:
    """Requests of the parent, and the answers to them.

    Libraries and functions read and write as they like: standard input becomes empty, and standard output goes to
    standard error.
    """

    def __init__(self) -> None:
        requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()

    def next_request(self) -> dict[str, Any]:
        """Wait for a request. There is always one: without a parent this process ends."""
        request: dict[str, Any] = json.loads(self._waiting.get())
        return request

    def answer(self, **data: Any) -> None:
        """Send one answer; the parent raises ``error`` if there is one."""
        print(json.dumps(data), file=self._answers, flush=True)

    def give_up(self, error: BaseException) -> NoReturn:
        """Send what went wrong, and end. Threads of native pools may still spin: they are not waited for."""
        self.answer(error=describe(error))
        self._answers.close()
        os._exit(0)

    def _listen(self, requests: IO[str]) -> None:
        for line in requests:
            self._waiting.put(line)
        os._exit(0)  # the parent is gone


def describe(error: BaseException) -> str:
    """An exception on one line."""
    return f"{type(error).__name__}: {first_line(error)}"
