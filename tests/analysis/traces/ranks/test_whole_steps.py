"""Steps that take far longer than the others: left out of averages, and named with what is longer
in them.
"""

from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.output.trace_tables import to_tables
from dpscope.analysis.output.traces_screen import ReadJob
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.whole_steps import far_longer, far_longer_count, whole_steps
from dpscope.analysis.traces.reading.table import Table
from tests.helpers.known import known
from tests.helpers.paced_ranks import paced
from tests.helpers.run_cells import traced_table

EVEN = (40.0, 40.0)


def message(analysis: Job) -> str:
    (finding,) = [one for one in analysis.findings if one.code == "steps_far_longer"]
    return finding.message


def test_one_long_collective_is_named_and_in_no_average(tmp_path: Path) -> None:
    """Steps of 40 + 10 + 5 ms; the first whole one reduces for 5 s: 1,008 ms in the mean, and 17%
    would be 95%.
    """
    analysis = paced(tmp_path, [EVEN] * 5, [5_000.0, *[10.0] * 4])
    ledger = known(analysis.ledger)
    assert (ledger.traced_step_us, ledger.exposed_transfer_us) == pytest.approx((55e3, 10e3), abs=1)
    assert (ledger.steps, ledger.left_out_steps) == (4, 1)
    assert message(analysis) == (
        "step 1 takes 5.04 s, 92 times the median step's 55.0 ms: its collectives move data for 4.99 s longer on all ranks, "
        "as at the first use of a communicator; averages are of the other 4 steps, "
        "without the partial first one"
    )
    cost = known(ReadJob(analysis).verdict.fact("cost"))
    assert "communication takes 10.0 of the 55.0 ms of a step, 18%" in cost.text
    assert "means over 4 traced steps of each rank, 1 far longer step left out" in cost.basis
    tables = {table.title: table for table in to_tables(analysis)}
    (collectives,) = (table for title, table in tables.items() if title.startswith("Collectives"))
    assert collectives.rows[0][:4] == ("all_reduce", "100,000,000", "8", "10.0")
    assert [row[2] for row in tables["Steps"].rows[:3]] == ["0*", "1**", "2"]


def test_a_rank_that_pauses_is_named_with_what_each_other_one_waits_longer(tmp_path: Path) -> None:
    """Rank 1 computes for 5 s in place of 40 ms."""
    analysis = paced(tmp_path, [EVEN, (40.0, 5_000.0), *[EVEN] * 3], [10.0] * 5)
    assert "the others wait 4.96 s longer for rank 1, which pauses" in message(analysis)


def steps(*lengths_us: float, repeat: int = 0, counts: dict[int, int] | None = None) -> Table:
    rows = (
        {
            "repeat": repeat,
            "rank": rank,
            "device": 0,
            "step": step,
            "step_us": length,
            "partial_window": False,
        }
        | {"collective_count": (counts or {}).get(step, 3)}
        for rank in range(2)
        for step, length in enumerate(lengths_us)
    )
    return traced_table("steps", rows)


@pytest.mark.parametrize(
    ("lengths", "long"),
    [
        ((10, 10, 31), [2]),
        ((10, 10, 30), []),  # three times as long, not more
        ((10, 500), []),  # of two none is the usual one
        ((500,), []),
        ((10, 10, 10, 40, 10, 10, 10, 40), [3, 7]),
        ((10, 10, 10, 40, 40), []),  # two of five belong to the training
        ((10, 500, 10, 10), [1]),
    ],
)
def test_few_steps_more_than_three_times_as_long_as_the_median(
    lengths: tuple[float, ...], long: list[int]
) -> None:
    table = steps(*lengths)
    assert np.unique(table["step"][far_longer(table)]).tolist() == long
    assert far_longer_count(table) == len(long)
    assert len(whole_steps(table)) == 2 * (len(lengths) - len(long))


def test_a_step_is_left_out_on_every_rank() -> None:
    """Rank 1's window of step 1 is short, since its last kernel ends early."""
    table = steps(10, 90, 10, 10)
    lengths = table["step_us"].copy()
    lengths[5] = 12.0
    table = table.assign(step_us=lengths)
    assert table["step"][far_longer(table)].tolist() == [1, 1]
