"""When the CPU computes: in an operator, but not while the operator's thread waits for communication inside it."""

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, IntColumn
from dpscope.analysis.traces.steps import gloo, intervals
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind, named_operators
from dpscope.analysis.traces.steps.intervals import Intervals, innermost


def cpu_compute(attribution: Attribution) -> Intervals:
    """K of a CPU timeline: the union over threads of the time in which the innermost operator or range of a thread computes.

    An operator may enclose a wait: `aten::sum` of a DTensor encloses `_c10d_functional::wait_tensor`, an autograd node encloses
    FSDP's hooks. Of such an operator only the rest counts, and operators within the wait count again. dp-host's ranges are
    taken out with all that is inside.
    """
    events = attribution.events
    compute = np.flatnonzero(attribution.rows(Kind.COMPUTE))
    copies = np.flatnonzero(attribution.rows(Kind.HOST_RANGE))
    calls = np.flatnonzero(attribution.rows(Kind.COMMUNICATION_CALL))
    waiting_threads, waits = _waits_in_callers(attribution)
    parts = []
    for thread in np.unique(events.thread[compute]).tolist():
        operators = intervals.spans(events, compute[events.thread[compute] == thread])
        own_calls = intervals.spans(events, calls[events.thread[calls] == thread])
        own = _innermost(operators, np.concatenate((own_calls, waits[waiting_threads == thread])))
        taken_out = intervals.of_events(events, copies[events.thread[copies] == thread])
        parts.append(intervals.difference(own, taken_out))
    return intervals.merge(*parts)


def _innermost(operators: Intervals, waits: Intervals) -> Intervals:
    """The union of the operators without the waits within them; operators within a wait count, but for waits within these."""
    computed = intervals.EMPTY
    while len(waits):
        waiting = intervals.merge(waits)
        inside = _begin_inside(operators, waiting)
        outer = operators[~inside]
        computed = intervals.merge(computed, intervals.difference(intervals.merge(outer), waiting))
        operators = operators[inside]
        deeper = waits[_begin_inside(waits, intervals.merge(operators))]
        waits = deeper if len(deeper) < len(waits) else waits[:0]  # as many only where damaged ranges do not nest
    return intervals.merge(computed, operators)


def _begin_inside(spans: Intervals, others: Intervals) -> BoolColumn:
    """Which spans begin in one of these disjoint intervals and are not the whole of it, or more."""
    if not len(others):
        return np.zeros(len(spans), dtype=np.bool_)
    place = intervals.index_at(others[:, 0], others[:, 1], spans[:, 0])
    around = others[place]
    return (place >= 0) & ((spans[:, 0] > around[:, 0]) | (spans[:, 1] < around[:, 1]))


def _waits_in_callers(attribution: Attribution) -> tuple[IntColumn, Intervals]:
    """Waits for collectives that an operator started by `torch.distributed`, until the collective or the operator ends.

    `all_reduce(tensor)` and `work.wait()` block without an event, in autograd hooks and in an `autograd.Function`. Operators
    that call `c10d` directly are Python code: they compute only in the operators that they call. Returns the waits' threads, and
    the waits.
    """
    events = attribution.events
    collectives = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    callers = gloo.creators(events, collectives)
    within = innermost(events, callers, attribution.rows(Kind.COMPUTE))
    functional = innermost(events, callers, named_operators(events, "_c10d_functional", "c10d_functional")) >= 0
    rows = np.flatnonzero((within >= 0) & ~functional)
    starts = events.start_us[callers[rows]]
    ends = np.minimum(events.end_us[within[rows]], events.end_us[collectives[rows]])
    return events.thread[callers[rows]], np.stack((starts, np.maximum(starts, ends)), axis=1)
