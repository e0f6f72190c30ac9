"""Targets: what /proc says of another process, and its map of files."""

from __future__ import annotations

import os
from unittest import mock

from cgroup_threads.detection.affinity import find_binding, find_runtimes
from cgroup_threads.pools import maps
from cgroup_threads.pools.linkmap import Watch
from cgroup_threads.reporting.counters import group_threads, parse_task_stat
from cgroup_threads.reporting.inspecting.owners import CodeMap, find_libraries, find_owner, runs_python
from cgroup_threads.reporting.inspecting.tasks import (
    parse_environ,
    parse_maps,
    parse_stat,
    parse_status,
    parse_syscall,
    printable,
)

from .checks import check_line, pieces, put, scratch, steady, text_of

_MOST = 10**20


def check_task(data: bytes) -> None:
    stat_data, status_data, syscall, environ_data, command, stack = pieces(data, 6)
    stat = steady(lambda: parse_stat(stat_data))
    if stat is not None:
        check_line(stat.name)
        assert len(stat.state) == 1
        assert 0 <= stat.parent < _MOST
        assert 0 <= stat.start < _MOST
        assert 0 <= stat.ticks < 2 * _MOST
        check_line(find_owner(2, 1, stat.name, "process", None))
    status = steady(lambda: parse_status(status_data))
    for number in status[:4]:
        assert number is None or 0 <= number < _MOST
    steady(lambda: parse_syscall(syscall))
    environ = steady(lambda: parse_environ(environ_data))
    assert all(name and "=" not in name for name in environ)
    assert find_binding(environ) in (None, "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "OMP_PLACES", "KMP_AFFINITY")
    check_line(printable(command))
    assert len(printable(command)) <= 203
    task = steady(lambda: parse_task_stat(text_of(stat_data)))
    assert task is None or sum(group.threads for group in group_threads([(task[0], task[1] == "R")] * 2)) == 2
    found = parse_syscall(syscall)
    code, _, _ = parse_maps(b"7f00-7fff r-xp 0 0:0 0 /usr/lib/libgomp.so.1\n")
    owner = CodeMap(code).owner_of(found[1] if found else 0, stack)
    assert owner in (None, "OpenMP team")


def check_maps(data: bytes) -> None:
    code, stacks, paths = steady(lambda: parse_maps(data))
    assert all(path.startswith("/") for path in paths)
    assert len(set(paths)) == len(paths)
    assert all(mapping.start >= 0 and mapping.end >= 0 for mapping in (*code, *stacks))
    assert {mapping.path for mapping in code} <= set(paths)
    assert {library.path for library in find_libraries(paths)} <= set(paths)
    runs_python(paths)
    owners = CodeMap(code)
    for mapping in code[:8]:
        owners.owner_of(mapping.start, data[: len(data) // 8 * 8])
    find_runtimes(text_of(data))
    with scratch() as directory, mock.patch.object(maps, "MAPS", put(directory, "maps", data)):
        found, complete = steady(maps.library_paths)
    assert complete
    assert all(path.startswith("/") and ".so" in os.path.basename(path) for path in found)
    for path in found:
        maps.native_name(path)
    Watch().look(list(found)[:64])  # nothing is loaded, whatever is asked for
