"""Where communication is exposed: the stretches of each step's window in which a device communicates and does not compute."""

import numpy as np

from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.cpu_compute import cpu_compute
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, DEVICE_KINDS, Kind
from dpscope.analysis.traces.steps.findings import communication_lost
from dpscope.analysis.traces.steps.intervals import Intervals

COLUMNS = ("rank", "device", "step", "start_us", "end_us")


def exposed_stretches(attribution: Attribution) -> Table:
    """Rows of COLUMNS, disjoint within (rank, device, step); their lengths add up to `step_breakdown`'s exposed_us.

    Microseconds of the rank's own clock. Empty where the trace does not show what was communicated.
    """
    found = [] if communication_lost(attribution) else list(_stretches(attribution))
    bounds = np.concatenate([kept for _, _, kept in found]) if found else np.empty((0, 2))
    counts = [len(kept) for _, _, kept in found]
    places = Table.of(device=[device for device, _, _ in found], step=[step for _, step, _ in found])
    table = places.take(np.repeat(np.arange(len(found)), counts))
    table = table.assign(rank=attribution.trace.rank, start_us=bounds[:, 0], end_us=bounds[:, 1])
    return table.select(COLUMNS)


def _stretches(attribution: Attribution) -> list[tuple[int | None, int | None, Intervals]]:
    return _on_devices(attribution) if attribution.on_device else _on_cpu(attribution)


def _on_devices(attribution: Attribution) -> list[tuple[int | None, int | None, Intervals]]:
    events = attribution.events
    starts, ends = attribution.windows.start_us, attribution.windows.end_us
    launched = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    found: list[tuple[int | None, int | None, Intervals]] = []
    for device in np.unique(events.device[launched]):
        own = launched & (events.device == device)
        compute = _union(attribution, own & attribution.rows(Kind.COMPUTE))
        exposed = intervals.difference(_union(attribution, own & attribution.rows(*COMMUNICATION_KINDS)), compute)
        for index in np.flatnonzero(np.isfinite(ends)):
            kept = intervals.clip(exposed, float(starts[index]), float(ends[index]))
            if len(kept):
                found.append((int(device), attribution.steps.numbers[index], kept))
    return found


def _on_cpu(attribution: Attribution) -> list[tuple[int | None, int | None, Intervals]]:
    events = attribution.events
    if not len(events):
        return []
    compute = cpu_compute(attribution)
    first_us, last_us = float(events.start_us.min()), float(events.end_us.max())
    found: list[tuple[int | None, int | None, Intervals]] = []
    for index, rows in enumerate(attribution.by_step(attribution.rows(Kind.COLLECTIVE, Kind.HOST_RANGE))):
        start = max(float(attribution.steps.start_us[index]), first_us)
        end = min(float(attribution.steps.end_us[index]), last_us)
        communication = intervals.clip(_union(attribution, rows), start, end)
        kept = intervals.difference(communication, intervals.clip(compute, start, end))
        if len(kept):
            found.append((None, attribution.steps.numbers[index], kept))
    return found


def _union(attribution: Attribution, rows: np.ndarray) -> Intervals:
    return intervals.union(attribution.events.start_us[rows], attribution.events.end_us[rows])
