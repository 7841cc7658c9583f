"""A device's traced step as a profile: kernels in order of launch, what holds each up, and where the host waits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.reading.event_table import Category
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import COPY_KINDS, Kind
from dpscope.analysis.what_if.gradients import (
    PARTS,
    ReadyGradients,
    bucket_ends_of,
    bucket_weights,
    ready_gradients,
    spread_evenly,
)
from dpscope.analysis.what_if.step_buckets import (
    as_replayed,
    backward_span,
    gaps,
    measured_buckets,
    split_collectives,
)
from dpscope.analysis.what_if.step_profile import (
    NEVER,
    Gradients,
    Ints,
    OtherCollective,
    StepProfile,
    Works,
)

_WAITS = ("Synchronize", "Memcpy")  # names of calls in which the host may wait for the device
_SHORTEST_WAIT_US = 5.0
_IN_ORDER_US = 1.5  # between two kernels of a stream that nothing holds up
_ROUNDING_US = 1.0


@dataclass(frozen=True)
class _Kernels:
    """Of a step that began at `began`, in order of launch; times from the trace's start."""

    began: float
    launch_us: Floats
    start_us: Floats
    end_us: Floats

    def __len__(self) -> int:
        return len(self.launch_us)

    def before(self, when_us: Floats) -> Ints:
        """How many were launched before."""
        return np.asarray(np.searchsorted(self.launch_us, when_us, side="left"), dtype=np.int64)


def device_profile(
    attribution: Attribution,
    step: int,
    rows: Table,
    exposed_us: float,
    parameter_bytes: Sequence[int] = (),
) -> StepProfile:
    """The profile of one step (index into the trace's steps); `rows` are its collectives with `launch_us` and `begin_us`."""
    windows, events = attribution.windows, attribution.events
    kernels = _kernels(attribution, step, float(windows.start_us[step]))
    began, host_range = (
        kernels.began,
        (float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])),
    )
    reduced, other_rows = split_collectives(rows, backward_span(events, host_range))
    measured, launches, sizes = (
        measured_buckets(reduced, began),
        reduced["launch_us"],
        reduced.real("bytes"),
    )
    found = ready_gradients(events, host_range, launches, sizes, parameter_bytes)
    gradients = _gradients(kernels, found, launches, sizes)
    before = _host_before(attribution, kernels, step)
    sync, resumed = _waits(attribution, kernels, step)
    start_gap, turn = gaps(measured)
    lags = launches - kernels.launch_us[np.maximum(kernels.before(launches) - 1, 0)] if len(launches) else launches
    return StepProfile(
        rank=attribution.trace.rank,
        step=attribution.steps.numbers[step],
        step_us=float(windows.end_us[step]) - began,
        works=_works(kernels, reduced, other_rows, gradients, _host_us(kernels, before, resumed), sync),
        gradients=gradients,
        buckets=as_replayed(measured, start_gap, turn),
        others=tuple(_others(other_rows, kernels)),
        first_host_us=before - began,
        bucket_ends=bucket_ends_of(found, len(measured)),
        launch_lag_us=float(np.median(lags)) if len(lags) else 0.0,
        start_gap_us=start_gap,
        turn_us=turn,
        exposed_us=exposed_us,
        servers=1,
    )


def _kernels(attribution: Attribution, step: int, began: float) -> _Kernels:
    """Kernels and copies of a step; time on another stream in parallel is not added."""
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.COMPUTE, *COPY_KINDS) & (attribution.step == step))
    rows = rows[~np.isin(rows, attribution.windows.outlasting)]
    launch = attribution.launch_us[rows]
    launch = np.where(np.isfinite(launch), launch, events.start_us[rows])  # unknown: as late as it can have been
    order = np.lexsort((events.start_us[rows], launch))
    rows, launch = rows[order], launch[order]
    ends = np.maximum.accumulate(np.maximum(events.end_us[rows], began))
    before = np.concatenate(([began], ends))[:-1]
    return _Kernels(began, launch, np.minimum(np.maximum(events.start_us[rows], before), ends), ends)


def _gradients(kernels: _Kernels, found: ReadyGradients | None, launches: Floats, sizes: Floats) -> Gradients:
    if found is not None:
        return Gradients(found.bytes, np.maximum.accumulate(kernels.before(found.end_us)), found.known)
    ends = kernels.before(launches).astype(float)
    places = spread_evenly(max(0.0, ends[0] - 1) if len(ends) else 0.0, ends)
    weights, known = bucket_weights(sizes)
    return Gradients(np.repeat(weights / PARTS, PARTS), np.rint(places).astype(np.int64), known)


def _host_us(kernels: _Kernels, before: float, resumed: Floats) -> Floats:
    """The host's own time before each launch: since the launch before it, or since a wait that followed that one."""
    host = np.diff(kernels.launch_us, prepend=before)
    after_wait = kernels.launch_us[1:] - resumed[:-1]
    host[1:] = np.where(np.isnan(after_wait), host[1:], after_wait)
    return np.maximum(0.0, host)


def _others(rows: Table, kernels: _Kernels) -> list[OtherCollective]:
    others, before = [], NEVER
    for row, place in zip(rows.records(), kernels.before(rows["launch_us"]).tolist(), strict=True):
        end = row["start_us"] + row["duration_us"]
        ready = max(row["launch_us"], kernels.end_us[place - 1] if place else row["launch_us"])
        gap_us = max(0.0, float(row["start_us"] - max(ready, before)))
        blocks = _holds_up(kernels, place, end)
        others.append(OtherCollective(str(row["kind"]), row["bytes"], place, row["duration_us"], blocks, gap_us))
        before = end
    return others


