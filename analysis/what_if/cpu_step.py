"""A CPU's traced step as a profile: between two gradients the CPU computes all the time, and nothing is launched."""

from collections.abc import Sequence

import numpy as np

from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.what_if.gradients import (
    PARTS,
    bucket_ends_of,
    bucket_weights,
    ready_gradients,
    spread_evenly,
)
from dpscope.analysis.what_if.step_buckets import (
    backward_span,
    gaps,
    measured_buckets,
    shared_as_replayed,
    split_collectives,
)
from dpscope.analysis.what_if.step_profile import (
    NEVER,
    Gradients,
    MeasuredBucket,
    OtherCollective,
    StepProfile,
    Works,
)

GLOO_WORKERS = 2  # ProcessGroupGloo::Options in torch, threads = 2 x network devices, of which torch takes one


def cpu_profile(
    attribution: Attribution,
    step: int,
    rows: Table,
    exposed_us: float,
    parameter_bytes: Sequence[int] = (),
) -> StepProfile:
    """The profile of one step; `rows` are its collectives with `launch_us` (created) and `begin_us` (taken up).

    The CPU waits for a collective before the first gradient.
    """
    began, ended = float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])
    events = attribution.events
    backward = backward_span(events, (began, ended))
    reduced, other_rows = split_collectives(rows, backward)
    measured, created, sizes = (
        measured_buckets(reduced, began),
        reduced["launch_us"],
        reduced.real("bytes"),
    )
    # other collectives before the backward pass: what comes later holds the CPU up only if its work shows it
    first_us = min([*created.tolist(), backward[1]])
    (waits_us, goes_on_us), others = _before_gradients(other_rows.take(other_rows["launch_us"] < first_us), began)
    found = ready_gradients(events, (began, ended), created, sizes, parameter_bytes)
    if found is not None:
        ready, parts, known = found.end_us - began, found.bytes, found.known
    else:
        ready = spread_evenly(created[0] - began if len(created) else 0.0, created - began)
        weights, known = bucket_weights(sizes)
        parts = np.repeat(weights / PARTS, PARTS)
    ready = np.maximum.accumulate(np.maximum(ready, goes_on_us))
    return StepProfile(
        rank=attribution.trace.rank,
        step=attribution.steps.numbers[step],
        step_us=ended - began,
        works=_works(waits_us, goes_on_us, ready, ended - began, measured),
        gradients=Gradients(parts, np.arange(2, 2 + len(parts), dtype=np.int64), known),
        buckets=shared_as_replayed(measured, gaps(measured)[0], GLOO_WORKERS),
        others=tuple(others),
        first_host_us=NEVER,
        bucket_ends=bucket_ends_of(found, len(measured)),
        launch_lag_us=0.0,
        start_gap_us=gaps(measured)[0],
        turn_us=0.0,
        exposed_us=exposed_us,
        servers=GLOO_WORKERS,
    )


def _works(
    waits_us: float,
    goes_on_us: float,
    ready_us: np.ndarray,
    step_us: float,
    measured: Sequence[MeasuredBucket],
) -> Works:
    """Stretches of time: up to the wait, to each gradient after it, and after the last bucket the optimizer."""
    last_us = max([goes_on_us, *ready_us[-1:].tolist(), *(one.end_us for one in measured)])
    to_gradients = np.diff(ready_us, prepend=goes_on_us)
    durations = np.concatenate(([waits_us], to_gradients, [max(0.0, step_us - last_us)]))
    count = len(durations)
    is_optimizer = np.arange(count) == count - 1
    return Works(
        host_us=np.zeros(count),
        device_us=durations,
        launch_gap_us=np.full(count, NEVER),
        order_gap_us=np.zeros(count),
        sync_us=np.full(count, np.nan),
        needs=np.where(is_optimizer, 1.0, 0.0),
        by_samples=~is_optimizer,
    )


def _before_gradients(rows: Table, began: float) -> tuple[tuple[float, float], list[OtherCollective]]:
    """When the CPU began and ended to wait for collectives before the first gradient, and these, one after another."""
    if not len(rows):
        return (0.0, 0.0), []
    first = reach = max(0.0, float(rows["launch_us"].min()) - began)
    others = []
    for row in rows.records(("kind", "bytes", "start_us", "duration_us")):
        end = row["start_us"] + row["duration_us"] - began
        others.append(OtherCollective(str(row["kind"]), row["bytes"], 1, max(0.0, end - reach), blocks=True))
        reach = max(reach, end)
    return (first, reach), others
