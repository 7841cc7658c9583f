"""The gain over one device by each estimator."""

from collections.abc import Sequence

import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.gains import BY_BLOCKS, BY_TOTAL, gain_of
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.run import Cell, TimedBlock
from tests.helpers.known import known
from tests.helpers.made_verdicts import said
from tests.helpers.run_cells import cell_data, run_of, windows, with_ranks

UNEVEN = [100.0] * 7 + [200.0] * 3  # median 100, mean 130


def timed(strategy: str, devices: int, batch: int, steps_us: Sequence[float]) -> Job:
    """Three repeats, hardly apart."""
    cell = Cell(strategy, devices, batch)  # type: ignore[arg-type]
    repeats = [[one * factor for one in steps_us] for factor in (0.999, 1.0, 1.001)]
    return cell_data(cell, repeats, windows(cell, 2, 3, step_us=2.0, compute_us=1.0, idle_us=1.0))


def run(ddp_step_us: float) -> RunData:
    return run_of(timed("single", 1, 8, UNEVEN), timed("ddp", 2, 8, [ddp_step_us] * 10))


def test_estimators_that_disagree_in_direction_recommend_nothing() -> None:
    """2 x 100 / 213 = 0.94 by the median step, 2 x 130 / 213 = 1.22 by the total time."""
    made = run(213.0)
    compared = compare(made)
    gain = known(gain_of(made, compared, "ddp-d2-b8"))
    assert gain.by_median.value == pytest.approx(0.939, rel=1e-3)
    assert gain.others == {BY_TOTAL: pytest.approx(1.2207, rel=1e-3)}
    found = run_verdict(made, compared)
    assert found.strategy is None
    assert known(found.fact("which")).label == "UNDECIDED"
    assert "0.94x one device at the same batch per device (95% interval" in said(found, "which")
    assert "estimates disagree: 1.22x by the total time of the same steps" in said(found, "which")


def test_an_efficiency_at_the_same_global_batch_is_called_strong() -> None:
    """One device takes 300 us for 16 samples, two take 200 us: 1.5 times, 75%."""
    made = run_of(timed("single", 1, 16, [300.0] * 10), timed("ddp", 2, 8, [200.0] * 10))
    which = said(run_verdict(made, compare(made)), "which")
    assert "1.50x one device at the same global batch" in which
    assert "75% strong efficiency" in which


def blocks_of(data: Job, steps: int, duration_s: float) -> Job:
    """With one timed block of so many steps in every process."""
    processes = 1 if data.cell.devices == 1 else data.cell.devices
    block = TimedBlock(None, steps, steps * data.cell.batch_size, duration_s, None)
    assert {one.world_size for _, one in data.ranks} == {processes}
    return with_ranks(data, blocks=(block,))


@pytest.mark.parametrize(
    ("block_s", "gain", "decided"), [(1.6e-3, 1.25, False), (2.5e-3, 0.8, True)]
)
def test_whole_blocks_are_an_estimator_too(block_s: float, gain: float, decided: bool) -> None:
    """Ten steps of 8 samples take one device 1 ms; DDP's two processes 1.6 ms (2 / 1.6 = 1.25
    times) or 2.5 ms (0.8 times).

    By their steps of 213 us and one device's of 100 us DDP is slower: 2 x 100 / 213 = 0.94 by the
    median and by the total time.
    """
    single = blocks_of(timed("single", 1, 8, [100.0] * 10), 10, 1e-3)
    ddp = blocks_of(timed("ddp", 2, 8, [213.0] * 10), 10, block_s)
    made = run_of(single, ddp)
    compared = compare(made)
    found = known(gain_of(made, compared, "ddp-d2-b8"))
    assert found.others == {
        BY_TOTAL: pytest.approx(0.939, rel=1e-3),
        BY_BLOCKS: pytest.approx(gain),
    }
    assert found.estimators_agree is decided
    which = known(run_verdict(made, compared).fact("which"))
    assert which.label == ("USE ONE" if decided else "UNDECIDED")
    others = "0.94x by the total time of the same steps, 1.25x by whole blocks"
    assert decided or others in which.text
