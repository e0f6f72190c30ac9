"""All targets by name, and how one input is tried. Nothing here needs a fuzzer: any bytes may be replayed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Final

from . import detection_targets, file_targets, process_targets, text_targets

MAX_BYTES: Final = 1 << 16
SECONDS: Final = 1.0
"""Of CPU time, for one input of at most MAX_BYTES; a target reads it two or three times over."""
MAX_RESIDENT: Final = 1 << 30
"""Bytes that a process may have while it tries inputs."""

TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "cpulist": detection_targets.check_cpulist,
    "tree": detection_targets.check_tree,
    "proc_tables": detection_targets.check_proc_tables,
    "schedulers": detection_targets.check_schedulers,
    "task": process_targets.check_task,
    "maps": process_targets.check_maps,
    "settings": text_targets.check_settings,
    "variables": text_targets.check_variables,
    "marker": text_targets.check_marker,
    "command": text_targets.check_command_line,
    "llama": text_targets.check_llama,
    "outputs": text_targets.check_outputs,
    "slots": file_targets.check_slots,
    "workers": file_targets.check_workers,
    "profile": file_targets.check_profile,
    "header": file_targets.check_header,
    "weights": file_targets.check_weights,
    "arrays": file_targets.check_arrays,
    "identity": file_targets.check_identity,
    "earlier_report": file_targets.check_earlier_report,
}


def try_input(name: str, data: bytes, seconds: float = SECONDS) -> None:
    """Raises what the library should not have raised; AssertionError for any other broken promise.

    Warnings count as errors: nobody asked for text on stderr.
    """
    begin = time.thread_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TARGETS[name](data)
    spent = time.thread_time() - begin
    assert spent <= seconds, f"{len(data)} bytes took {spent:.2f} s of CPU time"
