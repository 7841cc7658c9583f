"""The figure: a line for everything that is asked beside the number of devices."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dpscope.analysis.what_if.answers.bases import AskedBase
from dpscope.analysis.what_if.answers.figure import check_figure_name, efficiency_figure, write_figure
from dpscope.analysis.what_if.answers.output import RunAnswer
from dpscope.analysis.what_if.answers.own_error import OwnErrors
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from dpscope.profiling.store.errors import DpscopeError


def answer(*asked: tuple[dict[str, str], int, float | None]) -> RunAnswer:
    question = cast(AskedBase, SimpleNamespace(base=SimpleNamespace(batch_size=None, single_us={})))
    told = tuple(
        (words, Scenario(), Prediction(devices, 1, 8, 100.0, 90.0, 125.0, efficiency=efficiency))
        for words, devices, efficiency in asked
    )
    return RunAnswer(question, OwnErrors(()), told)


def test_a_line_for_each_bucket_and_none_for_what_has_no_efficiency() -> None:
    """Efficiency 0.8 of a step of 100, 90 to 125 us: 0.8 * 100 / 125 = 0.64 to 0.8 * 100 / 90 = 0.889."""
    asked = [({"devices": str(one), "bucket_mb": cap}, one, 0.8) for cap in ("5", "25") for one in (8, 2)]
    figure = efficiency_figure(answer(*asked, ({"devices": "4"}, 4, None)))
    assert figure is not None
    lines = {str(line.get_label()): line.get_xydata() for line in figure.axes[0].get_lines()}
    assert list(lines) == ["bucket mb 5, 90% band", "bucket mb 25, 90% band"]
    for points in lines.values():
        assert np.asarray(points) == pytest.approx(np.array([[2, 80], [8, 80]]))
    for band in figure.axes[0].collections:
        heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
        assert [heights.min(), heights.max()] == pytest.approx([64, 800 / 9])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([({"devices": "2"}, 2, None)], "nothing to draw"),
        ([({"bucket_mb": str(one)}, 2, 0.5) for one in range(9)], "--figure would hold 9 lines; ask for 8 or fewer"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, asked: list[tuple[dict[str, str], int, float | None]], message: str
) -> None:
    with pytest.raises(DpscopeError, match=message):
        write_figure(answer(*asked), tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_replaces_dpscopes_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    said = answer(({"devices": "2"}, 2, 0.8), ({"devices": "4"}, 4, 0.7))
    own, theirs = tmp_path / f"own{suffix}", tmp_path / f"theirs{suffix}"
    theirs.write_bytes(b"precious")
    write_figure(said, own)
    check_figure_name(own)
    write_figure(said, own)
    for write in (check_figure_name, lambda path: write_figure(said, path)):
        with pytest.raises(DpscopeError, match="was not written by dpscope, which does not overwrite it"):
            write(theirs)
    assert theirs.read_bytes() == b"precious"
