"""Per (rank, device, step): compute, communication, what is exposed, copies, idle, phases.

Definitions: docs/measures.md. A step is a window of its process, shared by the process's devices;
on the CPU it is the ProfilerStep range. A window that is partial is no part of means: a device's
first one, whose start was not recorded, and the CPU's last one, in which the tracer is stopped
while gloo's threads still close their ranges.
"""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn, is_among
from dpscope.analysis.traces.reading.table import Groups, Table
from dpscope.analysis.traces.steps import gloo, intervals
from dpscope.analysis.traces.steps.attribution import Attribution, empty_steps
from dpscope.analysis.traces.steps.event_kind import (
    COMMUNICATION_KINDS,
    COPY_KINDS,
    DEVICE_KINDS,
    Kind,
    named_annotations,
    named_operators,
)
from dpscope.analysis.traces.steps.findings import communication_lost, shows_no_device
from dpscope.analysis.traces.steps.intervals import Intervals, innermost
from dpscope.profiling.records import range_names as phases

EXPOSED_COLUMNS = ("rank", "device", "step", "start_us", "end_us")
# Each ends in its unit or in _count, and is named in docs/python-api.md.
COLUMNS = (
    "rank",
    "device",
    "step",
    "step_us",
    "compute_us",
    "communication_us",
    "hidden_us",
    "exposed_us",
    "host_copy_us",
    "device_copy_us",
    "idle_us",
    "clipped_us",
    "partial_window",
    "data_us",
    "host_to_device_us",
    "forward_us",
    "backward_us",
    "optimizer_us",
    "collective_count",
    "by_time_us",
    "unlaunched_us",
)

_PHASE_COLUMNS = {f"{name.removeprefix(phases.PREFIX)}_us": name for name in phases.STEP_PHASES}

_DDP_FORWARD = "DistributedDataParallel.forward"


# Of a step that the file may not hold to its end, or of which it holds nothing.
_CUT: dict[str, object] = {"partial_window": True}
_Row = tuple[dict[str, object], Intervals]
"""A row of COLUMNS, and when its communication was exposed."""


def step_table(attribution: Attribution) -> Table:
    """One row per (rank, device, step), COLUMNS; times in microseconds.

    step_us = compute_us + exposed_us + idle_us; `unlaunched_us` is the part of idle_us in which
    nothing had been launched for the device, not even a copy. `device` is NA on a CPU timeline,
    `step` where the trace marks none.
    """
    return step_tables(attribution)[0]


def step_tables(attribution: Attribution) -> tuple[Table, Table]:
    """`step_table`, and rows of EXPOSED_COLUMNS: the stretches of exposed communication.

    Stretches are disjoint within (rank, device, step), and their lengths add up to exposed_us;
    microseconds of the rank's own clock. There are none where the trace does not show what was
    communicated.
    """
    rows_of_steps = _device_rows if attribution.on_device else _cpu_rows
    steps = list(rows_of_steps(attribution))
    table = Table.from_records([row for row, _ in steps], COLUMNS)
    table = table.assign(rank=attribution.trace.rank)
    stretches = [exposed for _, exposed in steps]
    if communication_lost(attribution):  # nothing shown is not nothing done
        table = table.assign(communication_us=None, hidden_us=None, exposed_us=None)
        stretches = [intervals.EMPTY] * len(steps)
    step_of_stretch = np.repeat(np.arange(len(steps)), [len(exposed) for exposed in stretches])
    starts, ends = np.concatenate([intervals.EMPTY, *stretches]).T
    places = table.select(EXPOSED_COLUMNS[:3]).take(step_of_stretch)
    return table, places.assign(start_us=starts, end_us=ends)


