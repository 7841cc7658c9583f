"""A run's DataParallel phases and who made whom wait: tables and JSON, over repeats, by hand."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.phase_table import run_phases
from dpscope.analysis.report.wait_table import RANK_PARTS, rank_table, run_waits
from dpscope.analysis.runs.cell_data import CellData
from dpscope.profiling.records.run import Cell
from tests.helpers.examples import loaded
from tests.helpers.run_cells import cell_data, windows

DDP = Cell(strategy="ddp", devices=2, batch_size=8)
STEPS = 2


def with_waits(per_repeat: list[tuple[float, float]]) -> CellData:
    """Per repeat and step one all-reduce of 10 us transfer, in which rank 0 and rank 1 wait so long."""
    rows = [
        {
            "repeat": repeat, "rank": rank, "device": 0, "step": step, "match": step, "start_us": 100.0 * step,
            "duration_us": 10.0 + wait, "transfer_us": 10.0, "wait_us": wait,
        }
        for repeat, waits in enumerate(per_repeat)
        for rank, wait in enumerate(waits)
        for step in range(STEPS)
    ]  # fmt: skip
    collectives = pd.DataFrame(rows).astype({"rank": "Int64", "step": "Int64", "wait_us": "Float64"})
    steps = pd.concat([windows(DDP, STEPS).assign(repeat=repeat) for repeat in range(len(per_repeat))])
    return cell_data(DDP, [[1.0] * 5] * len(per_repeat), steps, collectives)


def test_waits_are_means_over_all_repeats() -> None:
    """Rank 0 waits 30 us a step in repeat 0, rank 1 10 us in repeat 1, nobody in repeat 2: 30/3 and 10/3 us a step."""
    table = run_waits([with_waits([(30.0, 0.0), (0.0, 10.0), (0.0, 0.0)])])
    assert table is not None
    assert table.headings[0] == "cell"
    assert "[µs]" in table.headings[4]
    assert table.rows == (
        ("ddp-d2-b8", "1", "0", "2", "10.0", "75.0"),
        ("ddp-d2-b8", "0", "1", "2", "3.3", "25.0"),
    )


def test_waits_of_partial_windows_do_not_count() -> None:
    data = with_waits([(30.0, 0.0)])
    assert len(data.waits) == 1
    partial = data.steps.assign(partial_window=True)
    assert replace(data, steps=partial).waits.empty


def test_a_cell_whose_trace_is_incomplete_has_no_waits() -> None:
    data = with_waits([(30.0, 0.0)])
    assert run_waits([replace(data, communication_known=False)]) is None
    assert run_waits([with_waits([(0.0, 0.0)])]) is None


def test_phases_are_means_over_repeats_without_the_first_step() -> None:
    """Whole steps 1 and 2: 10 and 20 us in repeat 0, 30 and 40 us in repeat 1: 15 and 35, so 25 us."""
    times = {(0, 0): 500.0, (0, 1): 10.0, (0, 2): 20.0, (1, 0): 500.0, (1, 1): 30.0, (1, 2): 40.0}
    frame = pd.DataFrame(
        [
            {
                "repeat": repeat,
                "rank": 0,
                "device": 1,
                "replica": pd.NA,
                "step": step,
                "phase": "gather",
                "time_us": time,
            }
            for (repeat, step), time in times.items()
        ]
    ).astype({"device": "Int64", "replica": "Int64", "time_us": "Float64"})
    table = run_phases({"dp-d2-b8": frame})
    assert table is not None
    row = dict(zip(table.headings, table.rows[0], strict=True))
    assert (row["cell"], row["device"], row["gather [µs]"], row["scatter [µs]"]) == ("dp-d2-b8", "1", "25.0", "NA")


@pytest.mark.long
def test_the_example_run_tells_both_in_tables_and_json() -> None:
    report = make_report(loaded())
    shown = report.tables
    assert {row[0] for row in shown["dp_phases"].rows} == {"dp-host-d2-b8"}
    assert {row[0] for row in shown["waits"].rows} == {"ddp-d2-b8"}
    told = json.loads(run_json(report))
    assert {row["phase"] for row in told["dp_phases"]} >= {"replicate", "scatter", "gather", "gradient_reduce"}
    assert {(row["cell"], row["repeat"]) for row in told["waits"]} <= {("ddp-d2-b8", 0), ("ddp-d2-b8", 1)}
    assert sum(row["wait_us"] for row in told["waits"]) > 0


def test_the_parts_of_a_ranks_row_add_up_to_its_step() -> None:
    table = rank_table([data for data in loaded().measured if data.cell.processes > 1])
    assert table is not None
    assert [row[1] for row in table.rows if row[0] == "ddp-d2-b8"] == ["0", "1"]
    for row in table.rows:
        step, *parts = (0.0 if value == "NA" else float(value) for value in row[3:])
        assert len(parts) == len(RANK_PARTS) - 1
        assert abs(step - sum(parts)) <= 0.06 * len(parts)  # each is rounded to 0.1


def test_a_job_of_one_rank_has_no_table_of_ranks() -> None:
    assert rank_table([data for data in loaded().measured if data.cell.devices == 1]) is None
