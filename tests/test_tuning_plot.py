"""Pictures of tunings: real files, drawn by the real library."""

from __future__ import annotations

import os
import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from cgroup_threads.errors import InvalidArgumentError, MissingExtraError
from cgroup_threads.tuning import plot as plotting
from cgroup_threads.tuning.plot import check_plot, plot
from cgroup_threads.tuning.records import Point, Task, TuneResult
from tests.lab import require_module
from tests.lab.models import run_script
from tests.tuning_samples import DECODE, make_curve, make_result, make_wide_result

PNG = b"\x89PNG\r\n\x1a\n"


def draw(result: TuneResult) -> list[object]:
    """The panels of the picture, as matplotlib's own objects."""
    require_module("matplotlib")
    drawn = plotting._draw(result)
    drawn.canvas.draw()  # places everything
    return list(drawn.axes)


def results() -> list[TuneResult]:
    narrow = make_curve(Task("call", "calls"), {1: 10.0}, usable=1, knee=1)
    few = make_curve(DECODE, {1: 10.0, 2: 19.0}, usable=2, knee=2)
    return [make_result([narrow], usable=1), make_result([few]), make_result(), make_wide_result()]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_a_picture_of_each_kind(tmp_path: Path, suffix: str) -> None:
    require_module("matplotlib")
    for index, result in enumerate(results()):
        path = tmp_path / f"{index}{suffix}"
        plot(result, path)
        data = path.read_bytes()
        if suffix == ".svg":
            assert ElementTree.fromstring(data).tag.endswith("svg")
            assert b"<dc:date>" not in data
        else:
            assert data.startswith(PNG)
            width, height = struct.unpack(">II", data[16:24])
            assert width > height * 0.9 * len(result.curves)
    assert len(list(tmp_path.iterdir())) == len(results())  # no drafts are left


def test_one_panel_a_task_with_what_was_measured() -> None:
    result = make_result()
    panels = draw(result)
    assert [panel.get_title() for panel in panels] == ["decode: n_threads=1", "prefill: n_threads_batch=2"]  # type: ignore[attr-defined]
    for panel, curve in zip(panels, result.curves, strict=True):
        lines = {line.get_label(): line for line in panel.get_lines()}  # type: ignore[attr-defined]
        medians = lines["median, quartiles, least and most"]
        assert list(medians.get_xdata()) == [1, 2, 3, 4]
        assert list(medians.get_ydata()) == [point.median for point in curve.points]
        assert list(lines["2 usable cores"].get_xdata()) == [2, 2]
        ring = next(line for line in panel.get_lines() if line.get_markersize() == 12)  # type: ignore[attr-defined]
        assert list(ring.get_xdata()) == [curve.recommendation.threads]
        assert any("knee" in text.get_text() for text in panel.texts)  # type: ignore[attr-defined]


def test_the_ideal_line_does_not_flatten_the_data() -> None:
    for panel in draw(make_wide_result()):
        top = panel.get_ylim()[1]  # type: ignore[attr-defined]
        lines = {line.get_label(): line for line in panel.get_lines()}  # type: ignore[attr-defined]
        medians = max(lines["median, quartiles, least and most"].get_ydata())
        assert medians > 0.7 * top


def test_axis_is_logarithmic_with_plain_numbers_where_there_are_many_counts() -> None:
    for panel in draw(make_wide_result()):
        assert panel.get_xscale() == "log"  # type: ignore[attr-defined]
        labels = [label.get_text() for label in panel.get_xticklabels()]  # type: ignore[attr-defined]
        assert labels == ["1", "2", "4", "8", "16", "32", "64"]
    for panel in draw(make_result()):
        assert panel.get_xscale() == "linear"  # type: ignore[attr-defined]
        assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "2", "3", "4"]  # type: ignore[attr-defined]


def test_no_text_lies_over_another_or_outside() -> None:
    for result in results():
        for panel in draw(result):
            figure = panel.figure  # type: ignore[attr-defined]
            texts = [
                *panel.texts,  # type: ignore[attr-defined]
                *panel.get_xticklabels(),  # type: ignore[attr-defined]
                *panel.get_legend().get_texts(),  # type: ignore[attr-defined]
                panel.title,  # type: ignore[attr-defined]
                panel.xaxis.label,  # type: ignore[attr-defined]
                panel.yaxis.label,  # type: ignore[attr-defined]
            ]
            boxes = [text.get_window_extent() for text in texts if text.get_text()]
            for index, box in enumerate(boxes):
                assert figure.bbox.x0 <= box.x0
                assert box.x1 <= figure.bbox.x1
                assert figure.bbox.y0 <= box.y0
                assert box.y1 <= figure.bbox.y1
                for other in boxes[index + 1 :]:
                    assert not box.overlaps(other), (texts[index].get_text(), result.title)


def test_counts_without_rounds_and_titles_full_of_signs(tmp_path: Path) -> None:
    require_module("matplotlib")
    curve = make_curve(DECODE, {1: 10.0, 2: 12.0, 3: 5.0}, usable=2, knee=1)
    points = (*curve.points, Point(4, (), (), burst=True))
    title = "$x^2$ \\frac $ \N{SNOWMAN}\udcff\n\t\x1b[31m" + "long " * 60  # a glyph that is missing is a warning
    path = tmp_path / "knee.svg"
    plot(make_result([curve._replace(points=points)], title=title), str(path))
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("name", ["knee.pdf", "knee", "knee.svg.gz", ".svg"])
def test_another_suffix_is_an_error_that_names_both(tmp_path: Path, name: str) -> None:
    for call in (lambda: check_plot(str(tmp_path / name)), lambda: plot(make_result(), tmp_path / name)):
        with pytest.raises(InvalidArgumentError, match=r"plot must be a file that ends in \.svg or \.png"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_said_before_the_measurement(tmp_path: Path) -> None:
    require_module("matplotlib")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        check_plot(str(tmp_path / "nowhere" / "knee.svg"))
    (tmp_path / "knee.svg").mkdir()
    with pytest.raises(IsADirectoryError):
        check_plot(str(tmp_path / "knee.svg"))
    check_plot(str(tmp_path / "knee.png"))
    check_plot("knee.png")
    assert os.listdir(tmp_path) == ["knee.svg"]


def test_a_failed_write_leaves_the_old_picture_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("matplotlib")
    path = tmp_path / "knee.svg"
    path.write_text("old")

    def refuse(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", source)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        plot(make_result(), path)
    assert caught.value.filename == str(path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["knee.svg"]
    plot(make_result(), path)
    assert path.read_text() != "old"


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'cgroup-threads\[plot\]'"):
        check_plot(str(tmp_path / "knee.svg"))


def test_the_caller_s_matplotlib_is_left_as_it_is(tmp_path: Path) -> None:
    require_module("matplotlib")
    script = f"""
import json, matplotlib
matplotlib.use("svg")
matplotlib.rcParams["lines.linewidth"] = 7.5
before = dict(matplotlib.rcParams)
from tests.tuning_samples import make_result
from cgroup_threads.tuning.plot import plot
plot(make_result(), {str(tmp_path / "knee.png")!r})
import sys
assert "matplotlib.pyplot" not in sys.modules
from matplotlib import pyplot
print(json.dumps([dict(matplotlib.rcParams) == before, matplotlib.get_backend(), pyplot.get_fignums()]))
"""
    assert run_script(script, strict=False) == [True, "svg", []]
