"""The result of a tuning as a picture: one panel a task. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import statistics
from typing import Any, Final

from ..errors import InvalidArgumentError, MissingExtraError
from .records import Curve, Fit, TuneResult
from .table import figure, plural

FORMATS: Final = {".svg": "svg", ".png": "png"}
PANEL: Final = (5.6, 5.0)  # inches
DPI: Final = 150
WIDE: Final = 16  # more counts than this are drawn on a logarithmic axis
SAMPLES: Final = 200  # of a drawn law
HEADROOM: Final = 1.15
NEARLY: Final = 0.01  # laws that differ less are one line
MEASURED, FITTED, PLAIN, KNEE, EDGE, BURST = "#1f77b4", "#2ca02c", "#7f7f7f", "#d62728", "#7f7f7f", "#ff7f0e"


def check_plot(path: str) -> None:
    """Raise what ``plot`` would raise in the end: to be called before a measurement of minutes."""
    _format(path)
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "plot")
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise FileNotFoundError(2, "no such directory", directory)
    if os.path.isdir(path):
        raise IsADirectoryError(21, "is a directory", path)
    if not os.access(directory, os.W_OK):
        raise PermissionError(13, "cannot be written to", directory)


def _format(path: str) -> str:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in FORMATS:
        raise InvalidArgumentError("plot", path, "a file that ends in .svg or .png")
    return FORMATS[suffix]


def plot(result: TuneResult, path: str | os.PathLike[str]) -> None:
    """Draw ``result`` into ``path``, a .svg or .png file, which appears whole or not at all.

    Nothing of pyplot is used: the caller's back end, figures and settings stay as they are. Raises
    InvalidArgumentError for another suffix, MissingExtraError without matplotlib, OSError where it cannot be written.
    """
    target = os.fspath(path)
    check_plot(target)
    kind = _format(target)
    drawn = _draw(result)
    data = io.BytesIO()
    # Without a date the same result is nearly the same file.
    drawn.savefig(data, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    _write(target, data.getvalue())


def _write(path: str, data: bytes) -> None:
    draft = f"{path}.{os.getpid()}.part"
    try:
        try:
            with open(draft, "wb") as file:
                file.write(data)
            os.replace(draft, path)
        finally:
            if os.path.exists(draft):
                os.unlink(draft)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error  # the draft's name means nothing to the caller


def _draw(result: TuneResult) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(result.curves)
    drawn = Figure(figsize=(PANEL[0] * count, PANEL[1]), layout="constrained")
    FigureCanvasAgg(drawn)
    panels = drawn.subplots(1, count, squeeze=False)[0]
    for axes, curve in zip(panels, result.curves, strict=True):
        _draw_panel(axes, curve, result.identity.usable)
    drawn.suptitle(_literal(result.title), fontsize="medium")
    return drawn


def _literal(text: str, limit: int = 90) -> str:
    """Text as it is: a dollar sign would begin a formula, and other signs may have no glyph."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    plain = short.encode("ascii", "backslashreplace").decode().replace("$", r"\$")
    return "".join(char if char.isprintable() else " " for char in plain)


def _draw_panel(axes: Any, curve: Curve, usable: int) -> None:
    points = [point for point in curve.points if point.rates]
    counts = [point.threads for point in points]
    first, last = min(counts), max(counts)
    wide = last > WIDE
    left, right = (first / 1.15, last * 1.15) if wide else (first - 0.4, last + 0.4)
    top = HEADROOM * max(max(point.rates) for point in points)
    fitted = max((point.threads for point in points if not point.burst), default=last)
    # In the order of the legend.
    _draw_points(axes, curve)
    _draw_laws(axes, curve, _samples(float(first), float(fitted), wide))
    _draw_cores(axes, usable, right, burst=any(point.burst for point in points))
    _draw_knee(axes, curve, top, _along(curve.recommendation.threads, left, right, wide))
    if wide:
        axes.set_xscale("log", base=2)
    axes.set_xlim(left, right)
    axes.set_ylim(0, top)
    _set_ticks(axes, counts, wide)
    task = curve.task
    axes.set_title(f"{task.name}: {task.argument}={curve.recommendation.threads}")
    axes.set_xlabel("threads")
    axes.set_ylabel(f"{task.unit} a second")
    axes.grid(axis="y", alpha=0.3)
    # Below the panel: no place inside is free for every shape of curve.
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, fontsize="small", frameon=False)


