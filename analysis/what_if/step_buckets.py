"""A traced step's all-reduces of gradients: when each was ready, started and ended, and what it
would cost alone on its link.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpscope.analysis.costs.collective_streams import run_collectives
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.reading.event_table import Category, EventTable
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.what_if.gradients import NODE
from dpscope.analysis.what_if.step_profile import Ints, MeasuredBucket
from dpscope.profiling.records import range_names as phases

_CORRECTIONS = 40
_NEAR_US = 0.01  # of a measured end: no further correction
_QUEUED_US = 50.0  # longer than this after it was ready, a collective waited for another


def split_collectives(rows: Table, backward: tuple[float, float]) -> tuple[Table, Table]:
    """Buckets of gradients (all-reduces that the backward pass launched, see `backward_span`) and
    other collectives.

    `rows` are a rank's matched collectives in a step with `launch_us`, and `begin_us`, when a
    server took it up.
    """
    rows = rows.take(np.argsort(rows["launch_us"], kind="stable"))
    launch = rows["launch_us"]
    reduced = (
        rows.words("kind").isin("all_reduce") & (launch >= backward[0]) & (launch <= backward[1])
    )
    return rows.take(reduced), rows.take(~reduced)


def backward_span(events: EventTable, step: tuple[float, float]) -> tuple[float, float]:
    """From a step's first gradient, or the pass's own range, to that range's end or the optimizer's
    start, by the host's clock.

    All time if the trace shows none of them.
    """
    inside = (events.start_us >= step[0]) & (events.start_us < step[1])
    inside &= events.is_category(Category.CPU_OP, Category.USER_ANNOTATION)

    def rows(*prefixes: str) -> Ints:
        return np.flatnonzero(inside & events.named(lambda name: name.startswith(prefixes)))

    passes, nodes = rows(phases.BACKWARD), rows(NODE)
    begins = events.start_us[nodes if len(nodes) else passes]
    ends = (
        events.end_us[passes]
        if len(passes)
        else events.start_us[rows(phases.OPTIMIZER, "Optimizer.step#")]
    )
    first = float(begins.min()) if len(begins) else -math.inf
    last = float(ends.max()) if len(ends) else math.inf
    return first, last


def measured_buckets(rows: Table, began_us: float, gradients_us: Floats) -> list[MeasuredBucket]:
    """Of the rows of `split_collectives`, times from the step's start; the cost is yet the whole
    transfer, see `as_replayed`.

    `gradients_us` is when the last gradient of each was computed.
    """
    if not len(rows):
        return []
    begin, end = rows["begin_us"], rows["start_us"] + rows["duration_us"]
    ready, wait = np.fmin(rows["ready_us"], begin), rows.real("wait_us")
    bounded = np.isnan(wait)
    moving = np.minimum(begin + np.where(bounded, 0.0, wait), end)
    times = (absolute_us - began_us for absolute_us in (ready, begin, end))
    lag = np.maximum(0.0, ready - began_us - gradients_us)
    columns = (
        rows.real("bytes"),
        *times,
        _lateness(ready, begin, moving),
        end - moving,
        bounded,
        lag,
    )
    return [
        MeasuredBucket(*values)
        for values in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _lateness(ready: Floats, begin: Floats, moving: Floats) -> Floats:
    """How long after this rank the last one was ready. A collective that queued on both ranks gives
    only an upper bound.
    """
    late, before = [], 0.0
    for queued, seen in zip(
        (begin - ready).tolist(), np.maximum(0.0, moving - begin).tolist(), strict=True
    ):
        waited = queued if queued > _QUEUED_US else 0.0
        before = min(before, waited) if waited and not seen else seen + waited
        late.append(before)
    return np.array(late)


def gaps(measured: Sequence[MeasuredBucket]) -> tuple[float, float]:
    """Median microseconds from ready to start of what found its stream free, and from the end
    before to the start of the rest.
    """
    free: list[float] = []
    queued: list[float] = []
    before = -math.inf
    for bucket in measured:
        if bucket.ready_us >= before:
            free.append(bucket.start_us - bucket.ready_us)
        else:
            queued.append(bucket.start_us - before)
        before = max(before, bucket.end_us)
    return _usual_gap(free), _usual_gap(queued)


def _usual_gap(gaps_us: Sequence[float]) -> float:
    return max(0.0, float(np.median(gaps_us))) if gaps_us else 0.0


def as_replayed(
    measured: Sequence[MeasuredBucket], start_gap_us: float, turn_us: float, servers: int
) -> tuple[MeasuredBucket, ...]:
    """The buckets with costs at which a replay ends each as nearly as it can where it was measured
    to end.
    """
    ready = [bucket.ready_us + start_gap_us + bucket.late_us for bucket in measured]
    wanted = [bucket.end_us for bucket in measured]
    costs = (
        _in_parallel(measured, ready, wanted, servers)
        if servers > 1
        else _in_a_row(ready, wanted, turn_us)
    )
    return tuple(
        replace(bucket, cost_us=cost) for bucket, cost in zip(measured, costs, strict=True)
    )


def _in_a_row(ready: Sequence[float], wanted: Sequence[float], turn_us: float) -> list[float]:
    costs, free = [], -math.inf
    for ready_us, end_us in zip(ready, wanted, strict=True):
        start = max(ready_us, free)
        costs.append(max(0.0, end_us - start))
        free = max(start, end_us) + turn_us
    return costs


def _in_parallel(
    measured: Sequence[MeasuredBucket],
    ready: Sequence[float],
    wanted: Sequence[float],
    servers: int,
) -> list[float]:
    """The cost of one moves the ends of those in flight with it, so costs are corrected iteratively
    by what the replay misses.
    """
    costs = np.array([bucket.cost_us for bucket in measured])
    best, least = costs, math.inf
    for _ in range(_CORRECTIONS):
        _, ends = run_collectives(ready, [0.0] * len(ready), costs.tolist(), servers)
        off = np.array(wanted) - np.array(ends)
        if np.abs(off).max(initial=0.0) < least:
            best, least = costs, float(np.abs(off).max(initial=0.0))
        if least < _NEAR_US:
            break
        costs = np.maximum(costs + off / servers, 0.0)
    return [float(cost) for cost in best]
