"""Where a step goes, drawn for cells whose names are long."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison, compare
from dpscope.analysis.figures.draw import caption_of
from dpscope.analysis.figures.scaling import draw_scaling
from dpscope.analysis.figures.step import (
    _LEDGER,
    _MEASURED,
    _PHASES,
    _USE,
    measured_and_estimated,
    phase_split,
    stacked,
    wait_strips,
)
from dpscope.analysis.figures.style import NARROW, finish, has_whiskers, labelled
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.made_rows import made_row
from tests.helpers.run_cells import all_reduces, cell_data, run_of, windows

NAMES = ["single-d1-b8", "ddp-d2-b8-hook-fp16-bucket-view-static-graph-buffers-off-accumulate-2"]


def test_nothing_is_cut_where_names_are_long() -> None:
    title = "Where a traced step goes"
    figure = known(stacked(NAMES, {"compute": [9.0, 9.5]}, "time per step [ms]", NARROW))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of axes for which names leave no room
        finish(figure, title, "none")
    (axes,) = figure.axes
    assert [one.get_text().replace("\n", "") for one in axes.get_yticklabels()] == NAMES
    assert figure.get_suptitle() == title
    assert axes.get_window_extent().width > 0.4 * figure.bbox.width
    within = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert figure.bbox.x0 <= within.x0 < within.x1 <= figure.bbox.x1


def test_an_unknown_wait_is_no_wait_of_zero() -> None:
    """Of two ranks the second one's waits are not known in step 1: neither who it waited for, nor
    that nobody did for it.
    """
    cell = Cell("ddp", 2, 8)
    traced = windows(cell, 3, step_us=100.0, exposed_wait_us=20.0)
    lost = (traced["rank"] == 1) & (traced["step"] == 1)
    data = cell_data(
        cell,
        [[100.0] * 5],
        traced.assign(exposed_wait_us=np.where(lost, np.nan, 20.0)),
        all_reduces(cell, 3, []),
    )
    strips = wait_strips(data)
    assert strips["waits"].to_numpy() == pytest.approx(
        np.array([[20, 20, 20], [20, np.nan, 20]]), nan_ok=True
    )
    assert strips["is waited for"].to_numpy() == pytest.approx(
        np.array([[0, 0, 0], [0, np.nan, 0]]), nan_ok=True
    )


def test_a_figure_without_a_value_or_of_one_bar_is_not_drawn() -> None:
    assert stacked(NAMES, {}, "time per step [ms]") is None
    assert stacked(NAMES, {"forward": [0.0, 0.0]}, "time per step [ms]") is None
    assert stacked(NAMES[:1], {"forward": [1.0]}, "time per step [ms]") is None
    assert stacked(NAMES, {"forward": [1.0, 0.0]}, "time per step [ms]") is not None


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_value_of_a_bar_that_is_too_short_to_see_is_written() -> None:
    """Of an axis that ends at about 105: 0.5 is 0.5%, 0.0001 less than a millionth, 2 is seen."""
    parts = {"compute": [100.0, 98.0], "transfer": [0.5, 2.0], "other": [0.0001, 0.0]}
    figure = known(stacked(NAMES, parts, "time per step [ms]"))
    finish(figure, "Where a traced step goes", "none")
    assert texts_of(figure) == ["transfer 0.5"]
    (text,) = figure.axes[0].texts
    drawn = text.get_window_extent()
    assert figure.axes[0].get_window_extent().x1 < drawn.x0  # beside the axes: it covers nothing
    assert drawn.x1 <= figure.bbox.x1


@pytest.mark.parametrize("count", [2, 12])
def test_no_two_texts_of_a_figure_overlap(count: int) -> None:
    names = [f"ddp-d{2 * one}-b8-hook-fp16-bucket-view-static-graph" for one in range(count)]
    parts = {"compute": [90.0] * count, "wait": [9.0] * count, "transfer": [0.1] * count}
    figure = known(stacked(names, parts, "time per step [ms]", NARROW))
    finish(figure, "Where a traced step goes; of many cells", "none")
    (axes,) = figure.axes
    texts = [*axes.get_yticklabels(), *axes.get_xticklabels(), *axes.texts, axes.xaxis.label]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) >= 2 * count + 4
    overlapping = [
        (one, other)
        for place, one in enumerate(boxes)
        for other in boxes[place + 1 :]
        if one.overlaps(other)
    ]
    assert overlapping == []


def shades(figure: Figure) -> list[tuple[float, str]]:
    """Lightness (Rec. 709 luma of the colour) and hatch of the parts of the first row."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    return [
        (float(weights @ np.array(bars[0].get_facecolor()[:3])), bars[0].get_hatch() or "")
        for bars in figure.axes[0].containers
        if isinstance(bars, BarContainer)
    ]


