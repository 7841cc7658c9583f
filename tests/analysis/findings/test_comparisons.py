"""Pairs of strategies, by hand: ratios, sentences, and one rule for what explains the gap between
DP and DDP.
"""

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.report.strategy_tables import cost_table
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.run import Cell, CellOptions, DeviceMemory
from dpscope.profiling.records.strategies import CellStrategy
from tests.helpers.run_cells import cell_data, run_of, windows, with_ranks


def measured(
    strategy: CellStrategy, devices: int, step_us: float, peak: int | None, **options: int
) -> Job:
    cell = Cell(strategy=strategy, devices=devices, batch_size=8, options=CellOptions(**options))  # type: ignore[arg-type]
    repeats = [[step_us + offset for offset in (-2, -1, 0, 1, 2, 3)] for _ in range(3)]
    data = cell_data(cell, repeats, windows(cell, 3, 3, step_us=step_us, compute_us=step_us))
    if peak is None:
        return data
    memory = (DeviceMemory(device=0, allocated_bytes=peak, reserved_bytes=peak),)
    return with_ranks(data, memory=memory, state_bytes=7)


def test_a_run_pairs_each_strategy_with_the_simpler_one() -> None:
    run = run_of(
        measured("single", 1, 1000.0, None),
        measured("ddp", 1, 1050.0, None),
        measured("ddp", 2, 2000.0, 500),
        measured("ddp", 2, 1500.0, 500, accumulate=2),
        measured("fsdp", 2, 2200.0, 300),
        measured("replicate", 2, 1900.0, 480),
    )
    comparison = compare(run)
    assert comparison.variants == {"ddp-d2-b8-accumulate-2": "accumulate-2"}
    pairs = {(one.cell, one.against): one for one in comparison.costs}
    assert set(pairs) == {
        ("ddp-d1-b8", "single-d1-b8"), ("fsdp-d2-b8", "ddp-d2-b8"), ("replicate-d2-b8", "ddp-d2-b8"),
    }  # fmt: skip
    sharded = pairs["fsdp-d2-b8", "ddp-d2-b8"]
    assert abs((sharded.ratio.value or 0) - 1.1) < 0.01
    assert (sharded.saved_bytes, sharded.memory) == (200, "peak")
    assert pairs["ddp-d1-b8", "single-d1-b8"].saved_bytes is None
    table = cost_table(comparison)
    assert len(table.rows) == 3
    codes = [finding.code for finding in conclusions(run, comparison)]
    assert codes.count("strategy_cost") == 3
    # no baseline
    alone = compare(run_of(measured("ddp", 1, 1050.0, None), measured("ddp", 2, 2000.0, None)))
    assert (alone.costs, alone.scaling) == ((), ())
    assert alone.table["weak_efficiency"].isna().all()
