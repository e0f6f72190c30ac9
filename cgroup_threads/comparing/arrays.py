"""Arrays in .npy files, compared number by number; needs numpy."""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Sequence
from typing import Any, Final

from .records import Difference, OutputVerdict

_MAGIC: Final = b"\x93NUMPY"
_EXAMPLES: Final = 3


def is_array(data: bytes) -> bool:
    """Whether ``data`` is a .npy file."""
    return data.startswith(_MAGIC)


def compare_arrays(plain: Sequence[bytes], governed: Sequence[bytes], tolerance: float) -> OutputVerdict | None:
    """Compare the arrays of both arms; None where numpy is missing or they are not plain numbers.

    The scale of a number is itself or the root mean square of its array, as for vectors in text.
    """
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it advises how a file of an old version would be read faster
            arms = [[numpy.load(io.BytesIO(data), allow_pickle=False) for data in arm] for arm in (plain, governed)]
    except Exception:  # noqa: BLE001 - a damaged header raises what numpy's parser does, and MemoryError for its sizes
        return None
    kinds = [{(array.shape, str(array.dtype)) for array in arm} for arm in arms]
    several = [len(kind) > 1 for kind in kinds]
    if any(several):
        varying = (int(all(several)), int(several[0] and not several[1]), int(several[1] and not several[0]))
        return OutputVerdict("varies", "the shape differs from run to run by itself", varying=varying)
    if kinds[0] != kinds[1]:
        texts = [" ".join(map(str, kind.pop())) for kind in kinds]
        return OutputVerdict("differ", f"{texts[0]} as it is, {texts[1]} governed")
    if arms[0][0].dtype.kind not in "biufc":
        return None
    ours, theirs = (numpy.stack([_widen(numpy, array) for array in arm]).reshape(len(arm), -1) for arm in arms)
    return _compare(numpy, ours, theirs, arms[0][0].shape, tolerance)


def _widen(numpy: Any, array: Any) -> Any:
    kind = "complex128" if array.dtype.kind == "c" else "float64"
    with numpy.errstate(all="ignore"):  # a long double may be too large
        return array.astype(kind)


def _compare(numpy: Any, ours: Any, theirs: Any, shape: tuple[int, ...], tolerance: float) -> OutputVerdict:
    """``ours`` and ``theirs`` hold one row a run."""
    with numpy.errstate(all="ignore"):  # the absolute value of a complex number may be too large
        sizes = numpy.abs(ours[0])
        finite = sizes[numpy.isfinite(sizes)]
        largest = float(finite.max()) if finite.size else 0.0
        scale = largest * float(numpy.sqrt(numpy.mean((finite / largest) ** 2))) if largest else 0.0
    one, other = (_errors(numpy, rows, rows, scale) > tolerance for rows in (ours, theirs))
    between = _errors(numpy, ours, theirs, scale)
    steady = numpy.where(one | other, 0.0, between)
    error = float(steady.max()) if steady.size else 0.0
    varying = (int((one & other).sum()), int((one & ~other).sum()), int((other & ~one).sum()))
    apart = steady > tolerance
    chosen = numpy.flatnonzero(apart if apart.any() else one | other)
    order = sorted(chosen.tolist(), key=lambda index: -between[index])[:_EXAMPLES]
    examples = tuple(_example(numpy, index, shape, ours, theirs) for index in order)
    if apart.any():
        return OutputVerdict("differ", "", 0, error, varying, examples)
    return OutputVerdict("varies" if any(varying) else "close", "", 0, error, varying, examples)


def _errors(numpy: Any, ones: Any, others: Any, scale: float) -> Any:
    """The largest relative error of each element over all pairs of runs."""
    largest = numpy.zeros(ones.shape[1])
    for one in ones:
        for other in others:
            with numpy.errstate(all="ignore"):
                sizes = numpy.maximum(numpy.maximum(numpy.abs(one), numpy.abs(other)), scale)
                error = numpy.abs(one - other) / sizes
            same = (one == other) | (numpy.isnan(one) & numpy.isnan(other))
            error = numpy.where(same, 0.0, numpy.where(numpy.isfinite(error), error, numpy.inf))
            largest = numpy.maximum(largest, error)
    return largest


def _example(numpy: Any, index: int, shape: tuple[int, ...], ours: Any, theirs: Any) -> Difference:
    place = [int(part) for part in numpy.unravel_index(index, shape)] if shape else []
    pairs = [(one[index].item(), other[index].item()) for one in ours for other in theirs]
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return Difference(f"element {place}", repr(one), repr(other))