def _device_rows(attribution: Attribution) -> Iterator[_Row]:
    events = attribution.events
    windows = attribution.windows
    numbers = attribution.steps.numbers
    if attribution.trace.unread and shows_no_device(attribution):
        for number in numbers:  # of which nothing is known
            yield {"step": number}, intervals.EMPTY
    phase_of_row = _phase_of_launch(attribution)
    in_a_step = attribution.in_steps(*DEVICE_KINDS)
    shown = np.flatnonzero(np.isfinite(windows.end_us) | windows.hidden | windows.cut).tolist()
    for device in np.unique(events.device[in_a_step]).tolist():
        of_device = in_a_step & attribution.occupies(device)
        compute = intervals.of_events(events, of_device & attribution.rows(Kind.COMPUTE))
        communicates = of_device & attribution.rows(*COMMUNICATION_KINDS)
        communication = intervals.of_events(events, communicates)
        exposed = intervals.difference(communication, compute)
        inside = _lengths_in_windows(attribution, of_device, compute, communication)
        by_time = intervals.of_events(events, of_device & attribution.by_time)
        by_time_us = windows.lengths_of(by_time)
        of_device_by_step = attribution.by_step(of_device)
        for index in shown:
            row: dict[str, object] = {"device": device, "step": numbers[index]}
            if windows.cut[index]:
                yield row | _CUT, intervals.EMPTY
                continue
            in_step = of_device_by_step[index]
            row |= {
                "clipped_us": _clipped_us(attribution, in_step, windows.start_us[index]),
                "partial_window": not windows.whole[index] or windows.hidden[index],
                "collective_count": attribution.collective_count(in_step),
                "by_time_us": by_time_us[index],
            }
            if windows.hidden[index]:  # its own work ran, but its begin and end are unknown
                yield row, intervals.EMPTY
                continue
            row |= {name: lengths[index] for name, lengths in inside.items()}
            if by_time_us[index] > 0.0:  # launched who knows when
                row["unlaunched_us"] = None
            if phase_of_row is not None:
                row |= _lengths_in_phases(attribution, in_step, phase_of_row)
            yield row, intervals.clip(exposed, windows.start_us[index], windows.end_us[index])


def _clipped_us(attribution: Attribution, in_step: IntColumn, start_us: float) -> float:
    """Of a step's events what ran before its window, while an earlier step ended: it is cut off."""
    events = attribution.events
    early = in_step[(events.start_us[in_step] < start_us) & ~attribution.by_time[in_step]]
    begun_early = intervals.of_events(events, early)
    return intervals.length(intervals.clip(begun_early, -np.inf, start_us))


def _lengths_in_phases(
    attribution: Attribution, in_step: IntColumn, phase_of_row: IntColumn
) -> dict[str, object]:
    """Device time of a step's work by the phase that it was launched in, by column; communication
    left out.
    """
    work = in_step[~is_among(attribution.kind[in_step], COMMUNICATION_KINDS)]
    lengths_us: dict[str, object] = {}
    for code, column in enumerate(_PHASE_COLUMNS):
        of_phase = work[phase_of_row[work] == code]
        lengths_us[column] = intervals.length(intervals.of_events(attribution.events, of_phase))
    return lengths_us


def _lengths_in_windows(
    attribution: Attribution, of_device: BoolColumn, compute: Intervals, communication: Intervals
) -> dict[str, FloatColumn]:
    """What one device did in each window, by column: microseconds, NaN for a step without a
    window.
    """
    events = attribution.events
    windows = attribution.windows
    host_copies = intervals.of_events(events, of_device & attribution.rows(Kind.HOST_COPY))
    copies = intervals.of_events(events, of_device & attribution.rows(*COPY_KINDS))
    either = intervals.merge(compute, communication)
    compute_us = windows.lengths_of(compute)
    communication_us = windows.lengths_of(communication)
    either_us = windows.lengths_of(either)
    with_host_copies_us = windows.lengths_of(intervals.merge(either, host_copies))
    step_us = windows.end_us - windows.start_us
    # From the begin of the call that launched it: the time that a launch takes is none in which
    # nothing was launched.
    begins_us = np.fmin(attribution.launch_us[of_device], events.start_us[of_device])
    launched = intervals.union(begins_us, events.end_us[of_device])
    # by |C ∩ K| = |C| + |K| - |C ∪ K| and |C \ K| = |C ∪ K| - |K|, without cutting intervals
    return {
        "step_us": step_us,
        "compute_us": compute_us,
        "communication_us": communication_us,
        "hidden_us": compute_us + communication_us - either_us,
        "exposed_us": either_us - compute_us,
        "host_copy_us": with_host_copies_us - either_us,
        "device_copy_us": windows.lengths_of(intervals.merge(either, copies)) - with_host_copies_us,
        "idle_us": step_us - either_us,
        "unlaunched_us": step_us - windows.lengths_of(launched),
    }


