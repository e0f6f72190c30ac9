"""A real gunicorn."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import require_module
from .commands import clean_environ


@contextmanager
def gunicorn(
    directory: Path,
    app: str,
    *options: str,
    environ: Mapping[str, str],
    join: Callable[[], None] | None = None,
    hangs: bool = False,
) -> Iterator[int]:
    """gunicorn with the WSGI application of ``app``, a script; yields its port on the loopback interface.

    ``join`` is called in it before it begins. It must end in order when told to, unless it ``hangs``.
    """
    require_module("gunicorn")
    (directory / "app.py").write_text(app)
    # Connections wait in this socket's queue until there are workers: nobody has to ask when the server is up.
    with socket.create_server(("127.0.0.1", 0)) as listener, open(directory / "log", "w+") as log:
        port = listener.getsockname()[1]
        bind = f"fd://{listener.fileno()}"
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "-b", bind, "app:application"],
            env=clean_environ(**environ),
            cwd=directory,
            stdout=log,
            stderr=log,
            pass_fds=(listener.fileno(),),
            preexec_fn=join,
            start_new_session=True,  # a group of its own: hung workers would outlive the master
        )
        listener.close()  # with gunicorn's end connections are refused
        try:
            yield port
            if not hangs:
                server.send_signal(signal.SIGTERM)
                assert server.wait(60) == 0
        except BaseException:
            log.seek(0)
            print(log.read())
            raise
        finally:
            try:
                os.killpg(server.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            server.wait()
