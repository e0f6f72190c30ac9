"""Waking another process: an empty datagram to a socket whose abstract name is in no file system.

Nothing is left behind when a process ends, and nothing can be read into what arrives: a datagram only says "look". One
that is lost, or sent by somebody else, costs a look.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from .slot_file import lift

if TYPE_CHECKING:
    from socket import socket

MAX_WAKES: Final = 1024
"""Queues are shorter; whoever sends on and on must not hold us in ``drain``."""


def listen() -> tuple[socket, int]:
    """A datagram socket that never blocks, and the random token it is bound to."""
    import socket as sockets  # not at the top: it takes longer to import than all of this package

    token = int.from_bytes(os.urandom(8), "little") | 1
    made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
    listener = sockets.socket(fileno=lift(made.detach()))
    try:
        listener.setblocking(False)
        listener.bind(_address(token))
    except BaseException:
        listener.close()
        raise
    return listener, token


def send(sender: socket, token: int) -> None:
    """Make the socket bound to ``token`` readable, if there is one in this network namespace and it has room."""
    try:
        sender.sendto(b"", _address(token))
    except OSError:
        return


def drain(listener: socket, most: int = MAX_WAKES) -> None:
    """Take what has arrived, at most ``most`` datagrams."""
    try:
        for _ in range(most):
            listener.recv(1)
    except OSError:
        return


def close(listener: socket, token: int) -> None:
    """Close it, unless somebody did and its descriptor is another one's by now."""
    try:
        ours = listener.getsockname() == _address(token)
    except OSError:
        ours = False
    if ours:
        listener.close()
    else:
        listener.detach()


def _address(token: int) -> bytes:
    return b"\0cgroup_threads-%016x" % token
