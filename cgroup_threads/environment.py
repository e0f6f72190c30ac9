"""The effect: a plan becomes environment variables of this process or of a child, and can be taken back."""

# Annotations are evaluated here: NamedTuple compiles those that are text, one by one, which an import would pay for.
import os
import sys
from collections.abc import Collection
from typing import NamedTuple

from . import planning
from .errors import CgroupThreadsWarning, check_threads
from .marker import MARKER, Marker, Origin, computed_values, read_marker, write_marker
from .notices import Notice
from .planning import ThreadPlan
from .precedence import Decision, KeptVariable, settle
from .state import process
from .variables import BY_NAME, NUMBA, OMP, Stage

WORKERS = "CGROUP_THREADS_WORKERS"


class Applied(NamedTuple):
    """What ``apply`` did: the plan, the variables it ``set``, the user's values it ``kept`` (and what it thinks of
    them), and the native libraries that had come first (``late``), which read their variables before."""

    plan: ThreadPlan
    set: dict[str, str]
    kept: tuple[KeptVariable, ...] = ()
    late: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    origin: Origin = Origin()


class Undone(NamedTuple):
    """What ``undo`` did: variables ``restored`` to what they were, those left alone because somebody ``changed`` them
    since, and native libraries that have ``latched`` our values and keep them."""

    restored: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    latched: tuple[str, ...] = ()


def apply(plan: ThreadPlan | None = None) -> Applied:
    """The part of ``startup.apply`` that concerns the environment and pools that are live already."""
    applied, decision, first = _apply(plan)
    loaded = _loaded_libraries() if decision is not None else ()
    if decision is None or not loaded:
        return applied
    # Without the lock: the pools have locks of their own, and those who hold them may want this one for a notice.
    lowered = _lower_live(applied.plan, decision)
    more = (_say_late(loaded), *lowered) if first else lowered
    process.note(*more)
    done = applied._replace(late=loaded if first else applied.late, notices=(*applied.notices, *more))
    with process.lock:
        if process.applied is applied:
            process.applied = done
    return done


def _apply(plan: ThreadPlan | None) -> tuple[Applied, Decision | None, bool]:
    """Apply to the environment. The decision is None if there was nothing to do; True says that it is the first."""
    with process.lock:
        before = process.applied
        if before is not None and plan in (None, before.plan):
            return before, None, False
        place = None
        if plan is None:
            from .detection import detect

            limits = detect()
            process.note(*limits.notices)
            plan = planning.plan(limits)
            place = limits.levels[0].path if limits.levels else None
        origin = before.origin if before is not None else _find_origin(place)
        environ = _copy_environ()
        inherited, notices = (None, []) if before is not None else _inherit(environ, origin)
        held = computed_values(environ, inherited.values if inherited else before.set if before else {})
        user = _take_back(environ, held)
        if process.environ_before is None:
            process.environ_before = user
        decision = _settle(
            plan, user, stages=("import", "opt-in"), also=[n for n in held if BY_NAME[n].stage == "child"]
        )
        written = _write(decision.set, held, user)
        os.environ[MARKER] = write_marker(Marker(origin, written))
        notices += [*plan.notices, *decision.notices]
        late = before.late if before is not None else ()
        process.applied = applied = Applied(plan, written, decision.kept, late, tuple(notices), origin)
        process.note(*notices)
        return applied, decision, before is None


def undo() -> Undone:
    """Restore the variables that still hold our value, and forget the plan; live pools stay as they are."""
    with process.lock:
        applied, before = process.applied, process.environ_before
        if applied is None or before is None:
            return Undone()
        environ = _copy_environ()
        held = computed_values(environ, applied.set)
        kept = _write({}, held, before)
        os.environ.pop(MARKER, None)
        process.applied = process.environ_before = process.plan = None
        restored = tuple(name for name in held if name not in kept)
        changed = tuple(name for name in applied.set if name not in held)
        return Undone(restored, changed, _loaded_libraries())


def child_environment(*, workers: int = 1) -> dict[str, str]:
    """The environment for each of ``workers`` child processes that share this process's cores.

    It is the user's environment without what we set in this process, plus the variables computed for a child. Names
    that mean something else in other programs (NPROC, N_THREADS, PYTHON_CPU_COUNT...) are set here alone, and only
    where the user has not. ``os.environ`` stays as it is. Raises InvalidThreadsError for ``workers`` below 1.
    """
    check_threads(workers, "workers")
    with process.lock:
        applied = process.applied
        environ = _copy_environ()
        plan = applied.plan if applied is not None else planning.plan()
        origin, values = _latest(environ)
        user = _take_back(environ, computed_values(environ, values))
    decision = _settle(planning.share_plan(plan, workers), user, stages=("import", "opt-in", "child"), frozen=())
    child = user | decision.set
    if plan.workers * workers != (process.settings.workers or 1):
        # A child that imports us computes anew, and must divide by the same number.
        child[WORKERS] = str(plan.workers * workers)
    child[MARKER] = write_marker(Marker(origin, decision.set))
    return child


