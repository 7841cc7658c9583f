"""The values of a process with several devices are those of the device that bounds its steps."""

import pandas as pd
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.waterfall import exposed_by_phase
from dpscope.analysis.findings.ledger_text import cost_text
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.traces.ranks.ledger import critical_rows, ledger_of
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.run import Cell
from tests.helpers.run_cells import cell_data, run_of, windows

DP = Cell(strategy="dp", devices=4, batch_size=8)
DDP = Cell(strategy="ddp", devices=4, batch_size=8)
STEP_US = 5000.0
# By device: DataParallel's first one sends 500 us of parameters, which no other device records.
EXPOSED_US = (500.0, 0.0, 0.0, 0.0)
COMPUTE_US = (4300.0, 3000.0, 3000.0, 3000.0)


def data_parallel_windows(repeats: int = 1) -> pd.DataFrame:
    frame = windows(DP, 3, repeats, step_us=STEP_US, hidden_us=0.0, host_copy_us=0.0)
    device = frame["device"].to_numpy(dtype=int)
    exposed, compute = (
        pd.Series([column[one] for one in device], dtype="Float64") for column in (EXPOSED_US, COMPUTE_US)
    )
    return frame.assign(
        exposed_us=exposed,
        exposed_other_us=exposed,
        communication_us=exposed,
        compute_us=compute,
        idle_us=STEP_US - exposed - compute,
    )


def phases() -> pd.DataFrame:
    rows = data_parallel_windows()[["repeat", "rank", "device", "step", "exposed_us"]]
    return rows.assign(phase="replicate", replica=None)


def test_the_row_gives_the_critical_devices_values_and_the_mean_of_all() -> None:
    data = cell_data(DP, [[STEP_US] * 6] * 2, data_parallel_windows(2))
    (row,) = compare(run_of(data)).table.to_dict("records")
    assert row["critical_device"] == 0
    assert row["exposed_us"] == row["communication_us"] == 500
    assert row["exposed_share"] == pytest.approx(0.1)
    assert (row["compute_us"], row["idle_us"]) == (4300, 200)
    assert row["traced_step_us"] == row["compute_us"] + row["exposed_us"] + row["idle_us"]
    assert row["exposed_device_mean_us"] == row["communication_device_mean_us"] == 125
    assert row["compute_device_mean_us"] == 3325
    assert row["idle_device_mean_us"] == 1550
    assert (row["exposed_rank_min_us"], row["exposed_rank_max_us"]) == (0, 500)


def test_phases_add_up_to_the_critical_devices_exposed_time() -> None:
    data = CellData(cell=DP, skip_reason=None, steps=data_parallel_windows(), dp_phases=phases())
    assert exposed_by_phase(data) == {"replicate": 500.0}


def test_the_ledger_and_the_cost_of_foreign_traces_name_the_device() -> None:
    ledger = ledger_of(Table.from_frame(data_parallel_windows()), Table.of(rank=[], device=[], step=[], part=[]))
    assert ledger is not None
    assert (ledger.exposed_us, ledger.critical_device, ledger.devices_exposed_us) == (500, 0, 125)
    text = cost_text("DP", "dp", ledger, None)
    assert "DP exposes 0.50 ms of communication in a 5.00 ms traced step (10%)" in text
    assert text.endswith("That is device 0, which is the least idle; the mean over all devices is 0.12 ms.")


def test_processes_with_one_device_keep_all_their_windows() -> None:
    frame = windows(DDP, 3, step_us=STEP_US, compute_us=4900.0, idle_us=100.0)
    assert critical_rows(Table.from_frame(frame)).all()
    data = cell_data(DDP, [[STEP_US] * 6], frame)
    (row,) = compare(run_of(data)).table.to_dict("records")
    assert pd.isna(row["critical_device"])
    assert pd.isna(row["exposed_device_mean_us"])


def test_each_process_has_a_critical_device_and_unknown_idle_time_is_no_reason_to_choose() -> None:
    frame = data_parallel_windows()
    other = frame.assign(rank=1, idle_us=frame["idle_us"].iloc[::-1].to_numpy())
    both = pd.concat([frame, other], ignore_index=True).astype({"rank": "Int64"})
    chosen = both[critical_rows(Table.from_frame(both))]
    assert chosen.groupby("rank")["device"].unique().map(list).to_dict() == {0: [0], 1: [3]}
    unknown = frame.assign(idle_us=frame["idle_us"].where(frame["device"] == 2))
    assert set(unknown[critical_rows(Table.from_frame(unknown))]["device"]) == {2}
