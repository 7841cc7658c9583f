"""DDP's counters against a real trace: two A100, copies out of the buckets running 14 to 15 ms after the last all-reduce."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.runs.counter_check import CounterCheck, check_counters
from dpscope.analysis.traces.ranks.rank_tables import RankTables, rank_tables
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.profiling.records.run import DdpCounters
from tests.helpers.paths import DATA

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
STEPS = (4, 5, 6)
# Of each step, read off the file: the first all-reduce's start, the last one's end, the last copy's out of a bucket.
SPANS_US = {"all_reduces": (83_849.05, 82_858.82, 88_452.51), "copied_out": (99_320.78, 97_556.67, 102_862.78)}


def in_json() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(A100.read_bytes()))["traceEvents"]
    return events


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> RankTables:
    """The trace with its backward pass called as dpscope calls it."""
    path: Path = tmp_path_factory.mktemp("trace") / "0_0.pt.trace.json"
    path.write_bytes(gzip.decompress(A100.read_bytes()).replace(b'"## backward ##"', b'"dpscope::backward"'))
    return rank_tables(read_trace(path))


def checked(
    tables: RankTables,
    spans_us: tuple[float, ...],
    sizes: tuple[int, ...] = (),
    collectives: pd.DataFrame | None = None,
) -> CounterCheck:
    own = tables.collectives if collectives is None else collectives
    buckets = own[(own["kind"] == "all_reduce") & (own["step"] == 4)]["bytes"].tolist()
    counters = [
        DdpCounters(step=step, forward_compute_us=1, backward_compute_us=1, backward_comm_us=span_us, overlap_us=1,
                    bucket_bytes=sizes or tuple(buckets))
        for step, span_us in zip(STEPS, spans_us, strict=True)
    ]  # fmt: skip
    return check_counters(counters, own, 0, backward_ends_us=tables.summary.backward_ends_us)


def test_the_spans_are_those_of_the_file() -> None:
    """By the file's own times, without dpscope: events by correlation, a step's launches by its ranges."""
    events = in_json()
    backward = ("user_annotation", "## backward ##")
    ranges = sorted(
        (one["ts"], one["ts"] + one["dur"]) for one in events if (one.get("cat"), one.get("name")) == backward
    )
    calls = {one["args"]["correlation"]: one["ts"] for one in events if one.get("cat") == "cuda_runtime"}
    reduced, copied = [], []
    for begin, end in ranges:
        launched = [
            one
            for one in events
            if one.get("cat") in ("kernel", "gpu_memcpy") and begin <= calls[one["args"]["correlation"]] < end
        ]
        all_reduces = [one for one in launched if "AllReduce" in one["name"]]
        start = min(one["ts"] for one in all_reduces)
        reduced.append(max(one["ts"] + one["dur"] for one in all_reduces) - start)
        copies = [one for one in launched if "DtoD" in one["name"]]
        copied.append(max(one["ts"] + one["dur"] for one in copies) - start)
    assert tuple(reduced) == pytest.approx(SPANS_US["all_reduces"], abs=0.01)
    assert tuple(copied) == pytest.approx(SPANS_US["copied_out"], abs=0.01)


def test_counters_that_end_with_the_last_gradient_copied_out_agree(tables: RankTables) -> None:
    check = checked(tables, SPANS_US["copied_out"])
    assert (check.steps, check.buckets_equal, check.spans_agree, check.union_within_span) == (3, True, True, True)
    assert check.span_ratio == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("share", [0.85, 1.2])
def test_counters_of_another_length_do_not(tables: RankTables, share: float) -> None:
    """10% and 50 us are allowed: 99.3 ms beside 84.4 or 119.2 ms are no agreement."""
    assert not checked(tables, tuple(share * span_us for span_us in SPANS_US["copied_out"])).spans_agree


def test_a_counter_or_a_trace_cut_at_the_last_all_reduce_does_not_agree(tables: RankTables) -> None:
    """99.3 ms beside 83.8 ms either way: copies out of the buckets are 15% of the span."""
    assert not checked(tables, SPANS_US["all_reduces"]).spans_agree
    table = tables.collectives
    ends = (table["start_us"] + table["duration_us"]).groupby(table["step"]).max()
    last = dict(zip(ends.index.tolist(), ends.tolist(), strict=True))
    counters = [
        DdpCounters(step, 1, 1, span_us, 1, (1,)) for step, span_us in zip(STEPS, SPANS_US["copied_out"], strict=True)
    ]
    assert not check_counters(counters, table, 0, factored=True, backward_ends_us=last).spans_agree


def test_on_a_device_that_does_not_tell_of_backward_ddps_span_is_an_upper_bound(tables: RankTables) -> None:
    counters = [
        DdpCounters(step, 1, 1, span_us, 1, (1,)) for step, span_us in zip(STEPS, SPANS_US["copied_out"], strict=True)
    ]
    assert check_counters(counters, tables.collectives, 0, factored=True).spans_agree
    short = [
        DdpCounters(step, 1, 1, 0.8 * span_us, 1, (1,))
        for step, span_us in zip(STEPS, SPANS_US["all_reduces"], strict=True)
    ]
    assert not check_counters(short, tables.collectives, 0, factored=True).spans_agree


def test_longer_all_reduces_and_other_buckets_stay_errors(tables: RankTables) -> None:
    assert not checked(tables, SPANS_US["copied_out"], sizes=(1, 2, 3, 4, 5)).buckets_equal
    table = tables.collectives.copy()
    table.loc[table["kind"] == "all_reduce", "duration_us"] += 110_000.0  # each longer than the whole of DDP's span
    assert not checked(tables, SPANS_US["copied_out"], collectives=table).union_within_span
