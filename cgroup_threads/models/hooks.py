"""Import hooks for libraries that no thread variable reaches or that misread ours. It loads nothing by itself."""

from __future__ import annotations

from types import ModuleType

from ..importing import when_imported
from ..state import process


def install() -> None:
    """Watch for the libraries, and act on those that are imported already; ``CGROUP_THREADS_PATCH=0`` prevents it."""
    if not process.settings.patch:
        return
    when_imported("llama_cpp.llama", _llama)
    when_imported("llama_cpp.mtmd_cpp", _llama_pictures)
    when_imported("llama_cpp.server.settings", _llama_server_settings)
    when_imported("llama_cpp.server.model", _llama_server_model)
    when_imported("joblib._parallel_backends", _joblib)


def _llama(module: ModuleType) -> None:
    from .llama_hook import govern_llama

    govern_llama(module)


def _llama_pictures(module: ModuleType) -> None:
    from .llama_pictures import govern_encoders

    govern_encoders(module)


def _llama_server_settings(module: ModuleType) -> None:
    from .llama_hook import govern_server_settings

    govern_server_settings(module)


def _llama_server_model(module: ModuleType) -> None:
    from .llama_hook import govern_server_model

    govern_server_model(module)


def _joblib(module: ModuleType) -> None:
    from .joblib import govern_workers

    govern_workers(module)
