"""The figure of bus bandwidths: points of the traces and of the calibration, by hand."""

import msgspec
import numpy as np
import pytest
from matplotlib.axes import Axes

from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.figures.calibration import bandwidths
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.run_cells import (
    all_reduces,
    calibration,
    cell_data,
    fitted,
    run_of,
    timed,
    windows,
)

DDP = Cell(strategy="ddp", devices=2, batch_size=8)


def drawn(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    """Sizes and rates of the points with this label."""
    containers = [one for one in axes.containers if one.get_label() == label]
    (line,) = [container[0] for container in containers] or [
        one for one in axes.lines if one.get_label() == label
    ]
    sizes, rates = line.get_data()
    return np.asarray(sizes).tolist(), np.asarray(rates).tolist()


def test_the_trace_is_drawn_as_the_tables_state_it_next_to_the_calibrated_sizes() -> None:
    """2 MB in 1 ms and in 3 ms: 2 GB/s and 0.67, 1 GB/s by the mean transfer, where the median of
    rates is 1.33. On 2 ranks the bus bandwidth is bytes over time.
    """
    steps = windows(DDP, 2, 2, step_us=9e3, compute_us=5e3, communication_us=2e3)
    moved = all_reduces(DDP, 2, [(2e6, 0.0, 1000.0)], 2)
    transfers_us = np.where(moved["step"] == moved["step"].max(), 3000.0, 1000.0)
    moved = moved.assign(transfer_us=transfers_us, busbw_gb_per_s=2e3 / transfers_us)
    run = run_of(cell_data(DDP, [[9e3] * 8] * 2, steps, moved))
    near, far = 1 << 20, 1 << 30
    calibrated = fitted(timed(2, 0.0, 4.0, [near, 2 * near, 4 * near, far]))
    (axes,) = known(bandwidths(run, Costs(None, calibrated))).axes
    sizes, rates = drawn(axes, "trace, ddp-d2-b8: mean")
    assert sizes == [2e6]
    assert rates == pytest.approx([1.0])
    sizes, rates = drawn(axes, "calibration: median")
    assert sizes == [near, 2 * near, 4 * near, far]
    assert rates == pytest.approx([4.0] * 4)
    low, high = axes.get_xlim()
    assert low < near < far < high


def test_the_legend_says_that_a_fit_is_unreliable() -> None:
    steps = windows(DDP, 2, 2, step_us=9e3, compute_us=5e3, communication_us=2e3)
    moved = all_reduces(DDP, 2, [(2e6, 0.0, 1000.0)], 2)
    run = run_of(cell_data(DDP, [[9e3] * 8] * 2, steps, moved.assign(busbw_gb_per_s=2.0)))
    made = calibration({"all_reduce": (0.0, 4.0)})
    for error, label in ((0.5, "calibration's fit"), (1.24, "calibration's fit (noisy)")):
        fits = tuple(
            msgspec.structs.replace(fit, prediction_relative_error=error) for fit in made.fits
        )
        costs = Costs(None, msgspec.structs.replace(made, fits=fits))
        (axes,) = known(bandwidths(run, costs)).axes
        assert label in axes.get_legend_handles_labels()[1]


def test_equal_rates_have_a_whisker_of_no_length() -> None:
    """1 / (1 / 49) is above 49 in double precision, and no whisker may be below 0."""
    steps = windows(DDP, 2, 2, step_us=9e3, compute_us=5e3, communication_us=2e3)
    moved = all_reduces(DDP, 2, [(2e6, 0.0, 1000.0)], 2)
    moved = moved.assign(busbw_gb_per_s=np.full(len(moved), 49.0))
    run = run_of(cell_data(DDP, [[9e3] * 8] * 2, steps, moved))
    calibrated = fitted(timed(2, 0.0, 4.0, [1 << 20, 1 << 21, 1 << 22]))
    (axes,) = known(bandwidths(run, Costs(None, calibrated))).axes
    _, rates = drawn(axes, "trace, ddp-d2-b8: mean")
    assert rates == pytest.approx([49.0])


def test_a_single_point_next_to_nothing_is_not_drawn() -> None:
    steps = windows(DDP, 2, 2, step_us=9e3, compute_us=5e3, communication_us=2e3)
    moved = all_reduces(DDP, 2, [(2e6, 0.0, 1000.0)], 2)
    run = run_of(cell_data(DDP, [[9e3] * 8] * 2, steps, moved.assign(busbw_gb_per_s=2.0)))
    assert bandwidths(run, Costs(None, None)) is None
