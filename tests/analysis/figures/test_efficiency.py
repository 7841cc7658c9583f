"""Efficiency over devices, drawn from plain numbers."""

import numpy as np
import pytest

from dpscope.analysis.figures.efficiency import Efficiencies, efficiency_figure
from tests.helpers.known import known

POINTS = [(2, 0.8, 0.64, 0.9), (8, 0.8, 0.64, 0.9)]


def test_a_line_with_its_band_and_the_measured_points() -> None:
    figure = known(efficiency_figure(Efficiencies("ddp-d2-b8", POINTS, [(2, 0.8), (4, 0.5)])))
    lines = {
        str(line.get_label()): np.asarray(line.get_xydata()).tolist()
        for line in figure.axes[0].get_lines()
    }
    assert lines == {
        "predicted from ddp-d2-b8, 90% band": [[2, 80], [8, 80]],
        "measured": [[2, 80], [4, 50]],
    }
    heights = np.asarray(figure.axes[0].collections[0].get_paths()[0].vertices)[:, 1]
    assert [heights.min(), heights.max()] == pytest.approx([64, 90])


def test_what_makes_predictions_too_good_is_the_title() -> None:
    too_good = Efficiencies(
        "ddp-d2-b8", POINTS, limits=["8 devices: too optimistic for this host."]
    )
    assert known(efficiency_figure(too_good)).axes[0].get_title() == too_good.limits[0]
    assert not known(efficiency_figure(Efficiencies("ddp-d2-b8", POINTS))).axes[0].get_title()
