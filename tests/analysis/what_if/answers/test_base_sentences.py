"""What the answer says of its base: which step it is, next to the one that the report names."""

import pytest

from dpscope.analysis.what_if.answers.bases import AskedBase
from dpscope.analysis.what_if.answers.output import RunAnswer, base_sentences
from dpscope.analysis.what_if.answers.own_error import OwnErrors
from dpscope.profiling.records.run import Cell
from tests.helpers.replayed_steps import BASE, COSTS
from tests.helpers.run_cells import cell_data, windows

CELL = Cell(strategy="ddp", devices=2, batch_size=4)


@pytest.mark.parametrize(
    ("traced_us", "named"),
    [
        (232.0, "(median untraced step);"),
        (306.0, "the 0.3 ms of the report's cost sentence are the mean of its traced"),
    ],
)
def test_the_base_is_the_untraced_step_and_a_slower_traced_one_is_named(traced_us: float, named: str) -> None:
    data = cell_data(CELL, [[230.0] * 8], windows(CELL, 4, 1, step_us=traced_us))
    (first, *_) = base_sentences(RunAnswer(AskedBase(BASE, COSTS, None, data), OwnErrors(()), ()))
    assert named in first
