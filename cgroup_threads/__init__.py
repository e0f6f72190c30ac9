"""Runtime thread governor for CPU inference in containers.

Importing this package detects the cores the process may use and sets the thread variables of native libraries that
are not set yet; ``CGROUP_THREADS_AUTO=0`` switches that off. It never raises, blocks or logs: see ``report()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import startup as _startup

if TYPE_CHECKING:
    from .detection import detect as detect
    from .detection import usable_cores as usable_cores
    from .detection.records import CpuLimits as CpuLimits
    from .environment import Applied as Applied
    from .environment import child_environment as child_environment
    from .environment import undo as undo
    from .errors import CgroupThreadsError as CgroupThreadsError
    from .errors import CgroupThreadsWarning as CgroupThreadsWarning
    from .governor.core_budget import configure as configure
    from .governor.core_budget import refresh as refresh
    from .governor.core_budget import statistics as statistics
    from .governor.limiting import Lease as Lease
    from .governor.limiting import ThreadLimit as ThreadLimit
    from .governor.limiting import initializer as initializer
    from .governor.limiting import limit_threads as limit_threads
    from .governor.running import run as run
    from .governor.statistics import Statistics as Statistics
    from .governor.watcher import Watcher as Watcher
    from .governor.watcher import watch as watch
    from .models.governing import govern as govern
    from .models.governing import release as release
    from .models.llama import create_llama as create_llama
    from .models.onnxruntime import create_onnx_session as create_onnx_session
    from .models.sentence_transformers import create_cross_encoder as create_cross_encoder
    from .models.sentence_transformers import create_sentence_transformer as create_sentence_transformer
    from .models.sentence_transformers import create_sparse_encoder as create_sparse_encoder
    from .notices import Notice as Notice
    from .planning import ThreadPlan as ThreadPlan
    from .planning import plan as plan
    from .reporting import Report as Report
    from .reporting import report as report
    from .reporting.inspecting import InspectError as InspectError
    from .reporting.inspecting import Inspection as Inspection
    from .reporting.inspecting import inspect_process as inspect_process
    from .startup import apply as apply
    from .tuning.errors import TuneError as TuneError
    from .tuning.records import TuneResult as TuneResult
    from .tuning.tuner import tune as tune

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "CgroupThreadsError",
    "CgroupThreadsWarning",
    "CpuLimits",
    "InspectError",
    "Inspection",
    "Lease",
    "Notice",
    "Report",
    "Statistics",
    "ThreadLimit",
    "ThreadPlan",
    "TuneError",
    "TuneResult",
    "Watcher",
    "__version__",
    "apply",
    "child_environment",
    "configure",
    "create_cross_encoder",
    "create_llama",
    "create_onnx_session",
    "create_sentence_transformer",
    "create_sparse_encoder",
    "detect",
    "govern",
    "initializer",
    "inspect_process",
    "limit_threads",
    "plan",
    "refresh",
    "release",
    "report",
    "run",
    "statistics",
    "tune",
    "undo",
    "usable_cores",
    "watch",
]

# Where each public name lives; it is imported at first use, so that `import cgroup_threads` stays cheap.
_HOMES = {
    "Applied": "environment",
    "CgroupThreadsError": "errors",
    "CgroupThreadsWarning": "errors",
    "CpuLimits": "detection.records",
    "InspectError": "reporting.inspecting",
    "Inspection": "reporting.inspecting",
    "Lease": "governor.limiting",
    "Notice": "notices",
    "Report": "reporting",
    "Statistics": "governor.statistics",
    "ThreadLimit": "governor.limiting",
    "ThreadPlan": "planning",
    "TuneError": "tuning.errors",
    "TuneResult": "tuning.records",
    "Watcher": "governor.watcher",
    "apply": "startup",
    "child_environment": "environment",
    "configure": "governor.core_budget",
    "create_cross_encoder": "models.sentence_transformers",
    "create_llama": "models.llama",
    "create_onnx_session": "models.onnxruntime",
    "create_sentence_transformer": "models.sentence_transformers",
    "create_sparse_encoder": "models.sentence_transformers",
    "detect": "detection",
    "govern": "models.governing",
    "initializer": "governor.limiting",
    "inspect_process": "reporting.inspecting",
    "limit_threads": "governor.limiting",
    "plan": "planning",
    "refresh": "governor.core_budget",
    "release": "models.governing",
    "report": "reporting",
    "run": "governor.running",
    "statistics": "governor.core_budget",
    "tune": "tuning.tuner",
    "undo": "environment",
    "usable_cores": "detection",
    "watch": "governor.watcher",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not by importlib: that may have to be loaded itself, and nothing can be where no descriptor is free. What the
    # package has loaded to detect and plan answers there, too; the others raise OSError until there is one.
    value = getattr(__import__(f"{__name__}.{home}", fromlist=(name,)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_startup.begin()