@pytest.mark.parametrize("columns", [_LEDGER, _PHASES, _USE, _MEASURED])
def test_neighbouring_parts_differ_in_grey(columns: dict[str, str]) -> None:
    """In lightness by a fifth of the scale, or in their hatch."""
    parts = {label: [1.0, 1.0] for label in columns.values()}
    found = shades(known(stacked(NAMES, parts, "time per step [ms]")))
    assert len(found) == len(columns)
    for (light, hatch), (next_light, next_hatch) in pairwise(found):
        assert hatch != next_hatch or abs(light - next_light) > 0.2, columns


def test_a_phase_that_takes_no_time_is_not_in_the_legend() -> None:
    """A CPU copies no batch to a device."""
    cell = Cell("single", 1, 8)
    traced = windows(
        cell,
        2,
        step_us=9.0,
        forward_us=3.0,
        backward_us=4.0,
        optimizer_us=1.0,
        host_to_device_us=0.0,
    )
    larger = cell_data(Cell("single", 1, 16), [[9.0] * 5], traced)
    figure = known(phase_split(compare(run_of(cell_data(cell, [[9.0] * 5], traced), larger))))
    assert list(labelled(figure)) == ["forward", "backward", "optimizer"]


def test_whiskers_are_explained_only_where_there_are_some() -> None:
    cells = [Cell("single", 1, 8), Cell("ddp", 2, 8), Cell("fsdp", 2, 8)]
    once = run_of(
        *(cell_data(cell, [[1e3] * 5], windows(cell, 2, step_us=1e3)) for cell in cells)
    )  # one repeat: nothing shows its spread
    figure = known(draw_scaling(compare(once)))
    finish(figure, "Speedup", "95% intervals")
    assert not has_whiskers(figure)
    assert figure.get_suptitle() == "Speedup"
    assert "hiskers" not in caption_of("scaling", figure)
    often = run_of(
        *(
            cell_data(
                cell,
                [[1e3 + slower * repeat] * 5 for repeat in range(5)],
                windows(cell, 2, step_us=1e3),
            )
            for cell, slower in zip(cells, (20.0, 50.0, 5.0), strict=True)
        )
    )
    figure = known(draw_scaling(compare(often)))
    finish(figure, "Speedup", "95% intervals")
    assert figure.get_suptitle() == "Speedup; whiskers: 95% intervals"
    assert caption_of("scaling", figure).endswith(" Whiskers: 95% intervals.")
    assert "Dash-dotted" not in caption_of("scaling", figure)  # no target was given


def test_a_caption_explains_the_parts_that_are_drawn() -> None:
    parts = {"compute": [9.0, 8.0], "idle": [1.0, 2.0]}
    caption = caption_of("step_split", known(stacked(NAMES, parts, "time per step [ms]")))
    assert "Idle: " in caption
    assert "Wait: " not in caption


def test_measured_communication_alone_is_drawn_only_to_compare_cells() -> None:
    rows = [
        made_row(cell=f"ddp-d{one}-b8", devices=one, hidden_us=5.0, communication_us=5.0)
        for one in (2, 4)
    ]
    assert measured_and_estimated(Comparison({rows[0].cell: rows[0]})) is None
    both = known(measured_and_estimated(Comparison({row.cell: row for row in rows})))
    assert list(labelled(both)) == ["hidden"]
