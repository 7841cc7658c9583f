"""DDP's own runtime counters against the trace of the same steps: an oracle nobody here wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from dpscope.analysis.runs.incomplete import MEASURE_AGAIN, cell_error
from dpscope.analysis.traces.steps import intervals
from dpscope.profiling.records.finding import Finding, FindingCode
from dpscope.profiling.records.run import Cell, DdpCounters, RankResult
from dpscope.profiling.records.run_codes import RunCode

SPAN_TOLERANCE = 0.10
# A span's ends are set by threads that may first have to be scheduled: on a CPU shared by ranks that takes milliseconds.
CPU_SLACK_US = 2000.0
# On a CPU DDP's thread has to be scheduled before it ends its span: below this, DDP's may be longer by any share.
CPU_SHORTEST_US = 20_000.0
DEVICE_SLACK_US = 50.0


@dataclass(frozen=True)
class CounterCheck:
    """One rank's comparison over `steps` steps: `span_ratio` is trace span / DDP's span, their median.

    `union_within_span` holds if it does in every step, `spans_agree` if it does in more than half of them; both within
    SPAN_TOLERANCE and a slack for thread scheduling.
    """

    rank: int
    steps: int
    span_ratio: float | None
    buckets_equal: bool
    spans_agree: bool
    union_within_span: bool


def check_counters(
    counters: Sequence[DdpCounters],
    collectives: pd.DataFrame,
    rank: int,
    sent_share: float = 1.0,
    factored: bool = False,
    backward_ends_us: Mapping[int | None, float] = MappingProxyType({}),
    buckets_alone: bool = False,
) -> CounterCheck:
    """Compare one rank's counters with its collectives of the counters pass.

    DDP's backward_comm_us is a span, first bucket launched to last gradient copied out: it is compared with the span from
    the first all-reduce's start to the last one's end, bucket sizes with the all-reduces' bytes in order. On a device the
    copying out goes on for milliseconds after the last all-reduce: there the span by the trace ends with the last event
    that the backward pass launched (`backward_ends_us`, by step), and where that is not told DDP's is an upper bound only.
    `sent_share` is how much of a bucket's bytes travels: DDP counts buckets before a communication hook casts them. DDP's
    span holds the hook's casts and, on a CPU, the copying out of the last bucket as well, and the trace's does not: with a
    hook, or there with all gradients in one bucket, these are no longer small beside it (up to a third on a CPU), and it
    is an upper bound only; as it is on a CPU where both are under CPU_SHORTEST_US. Of `factored` gradients (PowerSGD)
    several small messages stand for a bucket: their bytes are checked over the step (`traffic_check`), not bucket by bucket.
    With `buckets_alone` all-reduces of other sizes are no part of it: a script may make some beside DDP's.
    """
    ratios, agree, within, buckets_equal = [], [], [], True
    own = collectives[(collectives["rank"] == rank) & (collectives["kind"] == "all_reduce")]
    if buckets_alone:
        sizes_of_buckets = {round(sent_share * size) for counter in counters for size in counter.bucket_bytes}
        own = own[own["bytes"].isin(sizes_of_buckets)]
    on_cpu = bool(own["device"].isna().all())
    slack_us = CPU_SLACK_US if on_cpu else DEVICE_SLACK_US
    for counter in counters:
        step = own[own["step"] == counter.step]
        if step.empty or counter.backward_comm_us <= 0:
            continue
        starts = step["start_us"].to_numpy(dtype=float)
        ends = starts + step["duration_us"].to_numpy(dtype=float)
        backward_end_us = backward_ends_us.get(counter.step)
        last_us = ends.max() if backward_end_us is None else max(ends.max(), backward_end_us)
        span_us, busy_us = last_us - starts.min(), intervals.length(intervals.union(starts, ends))
        allowed_us = SPAN_TOLERANCE * counter.backward_comm_us + slack_us
        ratios.append(span_us / counter.backward_comm_us)
        sizes = [int(size) if pd.notna(size) else -1 for size in step["bytes"]]
        buckets_equal &= factored or sorted(sizes) == sorted(round(sent_share * size) for size in counter.bucket_bytes)
        short = max(span_us, counter.backward_comm_us) < CPU_SHORTEST_US
        without_copying_out = short or len(counter.bucket_bytes) == 1 if on_cpu else backward_end_us is None
        upper_bound_only = without_copying_out or sent_share < 1
        excess_us = span_us - counter.backward_comm_us
        agree.append(excess_us <= allowed_us and (upper_bound_only or -excess_us <= allowed_us))
        within.append(busy_us <= counter.backward_comm_us + allowed_us)
    return CounterCheck(
        rank=rank,
        steps=len(ratios),
        span_ratio=float(np.median(ratios)) if ratios else None,
        buckets_equal=buckets_equal,
        spans_agree=2 * sum(agree) > len(agree),
        union_within_span=all(within),
    )


def counter_findings(cell: Cell, checks: Sequence[CounterCheck]) -> list[Finding]:
    """A mismatch is an error: either the trace or its reading is wrong."""
    findings = []
    for check in checks:
        if not check.steps:
            findings.append(_not_compared(cell, f"rank {check.rank}'s trace and counters have no step in common"))
            continue
        if not check.buckets_equal:
            findings.append(
                _mismatch(cell, check, RunCode.BUCKET_MISMATCH, "the all-reduces' sizes are not DDP's bucket sizes")
            )
        if not check.union_within_span:
            findings.append(
                _mismatch(
                    cell, check, RunCode.SPAN_EXCEEDED, "the all-reduces take longer than DDP's communication span"
                )
            )
        if not check.spans_agree:
            what = f"the communication span by the trace is {check.span_ratio:.3f} of DDP's own"
            findings.append(_mismatch(cell, check, RunCode.SPAN_MISMATCH, what))
    return findings


def missing_counters(cell: Cell, ranks: Sequence[RankResult], checks: Sequence[CounterCheck]) -> list[Finding]:
    """An error where ranks lack the counters that they should have saved; scripts say themselves why they have none."""
    counting = [rank for rank in ranks if rank.attached is None or rank.attached.counters_missing is None]
    if cell.strategy != "ddp" or cell.devices == 1 or len(checks) >= len(counting):
        return []
    return [_not_compared(cell, f"{len(counting) - len(checks)} of {len(counting)} ranks saved none")]


def _not_compared(cell: Cell, why: str) -> Finding:
    """The self-check did not take place: its silence must not read as agreement."""
    return cell_error(
        cell,
        RunCode.COUNTERS_NOT_COMPARED,
        f"DDP's own counters could not be compared with the trace: {why}",
        f"{MEASURE_AGAIN} before trusting its communication",
    )


def _mismatch(cell: Cell, check: CounterCheck, code: FindingCode, what: str) -> Finding:
    return cell_error(
        cell,
        code,
        f"rank {check.rank}: {what} ({check.steps} steps of the counters pass)",
        "trust the cell's communication numbers only after measuring it again without a mismatch",
    )
