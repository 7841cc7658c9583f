"""The gradients of a traced step and the collectives that reduce them: when each was ready, its bytes, the buckets' costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pandas as pd

from dpscope.analysis.costs.collective_streams import run_collectives
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.reading.event_table import Category, CommunicationArgs, EventTable
from dpscope.analysis.traces.reading.tensor_sizes import element_bytes
from dpscope.analysis.what_if.replay.step_profile import (
    BY_ORDER,
    INTERPOLATED,
    RECORDED,
    SHARES_THE_LINK,
    UNKNOWN,
    Ints,
    MeasuredBucket,
)
from dpscope.profiling.records import range_names as phases

NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
_INNER = "torch::autograd::AccumulateGrad"
_NO_ARGS = CommunicationArgs()
PARTS = 20  # of a bucket whose gradients the trace does not show


@dataclass(frozen=True)
class ReadyGradients:
    """In order of readiness, per gradient: when its node ended (from the trace's start) and bytes; the last of each bucket."""

    end_us: Floats
    bytes: Floats
    ends: tuple[int, ...]
    known: str


def ready_gradients(
    events: EventTable,
    window: tuple[float, float],
    launches_us: Sequence[float],
    sizes: Sequence[float],
    parameter_bytes: Sequence[int] = (),
) -> ReadyGradients | None:
    """The gradients whose nodes begin in a window of the host, given when each bucket's all-reduce was launched and its bytes.

    Bytes as the trace records them, else those of the parameters in reverse order, else each bucket's spread evenly over its
    gradients: the first of these that adds up to the buckets. Where no bucket has bytes, every one counts alike. None where the
    trace shows no node for a bucket.
    """
    rows = np.flatnonzero(_named(events, NODE) & (events.start_us >= window[0]) & (events.start_us < window[1]))
    rows = rows[np.argsort(events.start_us[rows], kind="stable")]
    if parameter_bytes and len(rows) % len(parameter_bytes) == 0:
        rows = rows[-len(parameter_bytes) :]  # of accumulated micro-batches only the last one's are reduced
    begin, end = events.start_us[rows], events.end_us[rows]
    last = [int(np.searchsorted(begin, launch, side="right")) - 1 for launch in launches_us]
    if not len(rows) or not last or last[0] < 0 or any(b <= a for a, b in pairwise(last)):
        return None
    last[-1] = len(rows) - 1
    bucket = np.searchsorted(np.array(last), np.arange(len(rows)), side="left")
    end = np.minimum(end, np.append(begin[1:], np.inf))  # nodes of one thread do not overlap
    for index, launch in zip(last, launches_us, strict=True):
        end[index] = launch
    by_order = np.array(parameter_bytes[::-1], dtype=float) if len(parameter_bytes) == len(rows) else None
    for known, found in ((RECORDED, _recorded(events, rows)), (BY_ORDER, by_order)):
        if found is not None and _adds_up(found, bucket, sizes):
            return ReadyGradients(end, found, tuple(last), known)
    counts = np.bincount(bucket, minlength=len(last))
    spread, known = (np.array(sizes, dtype=float) / counts)[bucket], INTERPOLATED
    if np.isnan(spread).any():
        spread, known = (1.0 / counts)[bucket], UNKNOWN
    return ReadyGradients(end, spread, tuple(last), known)


def _named(events: EventTable, name: str) -> np.ndarray:
    return events.named(lambda one: one == name) & events.is_category(Category.CPU_OP)


def _recorded(events: EventTable, nodes: np.ndarray) -> Floats | None:
    """Bytes by the shapes of the function inside each node."""
    inner = np.flatnonzero(_named(events, _INNER))
    inner = inner[np.argsort(events.start_us[inner], kind="stable")]
    if not len(inner):
        return None
    places = np.searchsorted(events.start_us[inner], events.start_us[nodes], side="left")
    if (places >= len(inner)).any():
        return None
    found = []
    for row in inner[places].tolist():
        args = events.communication.get(row, _NO_ARGS)
        size = element_bytes(args.dtype)
        if args.input_elements is None or size is None:
            return None
        found.append(args.input_elements * size)
    return np.array(found, dtype=float)


def _adds_up(sizes: Floats, bucket: np.ndarray, totals: Sequence[float]) -> bool:
    """Whether the gradients of every bucket have its bytes, or one same share of them (a hook's type)."""
    sums = np.bincount(bucket, weights=sizes, minlength=len(totals))
    ratio = np.array(totals, dtype=float) / np.maximum(sums, 1.0)
    return bool(sums.min() > 0 and np.ptp(ratio) < 1e-6 * ratio.max() and ratio.max() <= 1.0 + 1e-9)


def bucket_ends_of(found: ReadyGradients | None, buckets: int) -> tuple[int, ...]:
    """The last gradient of every bucket; of buckets whose gradients the trace does not show, the last of PARTS each."""
    return found.ends if found is not None else tuple(PARTS * (one + 1) - 1 for one in range(buckets))


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


def split_collectives(rows: pd.DataFrame, backward: tuple[float, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Buckets of gradients (all-reduces that the backward pass launched, see `backward_span`) and other collectives.

    `rows` are a rank's matched collectives in a step with `launch_us`, and `begin_us`, when a server took it up.
    """
    reduced = rows["kind"].eq("all_reduce").fillna(False).astype(bool)
    reduced &= (rows["launch_us"] >= backward[0]) & (rows["launch_us"] <= backward[1])
    return rows[reduced].sort_values("launch_us"), rows[~reduced].sort_values("launch_us")


def measured_buckets(rows: pd.DataFrame, start_us: float) -> list[MeasuredBucket]:
    """Of the rows of `split_collectives`, times from the step's start; the cost is that of one alone on the link."""
    if rows.empty:
        return []
    ready, begin = _column(rows, "ready_us"), _column(rows, "begin_us")
    end = _column(rows, "start_us") + _column(rows, "duration_us")
    ready = np.where(np.isnan(ready), begin, np.minimum(ready, begin))
    wait = _column(rows, "wait_us") if "wait_us" in rows else np.full(len(rows), np.nan)
    bounded = np.isnan(wait)
    moving = np.minimum(begin + np.where(bounded, 0.0, wait), end)
    times = (one - start_us for one in (ready, begin, end))
    columns = (_column(rows, "bytes"), *times, _lateness(ready, begin, moving), _alone(moving, end), bounded)
    return [MeasuredBucket(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]


def backward_span(events: EventTable, step: tuple[float, float]) -> tuple[float, float]:
    """From a step's first gradient, or the pass's own range, to that range's end or the optimizer's start, by the host's clock.

    All time if the trace shows none of them.
    """
    inside = (events.start_us >= step[0]) & (events.start_us < step[1])
    inside &= events.is_category(Category.CPU_OP, Category.USER_ANNOTATION)

    def rows(*prefixes: str) -> Ints:
        return np.flatnonzero(inside & events.named(lambda name: name.startswith(prefixes)))

    passes, nodes = rows(phases.BACKWARD), rows(NODE)
    begins = events.start_us[nodes if len(nodes) else passes].tolist()
    ends = events.end_us[passes].tolist() or events.start_us[rows(phases.OPTIMIZER, "Optimizer.step#")].tolist()
    return min(begins, default=-math.inf), max(ends, default=math.inf)


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

    The cost of one moves the ends of those in flight with it, so the costs are corrected iteratively by what the replay misses.
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
    """How long after this rank the last one was ready. A collective that queued on both ranks gives only an upper bound."""
    late, before = [], 0.0
    for queued, seen in zip((begin - ready).tolist(), np.maximum(0.0, moving - begin).tolist(), strict=True):
        waited = queued if queued > _QUEUED_US else 0.0
        before = min(before, waited) if waited and not seen else seen + waited
        late.append(before)
    return np.array(late)
