"""Waiting per step and the parts of exposed communication: by hand, by raster, and that they add up
whatever overlaps.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpscope.analysis.traces.ranks import exposed_parts as module
from dpscope.analysis.traces.ranks.frames import step_waits
from dpscope.analysis.traces.reading.table import Table
from tests.helpers.collective_tables import matched_rows, stretch_rows


def exposed_parts(table: pd.DataFrame, exposed: pd.DataFrame) -> pd.DataFrame:
    return module.exposed_parts(Table.from_frame(table), Table.from_frame(exposed)).frame


def lengths(parts: pd.DataFrame, *labels: str) -> dict[Any, float]:
    own = parts.groupby(list(labels), dropna=False)["time_us"].sum()
    return {key: float(time) for key, time in own.items()}


def test_a_broadcast_next_to_transfers_is_no_transfer() -> None:
    """A 300 us broadcast is exposed, and an all-reduce of 1,000 us is hidden but for its last 20
    us.
    """
    table = matched_rows((0, 0, 1, 0.0, None, None), (0, 0, 1, 400.0, 1000.0, 0.0))
    table["kind"] = ["broadcast", "all_reduce"]
    table["duration_us"] = [300.0, 1000.0]
    parts = exposed_parts(table, stretch_rows((0, 0, 1, 0.0, 300.0), (0, 0, 1, 1380.0, 1400.0)))
    assert lengths(parts, "part", "kind") == {
        ("other", "broadcast"): 300,
        ("transfer", "all_reduce"): 20,
    }


def test_time_counts_for_the_rank_that_was_waited_for_first() -> None:
    """Rank 0 waits for rank 1 in [0, 60), for rank 2 in [40, 100) and transfers in [60, 70) and
    [100, 110); all is exposed.
    """
    table = matched_rows((0, 0, 1, 0.0, 10.0, 60.0), (0, 0, 1, 40.0, 10.0, 60.0))
    late = matched_rows((1, 1, 1, 900.0, 10.0, 0.0), (2, 2, 1, 900.0, 10.0, 0.0))
    late["match"] = table["match"]
    parts = exposed_parts(
        pd.concat([table, late], ignore_index=True), stretch_rows((0, 0, 1, 0.0, 110.0))
    )
    # 10 us of the second are a transfer
    assert lengths(parts[parts["part"] == "wait"], "late_rank") == {1: 60, 2: 30}
    assert lengths(parts, "part") == {"transfer": 20, "wait": 90}


def test_what_no_collective_of_a_step_explains_is_copies() -> None:
    parts = exposed_parts(
        matched_rows((0, None, 1, 0.0, 10.0, 0.0)), stretch_rows((0, None, 1, 0.0, 30.0))
    )
    assert lengths(parts, "part", "kind") == {("transfer", "all_reduce"): 10, ("other", "copy"): 20}
    table = matched_rows((0, 0, None, 0.0, 10.0, 0.0), (1, 1, None, 0.0, 10.0, 0.0))
    parts = exposed_parts(table, stretch_rows((0, 0, 1, 0.0, 10.0), (1, 1, None, 0.0, 10.0)))
    # rank 1 marks no steps at all
    assert lengths(parts, "rank", "part") == {(0, "other"): 10, (1, "transfer"): 10}


def test_a_device_runs_what_any_step_launched_and_the_cpu_its_own_steps() -> None:
    """A collective of step 2 that begins in step 1's window: on a device it is that window's, on
    the CPU the annotation's.
    """
    table = matched_rows((0, 0, 2, 50.0, 20.0, 0.0), (1, None, 2, 50.0, 20.0, 0.0))
    parts = exposed_parts(table, stretch_rows((0, 0, 1, 0.0, 100.0), (1, None, 1, 0.0, 100.0)))
    assert lengths(parts[parts["part"] == "transfer"], "rank", "step") == {(0, 1): 20}


_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), max_size=5)
_COLLECTIVES = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 60), st.integers(0, 20), st.integers(0, 20), st.booleans()
    ),
    max_size=8,
)


@pytest.mark.long
@given(
    spans=st.lists(_SPANS, min_size=3, max_size=3),
    drawn=_COLLECTIVES,
    at_once=st.sampled_from([4, 500_000]),
)
def test_parts_are_those_of_a_raster(
    spans: list[list[tuple[int, int]]], drawn: list[tuple[int, int, int, int, bool]], at_once: int
) -> None:
    """Every whole microsecond of three ranks by itself, also with few rows cut at once."""
    table = matched_rows(
        *(
            (rank, rank, 1, start, *((transfer, wait) if matched else (None, None)))
            for rank, start, wait, transfer, matched in drawn
        )
    )
    exposed = [
        sorted({tick for start, length in own for tick in range(start, start + length)})
        for own in spans
    ]
    stretches = stretch_rows(
        *((rank, rank, 1, tick, tick + 1) for rank, ticks in enumerate(exposed) for tick in ticks)
    )
    most, module._MOST_ROWS = module._MOST_ROWS, at_once
    try:
        parts = exposed_parts(table, stretches)
    finally:
        module._MOST_ROWS = most
    expected: dict[tuple[int, str], float] = {}
    for rank, ticks in enumerate(exposed):
        for tick in ticks:
            own = [
                (start, wait, transfer)
                for r, start, wait, transfer, matched in drawn
                if r == rank and matched
            ]
            if any(start + wait <= tick < start + wait + transfer for start, wait, transfer in own):
                part = "transfer"
            else:
                part = (
                    "wait"
                    if any(start <= tick < start + wait for start, wait, _ in own)
                    else "other"
                )
            expected[rank, part] = expected.get((rank, part), 0) + 1
    assert {key: round(time, 6) for key, time in lengths(parts, "rank", "part").items()} == expected


def test_waiting_is_the_union_of_first_parts_and_exposed_where_nothing_computes_or_transfers() -> (
    None
):
    # Rank 0 waits in [100, 130) and [120, 150), 50 us together, and transfers in [130, 330) and
    # [150, 200). Its communication is exposed in [110, 125) and [140, 400): 15 us of the waiting
    # alone, then transfer until 330, and 70 us of neither. Rank 1 does not wait. Step 2 of rank 0
    # waits 40 us and transfers 10 us, all of it hidden.
    table = matched_rows(
        (0, 0, 1, 100.0, 200.0, 30.0),
        (0, 0, 1, 120.0, 50.0, 30.0),
        (1, 1, 1, 900.0, 200.0, 0.0),
        (0, 0, 2, 1000.0, 10.0, 40.0),
        (0, 0, 2, 1000.0, None, None),  # not matched: no part of it
    )
    exposed = stretch_rows(
        (0, 0, 1, 110.0, 125.0), (0, 0, 1, 140.0, 400.0), (1, 1, 1, 900.0, 1100.0)
    )
    found = step_waits(table)
    assert found.to_dict("list") == {
        "rank": [0, 0, 1],
        "device": [0, 0, 1],
        "step": [1, 2, 1],
        "transfer_us": [250.0, 10.0, 200.0],
        "wait_us": [50.0, 40.0, 0.0],
    }
    assert lengths(exposed_parts(table, exposed), "rank", "step", "part") == {
        (0, 1, "transfer"): 190.0,
        (0, 1, "wait"): 15.0,
        (0, 1, "other"): 70.0,
        (1, 1, "transfer"): 200.0,
    }
    of_cpu = step_waits(matched_rows((0, None, 1, 0.0, 5.0, 3.0)))
    assert of_cpu["wait_us"].tolist() == [3.0]
    assert of_cpu["device"].isna().all()


def test_many_steps_at_once_are_what_each_is_alone() -> None:
    generator = np.random.default_rng(3)
    count = 4000
    starts = generator.uniform(0, 1e9, count)  # a quarter of an hour of microseconds
    waits = generator.exponential(200, count)
    table = pd.DataFrame(
        {
            "rank": generator.integers(0, 6, count),
            "device": 0,
            "step": generator.integers(0, 40, count),
        }
    )
    table = table.astype("Int64").assign(start_us=starts, transfer_us=1.0, wait_us=waits)
    found = step_waits(table).set_index(["rank", "step"])
    assert len(found) == 240
    waited = found["wait_us"].to_dict()
    for key, group in table.groupby(["rank", "step"]):
        covered, reach = 0.0, -np.inf  # the length of a union, interval by interval
        for start, end in sorted(
            zip(group["start_us"], group["start_us"] + group["wait_us"], strict=True)
        ):
            covered += max(0.0, end - max(start, reach))
            reach = max(reach, end)
        assert waited[key] == pytest.approx(covered, abs=1e-3)
