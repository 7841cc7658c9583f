"""Where a step goes, drawn for cells whose names are long."""

import warnings

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.figures.scaling import draw_scaling
from dpscope.analysis.figures.step import _stacked, phase_split, wait_strips
from dpscope.analysis.figures.style import NARROW, with_intervals
from dpscope.profiling.records.run import Cell
from tests.helpers.run_cells import all_reduces, cell_data, run_of, windows

NAMES = ["single-d1-b8", "ddp-d2-b8-hook-fp16-bucket-view-static-graph-buffers-off-accumulate-2"]


def test_nothing_is_cut_where_names_are_long() -> None:
    title = "Where a traced step goes (dp-host: host copies)"
    figure = _stacked(
        title, NAMES, {"compute": ([9.0, 9.5], "#0072B2")}, "time per step [ms]", NARROW
    )
    assert figure is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of axes for which names leave no room
        figure.draw_without_rendering()
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


def test_a_figure_without_a_value_is_not_drawn() -> None:
    assert _stacked("Where a traced step goes", NAMES, {}, "time per step [ms]") is None
    assert (
        _stacked("Phases", NAMES, {"forward": ([0.0, 0.0], "#0072B2")}, "time per step [ms]")
        is None
    )


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
    figure = phase_split(run_of(cell_data(cell, [[9.0] * 5], traced)))
    assert figure is not None
    (legend,) = figure.legends
    assert [one.get_text() for one in legend.get_texts()] == ["forward", "backward", "optimizer"]


def test_a_title_promises_intervals_only_where_there_are_some() -> None:
    assert with_intervals("Speedup", [None, 0.9]) == "Speedup, with 95% intervals"
    assert with_intervals("Speedup", [None]) == "Speedup (no intervals)"
    cells = [Cell("single", 1, 8), Cell("ddp", 2, 8)]
    once = run_of(
        *(cell_data(cell, [[1e3] * 5], windows(cell, 2, step_us=1e3)) for cell in cells)
    )  # one repeat: nothing shows its spread
    figure = draw_scaling(compare(once))
    assert figure is not None
    assert figure.get_suptitle() == "Speedup and efficiency against one device (no intervals)"
