"""The gradients' transfer time on other links: by hand, from the table of specifications."""

import pytest

from dpscope.analysis.report.all_tables import projected_links, projection_table
from dpscope.analysis.runs.cell_data import CellData
from dpscope.profiling.records.run import Cell, ParameterSizes
from tests.helpers.known import known
from tests.helpers.run_cells import cell_data, run_of, windows


def measured(cell: Cell) -> CellData:
    return cell_data(cell, [[1000.0] * 5], windows(cell, 3, step_us=1000.0))


def test_rates_are_one_direction() -> None:
    links = projected_links()
    assert links["Ethernet 10 Gb/s"] == 1.25
    assert links["InfiniBand HDR x4 (200 Gb/s)"] == 25
    assert links["PCIe 4.0 x16"] == pytest.approx(31.5, abs=0.02)
    # data sheets: 300, 600, 900, 1800 GB/s both ways
    assert [rate for name, rate in links.items() if name.startswith("NVLink")] == [150, 300, 450, 900]
    assert len(links) == 13


def test_the_gradients_on_a_ring_whole_half_and_a_quarter() -> None:
    """4 MB on 4 devices: 2 x 3/4 x 4 MB = 6 MB over 0.125 GB/s: 48 ms."""
    table = known(projection_table(run_of(measured(Cell(strategy="ddp", devices=4, batch_size=8)))))
    assert table.title.startswith("Predicted, not measured: ring all-reduce")
    assert table.headings[2:] == ("4.00 MB [ms]", "2.00 MB [ms]", "1.00 MB [ms]")
    assert {row[0]: row[2:] for row in table.rows}["Ethernet 1 Gb/s"] == ("48.000", "24.000", "12.000")


def test_dataparallel_sends_and_reduces() -> None:
    """4 MB out and 4 MB back at 1.25 GB/s: 6.4 ms; no multi-device cell, no table."""
    table = known(projection_table(run_of(measured(Cell(strategy="dp", devices=2, batch_size=8)))))
    assert {row[0]: row[2] for row in table.rows}["Ethernet 10 Gb/s"] == "6.400"
    assert projection_table(run_of(measured(Cell(strategy="single", devices=1, batch_size=8)))) is None


def test_a_small_model_is_shown_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 kB on 4 devices: 6 kB over 0.125 GB/s: 48 us; over NVLink 5 (900 GB/s) 0.007 us."""
    small = ParameterSizes(parameter_count=1000, parameter_bytes=4000, gradient_bytes=4000, buffer_bytes=0)
    monkeypatch.setattr("dpscope.analysis.report.all_tables.model_sizes", lambda _: small)
    table = known(projection_table(run_of(measured(Cell(strategy="ddp", devices=4, batch_size=8)))))
    assert table.headings[2] == "4.00 kB [µs]"
    rows = {row[0]: row[2] for row in table.rows}
    assert rows["Ethernet 1 Gb/s"] == "48.000"
    assert next(time for name, time in rows.items() if "B200" in name) == "0.007"
