"""What the back ends of models compute with: torch, ONNX Runtime and OpenVINO.

torch is reached through its process-wide setters; the other two through what the constructors of their models take.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtraError, first_line
from ..notices import Notice
from ..planning import ThreadPlan
from ..state import process
from .plans import note_above_usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_INTEROP: Final = "torch-interop"
_TORCH_READS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_OPENVINO_THREADS: Final = "INFERENCE_NUM_THREADS"
_OPENVINO_PINNING: Final = "ENABLE_CPU_PINNING"
_ONNX_SPINNING: Final = "session.intra_op.allow_spinning"


def limit_torch(plan: ThreadPlan) -> str:
    """Lower torch's intra-op threads to the plan's, and set its inter-op threads while that is possible.

    The user's own variable wins over the plan; returns the message if its number is above the usable cores, else "".
    ``torch.set_num_threads`` sets the count of this thread and the one that threads adopt at their first use of torch.
    ``set_num_interop_threads`` works once a process and before parallel work; refused, it leaves a notice.
    """
    import torch

    present = torch.get_num_threads()
    asked, variable = _asked_of_torch()
    threads = max(plan.threads, asked)
    if present > threads:
        torch.set_num_threads(threads)
        process.note(Notice("torch-threads-lowered", f"torch's intra-op threads: {present} lowered to {threads}"))
    _set_interop(torch, plan.interop)
    above = min(present, threads)
    return (
        f"torch has {above} threads of {variable}, above the {plan.usable} usable cores" if above > plan.usable else ""
    )


def _asked_of_torch() -> tuple[int, str]:
    """The larger count in the user's own variables that torch reads, and the name; 0 without one."""
    kept = process.applied.kept if process.applied is not None else ()
    return max(((k.threads or 0, k.name) for k in kept if k.name in _TORCH_READS and not k.replaced), default=(0, ""))


def _set_interop(torch: Any, count: int) -> None:
    with process.lock:
        if process.hooks.get(_INTEROP) is not None or torch.get_num_interop_threads() == count:
            return
        process.hooks[_INTEROP] = count
    try:
        torch.set_num_interop_threads(count)
    except RuntimeError as error:
        message = f"torch's inter-op threads stay at {torch.get_num_interop_threads()}: {first_line(error)}"
        process.note(Notice("interop-latched", message, "info", "create the model before torch's first parallel work"))


def require_onnxruntime() -> Any:
    """The module; raises MissingExtraError where it is not installed."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise MissingExtraError("onnxruntime", "onnx") from error
    return onnxruntime


def complete_session_options(
    given: Any, plan: ThreadPlan, find_tuned: Callable[[], int | None] | None = None
) -> tuple[Any, str]:
    """ONNX Runtime's ``SessionOptions``, new or ``given``, with all counts set, and the message if one is too high.

    Where the caller gave no intra-op count, what ``find_tuned`` returns goes before the plan's.
    Under a quota below the CPUs it sees, ONNX Runtime's idle threads would spin the quota away: spinning is switched
    off. Explicit counts also stop it from pinning its threads to CPUs outside the affinity mask.
    """
    options = require_onnxruntime().SessionOptions() if given is None else given
    if not options.intra_op_num_threads:
        options.intra_op_num_threads = (find_tuned and find_tuned()) or plan.threads
    options.inter_op_num_threads = options.inter_op_num_threads or plan.interop
    if plan.quota_binds and not _has_entry(options, _ONNX_SPINNING):
        options.add_session_config_entry(_ONNX_SPINNING, "0")
    count = options.intra_op_num_threads
    return options, note_above_usable("onnxruntime", "intra_op_num_threads", count, plan.usable)


def onnx_arguments(given: Mapping[str, Any] | None, plan: ThreadPlan) -> tuple[dict[str, Any], str]:
    """``model_kwargs`` with complete ``session_options``, and the message if a count is above the usable cores."""
    arguments = dict(given or {})
    arguments["session_options"], message = complete_session_options(arguments.get("session_options"), plan)
    return arguments, message


def _has_entry(options: Any, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:  # how SessionOptions says that the key is not set
        return False
    return True


def openvino_arguments(given: Mapping[str, Any] | None, plan: ThreadPlan) -> tuple[dict[str, Any], str]:
    """``model_kwargs`` whose ``ov_config`` (a mapping or the path of a JSON file) has a thread count.

    Also returns the message if that count is above the usable cores. OpenVINO pins its threads to the first CPUs it
    sees, so under a quota all containers of a host would crowd on the same ones: pinning is switched off there.
    """
    arguments = dict(given or {})
    config = arguments.get("ov_config") or {}
    if isinstance(config, (str, os.PathLike)):
        if not os.path.exists(config):
            return arguments, ""  # the constructor says so
        import json

        with open(config, encoding="utf-8") as file:
            config = json.load(file)
    computed = {_OPENVINO_THREADS: plan.threads} | ({_OPENVINO_PINNING: False} if plan.quota_binds else {})
    arguments["ov_config"] = {**computed, **config}
    count = arguments["ov_config"][_OPENVINO_THREADS]
    message = ""
    if str(count).isdecimal():  # OpenVINO takes numbers as text too
        message = note_above_usable("openvino", _OPENVINO_THREADS, int(count), plan.usable)
    return arguments, message


def threads_of_session(session: Any) -> int | None:
    """The intra-op count an ONNX Runtime session was made with; None where it chose by itself."""
    return session.get_session_options().intra_op_num_threads or None


def session_threads(model: Any) -> int | None:
    """The count of a pool that ``model`` brings along, an onnx or openvino back end's; None without one."""
    for loaded in _attributes(model):
        for session in (loaded, getattr(loaded, "session", None), getattr(loaded, "model", None)):
            if hasattr(session, "get_session_options"):
                return threads_of_session(session)
        config = getattr(loaded, "ov_config", None)
        count = str(config.get(_OPENVINO_THREADS)) if isinstance(config, dict) else ""
        if count.isdecimal():
            return int(count) or None
    return None


def _attributes(model: Any) -> Iterator[Any]:
    """What ``model`` and the modules inside it hold that is no module: optimum's models are plain objects."""
    modules = model.modules() if hasattr(model, "modules") else (model,)
    for module in modules:
        for name, value in vars(module).items():
            if not name.startswith("_") and hasattr(type(value), "forward"):
                yield value