def _holds_up(kernels: _Kernels, place: int, end_us: float) -> bool:
    """Whether a kernel starts only once a collective that was launched right before it has ended."""
    return place < len(kernels) and bool(kernels.start_us[place] >= end_us - _ROUNDING_US)


def _works(
    kernels: _Kernels,
    reduced: Table,
    others: Table,
    gradients: Gradients,
    host_us: Floats,
    sync_us: Floats,
) -> Works:
    """The kernels, held up by the one before and by the collectives they wait for: buckets (`reduced`) and others."""
    needs, held = _needs(kernels, reduced)
    other_ends = others["start_us"] + others["duration_us"]
    for place, end in zip(kernels.before(others["launch_us"]).tolist(), other_ends.tolist(), strict=True):
        if _holds_up(kernels, place, end):
            held[place] = max(held[place], end)
    held = np.minimum(held, kernels.start_us)
    gap = np.maximum(0.0, kernels.start_us - np.maximum(kernels.launch_us, held))
    by_launch = kernels.launch_us >= held
    usual = float(np.median(gap[by_launch])) if by_launch.any() else 0.0
    launch_gap = np.where(by_launch, gap, np.minimum(usual, kernels.start_us - kernels.launch_us))
    order_gap = np.where(by_launch, np.minimum(gap, _IN_ORDER_US), gap)
    duration = kernels.end_us - kernels.start_us
    hidden = duration <= 0  # behind another stream's
    after_backward = gradients.after[-1] if len(gradients.after) else len(kernels)
    return Works(
        host_us=host_us,
        device_us=duration,
        launch_gap_us=np.where(hidden, NEVER, launch_gap),
        order_gap_us=np.where(hidden, 0.0, order_gap),
        sync_us=sync_us,
        needs=needs,
        by_samples=np.arange(len(kernels)) < after_backward,
    )


def _needs(kernels: _Kernels, reduced: Table) -> tuple[Floats, Floats]:
    """The share of the gradients' bytes that each kernel waits for, and until when it or the kernel before holds it up."""
    needs, held = np.zeros(len(kernels)), np.concatenate(([kernels.began], kernels.end_us))[:-1]
    if not len(reduced):
        return needs, held
    weights, _ = bucket_weights(reduced.real("bytes"))
    shares = np.cumsum(weights) / weights.sum()
    ends = np.maximum.accumulate(reduced["start_us"] + reduced["duration_us"])
    later = kernels.launch_us > float(reduced["launch_us"].max())  # only works after the last all-reduce wait
    ended = np.searchsorted(ends, kernels.start_us + _ROUNDING_US, side="right")
    needs[later] = np.concatenate(([0.0], shares))[ended[later]]
    needs = np.maximum.accumulate(needs)
    waits_for = np.minimum(np.searchsorted(shares, needs - 1e-9, side="left"), len(ends) - 1)
    return needs, np.where(needs > 0, np.maximum(held, ends[waits_for]), held)


def _host_calls(attribution: Attribution) -> Ints:
    """Calls in which the host may have waited for the device, in order of start."""
    events = attribution.events
    named = events.named(lambda name: any(word in name for word in _WAITS))
    rows = np.flatnonzero(named & events.is_category(Category.RUNTIME) & (events.duration_us >= _SHORTEST_WAIT_US))
    return rows[np.argsort(events.start_us[rows], kind="stable")]


def _launches(attribution: Attribution) -> Floats:
    return attribution.launch_us[attribution.rows(Kind.COMPUTE, *COPY_KINDS)]


def _host_before(attribution: Attribution, kernels: _Kernels, step: int) -> float:
    """When the host was last seen before the first launch: at a launch, or at the end of a wait for the step before."""
    began, events, launches = kernels.began, attribution.events, _launches(attribution)
    first = kernels.launch_us[0] if len(kernels) else began
    before = float(launches[launches < first].max(initial=NEVER))
    for row in _host_calls(attribution).tolist():
        begin, end = float(events.start_us[row]), float(events.end_us[row])
        if begin < began <= end + _ROUNDING_US and before < end <= first:
            before = end
    if np.isfinite(before):
        return before
    # the trace begins with this step: the host's way from step to step is its range
    last = kernels.launch_us[-1] if len(kernels) else first
    before = float(attribution.steps.start_us[step] - max(0.0, attribution.steps.end_us[step] - last))
    return before if np.isfinite(before) else float(first)


def _waits(attribution: Attribution, kernels: _Kernels, step: int) -> tuple[Floats, Floats]:
    """After which kernel the host waited for the device: how long after its end the host went on, and when; NaN elsewhere."""
    events, launches = attribution.events, _launches(attribution)
    sync, resumed = np.full(len(kernels), np.nan), np.full(len(kernels), np.nan)
    first, last = (kernels.launch_us[0], kernels.launch_us[-1]) if len(kernels) else (kernels.began, NEVER)
    following = float(launches[launches > last].min(initial=np.inf))
    if not np.isfinite(following):
        following = float(attribution.steps.end_us[step])
    calls = _host_calls(attribution)
    places = kernels.before(events.end_us[calls]) - 1
    for row, place in zip(calls.tolist(), places.tolist(), strict=True):
        begin, end = float(events.start_us[row]), float(events.end_us[row])
        if place < 0 or not first < end <= following:
            continue
        if begin < kernels.end_us[place] <= end + _ROUNDING_US:
            sync[place], resumed[place] = max(0.0, end - kernels.end_us[place]), end
    return sync, resumed
