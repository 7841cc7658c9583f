"""Waiting per step, and the parts of exposed communication: by hand, and against a loop over groups."""

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.frames import step_waits
from tests.helpers.collective_tables import matched_rows, stretch_rows


def test_waiting_is_the_union_of_first_parts_and_exposed_where_nothing_computes_or_transfers() -> None:
    # Rank 0 waits in [100, 130) and [120, 150), 50 us together, and transfers in [130, 330) and [150, 200). Its communication is
    # exposed in [110, 125) and [140, 400): 15 us of the waiting alone, then transfer until 330, and 70 us of neither.
    # Rank 1 does not wait. Step 2 of rank 0 waits 40 us and transfers 10 us, all of it hidden.
    table = matched_rows(
        (0, 0, 1, 100.0, 200.0, 30.0),
        (0, 0, 1, 120.0, 50.0, 30.0),
        (1, 1, 1, 900.0, 200.0, 0.0),
        (0, 0, 2, 1000.0, 10.0, 40.0),
        (0, 0, 2, 1000.0, None, None),  # not matched: no part of it
    )
    exposed = stretch_rows((0, 0, 1, 110.0, 125.0), (0, 0, 1, 140.0, 400.0), (1, 1, 1, 900.0, 1100.0))
    found = step_waits(table, exposed)
    assert found.astype(object).where(found.notna(), None).to_dict("list") == {
        "rank": [0, 0, 1],
        "device": [0, 0, 1],
        "step": [1, 2, 1],
        "transfer_us": [250.0, 10.0, 200.0],
        "wait_us": [50.0, 40.0, 0.0],
        "exposed_transfer_us": [190.0, None, 200.0],
        "exposed_wait_us": [15.0, None, 0.0],
        "exposed_other_us": [70.0, None, 0.0],
    }


def test_without_stretches_the_exposed_parts_are_unknown() -> None:
    found = step_waits(matched_rows((0, None, 1, 0.0, 5.0, 3.0)))
    assert found["wait_us"].tolist() == [3.0]
    assert found["exposed_wait_us"].isna().all()
    assert found["device"].isna().all()


def test_many_steps_at_once_are_what_each_is_alone() -> None:
    generator = np.random.default_rng(3)
    count = 4000
    starts = generator.uniform(0, 1e9, count)  # a quarter of an hour of microseconds
    waits = generator.exponential(200, count)
    table = pd.DataFrame(
        {"rank": generator.integers(0, 6, count), "device": 0, "step": generator.integers(0, 40, count)}
    )
    table = table.astype("Int64").assign(start_us=starts, transfer_us=1.0, wait_us=waits)
    found = step_waits(table).set_index(["rank", "step"])
    assert len(found) == 240
    waited = found["wait_us"].to_dict()
    for key, group in table.groupby(["rank", "step"]):
        covered = _covered(group["start_us"], group["start_us"] + group["wait_us"])
        assert waited[key] == pytest.approx(covered, abs=1e-3)


def _covered(starts: "pd.Series[float]", ends: "pd.Series[float]") -> float:
    """Length of a union, interval by interval."""
    total, reach = 0.0, -np.inf
    for start, end in sorted(zip(starts, ends, strict=True)):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
