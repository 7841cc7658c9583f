"""A report's tables: the gradients' transfer time on other links by hand, and which predictions are
shown.
"""

import pytest

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.findings.predictions import collective_table, off_notes
from dpscope.analysis.report.build import projected_links, projection_table
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.run import Cell, ParameterSizes
from tests.helpers.known import known
from tests.helpers.made_rows import made_row
from tests.helpers.run_cells import cell_data, run_of, windows


def measured(cell: Cell) -> Job:
    return cell_data(cell, [[1000.0] * 5], windows(cell, 3, step_us=1000.0))


def test_rates_are_one_direction() -> None:
    links = projected_links()
    assert links["Ethernet 10 Gb/s"] == 1.25
    assert links["InfiniBand HDR x4 (200 Gb/s)"] == 25
    assert links["PCIe 4.0 x16"] == pytest.approx(31.5, abs=0.02)
    # data sheets: 300, 600, 900, 1800 GB/s both ways
    assert [rate for name, rate in links.items() if name.startswith("NVLink")] == [
        150,
        300,
        450,
        900,
    ]
    assert len(links) == 13


@pytest.mark.parametrize(
    ("size_bytes", "headings", "slowest", "fastest"),
    [
        # 2 x 3/4 x 4 MB = 6 MB: 48 ms at 0.125 GB/s, 6.7 us at 900 GB/s; most links take less than
        # a millisecond
        (
            4_000_000,
            ("4.00 MB [µs]", "2.00 MB [µs]", "1.00 MB [µs]"),
            ("48000.0", "24000.0", "12000.0"),
            "6.7",
        ),
        (
            400_000_000,
            ("400.0 MB [ms]", "200.0 MB [ms]", "100.0 MB [ms]"),
            ("4800.0", "2400.0", "1200.0"),
            "0.7",
        ),
        (
            4000,
            ("4.00 kB [µs]", "2.00 kB [µs]", "1.00 kB [µs]"),
            ("48.000", "24.000", "12.000"),
            "0.007",
        ),
    ],
)
def test_the_gradients_on_a_ring_whole_half_and_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
    size_bytes: int,
    headings: tuple[str, ...],
    slowest: tuple[str, ...],
    fastest: str,
) -> None:
    sizes = ParameterSizes(
        parameter_count=1, parameter_bytes=size_bytes, gradient_bytes=size_bytes, buffer_bytes=0
    )
    monkeypatch.setattr("dpscope.analysis.report.build.model_sizes", lambda _: sizes)
    table = known(projection_table(run_of(measured(Cell(strategy="ddp", devices=4, batch_size=8)))))
    assert table.title.startswith("Predicted, not measured: ring all-reduce")
    assert table.headings[2:] == headings
    assert {row[0]: row[2:] for row in table.rows}["Ethernet 1 Gb/s"] == slowest
    assert next(row[2] for row in table.rows if "B200" in row[0]) == fastest


def test_dataparallel_sends_and_reduces() -> None:
    """4 MB out and 4 MB back at 1.25 GB/s: 6.4 ms; no multi-device cell, no table."""
    table = known(projection_table(run_of(measured(Cell(strategy="dp", devices=2, batch_size=8)))))
    assert {row[0]: row[2] for row in table.rows}["Ethernet 10 Gb/s"] == "6400.0"
    assert (
        projection_table(run_of(measured(Cell(strategy="single", devices=1, batch_size=8)))) is None
    )


def test_the_collective_that_a_note_is_about_is_shown_however_small() -> None:
    """Of nine sizes the eighth takes five times as long as predicted: the note says so, and its row
    stays.
    """
    rows = tuple(
        CollectivePrediction(
            "ddp-d2-b8", "all_reduce", 1e6 * size, 2, 1.0, 100.0, 20.0 if size == 2 else 100.0
        )
        for size in range(9, 0, -1)
    )
    comparison = Comparison(
        {"ddp-d2-b8": made_row("ddp-d2-b8", transfer_us=100.0)}, predictions=rows
    )
    (note,) = off_notes(comparison)
    assert "-80% off" in note
    table = known(collective_table(comparison))
    assert [row[2] for row in table.rows] == [f"{size}.00 MB" for size in (9, 8, 7, 6, 5, 4, 2)]
    assert table.notes[-1] == "2 other sizes are not shown"
