"""Speedups of one device count, drawn from step times made by hand."""

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.figures.draw import FIGURES
from dpscope.analysis.figures.scaling import batch_figure, draw_scaling
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.run_cells import run_of, timed_cell


def test_a_bar_for_each_strategy_with_its_speedup_and_efficiency() -> None:
    """1000 us alone, 1250 us under DDP and 2000 us under DP on two devices."""
    cells = (
        timed_cell(Cell(strategy="single", devices=1, batch_size=8), 1000.0, 1000.0),
        timed_cell(Cell(strategy="ddp", devices=2, batch_size=8), 1250.0, 1250.0),
        timed_cell(Cell(strategy="dp", devices=2, batch_size=8), 2000.0, 2000.0),
    )
    (axes,) = known(draw_scaling(compare(run_of(*cells)))).axes
    assert {text.get_text() for text in axes.texts} == {"1.6x, 80.0%", "1x, 50.0%"}
    assert {bar.get_width() for bar in axes.patches} == {1.6, 1.0}  # type: ignore[attr-defined]


def test_series_stand_next_to_each_other_by_the_same_at_each_batch() -> None:
    """Two series 4% apart, also at batch 16 of one alone. 2 x 8 samples in 1000 us: 16,000/s."""
    run = run_of(
        timed_cell(Cell(strategy="single", devices=1, batch_size=8), 800.0, 800.0),
        timed_cell(Cell(strategy="single", devices=1, batch_size=16), 1600.0, 1600.0),
        timed_cell(Cell(strategy="ddp", devices=2, batch_size=8), 1000.0, 1000.0),
    )
    _, throughput = known(batch_figure(run, compare(run))).axes
    points = [np.asarray(bars[0].get_xydata()) for bars in throughput.containers]
    single, ddp = points
    assert single.ravel() == pytest.approx([8 / 1.04**0.5, 10_000, 16 / 1.04**0.5, 10_000])
    assert ddp.ravel() == pytest.approx([8 * 1.04**0.5, 16_000])
    assert "global batch over it" in FIGURES["batch"].caption