def ours_and_users() -> tuple[dict[str, str], dict[str, str]]:
    """The variables that hold a computed value now, and the user's environment without all that was computed.

    While nothing is applied here, a governed parent's values are the computed ones.
    """
    with process.lock:
        environ = _copy_environ()
        held = computed_values(environ, _latest(environ).values)
        user = _take_back(environ, held) if process.environ_before is None else dict(process.environ_before)
    return held, user


def _latest(environ: dict[str, str]) -> Marker:
    """What was applied here, else by a governed parent."""
    applied = process.applied
    if applied is not None:
        return Marker(applied.origin, applied.set)
    marker, _ = read_marker(environ.get(MARKER))
    return marker if marker is not None else Marker(Origin(), {})


def warn_once_if_late(stacklevel: int = 4) -> None:
    """Emit one CgroupThreadsWarning in this process if native libraries had been loaded before us.

    ``stacklevel`` counts frames from here to the user's code, as in ``warnings.warn``.
    """
    applied = process.applied
    if process.warned or applied is None:
        return
    process.warned = True
    if not applied.late:
        return
    import warnings

    warnings.warn(_say_late(applied.late).message, CgroupThreadsWarning, stacklevel=stacklevel)


def _settle(
    plan: ThreadPlan,
    user: dict[str, str],
    *,
    stages: Collection[Stage],
    also: Collection[str] = (),
    frozen: Collection[str] | None = None,
) -> Decision:
    return settle(
        plan,
        user,
        process.settings,
        host_cpus=os.cpu_count() or 1,
        affinity=process.affinity or (),
        stages=stages,
        also=also,
        frozen=_frozen() if frozen is None else frozen,
    )


def _frozen() -> tuple[str, ...]:
    """numba reads its variable again as it compiles, and raises if the number has changed since its threads started."""
    return (NUMBA,) if sys.modules.get("numba") is not None else ()


def _copy_environ() -> dict[str, str]:
    """A copy of ``os.environ`` that stands other threads writing to it meanwhile."""
    copied = {}
    for name in os.environ:
        value = os.environ.get(name)
        if value is not None:
            copied[name] = value
    return copied


def _take_back(environ: dict[str, str], held: dict[str, str]) -> dict[str, str]:
    """The user's environment: ``environ`` without the values ``held`` by us, and with what they had replaced."""
    original = process.environ_before or {}
    user = {name: value for name, value in environ.items() if name not in held and name != MARKER}
    return user | {name: original[name] for name in held if name in original}


def _write(chosen: dict[str, str], held: dict[str, str], user: dict[str, str]) -> dict[str, str]:
    """Bring ``os.environ`` from the values ``held`` to those ``chosen``; returns what it holds of ours then."""
    frozen = _frozen()
    written = {name: value for name, value in held.items() if name in frozen}
    for name in held:
        if name not in chosen and name not in frozen:
            if name in user:
                os.environ[name] = user[name]
            else:
                os.environ.pop(name, None)
    for name, value in chosen.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    return written | chosen


def _inherit(environ: dict[str, str], origin: Origin) -> tuple[Marker | None, list[Notice]]:
    """The marker of a governed parent, and what is to be said of it."""
    marker, problem = read_marker(environ.get(MARKER))
    if problem is not None:
        return None, [problem]
    if marker is None:
        return None, []
    pairs = zip(("in another cgroup", "on another host or boot"), marker.origin, origin, strict=True)
    place = [text for text, theirs, ours in pairs if theirs != ours and "-" not in (theirs, ours)]
    number = len(computed_values(environ, marker.values))
    message = f"{number} variables were computed by a parent process{', ' + place[-1] if place else ''}: computed anew"
    return marker, [Notice("inherited", message)]


def _find_origin(cgroup: str | None) -> Origin:
    """Device and inode of the cgroup's directory, and the boot id (the same in all containers of a host)."""
    try:
        status = os.stat(cgroup or "")
        place = f"{status.st_dev}:{status.st_ino}"
    except (OSError, ValueError):
        place = "-"
    try:
        # UTF-8: the codec for ASCII would be a module to load.
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8", errors="replace") as file:
            boot = "".join(c for c in file.read(64) if c.isascii() and (c.isalnum() or c == "-"))
    except OSError:
        boot = ""
    return Origin(place, boot or "-")


def _loaded_libraries() -> tuple[str, ...]:
    from .pools import native_already_loaded

    return native_already_loaded()


def _lower_live(plan: ThreadPlan, decision: Decision) -> tuple[Notice, ...]:
    """Lower live pools to the plan's number, or to the user's where that is more and was kept."""
    from .pools import lower_live

    asked = [k.threads for k in decision.kept if k.name == OMP and not k.replaced and k.threads]
    return lower_live(max(plan.threads, *asked)) if asked else lower_live(plan.threads)


def _say_late(late: tuple[str, ...]) -> Notice:
    others = f" (loaded too: {', '.join(late[1:])})" if len(late) > 1 else ""
    message = f"{late[0]} was imported before cgroup_threads; used run-time limits instead{others}"
    return Notice("late-import", message, "warning", "import cgroup_threads first, at the top of the entry point")
