"""How much of a step's computing was done when each collective was ready, and whether it ran on a stream that computes."""

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind, named_annotations
from dpscope.profiling.records import range_names as phases

_COMPUTES = (
    0.1  # of a device's computing, from which on a stream is one that computes: copies around collectives are less
)


def compute_done(attribution: Attribution, rows: IntColumn, ready_us: FloatColumn) -> FloatColumn:
    """For each collective (event rows) the share, 0..1, of its step's computing that was done when it was ready.

    Of its own device, without what the optimizer does: that waits for the last gradient. What is left could hide it. NaN
    where the step, the moment or all computing is unknown.
    """
    events = attribution.events
    done = np.full(len(rows), np.nan)
    steps, devices = attribution.step[rows], events.device[rows]
    computing = _before_optimizer(attribution)
    of_step = attribution.by_step(computing)
    for step, device in {(int(one), int(other)) for one, other in zip(steps, devices, strict=True)}:
        if step < 0:
            continue
        own = of_step[step]
        if attribution.on_device:
            own = own[events.device[own] == device]
        computed = intervals.union(events.start_us[own], events.end_us[own])
        total_us = intervals.length(computed)
        here = np.flatnonzero((steps == step) & (devices == device) & np.isfinite(ready_us))
        if total_us > 0 and len(here):
            done[here] = intervals.length_before(computed, ready_us[here]) / total_us
    return done


def _before_optimizer(attribution: Attribution) -> BoolColumn:
    """Rows that compute in a step, those that the optimizer launched left out."""
    events = attribution.events
    computing = attribution.rows(Kind.COMPUTE) & (attribution.step >= 0)
    ranges = np.flatnonzero(named_annotations(events, "Optimizer.step#") | named_annotations(events, phases.OPTIMIZER))
    if not len(ranges) or not len(attribution.steps):
        return computing
    begins = np.full(len(attribution.steps), np.inf)
    places = attribution.steps.index_at(events.start_us[ranges])
    np.minimum.at(begins, places[places >= 0], events.start_us[ranges[places >= 0]])
    asked = attribution.launch_us if attribution.on_device else events.start_us
    return computing & ~(asked >= begins[np.maximum(attribution.step, 0)])


def on_compute_stream(attribution: Attribution, rows: IntColumn) -> BoolColumn:
    """For each collective (event rows) whether its stream is one on which its device computes: then nothing hides it."""
    events = attribution.events
    computing = np.flatnonzero(attribution.rows(Kind.COMPUTE))
    times: dict[tuple[int, int], float] = {}
    totals: dict[int, float] = {}
    streams = np.stack((events.device[computing], events.thread[computing]), axis=1)
    for stream in np.unique(streams, axis=0):
        own = computing[(streams == stream).all(axis=1)]
        times[int(stream[0]), int(stream[1])] = float(events.duration_us[own].sum())
        totals[int(stream[0])] = totals.get(int(stream[0]), 0.0) + times[int(stream[0]), int(stream[1])]
    places = zip(events.device[rows].tolist(), events.thread[rows].tolist(), strict=True)
    return np.array(
        [times.get(place, 0.0) >= _COMPUTES * totals.get(place[0], 0.0) > 0.0 for place in places], dtype=np.bool_
    )
