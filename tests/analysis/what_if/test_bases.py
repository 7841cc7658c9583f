"""What is taken from a run's other cells: where they ran, and how much a collective slows
computing.
"""

import math
import re
from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.findings.cost import cost_fact
from dpscope.analysis.stats.samples import Interval, pooled_median
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.what_if.bases import (
    Question,
    base_of_loaded,
    contention_of_ledger,
    repeats_band,
    single_cells,
)
from dpscope.analysis.what_if.cell_errors import errors_of_cells
from dpscope.analysis.what_if.predict import predict
from dpscope.analysis.what_if.scenario import Scenario
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.examples import FIVE_REPEATS, loaded, reported
from tests.helpers.known import known
from tests.helpers.replayed_steps import BASE, COSTS
from tests.helpers.run_cells import in_cell, optioned, run_of


def test_cells_that_share_cores_are_no_base_and_show_no_error(
    question: Question, cell: Job
) -> None:
    """Four processes on two cores, which by its size would be the base."""
    four = replace(in_cell(cell, msgspec.structs.replace(cell.cell, devices=4)), cores=2)
    run = replace(known(question.run), cells={cell.cell.name: cell, four.cell.name: four})
    chosen = base_of_loaded(run)
    assert (chosen.base.name, chosen.base.largest) == (cell.cell.name, 2)
    assert errors_of_cells(question, run).cells == ()
    with pytest.raises(DpscopeError, match="ddp-d4-b8 cannot be the base: 4 devices share 2 cores"):
        base_of_loaded(run, "ddp-d4-b8")
    alone = replace(run, cells={four.cell.name: four})
    with pytest.raises(
        DpscopeError, match=re.escape("which a base must be (4 devices share 2 cores); measure one")
    ):
        base_of_loaded(alone)


@pytest.mark.long
def test_tracing_that_slows_a_step_does_so_for_every_command(question: Question) -> None:
    """The cost that `dpscope analyze` refuses to state is not predicted from either."""
    report = reported()
    row = report.comparison.rows[question.base.name]
    job = report.run.cells[question.base.name]
    assert question.base.slowed == pytest.approx(known(row.tracer_cost))
    why = str(predict(question.base, Scenario(devices=4), question.costs).reason)
    (cost, *_) = cost_fact(row, job, on_device=False).lines
    assert cost.removeprefix("unknown: ") == why.split(":")[0]
    quiet = base_of_loaded(loaded(FIVE_REPEATS))
    assert quiet.base.slowed is None


def test_the_measured_contention_is_used_before_any_assumption() -> None:
    """Compute that takes 1.25x as long loses 1/5 of the time that communication runs next to it."""
    without_overlap = Ledger(230.0, 210.0, 0.0, 20.0, 0.0, 0.0)
    ledger = replace(
        without_overlap, contention_ratio=1.25, contention_ratio_interval=Interval(1.0, 2.0)
    )
    measured, unknown = contention_of_ledger(ledger), contention_of_ledger(without_overlap)
    assert measured[:3] == pytest.approx((0.2, 0.0, 0.5))
    assert (unknown.low, unknown.gamma, unknown.high, unknown.basis) == (0.0, 0.0, 0.3, "")
    # By half precision the first all-reduce runs 10 us less next to computing: 2 us less are lost
    one, without = (
        predict(replace(BASE, contention=found), Scenario(hook="fp16"), COSTS)
        for found in (measured, unknown)
    )
    assert one.step_us == pytest.approx((without.step_us or 0.0) - 2)
    assert (
        "compute next to communication takes 1.25x as long as alone (1.00 to 2.00, measured)"
        in str(one.rests_on)
    )
    assert "compute next to it" not in str(without.rests_on)
    faster = replace(ledger, contention_ratio=0.99, contention_ratio_interval=Interval(0.88, 1.12))
    found = "no slowdown of compute by communication found (0.99x, 0.88 to 1.12, measured)"
    assert contention_of_ledger(faster).basis == found


@pytest.mark.long
def test_one_device_has_the_precision_and_micro_batches_of_the_base(
    question: Question, cell: Job
) -> None:
    batch = cell.cell.batch_size
    alone = known(question.run).cells[f"single-d1-b{batch}"]
    half: dict[str, str | int] = {"amp": "bf16"}
    half_twice = {**half, "accumulate": 2}
    singles = [
        alone,
        optioned(alone, 2, **half),
        optioned(alone, 3, **half_twice),
        optioned(alone, 5, compile="default"),
    ]
    none: dict[str, str | int] = {}
    for options, times in ((none, 1), (half, 2), (half_twice, 3), ({**half, "accumulate": 4}, 2)):
        base = optioned(cell, 1, bucket_mb=5.0, **options)
        found = single_cells(run_of(*singles, base), base)
        medians = {
            single_batch: pooled_median(single.step_samples())
            for single_batch, single in found.items()
        }
        assert medians == pytest.approx({batch: times * question.base.single_us[batch]})
    assert single_cells(run_of(*singles), optioned(cell, 1, amp="fp16")) == {}


def test_a_band_of_repeats_holds_one_more_of_them() -> None:
    assert repeats_band([100.0]) == 0.03  # assumed
    # Two that are alike: half of the variance that is assumed of one, (0.03 / 1.645)^2 / 2;
    # Student's t of 2, 2.92; sqrt(1.5)
    assert repeats_band([100.0, 100.0]) == pytest.approx(
        2.92 * 0.03 / 1.645 * (0.5 / 2 * 1.5) ** 0.5, rel=1e-3
    )
    # logarithms 0, 0.1 and 0.2: variance 0.01, twice, and the assumed one once, over 3; t of 3,
    # 2.353; sqrt(4 / 3)
    assumed = (0.03 / 1.645) ** 2 / 2
    expected = 2.353 * ((assumed + 2 * 0.01) / 3 * 4 / 3) ** 0.5
    assert repeats_band([math.exp(0.0), math.exp(0.1), math.exp(0.2)]) == pytest.approx(
        expected, rel=1e-3
    )
