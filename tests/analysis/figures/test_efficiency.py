"""Efficiency over devices, drawn from plain numbers."""

import numpy as np
import pytest

from dpscope.analysis.figures.efficiency import efficiency_figure
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.known import known

POINTS = [(2, 0.8, 0.64, 0.9), (8, 0.8, 0.64, 0.9)]


def test_a_line_with_its_band_for_each_label_and_the_measured_points() -> None:
    figure = known(efficiency_figure({"bucket mb 5": POINTS, "": POINTS[:1]}, [(2, 0.8), (4, 0.5)]))
    lines = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in figure.axes[0].get_lines()}
    assert list(lines) == ["bucket mb 5, 90% band", "predicted, 90% band", "measured"]
    assert lines["bucket mb 5, 90% band"] == [[2, 80], [8, 80]]
    assert lines["measured"] == [[2, 80], [4, 50]]
    heights = np.asarray(figure.axes[0].collections[0].get_paths()[0].vertices)[:, 1]
    assert [heights.min(), heights.max()] == pytest.approx([64, 90])


def test_nothing_is_drawn_of_nothing_and_not_more_lines_than_a_reader_can_distinguish() -> None:
    assert efficiency_figure({}, []) is None
    with pytest.raises(DpscopeError, match="--figure would hold 9 lines; vary at most 8"):
        efficiency_figure({str(cap): POINTS for cap in range(9)}, [])
