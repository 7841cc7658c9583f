"""The gain over one device by each estimator, and at the same global batch."""

from collections.abc import Sequence

import pytest

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.gains import BY_TOTAL, gain_of
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known
from tests.helpers.run_cells import cell_data, run_of, windows

UNEVEN = [100.0] * 7 + [200.0] * 3  # median 100, mean 130


def timed(strategy: str, devices: int, batch: int, steps_us: Sequence[float]) -> CellData:
    """Three repeats, hardly apart."""
    cell = Cell(strategy, devices, batch)  # type: ignore[arg-type]
    repeats = [[one * factor for one in steps_us] for factor in (0.999, 1.0, 1.001)]
    return cell_data(cell, repeats, windows(cell, 2, 3, step_us=2.0, compute_us=1.0, idle_us=1.0))


def run(ddp_step_us: float, *more: CellData) -> RunData:
    return run_of(timed("single", 1, 8, UNEVEN), timed("ddp", 2, 8, [ddp_step_us] * 10), *more)


def test_estimators_that_disagree_in_direction_recommend_nothing() -> None:
    """2 x 100 / 213 = 0.94 by the median step, 2 x 130 / 213 = 1.22 by the total time."""
    made = run(213.0)
    compared = compare(made)
    gain = known(gain_of(made, compared, "ddp-d2-b8"))
    assert gain.by_median.value == pytest.approx(0.939, rel=1e-3)
    assert gain.others == {BY_TOTAL: pytest.approx(1.2207, rel=1e-3)}
    found = run_verdict(made, compared)
    assert found.strategy is None
    assert found.which.text.startswith("Not decided between DDP and one device, as the estimates disagree: 0.94x")
    assert "0.94x one device's throughput by the median step (95% interval" in found.which.text
    assert "1.22x by the total time of the same steps on 2 devices" in found.which.text


@pytest.mark.parametrize(("step_us", "strategy", "begin"), [(150.0, "ddp", "Use DDP"), (300.0, "single", "Do not")])
def test_estimators_that_agree_recommend_as_before(step_us: float, strategy: str, begin: str) -> None:
    made = run(step_us)
    found = run_verdict(made, compare(made))
    assert (found.strategy, found.which.text.startswith(begin)) == (strategy, True)
    assert "total time" not in found.which.text


def test_the_gain_at_the_same_global_batch_is_stated_too() -> None:
    """One device takes 178 us for 16 samples: 178 / 150 = 1.19 where the same batch per device gives 2 x 100 / 150 = 1.33."""
    made = run(150.0, timed("single", 1, 16, [178.0] * 10))
    text = run_verdict(made, compare(made)).which.text
    assert text.startswith("Use DDP: 1.33x one device's throughput")
    assert "At the same global batch: 1.19x." in text
    assert "global batch" not in run_verdict(run(150.0), compare(run(150.0))).which.text