def _phase_of_launch(attribution: Attribution) -> IntColumn | None:
    """Index in STEP_PHASES of the range in which each device event was launched, -1 for none; None
    without ranges.

    By time, whatever the thread: the backward pass launches from autograd's own threads.
    """
    events = attribution.events
    names = phases.STEP_PHASES
    ranges = named_annotations(events, phases.PREFIX) & events.named(names.__contains__)
    if not ranges.any():
        return None
    rows = np.flatnonzero(ranges)
    rows = rows[np.lexsort((events.end_us[rows], events.start_us[rows]))]
    codes = [names.index(events.name_of(row)) for row in rows.tolist()]
    starts, ends = intervals.spans(events, rows).T
    return np.append(codes, -1)[intervals.index_at(starts, ends, attribution.launch_us)]


def reduction_ends_us(attribution: Attribution) -> dict[int | None, list[float]]:
    """When DDP had copied the last gradient out of its bucket, by the step's number, for each time
    that it reduced in it.

    Microseconds after the trace's start. On a device the end of the last event that the backward
    pass launched, on all devices of the process: empty without dpscope's ranges. On a CPU the end
    of the last of DDP's copies after each of its forward passes.
    """
    events = attribution.events
    ends_us: dict[int | None, list[float]] = {}
    begins_us = np.empty(0)  # of the forward passes
    if attribution.on_device:
        phase = _phase_of_launch(attribution)
        if phase is None:
            return ends_us
        launched = attribution.in_steps(*DEVICE_KINDS) & ~attribution.by_time
        last = launched & (phase == phases.STEP_PHASES.index(phases.BACKWARD))
    else:
        last = gloo.copies_out(events)
        begins_us = np.sort(events.start_us[named_annotations(events, _DDP_FORWARD)])
    for number, rows in zip(attribution.steps.numbers, attribution.by_step(last), strict=True):
        if len(rows):
            passes = Groups.by([np.searchsorted(begins_us, events.start_us[rows])], len(rows))
            ends_us[number] = sorted(passes.most(events.end_us[rows]).tolist())
    return ends_us


def _cpu_rows(attribution: Attribution) -> Iterator[_Row]:
    events = attribution.events
    steps = attribution.steps
    if not len(events):
        return
    compute = cpu_compute(attribution)
    empty = empty_steps(attribution)
    # else the trace has no such ranges at all
    named = _PHASE_COLUMNS.items() if phases.FORWARD in events.names else ()
    ranges_of_step = {
        name: attribution.by_step(events.annotations & events.named(phase.__eq__))
        for name, phase in named
    }
    starts = np.maximum(steps.start_us, events.start_us.min()).tolist()
    ends = np.minimum(steps.end_us, events.end_us.max()).tolist()
    communicates = attribution.rows(Kind.COLLECTIVE, Kind.HOST_RANGE)
    for index, rows in enumerate(attribution.by_step(communicates)):
        window = starts[index], ends[index]
        step_us = ends[index] - starts[index]
        row: dict[str, object] = {"step": steps.numbers[index]}
        if attribution.windows.cut[index]:
            yield row | _CUT, intervals.EMPTY
            continue
        if index in empty:
            yield row | _CUT | {"step_us": step_us}, intervals.EMPTY
            continue
        called = intervals.of_events(events, rows)
        communication = intervals.clip(called, *window)
        compute_us = intervals.length_within(compute, np.array([window]))
        communication_us = intervals.length(communication)
        hidden_us = intervals.length_within(compute, communication)
        exposed_us = communication_us - hidden_us
        row |= {
            "step_us": step_us,
            "compute_us": compute_us,
            "communication_us": communication_us,
            "hidden_us": hidden_us,
            "exposed_us": exposed_us,
            "idle_us": step_us - compute_us - exposed_us,
            "clipped_us": intervals.length(called) - communication_us,
            "partial_window": not steps.marked or index == len(steps) - 1 > 0,
            "collective_count": attribution.collective_count(rows),
        }
        for name, of_step in ranges_of_step.items():
            ranges = intervals.of_events(events, of_step[index])
            row[name] = intervals.length_within(compute, ranges)
        yield row, intervals.difference(communication, intervals.clip(compute, *window))


