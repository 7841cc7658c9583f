"""One rank's step as a profile: gradients, the collectives that reduce them, and what a device did: launches, kernels, waits."""

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
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import COPY_KINDS, Kind
from dpscope.analysis.what_if.step_profile import (
    BY_ORDER,
    INTERPOLATED,
    NEVER,
    RECORDED,
    SHARES_THE_LINK,
    UNKNOWN,
    Gradients,
    Ints,
    MeasuredBucket,
    OtherCollective,
    StepProfile,
    Works,
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


_WAITS = ("Synchronize", "Memcpy")  # names of calls in which the host may wait for the device
_SHORTEST_WAIT_US = 5.0
_IN_ORDER_US = 1.5  # between two kernels of a stream that nothing holds up
_ROUNDING_US = 1.0


@dataclass(frozen=True)
class _Launched:
    """The works of a step in order of launch, and what the host did between them; times from the trace's start."""

    launch_us: np.ndarray
    start_us: np.ndarray
    end_us: np.ndarray


def device_profile(
    attribution: Attribution, step: int, rows: pd.DataFrame, exposed_us: float, parameter_bytes: Sequence[int] = ()
) -> StepProfile:
    """The profile of one step (index into the trace's steps); `rows` are its collectives with `launch_us` and `begin_us`."""
    windows, events = attribution.windows, attribution.events
    began, ended = float(windows.start_us[step]), float(windows.end_us[step])
    works = _launched(attribution, step, began)
    host_range = (float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step]))
    reduced, other_rows = split_collectives(rows, backward_span(events, host_range))
    measured = measured_buckets(reduced, began)
    launches, sizes = reduced["launch_us"].tolist(), [one.bytes for one in measured]
    found = ready_gradients(events, host_range, launches, sizes, parameter_bytes)
    gradients = _gradients(works, found, launches, sizes)
    sync, resumed, before = _waits(attribution, works, step, began)
    host = np.diff(works.launch_us, prepend=before)
    host[1:][~np.isnan(sync[:-1])] = (works.launch_us[1:] - resumed[:-1])[~np.isnan(sync[:-1])]
    start_gap, turn = gaps(measured)
    lags = [launch - works.launch_us[max(0, _before(works, launch) - 1)] for launch in launches]
    return StepProfile(
        rank=attribution.trace.rank,
        step=attribution.steps.numbers[step],
        step_us=ended - began,
        works=_works(works, began, reduced, other_rows, gradients, np.maximum(0.0, host), sync),
        gradients=gradients,
        buckets=tuple(as_replayed(measured, start_gap, turn)),
        others=tuple(_others(other_rows, works)),
        first_host_us=before - began,
        bucket_ends=bucket_ends_of(found, len(measured)),
        launch_lag_us=float(np.median(lags)) if lags else 0.0,
        start_gap_us=start_gap,
        turn_us=turn,
        exposed_us=exposed_us,
        servers=1,
    )


def _launched(attribution: Attribution, step: int, began: float) -> _Launched:
    events = attribution.events
    mine = attribution.rows(Kind.COMPUTE, *COPY_KINDS) & (attribution.step == step)
    rows = np.flatnonzero(mine)
    rows = rows[~np.isin(rows, attribution.windows.outlasting)]
    launch = attribution.launch_us[rows]
    launch = np.where(np.isfinite(launch), launch, events.start_us[rows])  # unknown: as late as it can have been
    order = np.lexsort((events.start_us[rows], launch))
    rows, launch = rows[order], launch[order]
    ends = np.maximum.accumulate(np.maximum(events.end_us[rows], began)) if len(rows) else np.empty(0)
    before = np.concatenate(([began], ends[:-1])) if len(rows) else ends
    starts = np.minimum(np.maximum(events.start_us[rows], before), ends)
    # time on another stream in parallel is not added
    return _Launched(launch, starts, ends)


def _before(works: _Launched, when: float) -> int:
    """How many works were launched before."""
    return int(np.searchsorted(works.launch_us, when, side="left"))


def _gradients(
    works: _Launched, found: ReadyGradients | None, launches: Sequence[float], sizes: Sequence[float]
) -> Gradients:
    if found is not None:
        after = np.searchsorted(works.launch_us, found.end_us, side="left")
        return Gradients(found.bytes, np.maximum.accumulate(after).astype(np.int64), found.known)
    places: list[int] = []
    parts: list[float] = []
    known = all(np.isfinite(sizes))
    begin = 0
    for launch, size in zip(launches, sizes, strict=True):
        place = _before(works, launch)
        first = begin if places else max(0, place - 1)
        places += [round(first + (place - first) * (part + 1) / PARTS) for part in range(PARTS)]
        parts += [(size if known else 1.0) / PARTS] * PARTS
        begin = place
    return Gradients(np.array(parts), np.array(places, dtype=np.int64), INTERPOLATED if known else UNKNOWN)


