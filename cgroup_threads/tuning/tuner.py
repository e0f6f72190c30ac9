"""``tune``: from what is to be measured to the result."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ..detection import detect
from ..detection.cpulist import parse_number
from ..detection.records import CpuLimits
from ..errors import InvalidArgumentError, check_threads
from ..measuring.progress import Progress
from ..notices import Notice, shown
from ..profiles.files import ProfileError, check_directory, save_profile
from ..profiles.identity import present_identity
from ..profiles.records import Identity, new_profile
from ..reporting.counters import binding_level
from ..state import process
from .bandwidth import measure
from .command_subject import Usage
from .counts import sweep_counts
from .disturbance import temper
from .fit import fit_amdahl, fit_universal
from .noise import Meter
from .recommend import explain, recommend
from .records import Curve, ProcessUse, Subject, Task, TuneResult
from .sweep import MIN_ROUNDS, Measured, Terms, Tick, sweep

PERIOD_S: Final = 0.1  # of a quota, where it is not told
GRACE_S: Final = 0.1
LONGEST_S: Final = sys.float_info.max
SHORTEST_S: Final = 0.1  # of a measurement without a quota
PERIODS: Final = 3  # a measurement lasts so many at least: shorter ones may fit between two stops


def tune(
    target: Any,
    *,
    max_threads: int | None = None,
    rounds: int = 15,
    seconds: float = 1.0,
    time_limit: float = 300.0,
    confidence: float = 0.95,
    tasks: Collection[str] | None = None,
    save: bool | str | os.PathLike[str] = False,
    progress: bool | Tick | None = None,
) -> TuneResult:
    """Measure ``target`` with every thread count that makes sense here, and recommend one.

    ``target`` is a function ``fn(threads)``, a model or session, the path of a model, ``"module:function"``, or a
    command as a list of words with ``{threads}`` in it. Functions are called in this process, with native pools limited
    to ``threads`` up to the budget; commands and models run in fresh children, under the quota in force and without
    variables of ours. ``tasks`` are the kinds of work to measure (of a llama "decode" and "prefill"); None is all.

    Counts go from 1 to two above the usable cores, or to ``max_threads``. Each is measured for about ``seconds`` in up
    to ``rounds`` rounds, until ``confidence`` is reached; disturbed rounds are repeated. All ends after ``time_limit``
    seconds; only a call of a function in this process cannot be interrupted and ends first.

    ``save`` keeps the result as a profile, which the factories and ``govern`` use; a path is the directory to use.
    ``progress`` draws a bar where standard error is a terminal; False does not, and a function is called as
    ``progress(done, total, what)``.

    Raises InvalidArgumentError and InvalidThreadsError for arguments that cannot be, ProfileError where ``save`` could
    not be written, and TuneError where the target fails or nothing could be measured in time.
    """
    check_rounds(rounds)
    for name, value in (("seconds", seconds), ("time_limit", time_limit)):
        check_seconds(value, name)
    if isinstance(confidence, bool) or not isinstance(confidence, (int, float)) or not 0 < confidence <= 1:
        raise InvalidArgumentError("confidence", confidence, "above 0 and at most 1")
    if max_threads is not None:
        check_threads(max_threads, "max_threads")
    if save == "":
        raise InvalidArgumentError("save", save, "True, False or a directory")
    from .subjects import make_subject

    began = time.monotonic()
    subject = make_subject(target)
    try:
        chosen = choose_tasks(subject.tasks, tasks)
        identity = identify(subject)
        if save and not identity.model:
            raise InvalidArgumentError(
                "save", save, "False for a target without weights: nothing could find its profile"
            )
        if save:
            check_directory(None if isinstance(save, bool) else save)
        limits = detect()
        usable = limits.usable(process.settings.rounding)
        counts = sweep_counts(limits.width, usable, max_threads)
        terms = make_terms(rounds, seconds, time_limit, confidence, limits)
        with showing(progress) as tick, ending(subject, began + time_limit):
            measured = sweep(subject, counts, usable, terms, Meter(limits), tick, tasks=chosen, began=began)
        result = conclude(measured, subject.title, identity, limits, usable)
        result = result._replace(
            notices=(*result.notices, *say_given_up(subject, result.curves)), processes=sum_up_usages(subject)
        )
    finally:
        subject.close()
    result = add_bandwidth(result, target, limits, usable)
    if save:
        result = result._replace(notices=(*result.notices, save_result(result, save)))
    return result._replace(elapsed=time.monotonic() - began)


def check_rounds(rounds: object) -> None:
    """Raise InvalidArgumentError for a number of rounds that says nothing of their spread."""
    if type(rounds) is not int or rounds < MIN_ROUNDS:
        raise InvalidArgumentError("rounds", rounds, f"a whole number of at least {MIN_ROUNDS}")


def check_seconds(seconds: object, argument: str) -> None:
    """Raise InvalidArgumentError for a time that does not pass or never ends."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= LONGEST_S:
        raise InvalidArgumentError(argument, seconds, "a number of seconds above 0")


def choose_tasks(there: Sequence[Task], names: Collection[str] | None) -> tuple[Task, ...]:
    """The tasks of those names. Raises InvalidArgumentError for one that is not there, and for none."""
    if names is None:
        return tuple(there)
    known = {task.name for task in there}
    if isinstance(names, str) or not names or not known.issuperset(names):
        raise InvalidArgumentError("tasks", names, "some of " + ", ".join(task.name for task in there))
    return tuple(task for task in there if task.name in names)


