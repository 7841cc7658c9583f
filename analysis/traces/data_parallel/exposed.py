"""DataParallel's exposed communication by phase: disjoint parts that add up to a step's `exposed_us`."""

from collections.abc import Mapping

import numpy as np

from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import COMMUNICATION_KINDS, Kind
from dpscope.analysis.traces.steps.intervals import Intervals

_PhasePlace = tuple[int, int, int]  # step's index, device, phase's code


def exposed_parts(spans: Mapping[str, Intervals], compute: Intervals, start: float, end: float) -> dict[str, float]:
    """Length of each phase's communication inside a window that neither compute nor an earlier phase covers."""
    taken = intervals.clip(compute, start, end)
    parts = {}
    for name, own in spans.items():
        exposed = intervals.difference(intervals.clip(own, start, end), taken)
        parts[name] = intervals.length(exposed)
        taken = intervals.merge(taken, exposed)
    return parts


def device_exposed_us(attribution: Attribution, phase: np.ndarray, names: tuple[str, ...]) -> dict[_PhasePlace, float]:
    """Exposed microseconds of every (step, device, phase); `phase` holds an index into `names` per event, -1 for none."""
    events = attribution.events
    starts, ends = attribution.windows.start_us, attribution.windows.end_us
    launched = phase >= 0
    communication = launched & attribution.rows(*COMMUNICATION_KINDS)
    compute_rows = launched & attribution.rows(Kind.COMPUTE)
    found: dict[_PhasePlace, float] = {}
    for device in np.unique(events.device[launched]).tolist():
        own = events.device == device
        computed = compute_rows & own
        compute = intervals.union(events.start_us[computed], events.end_us[computed])
        own_of_step = attribution.by_step(communication & own)
        for step in np.flatnonzero(np.isfinite(ends)).tolist():
            in_step = own_of_step[step]
            spans = {}
            for code, name in enumerate(names):
                rows = in_step[phase[in_step] == code]
                spans[name] = intervals.union(events.start_us[rows], events.end_us[rows])
            parts = exposed_parts(spans, compute, float(starts[step]), float(ends[step]))
            found |= {(step, device, names.index(name)): length_us for name, length_us in parts.items()}
    return found
