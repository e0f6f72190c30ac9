"""``module:function`` as something to measure: called as ``function(threads)`` in a fresh child for each count."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from ..measuring.child import worker_environment
from ..variables import Counts, clean_environment
from .child_subject import ChildSubject, Spec
from .records import Task

CALL: Final = Task("call", "calls")
PATTERN: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def from_name(target: str, environment: Mapping[str, str] | None, limit: float | None) -> ChildSubject:
    """The function that ``target`` names; modules are looked for in the working directory first.

    Libraries read their thread variables once, as they are loaded. So each count has a child of its own, in whose
    environment all of them (OMP_NUM_THREADS and so on) have that count, whatever the user's say.
    """
    match = PATTERN.fullmatch(target)
    assert match is not None
    variables = worker_environment(environment)
    options = {"work": "function", "module": match[1], "function": match[2]}
    return ChildSubject(
        Spec(
            target,
            (CALL,),
            options,
            lambda threads: {**variables, **thread_variables(threads)},
            per_count=True,
            first_path=os.getcwd(),
        ),
        limit,
    )


def thread_variables(threads: int) -> dict[str, str]:
    """All variables that importing this package would set, for ``threads`` threads."""
    counts = Counts(threads, interop=1, cores=threads, thread_ceiling=threads, core_ceiling=threads)
    return clean_environment(counts)