def _samples(first: float, last: float, wide: bool) -> list[float]:
    steps = [step / (SAMPLES - 1) for step in range(SAMPLES)]
    return [first * (last / first) ** step if wide else first + (last - first) * step for step in steps]


def _along(threads: int, left: float, right: float, wide: bool) -> float:
    """Where ``threads`` is between the left end of the axis, 0, and the right one, 1."""
    if wide:
        return math.log(threads / left) / math.log(right / left)
    return (threads - left) / (right - left)


def _draw_cores(axes: Any, usable: int, right: float, burst: bool) -> None:
    axes.axvline(usable, color=EDGE, linestyle="--", linewidth=1.2, label=plural(usable, "usable core"), zorder=1)
    if burst:
        axes.axvspan(usable, right, color=BURST, alpha=0.12, linewidth=0, label="burst: more than usable", zorder=0)


def _draw_laws(axes: Any, curve: Curve, places: list[float]) -> None:
    """The fitted laws, up to the last count they were fitted to, and the ideal: each thread as much as the first.

    The ideal may leave the panel at the top.
    """
    alone = next((point.median for point in curve.points if point.threads == 1), None)
    if alone:
        ideal = [alone * place for place in places]
        axes.plot(places, ideal, color=PLAIN, linestyle=":", linewidth=1.2, label="ideal", zorder=2)
    amdahl, universal = curve.amdahl, curve.universal
    if amdahl is not None:
        label = f"Amdahl, {100 * amdahl.serial:.1f} % serial"
        axes.plot(places, [*map(amdahl.predict, places)], color=FITTED, linestyle="-.", label=label, zorder=3)
    if universal is not None and not _coincide(universal, amdahl, places):
        seen = universal.peak is not None and universal.peak <= places[-1]
        peak = f", peak at {figure(universal.peak)}" if seen else ""
        label = f"universal law{peak}"
        axes.plot(places, [*map(universal.predict, places)], color=FITTED, label=label, zorder=3)


def _coincide(one: Fit, other: Fit | None, places: list[float]) -> bool:
    if other is None:
        return False
    return all(abs(one.predict(place) - other.predict(place)) <= NEARLY * one.predict(place) for place in places)


def _draw_points(axes: Any, curve: Curve) -> None:
    """Medians, a thick bar between the quartiles and a thin one from the least to the most."""
    points = [point for point in curve.points if point.rates]
    counts = [point.threads for point in points]
    axes.vlines(counts, [min(p.rates) for p in points], [max(p.rates) for p in points], color=MEASURED, zorder=4)
    quartiles = [statistics.quantiles(p.rates, n=4, method="inclusive") if len(p.rates) > 1 else None for p in points]
    for count, found in zip(counts, quartiles, strict=True):
        if found is not None:
            axes.vlines(count, found[0], found[2], color=MEASURED, linewidth=4, alpha=0.5, zorder=4)
    label = "median, quartiles, least and most"
    axes.plot(counts, [p.median for p in points], "o", color=MEASURED, markersize=5, label=label, zorder=5)


def _draw_knee(axes: Any, curve: Curve, top: float, along: float) -> None:
    """A ring around the recommended point, and its name at the foot of the panel, where no curve is in the way."""
    threads = curve.recommendation.threads
    rate = next((point.median for point in curve.points if point.threads == threads), 0.0)
    axes.plot([threads], [rate], "o", color=KNEE, markersize=12, fillstyle="none", markeredgewidth=2, zorder=6)
    axes.vlines(threads, 0, rate, color=KNEE, linewidth=1, linestyle=":", zorder=2)
    side, shift = ("left", 4) if along <= 0.5 else ("right", -4)
    words = f"knee: {plural(threads, 'thread')}"
    place = {"xytext": (shift, 0), "textcoords": "offset points", "ha": side, "va": "bottom"}
    axes.annotate(words, (threads, 0.03 * top), color=KNEE, fontsize="small", zorder=6, **place)


def _set_ticks(axes: Any, counts: list[int], wide: bool) -> None:
    if wide:
        ticks = [1 << power for power in range(max(counts).bit_length()) if 1 << power >= min(counts)]
    else:
        ticks = list(range(min(counts), max(counts) + 1))
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
