"""The child's side of an ONNX model: a session for each count, run with inputs made from its declared shapes."""

from __future__ import annotations

from typing import Any, Final

from ..errors import first_line
from .worker import Round, repeat

SEQUENCE: Final = 64
IMAGE: Final = 224
_SPINNING: Final = "session.intra_op.allow_spinning"
_MAX_ELEMENTS: Final = 1 << 26
_TYPES: Final = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
}


def load(options: dict[str, Any]) -> SessionWork:
    """Options: ``path`` of the model; ``providers``, or None for the library's; ``settings`` of ``SessionOptions``;
    ``spinning`` ("0", "1" or None)."""
    return SessionWork(options)


class SessionWork:
    """One session at a time, made anew for another count; see ``worker.Work``."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._session = self._make(1)
        self._feed = self._find_feed()
        self.sizes: dict[str, float] = {"run": 1.0}
        self.seconds: dict[str, float] = {"run": repeat(self._run, 1.0, 0.0).seconds}

    def prepare(self, task: str, threads: int) -> None:
        self._session = None  # its threads end before the next ones start
        self._session = self._make(threads)
        self._run()

    def measure(self, task: str, seconds: float) -> Round:
        return repeat(self._run, 1.0, seconds)

    def _run(self) -> None:
        self._session.run(None, self._feed)

    def _make(self, threads: int) -> Any:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        for name, value in self._options["settings"].items():
            kind = type(getattr(settings, name))
            setattr(settings, name, kind(value))
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = settings.inter_op_num_threads or 1
        if self._options["spinning"] is not None:
            settings.add_session_config_entry(_SPINNING, self._options["spinning"])
        providers = self._options["providers"] or onnxruntime.get_available_providers()
        return onnxruntime.InferenceSession(self._options["path"], sess_options=settings, providers=providers)

    def _find_feed(self) -> dict[str, Any]:
        """Inputs that the model takes: whole numbers are 1, or 0 where that is no index the model knows."""
        inputs = self._session.get_inputs()
        shapes = {node.name: choose_shape(node.shape) for node in inputs}
        reason: Exception | None = None
        for number in (1, 0):
            self._feed = {node.name: make_input(node.name, node.type, shapes[node.name], number) for node in inputs}
            try:
                self._run()
            except Exception as error:  # noqa: BLE001  # the library has exceptions of its own, one a status
                reason = error
            else:
                return self._feed
        assert reason is not None
        said = ", ".join(f"{node.name} {node.type} {shapes[node.name]}" for node in inputs)
        raise ValueError(f"no inputs fit ({said}); measure a function that runs it instead: {first_line(reason)}")


def choose_shape(declared: list[int | str | None]) -> tuple[int, ...]:
    """A shape for ``declared``, where a name or None stands for any size: 1 for the batch, else small sizes."""
    image = len(declared) == 4
    sizes = []
    for axis, size in enumerate(declared):
        if isinstance(size, int) and size > 0:
            sizes.append(size)
        elif axis == 0 or (isinstance(size, str) and "batch" in size.lower()):
            sizes.append(1)
        else:
            sizes.append(IMAGE if image and axis >= 2 else SEQUENCE)
    return tuple(sizes)


def make_input(name: str, kind: str, shape: tuple[int, ...], number: int) -> Any:
    """An array for one input. Masks are 1, types of tokens 0, other whole numbers ``number``, the rest is random."""
    import math

    import numpy

    if kind not in _TYPES:
        raise ValueError(f"its input {name!r} is a {kind}: measure a function that runs it instead")
    if math.prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"its input {name!r} has the size {shape}: measure a function that runs it instead")
    dtype = numpy.dtype(_TYPES[kind])
    if dtype.kind == "f":
        return numpy.random.default_rng(0).random(shape).astype(dtype)
    if dtype.kind == "O":
        return numpy.full(shape, "text", dtype=object)
    value = 1 if "mask" in name.lower() or dtype.kind == "b" else 0 if "type" in name.lower() else number
    return numpy.full(shape, value, dtype=dtype)
