"""The collectives of one traced step, told apart: buckets of gradients, and others; lateness of the last rank, cost alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dpscope.analysis.costs.collective_streams import run_collectives
from dpscope.analysis.traces.reading.event_table import Category, EventTable
from dpscope.analysis.what_if.profiles.gradients import NODE
from dpscope.analysis.what_if.replay.step_profile import SHARES_THE_LINK, MeasuredBucket
from dpscope.profiling.records import range_names as phases

_CORRECTIONS = 40
_NEAR_US = 0.01  # of a measured end: no further correction
_QUEUED_US = 50.0  # longer than this after it was ready, a collective waited for another


def gaps(measured: Sequence[MeasuredBucket]) -> tuple[float, float]:
    """Median microseconds from ready to start of what found its stream free, and from the end before to the start of the rest."""
    free, queued, before = [], [], float("-inf")
    for one in measured:
        if one.ready_us >= before:
            free.append(one.start_us - one.ready_us)
        else:
            queued.append(one.start_us - before)
        before = max(before, one.end_us)
    return tuple(float(max(0.0, np.median(found))) if found else 0.0 for found in (free, queued))  # type: ignore[return-value]


@dataclass(frozen=True)
class StepCollectives:
    """Rows of the matched collectives of one rank's step: with `launch_us`, and `begin_us`, when a server took it up."""

    buckets: pd.DataFrame
    others: pd.DataFrame


def split(rows: pd.DataFrame, backward: tuple[float, float]) -> StepCollectives:
    """All-reduces that the backward pass launched are buckets of gradients; what the pass was, `backward_span` tells."""
    reduced = rows["kind"].eq("all_reduce").fillna(False).astype(bool)
    reduced &= (rows["launch_us"] >= backward[0]) & (rows["launch_us"] <= backward[1])
    return StepCollectives(rows[reduced].sort_values("launch_us"), rows[~reduced].sort_values("launch_us"))


def measured_buckets(rows: pd.DataFrame, start_us: float) -> list[MeasuredBucket]:
    """Of the rows of `split`, times from the step's start; in flight together they shared the link, which is taken out."""
    if rows.empty:
        return []
    ready, begin = _column(rows, "ready_us"), _column(rows, "begin_us")
    end = _column(rows, "start_us") + _column(rows, "duration_us")
    ready = np.where(np.isnan(ready), begin, np.minimum(ready, begin))
    wait = _column(rows, "wait_us") if "wait_us" in rows else np.full(len(rows), np.nan)
    bounded = np.isnan(wait)
    moving = np.minimum(begin + np.where(bounded, 0.0, wait), end)
    costs = _alone(moving, end)
    late = _lateness(ready, begin, moving)
    return [
        MeasuredBucket(
            size, ready[at] - start_us, begin[at] - start_us, end[at] - start_us, late[at], costs[at], bool(bounded[at])
        )
        for at, size in enumerate(_column(rows, "bytes").tolist())
    ]


def backward_span(events: EventTable, step: tuple[float, float]) -> tuple[float, float]:
    """From a step's first gradient, or the pass's own range, to that range's end or the optimizer's start, by the host's clock.

    Where the trace tells none of them it is all time.
    """
    passes = _rows(events, step, phases.BACKWARD)
    nodes = _rows(events, step, NODE)
    optimizer = [*_rows(events, step, phases.OPTIMIZER), *_rows(events, step, "Optimizer.step#")]
    begins = [float(events.start_us[row]) for row in (nodes or passes)]
    ends = [float(events.end_us[row]) for row in passes] or [float(events.start_us[row]) for row in optimizer]
    return min(begins, default=-math.inf), max(ends, default=math.inf)


def _rows(events: EventTable, step: tuple[float, float], prefix: str) -> list[int]:
    """Events of the host in a step whose names begin so."""
    named = events.has_name(np.array([name.startswith(prefix) for name in events.names], dtype=bool))
    inside = (events.start_us >= step[0]) & (events.start_us < step[1])
    return np.flatnonzero(named & inside & events.is_category(Category.CPU_OP, Category.USER_ANNOTATION)).tolist()


def as_replayed(measured: list[MeasuredBucket], start_gap_us: float, turn_us: float) -> list[MeasuredBucket]:
    """The buckets of one stream with the cost at which a replay ends each where it was measured to end."""
    found, free = [], -math.inf
    for one in measured:
        start = max(one.ready_us + start_gap_us + one.late_us, free)
        found.append(replace(one, cost_us=max(0.0, one.end_us - start)))
        free = max(start, one.end_us) + turn_us
    return found


def shared_as_replayed(
    measured: list[MeasuredBucket], start_gap_us: float, servers: int, slowdown: float = SHARES_THE_LINK
) -> list[MeasuredBucket]:
    """The buckets of several servers with costs at which a replay ends each as nearly as it can where it was measured to end.

    What one costs moves the ends of those beside it, so the costs are moved by what the replay misses, time and again.
    """
    ready = [one.ready_us + start_gap_us + one.late_us for one in measured]
    costs = np.array([one.cost_us for one in measured])
    wanted = np.array([one.end_us for one in measured])
    best, least = costs, math.inf
    for _ in range(_CORRECTIONS):
        _, ends = run_collectives(ready, [0.0] * len(ready), costs.tolist(), servers, slowdown)
        off = wanted - np.array(ends)
        if np.abs(off).max(initial=0.0) < least:
            best, least = costs, float(np.abs(off).max(initial=0.0))
        if least < _NEAR_US:
            break
        costs = np.maximum(costs + off / servers, 0.0)
    return [replace(one, cost_us=float(cost)) for one, cost in zip(measured, best, strict=True)]


def _column(rows: pd.DataFrame, name: str) -> np.ndarray:
    return rows[name].astype("Float64").to_numpy(dtype=float, na_value=np.nan)


def _alone(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Each transfer's time had it been alone, where those in flight share alike: the integral of 1 / their number."""
    edges = np.unique(np.concatenate((begin, end)))
    lengths, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    inside = (begin[:, None] <= middles) & (middles < end[:, None])
    number = np.maximum(inside.sum(axis=0), 1)
    return np.asarray((inside * (lengths / number)).sum(axis=1))


def _lateness(ready: np.ndarray, begin: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """How long after this rank the last one was ready. What queued on both tells only that it was no later than that."""
    late = np.zeros(len(ready))
    before = 0.0
    for index in range(len(ready)):
        seen = max(0.0, moving[index] - begin[index])
        if begin[index] - ready[index] > _QUEUED_US and seen == 0.0:
            before = min(before, max(0.0, begin[index] - ready[index]))
        else:
            before = seen + (begin[index] - ready[index] if begin[index] - ready[index] > _QUEUED_US else 0.0)
        late[index] = before
    return late
