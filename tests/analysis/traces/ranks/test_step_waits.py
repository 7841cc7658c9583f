"""Waiting per step, and its exposed part: by hand, and against a loop over groups."""

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.step_waits import step_waits


def collectives(*rows: tuple[int, int | None, int, float, float | None, float | None]) -> pd.DataFrame:
    """rank, device, step, start_us, transfer_us, wait_us."""
    table = pd.DataFrame(rows, columns=["rank", "device", "step", "start_us", "transfer_us", "wait_us"])
    table[["rank", "device", "step"]] = table[["rank", "device", "step"]].astype("Int64")
    return table.astype({"start_us": "float64", "transfer_us": "Float64", "wait_us": "Float64"})


def stretches(*rows: tuple[int, int | None, int, float, float]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["rank", "device", "step", "start_us", "end_us"])
    table[["rank", "device", "step"]] = table[["rank", "device", "step"]].astype("Int64")
    return table


def test_waiting_is_the_union_of_first_parts_and_exposed_where_nothing_computes() -> None:
    # Rank 0 waits in [100, 130) and [120, 150): 50 us together. Its communication is exposed in [110, 125) and [140, 400):
    # 15 + 10 = 25 us of the waiting. Rank 1 does not wait. Step 2 of rank 0 waits 40 us, all of it hidden.
    table = collectives(
        (0, 0, 1, 100.0, 200.0, 30.0),
        (0, 0, 1, 120.0, 50.0, 30.0),
        (1, 1, 1, 900.0, 200.0, 0.0),
        (0, 0, 2, 1000.0, 10.0, 40.0),
        (0, 0, 2, 1000.0, None, None),  # not matched: no part of it
    )
    exposed = stretches((0, 0, 1, 110.0, 125.0), (0, 0, 1, 140.0, 400.0), (1, 1, 1, 900.0, 1100.0), (5, 5, 1, 0.0, 9e9))
    found = step_waits(table, exposed)
    assert found.to_dict("list") == {
        "rank": [0, 0, 1],
        "device": [0, 0, 1],
        "step": [1, 2, 1],
        "transfer_us": [250.0, 10.0, 200.0],
        "wait_us": [50.0, 40.0, 0.0],
        "exposed_wait_us": [25.0, 0.0, 0.0],
    }


def test_without_stretches_the_exposed_part_is_unknown() -> None:
    found = step_waits(collectives((0, None, 1, 0.0, 5.0, 3.0)))
    assert found["wait_us"].tolist() == [3.0]
    assert found["exposed_wait_us"].isna().all()
    assert found["device"].isna().all()


def test_nothing_matched_gives_no_rows() -> None:
    found = step_waits(collectives((0, 0, 1, 0.0, None, None)), stretches((0, 0, 1, 0.0, 1.0)))
    assert len(found) == 0
    assert list(found.columns) == ["rank", "device", "step", "transfer_us", "wait_us", "exposed_wait_us"]


def test_many_steps_at_once_are_what_each_is_alone() -> None:
    generator = np.random.default_rng(3)
    count = 4000
    starts = generator.uniform(0, 1e9, count)  # a quarter of an hour of microseconds
    waits = generator.exponential(200, count)
    table = pd.DataFrame(
        {"rank": generator.integers(0, 6, count), "device": 0, "step": generator.integers(0, 40, count)}
    )
    table = table.astype("Int64").assign(start_us=starts, transfer_us=1.0, wait_us=waits)
    exposed = table[["rank", "device", "step"]].assign(start_us=starts + waits / 2, end_us=starts + waits)
    found = step_waits(table, exposed).set_index(["rank", "step"])
    assert len(found) == 240
    waited = found["wait_us"].to_dict()
    for key, group in table.groupby(["rank", "step"]):
        covered = _covered(group["start_us"], group["start_us"] + group["wait_us"])
        assert waited[key] == pytest.approx(covered, abs=1e-3)
    assert (found["exposed_wait_us"] <= found["wait_us"] + 1e-3).all()
    assert float(found["exposed_wait_us"].sum()) == pytest.approx(waits.sum() / 2, rel=0.01)


def _covered(starts: "pd.Series[float]", ends: "pd.Series[float]") -> float:
    """Length of a union, interval by interval."""
    total, reach = 0.0, -np.inf
    for start, end in sorted(zip(starts, ends, strict=True)):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
