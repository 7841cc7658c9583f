"""Whiskers, from the ends of intervals; the table of colours."""

import numpy as np

from dpscope.analysis.figures.style import COLOURS, PARTS, finish, new_figure, whiskers
from dpscope.profiling.records.strategies import STRATEGIES
from tests.helpers.known import known


def test_an_interval_that_is_not_known_has_no_whisker() -> None:
    """Not one of no length, which would be an exact value."""
    found = whiskers([2.0, 3.0, 4.0], [1.5, None, 4.5], [4.0, None, 5.0])
    np.testing.assert_array_equal(found, [[0.5, np.nan, 0.0], [2.0, np.nan, 1.0]])


def test_a_colour_and_a_hatch_have_one_meaning() -> None:
    colours = [colour for name, colour in COLOURS.items() if name not in STRATEGIES]
    hatches = [hatch for _, hatch in PARTS.values() if hatch]
    assert len(set(colours)) == len(colours)
    assert len(set(hatches)) == len(hatches)


def test_what_was_measured_stands_below_the_legend() -> None:
    figure, (axes,) = new_figure(3)
    axes.plot([1, 2], [3, 4], label="a line")
    finish(figure, "title", "intervals", "lenet5, 2 CPU cores, 5 repeats; NOISY " * 4)
    below = figure.texts[-1]
    (legend,) = figure.legends
    assert below.get_text().count("\n") == 1
    assert below.get_window_extent().y1 < legend.get_window_extent().y0
    assert legend.get_window_extent().y1 < known(axes.get_tightbbox()).y0


def test_what_was_measured_is_no_formula() -> None:
    figure, (axes,) = new_figure(3)
    axes.plot([1, 2], [3, 4])
    finish(figure, "title", "intervals", r"a model $\frac{$ of two")
    figure.canvas.draw()
    assert figure.texts[-1].get_window_extent().height > 0
