"""Finding the native libraries with thread pools that this process has loaded.

threadpoolctl knows names, symbols and versions; which libraries there are we tell it ourselves on Linux, from
/proc/self/maps: its own search takes ``dl_iterate_phdr`` in some versions and systems (see ``maps``). Two of its
private methods are used for that, the same in 3.5 to 3.8; where they are gone its public constructor serves.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ..notices import Notice
from ..state import process
from .guarding import note_replaced, note_retired
from .linkmap import Keeper
from .maps import NATIVE_PREFIXES, library_paths


class Libraries(NamedTuple):
    """``controllers`` are threadpoolctl's, ``torch`` is the path of libtorch_cpu (which holds a static MKL) or None,
    ``paths`` are all mapped libraries that were still loaded (empty where the system does not tell)."""

    controllers: tuple[Any, ...]
    torch: str | None
    paths: tuple[str, ...]


def find_libraries() -> Libraries:
    """Look through the whole process. About 1 ms; never raises for what it finds there."""
    if not sys.platform.startswith("linux"):
        return Libraries(_search(), None, ())
    paths, complete = library_paths()
    if not complete:
        text = "the list of mapped libraries could not be read to its end" if paths else "/proc/self/maps is unreadable"
        process.note(Notice("pools-unseen", f"{text}: pools may be missing from limits and report", "warning"))
        if not paths:
            return Libraries((), None, ())
    torch = next((path for path in paths if path.rpartition("/")[2].startswith("libtorch_cpu")), None)
    controllers, gone = _controllers(paths)
    return Libraries(controllers, torch, tuple(path for path in paths if path not in gone))


def _controllers(paths: dict[str, None]) -> tuple[tuple[Any, ...], set[str]]:
    """Also the paths of libraries that were not there any more. They may come back at once, and are news then."""
    gone: set[str] = set()
    import threadpoolctl

    prefixes = tuple(dict.fromkeys((*NATIVE_PREFIXES, *getattr(threadpoolctl, "_ALL_PREFIXES", ()))))
    wanted = [path for path in paths if path.rpartition("/")[2].lower().startswith(prefixes)]
    if not wanted:
        return (), gone
    try:
        holder = threadpoolctl.ThreadpoolController._from_controllers([])
        add = holder._make_controller_from_path
    except AttributeError:
        return _search(), gone
    keeper = Keeper()
    for path in wanted:
        # threadpoolctl remembers for good that there is nothing at a path: it is asked only while the library is there.
        with keeper.keep(path) as loaded:
            if not loaded:
                note_replaced(path)
                gone.add(path)
                continue
            try:
                add(path)
            except OSError:
                continue  # unloaded between the list and the look
            except Exception as error:  # noqa: BLE001 - a controller that another package has registered
                note_retired(path, "looked at", error)
    return tuple(holder.lib_controllers), gone


def _search() -> tuple[Any, ...]:
    """threadpoolctl's own search: other systems, and versions without the private methods."""
    import warnings

    import threadpoolctl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # two OpenMP runtimes at once: known, and not ours to judge
        return tuple(threadpoolctl.ThreadpoolController().lib_controllers)
