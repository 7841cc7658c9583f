"""A traced step as a profile: on a device its kernels and what holds each up, on a CPU the
stretches between gradients.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.reading.event_table import Category
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import COPY_KINDS, Kind
from dpscope.analysis.what_if.gradients import ready_gradients
from dpscope.analysis.what_if.step_buckets import (
    as_replayed,
    backward_span,
    gaps,
    measured_buckets,
    split_collectives,
)
from dpscope.analysis.what_if.step_profile import (
    NEVER,
    Bools,
    Gradients,
    Ints,
    OtherCollective,
    StepProfile,
    Works,
)

# ProcessGroupGloo::Options in torch, threads = 2 x network devices, of which torch takes one
GLOO_WORKERS = 2
_WAITS = ("Synchronize", "Memcpy")  # names of calls in which the host may wait for the device
_SHORTEST_WAIT_US = 5.0
_IN_ORDER_US = 1.5  # between two kernels of a stream that nothing holds up
_ROUNDING_US = 1.0


class _Timeline(NamedTuple):
    """Of a step, times from its start. `ready_after`: how many works precede each gradient."""

    works: Works
    ends_us: Floats
    ready_after: Ints
    others: list[OtherCollective]


def step_profile(
    attribution: Attribution, step: int, rows: Table, parameter_bytes: Sequence[int] = ()
) -> StepProfile:
    """The profile of one step (index into the trace's steps).

    `rows` are its collectives with `launch_us` (on a CPU: when it was created) and `begin_us`, when
    a server took it up.
    """
    steps, on_device = attribution.steps, attribution.on_device
    span = attribution.windows if on_device else steps
    began = float(span.start_us[step])
    ended = float(span.end_us[step])
    of_host = float(steps.start_us[step]), float(steps.end_us[step])
    backward = backward_span(attribution.events, of_host)
    reduced, others = split_collectives(rows, backward)
    launches, sizes = reduced["launch_us"], reduced.real("bytes")
    gradients = ready_gradients(attribution.events, of_host, launches, sizes, parameter_bytes)
    if on_device:
        timeline = _on_device(attribution, step, began, reduced, others, gradients.end_us)
    else:
        before = others.take(others["launch_us"] < min([*launches.tolist(), backward[1]]))
        timeline = _on_cpu((began, ended), reduced, before, gradients.end_us)
    ready_us = np.concatenate(([0.0], timeline.ends_us))[timeline.ready_after]
    measured = measured_buckets(reduced, began, ready_us[list(gradients.ends)])
    start_gap_us, turn_us = gaps(measured)
    servers = 1
    if not on_device:
        servers, turn_us = GLOO_WORKERS, 0.0
    return StepProfile(
        rank=attribution.trace.rank,
        step=steps.numbers[step],
        step_us=ended - began,
        works=timeline.works,
        gradients=Gradients(gradients.bytes, timeline.ready_after, gradients.known),
        buckets=as_replayed(measured, start_gap_us, turn_us, servers),
        others=tuple(timeline.others),
        bucket_ends=gradients.ends,
        start_gap_us=start_gap_us,
        turn_us=turn_us,
        servers=servers,
    )


def _on_cpu(
    span: tuple[float, float], reduced: Table, before: Table, ready_us: Floats
) -> _Timeline:
    """The CPU computes all the time, but for the collectives `before` the first gradient and after
    the last.
    """
    began, ended = span
    waits_us = goes_on_us = 0.0
    others = []
    if len(before):
        waits_us = goes_on_us = max(0.0, float(before["launch_us"].min()) - began)
    for row in before.records(("kind", "bytes", "start_us", "duration_us")):
        end_us = row["start_us"] + row["duration_us"] - began
        others.append(
            OtherCollective(
                str(row["kind"]), row["bytes"], 1, max(0.0, end_us - goes_on_us), blocks=True
            )
        )
        goes_on_us = max(goes_on_us, end_us)
    ready_us = np.maximum.accumulate(np.maximum(ready_us - began, goes_on_us))
    reduced_us = (reduced["start_us"] + reduced["duration_us"] - began).tolist()
    optimizer_us = max([goes_on_us, *ready_us[-1:].tolist(), *reduced_us])
    busy_us = np.concatenate(
        (
            [waits_us],
            np.diff(ready_us, prepend=goes_on_us),
            [max(0.0, ended - began - optimizer_us)],
        )
    )
    is_optimizer = np.arange(len(busy_us)) == len(busy_us) - 1
    return _Timeline(
        works=Works(
            busy_us=busy_us,
            gap_us=np.zeros(len(busy_us)),
            launched_us=np.full(len(busy_us), NEVER),
            host_waits=np.zeros(len(busy_us), dtype=bool),
            needs=is_optimizer.astype(float),
            by_samples=~is_optimizer,
        ),
        ends_us=np.concatenate(([waits_us], ready_us, [ended - began])),
        ready_after=np.arange(2, 2 + len(ready_us), dtype=np.int64),
        others=others,
    )


class _Kernels(NamedTuple):
    """Of a step, in order of launch."""

    launch_us: Floats
    start_us: Floats
    end_us: Floats

    def before(self, when_us: Floats) -> Ints:
        """How many were launched before."""
        return np.asarray(np.searchsorted(self.launch_us, when_us, side="left"), dtype=np.int64)


def _on_device(
    attribution: Attribution,
    step: int,
    began: float,
    reduced: Table,
    others: Table,
    ready_us: Floats,
) -> _Timeline:
    """Kernels, held up by the one before, by their host and by the collectives they wait for:
    buckets and others.
    """
    kernels = _kernels(attribution, step, began)
    ready_after = np.maximum.accumulate(kernels.before(ready_us))
    before_us = np.concatenate(([began], kernels.end_us))[:-1]
    needs, held_us = _needs(kernels, reduced, before_us)
    other_ends_us = others["start_us"] + others["duration_us"]
    places = kernels.before(others["launch_us"]).tolist()
    for place, end_us in zip(places, other_ends_us.tolist(), strict=True):
        if _holds_up(kernels, place, end_us):
            held_us[place] = max(held_us[place], end_us)
    held_us = np.minimum(held_us, kernels.start_us)
    gap_us = kernels.start_us - np.maximum(held_us, kernels.launch_us)
    by_launch = kernels.launch_us >= held_us  # else the stream held it up
    usual_us = float(np.median(gap_us[by_launch])) if by_launch.any() else 0.0
    queued_us = kernels.start_us - kernels.launch_us
    to_start_us = np.where(by_launch, gap_us, np.minimum(usual_us, queued_us))
    in_order_us = np.where(by_launch, np.minimum(gap_us, _IN_ORDER_US), gap_us)
    busy_us = kernels.end_us - kernels.start_us
    hidden = busy_us <= 0  # behind another stream's
    waits = _host_waits(attribution, kernels)
    # the launch counts from the end of the last kernel that the host waited for
    waited_for = np.flatnonzero(waits)
    every = np.arange(len(waits))
    ends_us = np.concatenate(([began], kernels.end_us[waited_for]))
    since_us = ends_us[np.searchsorted(waited_for, every, side="left")]
    # the last gradient's kernel is the last one that samples make longer
    last = ready_after[-1] if len(ready_after) else len(needs)
    works = Works(
        busy_us=busy_us,
        gap_us=np.where(hidden, 0.0, in_order_us),
        launched_us=np.where(hidden, NEVER, kernels.launch_us + to_start_us - since_us),
        host_waits=waits,
        needs=needs,
        by_samples=every < last,
    )
    return _Timeline(works, kernels.end_us - began, ready_after, _others(others, kernels, began))


def _host_waits(attribution: Attribution, kernels: _Kernels) -> Bools:
    """For which kernels' ends the host waited, in a call that ends after them and before the next
    launch.
    """
    events = attribution.events
    named = events.named(lambda name: any(word in name for word in _WAITS))
    calls = np.flatnonzero(
        named & events.is_category(Category.RUNTIME) & (events.duration_us >= _SHORTEST_WAIT_US)
    )
    places = kernels.before(events.end_us[calls]) - 1
    calls, places = calls[places >= 0], places[places >= 0]
    ends_us = kernels.end_us[places]
    waited = (events.start_us[calls] < ends_us) & (ends_us <= events.end_us[calls] + _ROUNDING_US)
    found = np.zeros(len(kernels.launch_us), dtype=bool)
    found[places[waited]] = True
    return found


def _kernels(attribution: Attribution, step: int, began: float) -> _Kernels:
    """Kernels and copies of a step; time on another stream in parallel is not added."""
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.COMPUTE, *COPY_KINDS) & (attribution.step == step))
    rows = rows[~np.isin(rows, attribution.windows.outlasting)]
    launch_us = attribution.launch_us[rows]
    start_us = events.start_us[rows]
    # unknown: as late as it can have been
    launch_us = np.where(np.isfinite(launch_us), launch_us, start_us)
    order = np.lexsort((start_us, launch_us))
    end_us = np.maximum.accumulate(np.maximum(events.end_us[rows[order]], began))
    before_us = np.concatenate(([began], end_us))[:-1]
    begin_us = np.maximum(start_us[order], before_us)
    return _Kernels(launch_us[order], np.minimum(begin_us, end_us), end_us)


def _needs(kernels: _Kernels, reduced: Table, before_us: Floats) -> tuple[Floats, Floats]:
    """The share of the gradients' bytes that each kernel waits for, and until when it or the kernel
    before holds it up.
    """
    needs = np.zeros(len(before_us))
    if not len(reduced):
        return needs, before_us.copy()
    sizes = reduced.real("bytes")
    if not np.isfinite(sizes).all():
        sizes = np.ones(len(sizes))  # every one counts alike
    shares = np.cumsum(sizes) / sizes.sum()
    ends_us = np.maximum.accumulate(reduced["start_us"] + reduced["duration_us"])
    # only works after the last all-reduce wait
    later = kernels.launch_us > float(reduced["launch_us"].max())
    ended = np.searchsorted(ends_us, kernels.start_us + _ROUNDING_US, side="right")
    share_of_ended = np.concatenate(([0.0], shares))
    needs[later] = share_of_ended[ended[later]]
    needs = np.maximum.accumulate(needs)
    needed = np.searchsorted(shares, needs - 1e-9, side="left")
    last = len(ends_us) - 1
    needed_us = ends_us[np.minimum(needed, last)]
    held_us = np.where(needs > 0, np.maximum(before_us, needed_us), before_us)
    return needs, held_us


def _others(rows: Table, kernels: _Kernels, began: float) -> list[OtherCollective]:
    """Collectives that are no buckets, each after the kernels launched before it."""
    others, before_us = [], began
    for row, place in zip(rows.records(), kernels.before(rows["launch_us"]).tolist(), strict=True):
        end_us = row["start_us"] + row["duration_us"]
        ready_us = max(kernels.end_us[place - 1] if place else began, before_us)
        gap_us = max(0.0, float(row["start_us"] - ready_us))
        blocks = _holds_up(kernels, place, end_us)
        others.append(
            OtherCollective(
                str(row["kind"]), row["bytes"], place, row["duration_us"], blocks, gap_us
            )
        )
        before_us = end_us
    return others


def _holds_up(kernels: _Kernels, place: int, end_us: float) -> bool:
    """Whether a kernel starts only once a collective that was launched right before it has
    ended.
    """
    return place < len(kernels.launch_us) and bool(kernels.start_us[place] >= end_us - _ROUNDING_US)
