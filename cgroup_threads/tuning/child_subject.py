"""Work that is measured in fresh children: they are started when needed, given up in time, and ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..measuring.child import Child, Start
from ..measuring.sessions import Guard
from ..profiles.identity import present_identity
from ..profiles.records import Identity
from .errors import TuneError
from .memory import find_free_memory
from .records import Sample, Task

START_LIMIT: Final = 900.0  # a large model from a slow disk
FIRST_LIMIT: Final = 120.0  # while nothing is known of how long a call takes
LEAST_LIMIT: Final = 10.0
PATIENCE: Final = 8.0  # times what one thread would need
MOST_CHILDREN: Final = 32  # one for each count on 128 CPUs; as far as memory allows, none is started twice
_WORKER: Final = f"{__package__}.worker"


class Spec(NamedTuple):
    """What a subject is: how it is called, what its tasks are, and what its children are told.

    ``options`` are those of ``worker.main``; ``environment`` gives that of the child for a count. Where ``per_count``
    is true each count has a child of its own, since its libraries read their counts but once. ``model`` and
    ``library`` are those of the identity; ``first_path`` is where modules are looked for first.
    """

    title: str
    tasks: tuple[Task, ...]
    options: Mapping[str, Any]
    environment: Callable[[int], Mapping[str, str]]
    model: str = ""
    library: str = ""
    per_count: bool = False
    first_path: str | None = None


class ChildSubject:
    """A subject (see ``records.Subject``) whose work is done by children.

    A measurement is given up where threads hinder one another beyond all measure: after ``limit`` seconds, or, where
    that is None, after several times what one thread would need for a call. The child is killed, the sample then says
    one call in the time that was waited (the true rate is below that), and the next measurement starts a new child.
    ``close`` may be called from another thread: a measurement that runs then raises TuneError.
    """

    def __init__(self, spec: Spec, limit: float | None = None) -> None:
        self._spec = spec
        self._limit = limit
        self._lock = threading.Lock()
        """Held while a child is started or taken away, so that none is left after ``close``."""
        self._closed = False
        self._guard: Guard | None = None
        self._children: dict[int, Child] = {}
        """By thread count, or under 0 the one for all counts; the least recently used first."""
        self._last: Child | None = None
        self._sizes: dict[str, float] = {}
        self._bounds: dict[str, float] = {}
        """By task: what a call would take one thread, or more. No count takes longer, unless threads collide."""
        self._first_s: float | None = None
        """What the first call in a child of its own took beside the measurement: it may load a model."""
        self._warm: set[int] = set()
        """The children, by their keys, that have answered."""
        self._given_up: list[tuple[str, int]] = []

    @property
    def title(self) -> str:
        return self._spec.title

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self._spec.tasks

    @property
    def identity(self) -> Identity:
        """What a measurement made now belongs to."""
        return present_identity(self._spec.model, self._spec.library)

    @property
    def pids(self) -> tuple[int, ...]:
        """The child that computed in the last ``measure``, if it lives."""
        return () if self._last is None or not self._last.running else (self._last.pid,)

    @property
    def given_up(self) -> tuple[tuple[str, int], ...]:
        """The name of the task and the count of each measurement that was given up."""
        return tuple(self._given_up)

    def measure(self, task: Task, threads: int, seconds: float) -> Sample:
        """Work with ``threads`` threads for about ``seconds``, at least one call. Raises TuneError where it fails."""
        key = threads if self._spec.per_count else 0
        try:
            child = self._child(key, threads)
            limit = seconds + self._patience(task.name) + self._patience_to_load(key)
            begin = time.monotonic()
            answer = child.ask({"task": task.name, "threads": threads, "seconds": seconds}, limit)
        except BaseException:
            # It has ended, or it still works on what nobody waits for any more (KeyboardInterrupt); or its call failed.
            self._drop(key)
            raise
        if answer is None:
            self._drop(key)
            self._given_up.append((task.name, threads))
            return Sample(self._sizes.get(task.name, 1.0), limit, (limit,), stuck=True)
        calls = tuple(float(value) for value in answer["calls"])
        if key not in self._warm:
            self._warm.add(key)
            loading = time.monotonic() - begin - float(answer["seconds"])
            self._first_s = loading if self._first_s is None else min(loading, self._first_s)
        self._learn(task.name, threads * min(calls))
        return Sample(float(answer["units"]), float(answer["seconds"]), calls)

    def close(self) -> None:
        """End the children."""
        with self._lock:
            self._closed = True
        for key in tuple(self._children):
            self._drop(key)
        with self._lock:
            if self._guard is not None:
                self._guard.close()

    def _patience(self, task: str) -> float:
        bound = self._bounds.get(task)
        patience = FIRST_LIMIT if bound is None else max(LEAST_LIMIT, PATIENCE * bound)
        return patience if self._limit is None else min(patience, self._limit)

    def _patience_to_load(self, key: int) -> float:
        """The first call of a function may load what later ones use, in each child anew."""
        if self._limit is not None or not self._spec.per_count or key in self._warm or self._first_s is None:
            return 0.0
        return PATIENCE * self._first_s

    def _learn(self, task: str, seconds: float) -> None:
        self._bounds[task] = min(seconds, self._bounds.get(task, seconds))

    def _child(self, key: int, threads: int) -> Child:
        """The child for ``key``, started and loaded where there is none."""
        child = self._children.get(key)
        if child is not None and child.running:
            self._children[key] = self._children.pop(key)  # the last one used
            self._last = child
            return child
        self._drop(key)
        self._make_room()
        spec = self._spec
        options = {**spec.options, "sizes": self._sizes}
        with self._lock:
            if self._closed:
                raise TuneError(spec.title, "it was closed")
            if self._guard is None:
                self._guard = Guard()
            start = Start(_WORKER, options, spec.environment(threads), spec.first_path)
            child = Child(start, self._guard, lambda reason: TuneError(spec.title, reason))
            self._children[key] = self._last = child
        loaded = child.wait(START_LIMIT)
        if loaded is None:
            raise TuneError(spec.title, f"it was not loaded within {START_LIMIT:.0f} s")
        self._sizes = dict(loaded["sizes"])
        for task, seconds in loaded["seconds"].items():
            self._learn(task, seconds)
        return child

    def _make_room(self) -> None:
        """End the least recently used children where another one like the largest might not fit."""
        free = find_free_memory() if self._children else None
        while self._children:
            largest = max(read_resident(child.pid) for child in self._children.values())
            if len(self._children) < MOST_CHILDREN and (free is None or free > 2 * largest):
                return
            free = None if free is None else free + largest
            self._drop(next(iter(self._children)))

    def _drop(self, key: int) -> None:
        with self._lock:
            child = self._children.pop(key, None)
            self._warm.discard(key)
        if child is not None:
            child.close()


def read_resident(pid: int) -> int:
    """Bytes of a process in memory; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
            return int(file.read(256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
