"""Efficiency over devices, drawn from plain numbers."""

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from dpscope.analysis.figures.efficiency import Efficiencies, efficiency_figure
from tests.helpers.known import known

POINTS = [(2, 0.8, 0.64, 0.9), (8, 0.8, 0.64, 0.9)]


@pytest.mark.parametrize("predicted", [POINTS, POINTS[1:]])
def test_predictions_have_whiskers_and_measured_points_none(
    predicted: list[tuple[int, float, float, float]],
) -> None:
    """Also a single prediction."""
    figure = known(efficiency_figure(Efficiencies("ddp-d2-b8", predicted, [(2, 0.8), (4, 0.5)])))
    (axes,) = figure.axes
    (drawn,) = axes.containers
    assert isinstance(drawn, ErrorbarContainer)
    assert drawn.get_label() == "predicted from ddp-d2-b8"
    line, _, (bars,) = drawn.lines
    assert np.asarray(line.get_xydata()).tolist() == [[count, 80] for count, *_ in predicted]
    for bar in bars.get_segments():
        assert bar[:, 1] == pytest.approx([64, 90])
    (measured,) = [line for line in axes.get_lines() if line.get_label() == "measured"]
    assert np.asarray(measured.get_xydata()).tolist() == [[2, 80], [4, 50]]


def test_what_makes_predictions_too_good_is_the_title() -> None:
    limits = ["8 devices: too optimistic for this host."]
    measured = [(2, 0.8)]
    too_good = Efficiencies("ddp-d2-b8", POINTS, measured, limits)
    assert known(efficiency_figure(too_good)).axes[0].get_title() == limits[0]
    unlimited = Efficiencies("ddp-d2-b8", POINTS, measured)
    assert not known(efficiency_figure(unlimited)).axes[0].get_title()


def test_two_points_are_not_drawn() -> None:
    assert efficiency_figure(Efficiencies("ddp-d2-b8", POINTS[1:], [(2, 0.8)])) is None
    assert efficiency_figure(Efficiencies("ddp-d2-b8", (), [(2, 0.8), (4, 0.5), (8, 0.4)])) is None
