"""The ledger of a job: planted parts, real traces, a raster of every traced microsecond, and the
device that bounds a step.
"""

from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.cost import cost_fact
from dpscope.analysis.traces.ranks.job import NO_TABLES
from dpscope.analysis.traces.ranks.ledger import critical_rows, ledger_of
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.profiling.records.run import Cell
from tests.generated_traces.ddp import DdpOptions
from tests.generated_traces.generator import ddp_trace, dp_trace
from tests.helpers.generated_checks import analyzed
from tests.helpers.known import known
from tests.helpers.made_rows import made_row
from tests.helpers.paths import DATA, EXAMPLE_RUN
from tests.helpers.run_cells import cell_data, run_of, windows

ALONE = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def test_a_planted_straggler(tmp_path: Path) -> None:
    """Rank 1 begins its backward 500 us late; by hand from the schedule in
    `generated_traces/ddp.py`, the mean of both ranks.

    Rank 0 waits in bucket 0 from 490 to 990 and in bucket 1 from 1,054 to 1,094; its compute leaves
    2 + 4 + 316 + 40 = 362 us of that exposed, and the transfers of 60 + 96 + 40. Rank 1 exposes 20
    us of bucket 1 and 40 of bucket 2. Both broadcast for 18.
    """
    found = known(
        analyzed(
            tmp_path, *(ddp_trace(rank, 2, DdpOptions(straggler=1)) for rank in range(2))
        ).ledger
    )
    assert (
        found.exposed_wait_us,
        found.exposed_transfer_us,
        found.exposed_other_us,
    ) == pytest.approx((181, 128, 18))
    assert found.wait_by_rank_us == pytest.approx({1: 181})
    assert found.transfer_by_kind_us == pytest.approx({"all_reduce": 128})
    assert found.other_by_kind_us == pytest.approx({"broadcast": 18})
    assert sum(found.parts_us.values()) == pytest.approx(found.traced_step_us, abs=1e-3)
    assert found.traced_step_us == pytest.approx((1340 + 1346) / 2)


def test_a_missing_rank_and_data_parallel_leave_exposed_communication_unsplit(
    tmp_path: Path,
) -> None:
    found = known(analyzed(tmp_path, dp_trace()).ledger)
    assert not found.is_split
    assert known(found.exposed_other_us) == known(found.exposed_us) > 0
    assert sum(found.parts_us.values()) == pytest.approx(found.traced_step_us, abs=1e-3)
    # in place of the other trace
    found = known(analyzed(tmp_path, ddp_trace(0, 2, DdpOptions(straggler=1))).ledger)
    assert (found.is_split, found.exposed_wait_us, found.exposed_transfer_us) == (False, None, None)
    assert found.exposed_other_us == pytest.approx(576)
    assert found.other_by_kind_us == pytest.approx({"all_reduce": 558, "broadcast": 18})


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        DATA / "v100x8_ddp_dlrm",
        DATA / "compiled_ddp",
        ALONE,
        *sorted((EXAMPLE_RUN / "cells").glob("*/repeat0/traces")),
    ],
    ids=lambda place: place.parent.parent.name if place.name == "traces" else place.name,
)
def test_every_step_of_real_traces_adds_up(place: Path) -> None:
    analysis = analyze_traces([place])
    steps = analysis.steps
    parts = ["compute_us", "exposed_wait_us", "exposed_transfer_us", "exposed_other_us", "idle_us"]
    assert (steps[parts].fillna(0.0).sum(axis=1) - steps["step_us"]).abs().max() < 1e-3
    assert (steps[parts].fillna(0.0) >= -1e-6).all(axis=None)
    found = known(analysis.ledger)
    assert sum(found.parts_us.values()) == pytest.approx(found.traced_step_us, rel=1e-9)
    assert sum(found.wait_by_rank_us.values()) == pytest.approx(found.exposed_wait_us or 0.0)
    assert sum(found.transfer_by_kind_us.values()) == pytest.approx(
        found.exposed_transfer_us or 0.0
    )
    assert sum(found.other_by_kind_us.values()) == pytest.approx(found.exposed_other_us or 0.0)


DP = Cell(strategy="dp", devices=4, batch_size=8)
STEP_US = 5000.0
# By device: DataParallel's first one sends 500 us of parameters, which no other device records.
EXPOSED_US = (500.0, 0.0, 0.0, 0.0)
COMPUTE_US = (4300.0, 3000.0, 3000.0, 3000.0)


def data_parallel_windows(repeats: int = 1) -> Table:
    steps = windows(DP, 3, repeats, step_us=STEP_US, hidden_us=0.0, host_copy_us=0.0)
    exposed, compute = (np.array(column)[steps["device"]] for column in (EXPOSED_US, COMPUTE_US))
    return steps.assign(
        exposed_us=exposed,
        exposed_other_us=exposed,
        communication_us=exposed,
        compute_us=compute,
        idle_us=STEP_US - exposed - compute,
    )


def test_the_row_gives_the_critical_devices_values() -> None:
    data = cell_data(DP, [[STEP_US] * 6] * 2, data_parallel_windows(2))
    (row,) = compare(run_of(data)).table.to_dict("records")
    assert row["critical_device"] == 0
    assert row["exposed_us"] == row["communication_us"] == 500
    assert row["exposed_share"] == pytest.approx(0.1)
    assert (row["compute_us"], row["idle_us"]) == (4300, 200)
    assert row["traced_step_us"] == row["compute_us"] + row["exposed_us"] + row["idle_us"]


def test_the_ledger_and_the_cost_of_foreign_traces_name_the_device() -> None:
    ledger = known(ledger_of(data_parallel_windows(), NO_TABLES.exposed_parts))
    assert (ledger.exposed_us, ledger.critical_device, ledger.devices_exposed_us) == (500, 0, 125)
    repeated = cell_data(DP, [], data_parallel_windows(2))
    assert (ledger.steps, known(repeated.traced_ledger).steps) == (3, 6)
    row = made_row("dp-d4-b8", "dp", 4, ledger=ledger)
    first, *_, last = cost_fact(row, repeated, on_device=True).lines
    assert first.startswith("communication takes 0.5 of the 5.0 ms of a step, 10%")
    assert last == "on device 0, the least idle one; mean of all devices 0.12 ms"


def test_each_process_has_a_critical_device_and_unknown_idle_time_is_no_reason_to_choose() -> None:
    steps = data_parallel_windows()
    both = joined([steps, steps.assign(rank=1, idle_us=steps["idle_us"][::-1])])
    chosen = both.take(critical_rows(both))
    assert {(one["rank"], one["device"]) for one in chosen.records()} == {(0, 0), (1, 3)}
    unknown = steps.assign(idle_us=np.where(steps["device"] == 2, steps["idle_us"], np.nan))
    assert set(unknown["device"][critical_rows(unknown)].tolist()) == {2}
