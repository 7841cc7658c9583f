"""When each collective is ready and what stands still meanwhile: compute done, its graph, its stream, devices without work."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, Category, FloatColumn, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind, named_annotations
from dpscope.profiling.records import range_names as phases

REDUCING = frozenset({"all_reduce", "reduce_scatter"})


def held_us(attribution: Attribution, rows: IntColumn, kinds: list[str | None]) -> FloatColumn:
    """For each reduction (event rows) how long during it the device computed nothing although computing had been launched.

    Counted are kernels that were launched before the last reduction of the step was: nothing that waits for a gradient is
    among them, and if nothing held them they would run during the reduction. A kernel counts from the end of its launch.
    NaN for other collectives, for those of no step, and on the CPU.
    """
    held = np.full(len(rows), np.nan)
    if not attribution.on_device:
        return held
    events, launch_us = attribution.events, attribution.launch_us
    reduces = np.array([kind in REDUCING for kind in kinds], dtype=bool) & np.isfinite(launch_us[rows])
    computing = attribution.rows(Kind.COMPUTE) & np.isfinite(launch_us)
    for own, here in _by_step_and_device(attribution, rows, reduces, computing):
        earlier = own[launch_us[own] < launch_us[rows[here]].max()]
        waiting = intervals.union(events.end_us[attribution.launch_row[earlier]], events.start_us[earlier])
        still = intervals.difference(waiting, intervals.of_events(events, own))
        held[here] = intervals.lengths_within(still, events.start_us[rows[here]], events.end_us[rows[here]])
    return held


# of a device's computing, from which on a stream is one that computes: copies around collectives are less
_COMPUTES = 0.1
_GRAPH = "CompiledFunctionBackward"  # autograd's node of what AOTAutograd compiled (torch 2.0 and later)


def compute_shares(attribution: Attribution, rows: IntColumn, ready_us: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """For each collective (event rows) two shares, 0..1, of its step's computing: done when it was ready, and by its graph.

    On its device, without the optimizer's work, which waits for the last gradient. What remains could hide it. The second is
    what the last compiled backward graph computed that ended before the collective was requested: what comes out of a graph is
    ready when all of it has run; 0 where none ended before it in its step. NaN where the step, the moment or all computing is
    unknown.
    """
    events = attribution.events
    done, compiled = np.full((2, len(rows)), np.nan)
    graphs = np.flatnonzero(events.is_category(Category.CPU_OP) & events.named(lambda name: name == _GRAPH))
    graphs = graphs[np.argsort(events.end_us[graphs], kind="stable")]
    called_us = attribution.launch_us if attribution.on_device else events.start_us
    for own, here in _by_step_and_device(attribution, rows, np.isfinite(ready_us), _before_optimizer(attribution)):
        computed = intervals.of_events(events, own)
        total_us = intervals.length(computed)
        if not total_us > 0:
            continue
        done[here] = intervals.length_before(computed, ready_us[here]) / total_us
        compiled[here] = 0.0
        begins = attribution.steps.start_us[attribution.step[rows[here[0]]]]
        when = called_us[rows[here]] if attribution.on_device else ready_us[here]
        for place, last in zip(here, np.searchsorted(events.end_us[graphs], when, side="right") - 1, strict=True):
            if last >= 0 and events.start_us[graphs[last]] >= begins:
                graph = graphs[last]
                inside = own[(called_us[own] >= events.start_us[graph]) & (called_us[own] < events.end_us[graph])]
                compiled[place] = intervals.length(intervals.of_events(events, inside)) / total_us
    return done, compiled


def _by_step_and_device(
    attribution: Attribution, rows: IntColumn, wanted: BoolColumn, computing: BoolColumn
) -> Iterator[tuple[IntColumn, IntColumn]]:
    """For each step and device its marked events of `computing`, and the places of its collectives that are `wanted`."""
    devices = attribution.events.device
    of_step = attribution.by_step(computing)
    wanted = wanted & (attribution.step[rows] >= 0)
    places = np.stack((attribution.step[rows], devices[rows]), axis=1)
    for step, device in np.unique(places[wanted], axis=0):
        own = of_step[step]
        here = np.flatnonzero(wanted & (places == (step, device)).all(axis=1))
        yield (own[devices[own] == device] if attribution.on_device else own), here


def _before_optimizer(attribution: Attribution) -> BoolColumn:
    """Rows that compute in a step, those that the optimizer launched left out."""
    events = attribution.events
    computing = attribution.rows(Kind.COMPUTE) & (attribution.step >= 0)
    ranges = np.flatnonzero(named_annotations(events, "Optimizer.step#") | named_annotations(events, phases.OPTIMIZER))
    if not len(ranges):
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
    times, totals = defaultdict[tuple[int, int], float](float), defaultdict[int, float](float)
    streams = np.stack((events.device[computing], events.thread[computing]), axis=1)
    for device, thread in np.unique(streams, axis=0).tolist():
        own = computing[(streams == (device, thread)).all(axis=1)]
        times[device, thread] = float(events.duration_us[own].sum())
        totals[device] += times[device, thread]
    places = zip(events.device[rows].tolist(), events.thread[rows].tolist(), strict=True)
    return np.array([times[place] >= _COMPUTES * totals[place[0]] > 0.0 for place in places], dtype=np.bool_)