def _others(rows: pd.DataFrame, works: _Launched) -> list[OtherCollective]:
    found, before = [], NEVER
    for row in rows.to_dict("records"):
        end, place = row["start_us"] + row["duration_us"], _before(works, row["launch_us"])
        blocks = place < len(works.start_us) and works.start_us[place] >= end - _ROUNDING_US
        size = float(row["bytes"]) if pd.notna(row["bytes"]) else None
        ready = max(row["launch_us"], works.end_us[place - 1] if place else row["launch_us"])
        gap = max(0.0, float(row["start_us"] - max(ready, before)))
        found.append(OtherCollective(str(row["kind"]), size, place, float(row["duration_us"]), bool(blocks), gap))
        before = end
    return found


def _works(
    works: _Launched,
    began: float,
    reduced: pd.DataFrame,
    others: pd.DataFrame,
    gradients: Gradients,
    host_us: np.ndarray,
    sync_us: np.ndarray,
) -> Works:
    """The works, held up by the work before and by the collectives they wait for: buckets (`reduced`) and others."""
    count = len(works.launch_us)
    held = np.concatenate(([began], works.end_us[:-1])) if count else works.end_us
    needs = np.zeros(count)  # the share of the gradients' bytes that each work waits for
    if not reduced.empty:
        sizes = _column(reduced, "bytes")
        sizes = np.ones(len(sizes)) if np.isnan(sizes).any() else sizes  # of no known bytes each counts alike
        shares = np.cumsum(sizes) / sizes.sum()
        ends = np.maximum.accumulate((reduced["start_us"] + reduced["duration_us"]).astype(float).to_numpy())
        later = works.launch_us > float(reduced["launch_us"].max())  # only works after the last all-reduce wait
        ended = np.searchsorted(ends, works.start_us + _ROUNDING_US, side="right")
        needs[later] = np.concatenate(([0.0], shares))[ended[later]]
        needs = np.maximum.accumulate(needs)
        waits_for = np.searchsorted(shares, needs - 1e-9, side="left")
        held = np.where(needs > 0, np.maximum(held, ends[np.minimum(waits_for, len(ends) - 1)]), held)
    for row in others.to_dict("records"):
        end, place = row["start_us"] + row["duration_us"], _before(works, row["launch_us"])
        if place < count and works.start_us[place] >= end - _ROUNDING_US:
            held[place] = max(held[place], end)
    held = np.minimum(held, works.start_us)
    gap = np.maximum(0.0, works.start_us - np.maximum(works.launch_us, held))
    by_launch = works.launch_us >= held
    usual = float(np.median(gap[by_launch])) if by_launch.any() else 0.0
    launch_gap = np.where(by_launch, gap, np.minimum(usual, works.start_us - works.launch_us))
    order_gap = np.where(by_launch, np.minimum(gap, _IN_ORDER_US), gap)
    duration = works.end_us - works.start_us
    hidden = duration <= 0  # behind another stream's
    return Works(
        host_us=host_us,
        device_us=duration,
        launch_gap_us=np.where(hidden, NEVER, launch_gap),
        order_gap_us=np.where(hidden, 0.0, order_gap),
        sync_us=sync_us,
        needs=needs,
        by_samples=np.arange(count) < (gradients.after[-1] if len(gradients.after) else count),
    )


def _waits(attribution: Attribution, works: _Launched, step: int, began: float) -> tuple[np.ndarray, np.ndarray, float]:
    """After which work the host waited for the device: how long after its end the host went on, and when; NaN elsewhere.

    Last, when the host was known to be somewhere before the first launch.
    """
    events = attribution.events
    count = len(works.launch_us)
    sync, resumed = np.full(count, np.nan), np.full(count, np.nan)
    named = events.named(lambda name: any(word in name for word in _WAITS))
    calls = np.flatnonzero(named & events.is_category(Category.RUNTIME) & (events.duration_us >= _SHORTEST_WAIT_US))
    calls = calls[np.argsort(events.start_us[calls], kind="stable")]
    first = works.launch_us[0] if count else began
    launches = attribution.launch_us[attribution.rows(Kind.COMPUTE, *COPY_KINDS)]
    later = launches[launches > (works.launch_us[-1] if count else NEVER)]
    following = float(later.min()) if len(later) else float(attribution.steps.end_us[step])
    before = float(launches[launches < first].max(initial=NEVER))
    for row in calls.tolist():
        begin, end = float(events.start_us[row]), float(events.end_us[row])
        if end <= first:
            if before < end and end >= began - _ROUNDING_US and begin < began:
                before = end  # the host waited for the step before
            continue
        place = _before(works, end) - 1
        if end > following or place < 0 or not begin < works.end_us[place] <= end + _ROUNDING_US:
            continue
        sync[place], resumed[place] = max(0.0, end - works.end_us[place]), end
    if not np.isfinite(before):  # the trace begins with this step: the host's way from step to step is its range
        before = attribution.steps.start_us[step]
        before -= max(0.0, attribution.steps.end_us[step] - (works.launch_us[-1] if count else first))
        before = before if np.isfinite(before) else first
    return sync, resumed, float(before)
