"""A factory for ``SentenceTransformer``, which has no thread argument of its own.

What its back ends compute with is reached in three ways: torch through its process-wide setters, ONNX Runtime and
OpenVINO through ``model_kwargs``, which sentence-transformers hands to the loader of the model. Its other routes
(``provider_options``, a top-level ``INFERENCE_NUM_THREADS``) are accepted and ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

from ..environment import warn_once_if_late
from ..errors import InvalidArgumentError, MissingExtraError, first_line
from ..notices import Notice
from ..planning import ThreadPlan, current_plan
from ..state import process
from .keywords import reject_unknown
from .plans import note_above_usable, warn_above_usable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer
    from torch import nn

Backend = Literal["torch", "onnx", "openvino"]
# Renamed in sentence-transformers 6, still understood by a decorator around the constructor.
_RENAMED: Final = ("tokenizer_kwargs",)
_INTEROP: Final = "torch-interop"
_TORCH_READS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_OPENVINO_THREADS: Final = "INFERENCE_NUM_THREADS"
_OPENVINO_PINNING: Final = "ENABLE_CPU_PINNING"
_ONNX_SPINNING: Final = "session.intra_op.allow_spinning"


def create_sentence_transformer(
    model: str | os.PathLike[str] | Sequence[nn.Module], *, backend: Backend = "torch", **kwargs: Any
) -> SentenceTransformer:
    """Return ``SentenceTransformer(model, backend=backend, **kwargs)`` that computes with the plan's thread count.

    ``model`` is a name, a directory or a list of modules. For every back end torch's intra-op count is lowered to the
    plan's if it is above (torch pools the outputs of the others too; threads started later adopt it), or to the user's
    own OMP_NUM_THREADS or MKL_NUM_THREADS if that is more; its inter-op count is set if torch still accepts that.
    ``onnx`` gets ``SessionOptions`` and ``openvino`` a configuration with the count in ``model_kwargs``; values of the
    caller are kept, and bring a CgroupThreadsWarning above the usable cores. A ``SessionOptions`` object of the caller
    is completed in place.

    Raises MissingExtraError without sentence-transformers (or onnxruntime), UnknownArgumentError for a keyword the
    constructor does not declare, InvalidArgumentError for another ``backend``; and what the constructor raises.
    """
    if backend not in ("torch", "onnx", "openvino"):
        raise InvalidArgumentError("backend", backend, "'torch', 'onnx' or 'openvino'")
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        if error.name != "sentence_transformers":
            raise
        raise MissingExtraError("sentence-transformers", "sentence-transformers") from error
    warn_once_if_late(stacklevel=3)
    reject_unknown(kwargs, SentenceTransformer.__init__, "SentenceTransformer", _RENAMED)
    plan = current_plan()
    messages = [limit_torch(plan)]
    if backend == "onnx":
        kwargs["model_kwargs"], above = onnx_arguments(kwargs.get("model_kwargs"), plan)
        messages.append(above)
    elif backend == "openvino":
        kwargs["model_kwargs"], above = openvino_arguments(kwargs.get("model_kwargs"), plan)
        messages.append(above)
    warn_above_usable(messages)
    if isinstance(model, (str, os.PathLike)):
        return SentenceTransformer(os.fspath(model), backend=backend, **kwargs)
    return SentenceTransformer(modules=list(model), backend=backend, **kwargs)


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


def onnx_arguments(given: Mapping[str, Any] | None, plan: ThreadPlan) -> tuple[dict[str, Any], str]:
    """``model_kwargs`` with complete ``session_options``, and the message if a count is above the usable cores.

    Under a quota below the CPUs it sees, ONNX Runtime's idle threads would spin the quota away: spinning is switched
    off. Explicit counts also stop it from pinning its threads to CPUs outside the affinity mask.
    """
    try:
        from onnxruntime import SessionOptions
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise MissingExtraError("onnxruntime", "onnx") from error
    arguments = dict(given or {})
    options = arguments.get("session_options")
    if options is None:
        options = arguments["session_options"] = SessionOptions()
    options.intra_op_num_threads = options.intra_op_num_threads or plan.threads
    options.inter_op_num_threads = options.inter_op_num_threads or plan.interop
    if plan.quota_binds and not _has_entry(options, _ONNX_SPINNING):
        options.add_session_config_entry(_ONNX_SPINNING, "0")
    count = options.intra_op_num_threads
    return arguments, note_above_usable("onnxruntime", "intra_op_num_threads", count, plan.usable)


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
