"""When gloo's collectives ended at the latest: a range that its worker thread closes late reads longer than the collective.

A worker closes its range once it has a core again; where computing takes all cores that may be milliseconds after the
collective was done, in the optimizer or while the tracer is stopped. DDP's forward and backward return only after the
collectives they began (torch/csrc/distributed/c10d/reducer.cpp: finalize_backward waits for every bucket's work).
"""

from dataclasses import replace

import numpy as np

from dpscope.analysis.traces.reading.event_table import EventTable
from dpscope.analysis.traces.steps.event_kind import named_annotations
from dpscope.profiling.records import range_names as phases


def ended_in_their_pass(events: EventTable) -> EventTable:
    """The table, with `gloo:` ranges that begin in a step's forward or backward pass ending with it at the latest.

    The passes are dpscope's own ranges; a trace without them stays as it is.
    """
    passes = np.flatnonzero(named_annotations(events, phases.FORWARD) | named_annotations(events, phases.BACKWARD))
    rows = np.flatnonzero(named_annotations(events, "gloo:"))
    if not len(passes) or not len(rows):
        return events
    passes = passes[np.argsort(events.start_us[passes], kind="stable")]
    index = np.searchsorted(events.start_us[passes], events.start_us[rows], side="right") - 1
    pass_ends = events.end_us[passes[np.maximum(index, 0)]]
    late = (index >= 0) & (events.start_us[rows] < pass_ends) & (events.end_us[rows] > pass_ends)
    duration_us = events.duration_us.copy()
    duration_us[rows[late]] = pass_ends[late] - events.start_us[rows[late]]
    return replace(events, duration_us=duration_us)
