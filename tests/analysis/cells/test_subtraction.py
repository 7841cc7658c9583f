"""The ring model, DDP's counters: pocket calculations."""

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.costs.formulas import dp_transfer_us, ring_all_reduce_us
from dpscope.analysis.runs.counter_check import check_counters, counter_findings
from dpscope.profiling.records.run import Cell, DdpCounters


def test_ring() -> None:
    # 44,695,848 B on 4 ranks at 10 GB/s: 2 x 3/4 x 4.4695848 ms = 6704.3772 us; latency 2 x 3 x 5 us
    assert ring_all_reduce_us(44_695_848, 4, 10.0) == pytest.approx(6704.3772)
    assert ring_all_reduce_us(44_695_848, 4, 10.0, latency_us=5.0) == pytest.approx(6734.3772)


def test_data_parallel_moves_parameters_once_each_way() -> None:
    # (2 x 40 MB + 1 MB) / 10 GB/s = 8.1 ms; by copies to three devices in turn 24.3 ms
    assert dp_transfer_us(40e6, 1e6, 4, 10.0, peer_copies=False) == pytest.approx(8100)
    assert dp_transfer_us(40e6, 1e6, 4, 10.0, peer_copies=True) == pytest.approx(24300)


CELL = Cell(strategy="ddp", devices=2, batch_size=4)


def counters(bucket_bytes: tuple[int, ...], span_us: float = 10_000.0) -> list[DdpCounters]:
    return [
        DdpCounters(
            step=step,
            forward_compute_us=1.0,
            backward_compute_us=1.0,
            backward_comm_us=span_us,
            overlap_us=0.0,
            bucket_bytes=bucket_bytes,
        )
        for step in (3, 4)
    ]


def all_reduces() -> pd.DataFrame:
    """Two buckets a step on a device, at 0-3000 and 5000-9800 us: span 9800 us, union 7800 us."""
    rows = [
        {
            "rank": 0, "device": 0, "step": step, "kind": "all_reduce", "bytes": size, "start_us": start,
            "duration_us": duration,
        }
        for step in (3, 4)
        for size, start, duration in ((400, 0.0, 3000.0), (900, 5000.0, 4800.0))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_counters_that_agree() -> None:
    check = check_counters(counters((400, 900)), all_reduces(), rank=0)
    assert (check.steps, check.buckets_equal, check.union_within_span) == (2, True, True)
    assert check.span_ratio == pytest.approx(0.98)
    assert list(counter_findings(CELL, [], [check])) == []


def test_a_planted_wrong_bucket_list_is_an_error() -> None:
    check = check_counters(counters((400, 901)), all_reduces(), rank=0)
    (finding,) = counter_findings(CELL, [], [check])
    assert (finding.severity, finding.code) == ("error", "bucket_mismatch")


def test_spans_that_differ_are_told() -> None:
    codes = {
        finding.code
        for finding in counter_findings(CELL, [], [check_counters(counters((400, 900), 6000.0), all_reduces(), 0)])
    }
    assert codes == {"span_mismatch", "span_exceeded"}  # 9.8 ms and 7.8 ms against 6 ms


def test_threads_that_wait_for_a_core_are_no_mismatch() -> None:
    """1.9 ms more than DDP's 1 ms on a CPU: that is how long a thread may wait to be scheduled. On a device it is not."""
    on_device = all_reduces().query("bytes == 400").assign(duration_us=2900.0)
    assert not check_counters(counters((400,), 1000.0), on_device, 0).spans_agree
    assert check_counters(counters((400,), 1000.0), on_device.assign(device=np.nan), 0).spans_agree


def test_what_exceeds_ddps_span_is_told_on_a_cpu_too() -> None:
    """60 ms against DDP's 40 ms, or 15 ms against 5 ms: what DDP waited for cannot take longer than DDP waited."""
    alone = all_reduces().query("bytes == 400").assign(device=np.nan)
    for span_us, traced_us in ((40_000.0, 60_000.0), (5_000.0, 15_000.0)):
        check = check_counters(counters((400,), span_us), alone.assign(duration_us=traced_us), 0)
        assert (check.spans_agree, check.union_within_span) == (False, False)


def test_on_a_cpu_the_span_reaches_from_the_first_creation_to_the_last_copy() -> None:
    """All-reduces of 9.8 ms, the first created 4 ms before a worker took it up, copied out 6 ms later: 19.8 ms."""
    table = all_reduces().assign(device=np.nan, ready_us=[-4000.0, 4000.0] * 2)
    ends: dict[int | None, list[float]] = {3: [15_800.0], 4: [15_800.0]}
    check = check_counters(counters((400, 900), 19_800.0), table, 0, reduction_ends_us=ends)
    assert (check.spans_agree, check.span_ratio) == (True, 1.0)
    assert not check_counters(counters((400, 900), 30_000.0), table, 0, reduction_ends_us=ends).spans_agree
    assert check_counters(counters((400, 900), 30_000.0), table, 0).spans_agree  # without copies an upper bound


def test_half_of_the_steps_is_no_agreement() -> None:
    """Step 4 takes three times DDP's span: spans agree in 1 of 2 steps."""
    table = all_reduces()
    table.loc[table["step"] == 4, ["start_us", "duration_us"]] *= 3
    check = check_counters(counters((400, 900), 10_000.0), table, 0)
    assert (check.steps, check.spans_agree, check.union_within_span) == (2, False, False)


def test_a_self_check_that_did_not_take_place_is_an_error() -> None:
    check = check_counters(counters((1,)), all_reduces().assign(step=99), 0)
    (finding,) = counter_findings(CELL, [], [check])
    assert (finding.severity, finding.code) == ("error", "counters_not_compared")
