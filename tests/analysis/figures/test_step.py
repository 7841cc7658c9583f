"""Where a step goes, drawn for cells whose names are long."""

import warnings

from dpscope.analysis.figures.step import _stacked
from dpscope.analysis.figures.style import NARROW

NAMES = ["single-d1-b8", "ddp-d2-b8-hook-fp16-bucket-view-static-graph-buffers-off-accumulate-2"]


def test_nothing_is_cut_where_names_are_long() -> None:
    title = "Where a traced step goes (dp-host: host copies)"
    figure = _stacked(title, NAMES, {"compute": ([9.0, 9.5], "#0072B2")}, "time per step [ms]", NARROW)
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
