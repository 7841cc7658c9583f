"""Waiting per step and the parts of exposed communication: by hand, by raster, and that they add up
whatever overlaps.
"""

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpscope.analysis.traces.ranks import exposed_parts as module
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
@settings(max_examples=40)
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