def cpu_compute(attribution: Attribution) -> Intervals:
    """K of a CPU timeline: the union over threads of the time in which the innermost operator or
    range of a thread computes.
    """
    return intervals.merge(*(computed for _, computed in compute_by_thread(attribution)))


def compute_by_thread(attribution: Attribution) -> Iterator[tuple[IntColumn, Intervals]]:
    """Of each thread of a CPU timeline its operators, and when the innermost of them computes.

    An operator may enclose a wait: `aten::sum` of a DTensor encloses
    `_c10d_functional::wait_tensor`, an autograd node encloses FSDP's hooks. Of such an operator
    only the rest counts, and operators within the wait count again. dp-host's ranges are taken out
    with all that is inside.
    """
    events = attribution.events
    compute = np.flatnonzero(attribution.rows(Kind.COMPUTE))
    copies = np.flatnonzero(attribution.rows(Kind.HOST_RANGE))
    calls = np.flatnonzero(attribution.rows(Kind.COMMUNICATION_CALL))
    waiting_threads, waits = _waits_in_callers(attribution)
    for thread in np.unique(events.thread[compute]).tolist():
        operators = compute[events.thread[compute] == thread]
        in_calls = intervals.spans(events, calls[events.thread[calls] == thread])
        waits_here = np.concatenate((in_calls, waits[waiting_threads == thread]))
        computed = _innermost(intervals.spans(events, operators), waits_here)
        copied = intervals.of_events(events, copies[events.thread[copies] == thread])
        yield operators, intervals.difference(computed, copied)


def _innermost(operators: Intervals, waits: Intervals) -> Intervals:
    """The union of the operators without the waits within them; operators within a wait count, but
    for waits within these.
    """
    computed = intervals.EMPTY
    while len(waits):
        waiting = intervals.merge(waits)
        inside = _begin_inside(operators, waiting)
        outer = operators[~inside]
        computed = intervals.merge(computed, intervals.difference(intervals.merge(outer), waiting))
        operators = operators[inside]
        deeper = waits[_begin_inside(waits, intervals.merge(operators))]
        # as many only where damaged ranges do not nest
        waits = deeper if len(deeper) < len(waits) else waits[:0]
    return intervals.merge(computed, operators)


def _begin_inside(spans: Intervals, others: Intervals) -> BoolColumn:
    """Which spans begin in one of these disjoint intervals and are not the whole of it, or more."""
    starts, ends = spans.T
    place = intervals.index_at(others[:, 0], others[:, 1], starts)
    # none is inside of the one behind the last
    around_starts, around_ends = np.append(others, [[np.inf, -np.inf]], axis=0)[place].T
    inside: BoolColumn = (starts > around_starts) | (ends < around_ends)
    return inside


def _waits_in_callers(attribution: Attribution) -> tuple[IntColumn, Intervals]:
    """Waits for collectives that an operator started by `torch.distributed`, until the collective
    or the operator ends.

    `all_reduce(tensor)` and `work.wait()` block without an event, in autograd hooks and in an
    `autograd.Function`. Operators that call `c10d` directly are Python code: they compute only in
    the operators that they call. Returns the waits' threads, and the waits.
    """
    events = attribution.events
    collectives = np.flatnonzero(attribution.rows(Kind.COLLECTIVE))
    callers = gloo.creators(events, collectives)
    within = innermost(events, callers, attribution.rows(Kind.COMPUTE))
    functional = named_operators(events, "_c10d_functional", "c10d_functional")
    waits = (within >= 0) & (innermost(events, callers, functional) < 0)
    callers = callers[waits]
    starts = events.start_us[callers]
    ends = np.minimum(events.end_us[within[waits]], events.end_us[collectives[waits]])
    return events.thread[callers], np.column_stack((starts, np.maximum(starts, ends)))
