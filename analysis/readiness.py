"""When a collective could have started: the end of what was launched before it on its device."""

import numpy as np

from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind


def ready_us(attribution: Attribution, rows: IntColumn) -> FloatColumn:
    """For each collective (event rows) when its data were ready, microseconds after the trace's start; NaN if not told.

    On a device the collective's stream waits for an event recorded at its launch, that is for all compute kernels launched
    before it there: ready is the latest end of those, or the launch itself if that is later. On the CPU a collective is
    created when its data are ready: ready is its start.
    """
    events = attribution.events
    if not attribution.on_device:
        return events.start_us[rows].copy()
    ready = np.full(len(rows), np.nan)
    compute = attribution.rows(Kind.COMPUTE) & np.isfinite(attribution.launch_us)
    for device in np.unique(events.device[rows]):
        own = np.flatnonzero(compute & (events.device == device))
        own = own[np.argsort(attribution.launch_us[own], kind="stable")]
        reach = np.concatenate(([-np.inf], np.maximum.accumulate(events.end_us[own])))
        of_device = np.flatnonzero(events.device[rows] == device)
        launch = attribution.launch_us[rows[of_device]]
        before = np.searchsorted(attribution.launch_us[own], launch, side="left")
        ready[of_device] = np.maximum(reach[before], launch)
    return ready
