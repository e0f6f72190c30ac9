"""Callbacks after the import of a module that we must not import ourselves."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cgroup_threads import importing
from cgroup_threads.importing import stop_watching, when_imported
from cgroup_threads.state import process

NAMES = ("watched_example", "watched_package", "watched_package.inner", "unwatched_example")


@pytest.fixture(autouse=True)
def own_finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty directory to import from, a finder of the test's own, and no trace left."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    kept = process.hooks.pop(importing._HOOK, None)
    if kept is not None and kept in sys.meta_path:
        sys.meta_path.remove(kept)
    yield
    stop_watching()
    if kept is not None:
        process.hooks[importing._HOOK] = kept
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = "VALUE = 1\n", name: str = "watched_example") -> Path:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    return write


def codes() -> set[str]:
    return {notice.code for notice in process.notices}


def test_the_callback_sees_the_finished_module(example: Callable[..., Path]) -> None:
    example("VALUE = 1\nVALUE = 2\n")
    seen: list[int] = []
    when_imported("watched_example", lambda module: seen.append(module.VALUE))
    assert seen == []
    assert importlib.import_module("watched_example").VALUE == 2
    assert seen == [2]
    importlib.import_module("watched_example")
    assert seen == [2]


def test_an_imported_module_is_handed_over_at_once(example: Callable[..., Path]) -> None:
    example()
    module = importlib.import_module("watched_example")
    seen: list[ModuleType] = []
    when_imported("watched_example", seen.append)
    assert seen == [module]


def test_a_callback_is_kept_once_and_runs_again_on_reload(example: Callable[..., Path]) -> None:
    path = example()
    seen: list[int] = []

    def note(module: ModuleType) -> None:
        seen.append(module.VALUE)

    when_imported("watched_example", note)
    when_imported("watched_example", note)
    module = importlib.import_module("watched_example")
    path.write_text("VALUE = 77\n")
    importlib.reload(module)
    assert seen == [1, 77]


def test_nothing_of_ours_is_left_on_the_module(example: Callable[..., Path]) -> None:
    path = example("VALUE = __spec__.loader, __loader__\n")
    when_imported("watched_example", lambda module: None)
    module = importlib.import_module("watched_example")
    loaders = [module.__spec__.loader, module.__loader__, *module.VALUE]
    assert {type(loader).__name__ for loader in loaders} == {"SourceFileLoader"}
    assert inspect.getsource(module) == path.read_text()


def test_a_spec_looked_up_without_importing_behaves_like_the_real_one(example: Callable[..., Path]) -> None:
    path = example()
    seen: list[ModuleType] = []
    when_imported("watched_example", seen.append)
    spec = importlib.util.find_spec("watched_example")
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_filename("watched_example") == str(path)  # type: ignore[attr-defined]  # of SourceFileLoader
    assert seen == []
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert seen == [module]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_specs_loader_is_the_real_one(copied: Callable[[Any], Any], example: Callable[..., Path]) -> None:
    example()
    when_imported("watched_example", lambda module: None)
    spec = importlib.util.find_spec("watched_example")
    assert spec is not None
    loader = copied(spec.loader)
    assert type(loader) is SourceFileLoader
    assert loader.get_filename("watched_example") == spec.origin


def test_other_modules_are_left_to_other_finders(example: Callable[..., Path]) -> None:
    example(name="unwatched_example")
    when_imported("watched_example", lambda module: None)
    finder = process.hooks[importing._HOOK]
    assert isinstance(finder, importing._Finder)
    assert finder.find_spec("unwatched_example") is None
    assert finder.find_spec("watched_example") is None  # there is no such file
    importlib.import_module("unwatched_example")


def test_submodules_of_a_package(example: Callable[..., Path]) -> None:
    example("from .inner import VALUE\n", "watched_package.__init__")
    example("VALUE = 3\n", "watched_package.inner")
    seen: list[str] = []
    when_imported("watched_package.inner", lambda module: seen.append(module.__name__))
    assert importlib.import_module("watched_package").VALUE == 3
    assert seen == ["watched_package.inner"]


def test_a_failing_callback_becomes_a_notice_and_the_others_run(example: Callable[..., Path]) -> None:
    example()
    seen: list[ModuleType] = []

    def fail(module: ModuleType) -> None:
        raise ValueError("two\nlines")

    when_imported("watched_example", fail)
    when_imported("watched_example", seen.append)
    module = importlib.import_module("watched_example")
    assert seen == [module]
    notice = next(notice for notice in process.notices if notice.code == "import-hook-failed")
    assert notice.message == "after import of watched_example: ValueError: two"


def test_a_module_that_fails_to_import_fails_as_before(example: Callable[..., Path]) -> None:
    path = example("raise RuntimeError('broken')\n")
    seen: list[ModuleType] = []
    when_imported("watched_example", seen.append)
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module("watched_example")
    assert seen == []
    path.write_text("VALUE = 12345\n")
    importlib.invalidate_caches()
    importlib.import_module("watched_example")
    assert len(seen) == 1


def test_two_finders_that_ask_each_other_end(example: Callable[..., Path]) -> None:
    example()
    seen: list[str] = []
    when_imported("watched_example", lambda module: seen.append("ours"))
    second = importing._Finder()  # what a second copy of the package would put there
    second.callbacks["watched_example"] = [lambda module: seen.append("second")]
    sys.meta_path.insert(0, second)
    importlib.import_module("watched_example")
    assert sorted(seen) == ["ours", "second"]


def test_finders_without_find_spec_are_passed_over(
    example: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    example()
    seen: list[ModuleType] = []
    when_imported("watched_example", seen.append)
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path][::-1])
    finder = process.hooks[importing._HOOK]
    assert isinstance(finder, importing._Finder)
    spec = finder.find_spec("watched_example")
    assert spec is not None


def test_a_loader_of_the_old_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class OldLoader:
        def load_module(self, name: str) -> ModuleType:
            raise AssertionError("not asked for")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return ModuleSpec(name, OldLoader())  # type: ignore[arg-type]  # the point of the test

    when_imported("watched_example", lambda module: None)
    sys.meta_path.append(Finder)
    finder = process.hooks[importing._HOOK]
    assert isinstance(finder, importing._Finder)
    spec = finder.find_spec("watched_example")
    assert spec is not None
    assert type(spec.loader) is OldLoader


def test_entries_of_sys_modules_that_are_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    stand_in: Any = object()
    monkeypatch.setitem(sys.modules, "watched_example", stand_in)
    when_imported("watched_example", seen.append)
    assert seen == [stand_in]
    monkeypatch.setitem(sys.modules, "watched_package", None)  # type: ignore[arg-type]  # how an import is forbidden
    when_imported("watched_package", seen.append)
    assert seen == [stand_in]


def test_a_module_in_the_middle_of_its_import_is_named_in_a_notice(example: Callable[..., Path]) -> None:
    example(
        "from cgroup_threads.importing import when_imported\n"
        "when_imported('watched_example', lambda module: CALLS.append(module))\n"
        "CALLS = []\n"
    )
    module = importlib.import_module("watched_example")
    assert module.CALLS == []
    assert "import-hook-missed" in codes()
    importlib.reload(module)
    assert module.CALLS != []


def test_many_threads_importing_at_once_get_one_call(example: Callable[..., Path]) -> None:
    example()
    seen: list[ModuleType] = []
    when_imported("watched_example", seen.append)
    start = threading.Barrier(8)

    def load() -> None:
        start.wait()
        importlib.import_module("watched_example")

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1


def test_stop_watching_forgets_everything(example: Callable[..., Path]) -> None:
    example()
    seen: list[ModuleType] = []
    when_imported("watched_example", seen.append)
    stop_watching()
    stop_watching()
    importlib.import_module("watched_example")
    assert seen == []
    assert not any(isinstance(finder, importing._Finder) for finder in sys.meta_path)


def test_a_watched_module_runs_as_a_script(tmp_path: Path, example: Callable[..., Path]) -> None:
    example("print(__name__)\n")
    script = (
        "import runpy, cgroup_threads.importing as i\n"
        "i.when_imported('watched_example', lambda module: print('called'))\n"
        "runpy.run_module('watched_example', run_name='__main__')\n"
        "import watched_example\n"
    )
    path = [str(tmp_path), str(Path(importing.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["__main__", "watched_example", "called"]
