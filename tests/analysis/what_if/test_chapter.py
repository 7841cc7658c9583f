"""What `dpscope whatif` writes: figure and the chapter of a report."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dpscope.analysis.what_if.answer import RunAnswer
from dpscope.analysis.what_if.bases import CellError, CellErrors, Question
from dpscope.analysis.what_if.chapter import (
    chapter_of,
    check_figure_name,
    efficiency_figure,
    write_figure,
)
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.scenario import Scenario
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.examples import FIVE_REPEATS, loaded
from tests.helpers.known import known


def answer(*requested: tuple[dict[str, str], int, float | None]) -> RunAnswer:
    question = cast(Question, SimpleNamespace(base=SimpleNamespace(batch_size=None, single_us={})))
    stated = tuple(
        (words, Scenario(), Prediction(devices, 1, 8, 100.0, 90.0, 125.0, efficiency=efficiency))
        for words, devices, efficiency in requested
    )
    return RunAnswer(question, CellErrors(()), stated)


def test_a_line_for_each_bucket_and_none_for_what_has_no_efficiency() -> None:
    """Efficiency 0.8 of a step of 100, 90 to 125 us: 0.8 * 100 / 125 = 0.64 to 0.8 * 100 / 90 = 0.889."""
    requested = [({"devices": str(one), "bucket_mb": cap}, one, 0.8) for cap in ("5", "25") for one in (8, 2)]
    figure = known(efficiency_figure(answer(*requested, ({"devices": "4"}, 4, None))))
    lines = {str(line.get_label()): line.get_xydata() for line in figure.axes[0].get_lines()}
    assert list(lines) == ["bucket mb 5, 90% band", "bucket mb 25, 90% band"]
    for points in lines.values():
        assert np.asarray(points) == pytest.approx(np.array([[2, 80], [8, 80]]))
    for band in figure.axes[0].collections:
        heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
        assert [heights.min(), heights.max()] == pytest.approx([64, 800 / 9])


def test_measured_points_are_of_the_base_and_cells_that_differ_in_their_devices_alone() -> None:
    """t_1 is 80: of the base 80 / 100, of the same variant on 4 devices 80 / 160."""
    errors = [
        CellError(
            f"ddp-d{devices}-b{batch}-{variant}", devices, batch, variant, step, None, None, None, None, 100.0, None
        )
        for devices, batch, variant, step in ((4, 8, "hook-fp16", 160.0), (8, 8, "", 90.0), (8, 16, "hook-fp16", 95.0))
    ]
    base = SimpleNamespace(batch_size=8, devices=2, step_us=100.0, single_us={8: 80.0})
    cell = SimpleNamespace(planned=SimpleNamespace(variant="hook-fp16"))
    question = cast(Question, SimpleNamespace(base=base, cell=cell))
    figure = known(efficiency_figure(replace(answer(({}, 2, 0.8)), question=question, own=CellErrors(tuple(errors)))))
    (measured,) = (line for line in figure.axes[0].get_lines() if line.get_label() == "measured")
    assert np.asarray(measured.get_xydata()).tolist() == [[2, 80], [4, 50]]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ([({"devices": "2"}, 2, None)], "nothing to draw"),
        ([({"bucket_mb": str(one)}, 2, 0.5) for one in range(9)], "--figure would hold 9 lines; vary at most 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, requested: list[tuple[dict[str, str], int, float | None]], message: str
) -> None:
    with pytest.raises(DpscopeError, match=message):
        write_figure(answer(*requested), tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_replaces_dpscopes_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    drawn = answer(({"devices": "2"}, 2, 0.8), ({"devices": "4"}, 4, 0.7))
    ours, theirs = tmp_path / f"ours{suffix}", tmp_path / f"theirs{suffix}"
    theirs.write_bytes(b"precious")
    write_figure(drawn, ours)
    check_figure_name(ours)
    write_figure(drawn, ours)
    for write in (check_figure_name, lambda path: write_figure(drawn, path)):
        with pytest.raises(DpscopeError, match="was not written by dpscope, which does not overwrite it"):
            write(theirs)
    assert theirs.read_bytes() == b"precious"


@pytest.mark.long
def test_a_chapter_holds_counts_beyond_the_measured_one_and_savings() -> None:
    """The measured count comes first; of savings the parts of the step come before other changes, each with a band."""
    chapter = known(chapter_of(loaded(FIVE_REPEATS)))
    table = chapter.tables["what_if"]
    assert [row[0] for row in table.rows] == ["2", "4", "8", "16"]
    base = chapter.answer.question.base
    assert table.rows[0][table.headings.index("step [ms]")] == f"{base.step_us / 1e3:.1f}"
    widths = [float(high) - float(low) for low, high in (row[4].split(" to ") for row in table.rows[:3])]
    assert widths == sorted(widths)
    assert table.notes[0].startswith("Layout assumed: one node with all 16 devices")
    notes = " ".join(table.notes)
    # Calibrated on 2 devices alone, collectives are not predicted beyond 8.
    assert table.rows[3][table.headings.index("step [ms]")] == "NA"
    assert "16 devices: all_reduce calibrated on 2 devices: not known: 8 times beyond the measured counts" in notes
    assert "ddp-d2-b128" in notes
    assert "none of this applies to GPUs" in notes
    rows = chapter.tables["what_if_savings"].rows
    assert [row[0] for row in rows[:2]] == ["waiting for late ranks", "exposed transfer"]
    for of in (rows[:2], rows[2:]):
        saved = [float(row[1]) for row in of]
        assert saved == sorted(saved, reverse=True)
    assert all(re.fullmatch(r"-?[\d.]+ to -?[\d.]+", row[2]) for row in rows)
    predicted, measured = (np.asarray(line.get_xydata()) for line in known(chapter.figure()).axes[0].get_lines())
    assert predicted[:, 0].tolist() == [2, 4, 8]
    assert measured.tolist() == [pytest.approx(predicted[0].tolist(), rel=1e-6)]


def test_a_run_without_a_ddp_cell_and_traces_alone_have_no_chapter() -> None:
    example = loaded(FIVE_REPEATS)
    alone = {name: data for name, data in example.cells.items() if data.cell.strategy != "ddp"}
    assert chapter_of(replace(example, cells=alone)) is None
    assert chapter_of(replace(example, recorded=None)) is None
