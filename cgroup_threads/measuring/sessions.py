"""Sessions of processes: their end, also where this process is killed and cannot see to it.

Also the guard's own program, run by itself: it needs the standard library alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

_END: Final = 0  # no process has this number
_SECONDS_TO_END: Final = 10.0
_LOOKS: Final = 3  # for members of a session: one that is being killed may start another


def end_session(leader: int) -> None:
    """Kill the process ``leader``, which leads a session of its own, with all that are in it.

    It must not have been waited for, or its number may be another's. Without /proc those in a process group of their
    own are left; a daemon, which has left the session, always is.
    """
    if sys.platform == "win32":
        return
    for kill in (os.killpg, os.kill):
        try:
            kill(leader, signal.SIGKILL)
        except OSError:
            pass  # it has ended; or macOS, which refuses for the group of one that has just ended
    killed = {leader}
    for _ in range(_LOOKS):
        found = set(_find_members(leader)) - killed
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it ended by itself, or is another user's
        killed |= found
        if not found:
            return


def _find_members(session: int) -> Iterator[int]:
    """The processes in ``session``, also in groups of their own, as timeout(1) and job control make them."""
    if sys.platform == "win32":
        return
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isascii() and name.isdigit():
            try:
                if os.getsid(int(name)) == session:
                    yield int(name)
            except OSError:
                pass  # it has ended


class Guard:
    """A process that does nothing, but ends the sessions it was told of if this process is killed.

    The kernel's own signal for that (PR_SET_PDEATHSIG) comes when the thread that started a process ends, and reaches
    nothing that the process has started itself. Where no guard can be started there is none. Windows has no sessions.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform == "win32":
            return
        from .interpreter import find_program  # here: the program is run without its package

        try:
            self._process = subprocess.Popen(
                find_program(__name__, __file__),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # whoever kills this process's group does not meet it
            )
        except OSError:
            return
        assert self._process.stdout is not None
        with self._process.stdout as ready:  # it has started, and takes no time from what is measured
            ready.readline()

    def watch(self, leader: int) -> None:
        """End the session of ``leader`` if this process is killed."""
        self._tell(leader)

    def forget(self, leader: int) -> None:
        """Leave it alone; to be called before it is waited for."""
        self._tell(-leader)

    def close(self) -> None:
        """End the guard, and the sessions it was not told to forget: an interrupt came in between. Twice does
        nothing."""
        self._tell(_END)  # a copy of this process may hold its pipe open, too
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()  # it was stopped
                process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _tell(self, number: int) -> None:
        process = self._process
        if process is not None:
            assert process.stdin is not None
            try:
                process.stdin.write(b"%d\n" % number)
            except (OSError, ValueError):
                pass  # somebody killed it, or another thread has just closed it


def _stand_guard() -> None:
    """The guard: numbers come line by line, until the other process says so, closes the pipe or is gone."""
    print(flush=True)
    leaders: set[int] = set()
    for line in sys.stdin.buffer:
        number = int(line)
        if number == _END:
            break
        if number > 0:
            leaders.add(number)
        else:
            leaders.discard(-number)
    for leader in leaders:
        end_session(leader)


if __name__ == "__main__":
    _stand_guard()
