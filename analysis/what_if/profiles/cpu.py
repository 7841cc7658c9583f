"""One rank's step on the CPU as a profile: stretches of time between gradients, with gloo's collectives in parallel."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.what_if.profiles.gradients import (
    PARTS,
    StepCollectives,
    backward_span,
    ends_of,
    gaps,
    measured_buckets,
    ready_gradients,
    shared_as_replayed,
    split_collectives,
)
from dpscope.analysis.what_if.replay.step_profile import (
    INTERPOLATED,
    NEVER,
    Gradients,
    OtherCollective,
    StepProfile,
    Works,
)

GLOO_WORKERS = 2  # ProcessGroupGloo::Options in torch, threads = 2 x network devices, of which torch takes one


def cpu_profile(
    attribution: Attribution, step: int, rows: pd.DataFrame, exposed_us: float, parameter_bytes: Sequence[int] = ()
) -> StepProfile:
    """The profile of one step; `rows` are its collectives with `launch_us` (created) and `begin_us` (taken up).

    Between two gradients the CPU computes all the time, but for a collective before the first gradient, which it waits for.
    """
    began, ended = float(attribution.steps.start_us[step]), float(attribution.steps.end_us[step])
    events = attribution.events
    backward = backward_span(events, (began, ended))
    split = split_collectives(rows, backward)
    measured = measured_buckets(split.buckets, began)
    sizes = [one.bytes for one in measured]
    created = split.buckets["launch_us"].tolist()
    found = ready_gradients(events, (began, ended), created, sizes, parameter_bytes)
    blocked, others = _before_gradients(_waited_for(split, backward), began)
    ready, parts, known = (found.end_us - began, found.bytes, found.known) if found else _parts(created, sizes, began)
    ready = np.maximum.accumulate(np.maximum(ready, blocked[1])) if len(ready) else ready
    last = max([float(ready[-1]) if len(ready) else blocked[1], *(one.end_us for one in measured)])
    edges = np.concatenate(([blocked[1]], ready))
    tail = max(0.0, ended - began - last)
    durations = np.concatenate(([blocked[0]], np.diff(edges), [tail]))
    return StepProfile(
        rank=attribution.trace.rank,
        step=attribution.steps.numbers[step],
        step_us=ended - began,
        works=_works(durations),
        gradients=Gradients(parts, np.arange(2, 2 + len(parts), dtype=np.int64), known),
        buckets=tuple(shared_as_replayed(measured, gaps(measured)[0], GLOO_WORKERS)),
        others=tuple(others),
        first_host_us=NEVER,
        bucket_ends=ends_of(found.bucket) if found else tuple(PARTS * (one + 1) - 1 for one in range(len(measured))),
        launch_lag_us=0.0,
        start_gap_us=gaps(measured)[0],
        turn_us=0.0,
        exposed_us=exposed_us,
        servers=GLOO_WORKERS,
    )


def _waited_for(split: StepCollectives, backward: tuple[float, float]) -> pd.DataFrame:
    """The other collectives before the backward pass: what comes later holds the CPU up only if its work shows it."""
    first = float(split.buckets["launch_us"].min()) if len(split.buckets) else float("inf")
    return split.others[split.others["launch_us"] < min(first, backward[1])]


def _before_gradients(rows: pd.DataFrame, began: float) -> tuple[tuple[float, float], list[OtherCollective]]:
    """When the CPU began and ended to wait for collectives before the first gradient, and these, one after another."""
    if rows.empty:
        return (0.0, 0.0), []
    created = rows["launch_us"].to_numpy(dtype=float) - began
    ends = (rows["start_us"] + rows["duration_us"]).to_numpy(dtype=float) - began
    reach, found = max(0.0, float(created.min())), []
    first = reach
    for row, end in zip(rows.to_dict("records"), ends, strict=True):
        cost = max(0.0, float(end) - reach)
        reach = max(reach, float(end))
        size = float(row["bytes"]) if pd.notna(row["bytes"]) else 0.0
        found.append(OtherCollective(str(row["kind"]), size, 1, cost, blocks=True))
    return (first, reach), found


def _parts(created: Sequence[float], sizes: Sequence[float], began: float) -> tuple[Floats, Floats, str]:
    """Without gradients: each bucket's bytes in equal parts over the time since the bucket before."""
    ready: list[float] = []
    before = created[0] - began if created else 0.0
    for when in created:
        end = when - began
        ready += [before + (end - before) * (part + 1) / PARTS for part in range(PARTS)]
        before = end
    parts = np.repeat(np.array(sizes, dtype=float) / PARTS, PARTS)
    return np.array(ready), parts, INTERPOLATED


def _works(durations: Floats) -> Works:
    count = len(durations)
    zeros = np.zeros(count)
    needs = np.zeros(count)
    needs[-1] = 1.0
    return Works(
        host_us=zeros,
        device_us=durations,
        launch_gap_us=np.full(count, NEVER),
        order_gap_us=zeros,
        sync_us=np.full(count, np.nan),
        needs=needs,
        by_samples=np.arange(count) < count - 1,
    )
