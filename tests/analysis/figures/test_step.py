"""Where a step goes, drawn for cells whose names are long."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures.step import measured_and_estimated, stacked, step_split, wait_strips
from dpscope.analysis.figures.style import finish, labelled
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.made_rows import made_row, with_values
from tests.helpers.made_verdicts import comparison
from tests.helpers.run_cells import all_reduces, cell_data, windows


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


def test_the_sum_of_a_row_and_its_short_parts_stand_behind_it_within_the_figure() -> None:
    names = ["single-d1-b8", "ddp-d2-b8-hook-fp16-bucket-view"]
    parts = {"compute": [60.0, 90.0], "wait": [0.0, 0.1], "transfer": [0.0, 0.04]}
    figure = known(stacked(names, parts, "time per step [ms]"))
    finish(figure, "Where a traced step goes", "none")
    (axes,) = figure.axes
    above, text = axes.texts
    assert above.get_text() == "60.0"
    assert text.get_text() == "90.1 (wait 0.10, transfer 0.04)"
    assert tuple(text.xy) == pytest.approx((90.14, 1.0))  # type: ignore[attr-defined]
    box = text.get_window_extent()
    assert box.x1 < figure.get_figwidth() * figure.dpi


def with_intervals() -> Comparison:
    """Behind 4 ms that are hidden DDP exposes 8 ms (6 to 11), dp-host 2 ms (1 to 4) behind none; by
    subtraction 9 ms (7 to 12) and 12 ms (11 to 14).
    """
    ddp = made_row(
        "ddp-d2-b8", step_us=35e3, communication_us=12e3, hidden_us=4e3, exposed_us=8e3, exposed_transfer_us=8e3,
        exposed_low_us=6e3, exposed_high_us=11e3, same_local_batch_us=9e3, same_local_batch_low_us=7e3,
        same_local_batch_high_us=12e3,
    )  # fmt: skip
    host = made_row(
        "dp-host-d2-b8", "dp-host", step_us=38e3, communication_us=2e3, hidden_us=0.0, exposed_us=2e3, exposed_other_us=2e3,
        exposed_low_us=1e3, exposed_high_us=4e3, same_local_batch_us=12e3, same_local_batch_low_us=11e3,
        same_local_batch_high_us=14e3,
    )  # fmt: skip
    return comparison(ddp, host)


def test_the_measured_bar_ends_in_the_interval_of_its_exposed_part() -> None:
    (axes,) = known(measured_and_estimated(with_intervals())).axes
    measured = next(bars for bars in axes.containers if isinstance(bars, ErrorbarContainer))
    (lines,) = measured.lines[2]
    drawn = [sorted(segment[:, 0]) for segment in lines.get_segments()]
    assert np.ravel(drawn) == pytest.approx([10, 15, 1, 4])


def test_hidden_is_in_the_legend_where_its_bar_can_be_seen() -> None:
    compared = with_intervals()
    row = compared.rows["ddp-d2-b8"]
    for hidden_us, seen in ((0.001, False), (4e3, True)):
        changed = with_values(row, hidden_us=hidden_us)
        rows = {**compared.rows, row.cell: changed}
        (axes,) = known(measured_and_estimated(replace(compared, rows=rows))).axes
        assert ("hidden" in axes.get_legend_handles_labels()[1]) == seen


def test_the_value_of_a_row_stands_behind_its_whisker() -> None:
    figure = known(measured_and_estimated(with_intervals()))
    finish(figure, "Communication per step", "95% intervals")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    to_pixels = axes.transData.transform
    ends: dict[float, float] = {}
    for bars in axes.containers:
        if isinstance(bars, ErrorbarContainer):
            for segment in bars.lines[2][0].get_segments():
                ends[round(segment[1][1], 6)] = to_pixels(segment[1])[0]
    assert len(ends) >= 2
    for text in axes.texts:
        row = round(text.xy[1], 6)  # type: ignore[attr-defined]
        assert text.get_window_extent().x0 > ends.get(row, 0.0)


def test_a_cell_keeps_its_row_and_what_is_known_where_communication_is_not() -> None:
    """DDP's step of 37 ms, 29 of them compute; 9 ms by subtraction. Its trace lost the rest."""
    single = made_row(
        "single-d1-b8", "single", 1, step_us=26e3, traced_step_us=30e3, compute_us=27e3, idle_us=3e3
    )
    host = made_row(
        "dp-host-d2-b8",
        "dp-host",
        step_us=38e3,
        traced_step_us=40e3,
        compute_us=34e3,
        idle_us=4e3,
        same_local_batch_us=12e3,
        exposed_other_us=2e3,
        exposed_us=2e3,
        communication_us=2e3,
    )
    ddp = made_row(
        "ddp-d2-b8", step_us=35e3, traced_step_us=37e3, compute_us=29e3, same_local_batch_us=9e3
    )
    compared = comparison(single, host, ddp)
    (axes,) = known(step_split(compared)).axes
    assert axes.get_yticklabels()[2].get_text() == "ddp-d2-b8 (comm. unknown)"
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert drawn["compute"] == [27.0, 34.0, 29.0]
    assert drawn["unknown"] == pytest.approx([0.0, 0.0, 8.0])
    figure = known(measured_and_estimated(compared))
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["dp-host-d2-b8", "ddp-d2-b8 (comm. unknown)"]
    assert list(labelled(figure)) == ["other", "$t_N(b) - t_1(b)$"]  # no ring formula is known


@pytest.mark.parametrize("count", [2, 12])
def test_no_two_texts_of_a_figure_overlap(count: int) -> None:
    names = [f"ddp-d{2 * one}-b8-hook-fp16-bucket-view-static-graph" for one in range(count)]
    parts = {"compute": [90.0] * count, "wait": [9.0] * count, "transfer": [0.1] * count}
    figure = known(stacked(names, parts, "time per step [ms]"))
    finish(figure, "Where a traced step goes; of many cells", "none")
    figure.draw_without_rendering()
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