def identify(subject: Subject) -> Identity:
    """What the measurement belongs to; subjects without weights say nothing of it."""
    found = getattr(subject, "identity", None)
    return found if isinstance(found, Identity) else present_identity("", "")


def make_terms(rounds: int, seconds: float, time_limit: float, confidence: float, limits: CpuLimits) -> Terms:
    """How to measure: under a quota for some of its periods at least, since less may fit between two stops."""
    least = SHORTEST_S if limits.quota is None else PERIODS * find_period(limits)
    if limits.quota is None:
        least = min(seconds, least)
    return Terms(rounds, max(seconds, least), float(time_limit), float(confidence), least)


def find_period(limits: CpuLimits) -> float:
    """Seconds of a period of the quota in force."""
    level = binding_level(limits.levels)
    words = (level.raw or "").split() if level is not None else []
    period = parse_number(words[1]) if len(words) == 2 else None
    return period / 1e6 if period else PERIOD_S


@contextmanager
def showing(progress: bool | Tick | None) -> Iterator[Tick]:
    """Whom to tell of the progress: a bar, a function, or nobody."""
    if callable(progress):
        yield progress
        return
    bar = Progress(quiet=progress is False)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def ending(subject: Subject, deadline: float) -> Iterator[None]:
    """Kill children of ``subject`` that still compute at ``deadline`` (monotonic); the sweep ends with what it has."""
    over = threading.Event()

    def watch() -> None:
        late = min(max(0.0, deadline - time.monotonic()) + GRACE_S, threading.TIMEOUT_MAX)
        while not over.wait(late):
            late = GRACE_S
            for pid in subject.pids:
                if pid != os.getpid():
                    try:
                        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
                    except OSError:
                        pass  # it ended by itself

    watcher = threading.Thread(target=watch, name="cgroup-threads-tune-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def conclude(measured: Measured, title: str, identity: Identity, limits: CpuLimits, usable: int) -> TuneResult:
    """Fits and recommendations from what was measured."""
    curves, notices = [], list(measured.notices)
    for task, points, contenders, doubtful in zip(
        measured.tasks, measured.points, measured.contenders, measured.doubtful, strict=True
    ):
        recommendation = temper(recommend(contenders), doubtful)
        curve = Curve(task, points, fit_amdahl(points), fit_universal(points), recommendation)
        curves.append(curve)
        notices += explain(curve, usable, limits.quota)
    return TuneResult(title, tuple(curves), identity, limits.width, 0.0, tuple(notices))


def sum_up_usages(subject: Subject) -> tuple[ProcessUse, ...]:
    """What the processes of a command used, for each count."""
    usages: Sequence[Usage] = getattr(subject, "usages", ())
    found = []
    for threads in sorted({usage.threads for usage in usages}):
        runs = [usage for usage in usages if usage.threads == threads]
        cpu = [usage.cpu_seconds for usage in runs if usage.cpu_seconds is not None]
        memory = [usage.max_resident for usage in runs if usage.max_resident is not None]
        found.append(ProcessUse(threads, statistics.median(cpu) if cpu else None, max(memory, default=None)))
    return tuple(found)


def say_given_up(subject: Subject, curves: Sequence[Curve] = ()) -> tuple[Notice, ...]:
    """Which measurements a subject has ended itself, since threads got in each other's way."""
    given_up: Collection[tuple[str, int]] = getattr(subject, "given_up", ())
    if not given_up:
        return ()
    which = ", ".join(f"{task} at {threads}" for task, threads in sorted(set(given_up)))
    message = (
        f"calls took many times as long as with one thread and were given up: {which} threads; they are even slower"
    )
    missing = {task for task, _ in given_up} - {curve.task.name for curve in curves}
    if curves and missing:
        message = f"no call ended, and there are no figures: {', '.join(sorted(missing))}"
        return (Notice("tune-given-up", message, "warning", "see that a call ends, and give it less work"),)
    chosen = {(curve.task.name, curve.recommendation.threads) for curve in curves}
    if chosen.isdisjoint(given_up):
        return (Notice("tune-given-up", message),)
    message = f"calls did not end and were given up, also with the recommended count: {which} threads"
    return (Notice("tune-given-up", message, "warning", "see that a call ends, and give it less work"),)


def add_bandwidth(result: TuneResult, target: object, limits: CpuLimits, usable: int) -> TuneResult:
    """The result with the memory bandwidth that decoding uses, where a GGUF file was measured."""
    path = str(getattr(target, "model_path", "")) or (
        os.fspath(target) if isinstance(target, (str, os.PathLike)) else ""
    )
    if not path or not any(curve.task.name == "decode" for curve in result.curves):
        return result
    bandwidth, notices = measure(result.curves, path, limits.affinity, usable, limits.quota)
    return result._replace(bandwidth=bandwidth, notices=(*result.notices, *notices))


def save_result(result: TuneResult, save: bool | str | os.PathLike[str]) -> Notice:
    """Write the profile; what keeps it from being written must not lose the result."""
    counts = {curve.task.argument: curve.recommendation.threads for curve in result.curves}
    rates = {}
    for curve in result.curves:
        chosen = [point.median for point in curve.points if point.threads == curve.recommendation.threads]
        rates[curve.task.argument] = chosen[0]
    confidence = min(curve.recommendation.confidence for curve in result.curves)
    profile = new_profile(result.identity, counts, confidence, rates)
    try:
        path = save_profile(profile, None if isinstance(save, bool) else save)
    except ProfileError as error:
        return Notice("profile-not-saved", f"the profile was not saved: {error}", "warning")
    return Notice("profile-saved", f"saved as {shown(path, 200)}")
