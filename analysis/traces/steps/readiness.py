"""When each collective is ready and what stands still meanwhile: compute done, its graph, its stream, devices without work."""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, FloatColumn, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind, named_annotations
from dpscope.analysis.traces.steps.intervals import Intervals
from dpscope.profiling.records import range_names as phases

REDUCING = frozenset({"all_reduce", "reduce_scatter"})


def launched(attribution: Attribution, own: BoolColumn) -> Intervals:
    """When at least one of the marked device events had been launched and had not ended, microseconds.

    From the begin of the call that launched it, so that the time a launch takes is none in which nothing was launched; from
    its own start where the launch is not in the trace.
    """
    events = attribution.events
    rows = np.flatnonzero(own)
    return intervals.union(np.fmin(attribution.launch_us[rows], events.start_us[rows]), events.end_us[rows])


def held_us(attribution: Attribution, rows: IntColumn, kinds: list[str | None]) -> FloatColumn:
    """For each reduction (event rows) how long during it the device computed nothing although computing had been launched.

    Counted are kernels that were launched before the last reduction of the step was: nothing that waits for a gradient is
    among them, and if nothing held them they would run during the reduction. A kernel counts from the end of its launch.
    NaN for other collectives, for those of no step, and on the CPU.
    """
    events = attribution.events
    held = np.full(len(rows), np.nan)
    if not attribution.on_device or not len(rows):
        return held
    reduces = np.array([kind in REDUCING for kind in kinds], dtype=bool)
    computing = attribution.by_step(attribution.rows(Kind.COMPUTE) & np.isfinite(attribution.launch_us))
    steps, devices = attribution.step[rows], events.device[rows]
    for step, device in {(int(one), int(other)) for one, other in zip(steps[reduces], devices[reduces], strict=True)}:
        here = np.flatnonzero(
            reduces & (steps == step) & (devices == device) & np.isfinite(attribution.launch_us[rows])
        )
        if step < 0 or not len(here):
            continue
        own = computing[step][events.device[computing[step]] == device]
        earlier = own[attribution.launch_us[own] < attribution.launch_us[rows[here]].max()]
        waiting = intervals.union(events.end_us[attribution.launch_row[earlier]], events.start_us[earlier])
        still = intervals.difference(waiting, intervals.of_events(events, own))
        held[here] = intervals.lengths_within(still, events.start_us[rows[here]], events.end_us[rows[here]])
    return held


# of a device's computing, from which on a stream is one that computes: copies around collectives are less
_COMPUTES = 0.1
_GRAPH = "CompiledFunctionBackward"  # autograd's node of what AOTAutograd compiled (torch 2.0 and later)


def compute_done(attribution: Attribution, rows: IntColumn, ready_us: FloatColumn) -> FloatColumn:
    """For each collective (event rows) the share, 0..1, of its step's computing that was done when it was ready.

    On its device, without the optimizer's work, which waits for the last gradient. What remains could hide it. NaN
    where the step, the moment or all computing is unknown.
    """
    done = np.full(len(rows), np.nan)
    for own, here in _by_step_and_device(attribution, rows, ready_us):
        computed = intervals.of_events(attribution.events, own)
        total_us = intervals.length(computed)
        if total_us > 0:
            done[here] = intervals.length_before(computed, ready_us[here]) / total_us
    return done


def compiled_share(attribution: Attribution, rows: IntColumn, ready_us: FloatColumn) -> FloatColumn:
    """For each collective (event rows) the share, 0..1, of its step's computing that one compiled backward graph did before it.

    That of the last such graph that ended before the collective was requested: what comes out of a graph is ready when all of
    it has run. 0 where none ended before it in its step; NaN as `compute_done` is.
    """
    events = attribution.events
    share = np.full(len(rows), np.nan)
    is_graph = events.is_category(Category.CPU_OP) & events.named(lambda name: name == _GRAPH)
    graphs = np.flatnonzero(is_graph)
    graphs = graphs[np.argsort(events.end_us[graphs], kind="stable")]
    called_us = attribution.launch_us if attribution.on_device else events.start_us
    for own, here in _by_step_and_device(attribution, rows, ready_us):
        total_us = intervals.length(intervals.of_events(events, own))
        if not total_us > 0:
            continue
        share[here] = 0.0
        begins = attribution.steps.start_us[attribution.step[rows[here[0]]]]
        when = called_us[rows[here]] if attribution.on_device else ready_us[here]
        for place, last in zip(here, np.searchsorted(events.end_us[graphs], when, side="right") - 1, strict=True):
            if last >= 0 and events.start_us[graphs[last]] >= begins:
                graph = graphs[last]
                inside = own[(called_us[own] >= events.start_us[graph]) & (called_us[own] < events.end_us[graph])]
                share[place] = intervals.length(intervals.of_events(events, inside)) / total_us
    return share


def _by_step_and_device(
    attribution: Attribution, rows: IntColumn, ready_us: FloatColumn
) -> Iterator[tuple[IntColumn, IntColumn]]:
    """For each step and device what computes there before the optimizer (event rows), and the places of its collectives."""
    events = attribution.events
    steps, devices = attribution.step[rows], events.device[rows]
    of_step = attribution.by_step(_before_optimizer(attribution))
    for step, device in {(int(one), int(other)) for one, other in zip(steps, devices, strict=True)}:
        here = np.flatnonzero((steps == step) & (devices == device) & np.isfinite(ready_us))
        if step < 0 or not len(here):
            continue
        own = of_step[step]
        yield (own[events.device[own] == device] if attribution.on_device else own), here


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
    called_us = attribution.launch_us if attribution.on_device else events.start_us
    return computing & ~(called_us >= begins[np.maximum(attribution.step, 0)])


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
