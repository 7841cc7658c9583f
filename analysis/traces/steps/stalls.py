"""Where a device stands still, and why: nothing was launched for it, or what was launched waits while a collective runs."""

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.analysis.traces.steps.intervals import Intervals

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
    among them, and if nothing held them they would run beside the reduction. A kernel counts from the end of its launch.
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
        still = intervals.difference(waiting, intervals.union(events.start_us[own], events.end_us[own]))
        ends, starts = events.end_us[rows[here]], events.start_us[rows[here]]
        held[here] = intervals.length_before(still, ends) - intervals.length_before(still, starts)
    return held
