"""Per (rank, device, step): compute, communication, what is exposed, copies, idle, phases.

Definitions: docs/measures.md. A step is a window of its process, shared by the process's devices;
on the CPU it is the ProfilerStep range. A window that is partial is no part of means: a device's
first one, whose start was not recorded, and the CPU's last one, in which the tracer is stopped
while gloo's threads still close their ranges.
"""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    FloatColumn,
    IntColumn,
    is_among,
)
from dpscope.analysis.traces.reading.table import Table
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
    "rank", "device", "step", "step_us", "compute_us", "communication_us", "hidden_us", "exposed_us",
    "host_copy_us", "device_copy_us", "idle_us", "clipped_us", "partial_window", "data_us", "host_to_device_us", "forward_us",
    "backward_us", "optimizer_us", "collective_count", "by_time_us", "unlaunched_us",
)  # fmt: skip

_PHASE_COLUMNS = {f"{name.removeprefix(phases.PREFIX)}_us": name for name in phases.STEP_PHASES}

_DDP_FORWARD = "DistributedDataParallel.forward"


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
    rows_with_stretches = list(
        _device_rows(attribution) if attribution.on_device else _cpu_rows(attribution)
    )
    rank, rows = attribution.trace.rank, [row for row, _ in rows_with_stretches]
    table = Table.from_records(rows, COLUMNS).assign(rank=rank)
    stretches = [exposed for _, exposed in rows_with_stretches]
    if communication_lost(attribution):  # nothing shown is not nothing done
        table = table.assign(communication_us=None, hidden_us=None, exposed_us=None)
        stretches = [intervals.EMPTY] * len(rows_with_stretches)
    bounds = np.concatenate([intervals.EMPTY, *stretches])
    places = table.select(("rank", "device", "step")).take(
        np.repeat(np.arange(len(rows_with_stretches)), list(map(len, stretches)))
    )
    return table, places.assign(start_us=bounds[:, 0], end_us=bounds[:, 1])


def _device_rows(attribution: Attribution) -> Iterator[_Row]:
    events, windows = attribution.events, attribution.windows
    if attribution.trace.unread and shows_no_device(attribution):
        for number in attribution.steps.numbers:  # of which nothing is known
            yield {"step": number}, intervals.EMPTY
    phase_of_row = _phase_of_launch(attribution)
    in_a_step = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0)
    computes, communicates = attribution.rows(Kind.COMPUTE), attribution.rows(*COMMUNICATION_KINDS)
    for device in np.unique(events.device[in_a_step]).tolist():
        of_device = in_a_step & attribution.occupies(device)
        compute, communication = (
            intervals.of_events(events, of_device & selected)
            for selected in (computes, communicates)
        )
        exposed = intervals.difference(communication, compute)
        inside = _lengths_in_windows(attribution, of_device, compute, communication)
        by_time_us = windows.lengths_of(
            intervals.of_events(events, of_device & attribution.by_time)
        )
        of_device_by_step = attribution.by_step(of_device)
        for index in np.flatnonzero(
            np.isfinite(windows.end_us) | windows.hidden | windows.cut
        ).tolist():
            if windows.cut[index]:
                yield _cut_row(attribution, index) | {"device": device}, intervals.EMPTY
                continue
            in_step, start_us = of_device_by_step[index], windows.start_us[index]
            # launched by this step, begun while an earlier one ended: cut off, and counted as clipped
            early = in_step[(events.start_us[in_step] < start_us) & ~attribution.by_time[in_step]]
            row: dict[str, object] = {
                "device": device,
                "step": attribution.steps.numbers[index],
                "clipped_us": intervals.length(
                    intervals.clip(intervals.of_events(events, early), -np.inf, start_us)
                ),
                "partial_window": not windows.whole[index] or windows.hidden[index],
                "collective_count": int((attribution.kind[in_step] == Kind.COLLECTIVE).sum()),
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
            yield row, intervals.clip(exposed, start_us, windows.end_us[index])


def _lengths_in_phases(
    attribution: Attribution, in_step: IntColumn, phase_of_row: IntColumn
) -> dict[str, object]:
    """Device time of a step's work by the phase that it was launched in, by column; communication
    left out.
    """
    work = in_step[~is_among(attribution.kind[in_step], COMMUNICATION_KINDS)]
    rows = {column: work[phase_of_row[work] == code] for code, column in enumerate(_PHASE_COLUMNS)}
    return {
        column: intervals.length(intervals.of_events(attribution.events, of_phase))
        for column, of_phase in rows.items()
    }


def _cut_row(attribution: Attribution, index: int) -> dict[str, object]:
    """Of a step that the file may not hold to its end: nothing is known of it."""
    return {"step": attribution.steps.numbers[index], "partial_window": True}


def _lengths_in_windows(
    attribution: Attribution, of_device: BoolColumn, compute: Intervals, communication: Intervals
) -> dict[str, FloatColumn]:
    """What one device did in each window, by column: microseconds, NaN for a step without a
    window.
    """
    events, windows = attribution.events, attribution.windows
    host_copies = intervals.of_events(events, of_device & attribution.rows(Kind.HOST_COPY))
    copies = intervals.of_events(events, of_device & attribution.rows(*COPY_KINDS))
    either = intervals.merge(compute, communication)
    compute_us, communication_us, either_us = map(
        windows.lengths_of, (compute, communication, either)
    )
    with_host_copies_us = windows.lengths_of(intervals.merge(either, host_copies))
    step_us = windows.end_us - windows.start_us
    # by |C ∩ K| = |C| + |K| - |C ∪ K| and |C \ K| = |C ∪ K| - |K|, without cutting intervals
    # From the begin of the call that launched it: the time that a launch takes is none in which
    # nothing was launched.
    launched = intervals.union(
        np.fmin(attribution.launch_us[of_device], events.start_us[of_device]),
        events.end_us[of_device],
    )
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
    events, names = attribution.events, phases.STEP_PHASES
    rows = np.flatnonzero(
        named_annotations(events, phases.PREFIX) & events.named(names.__contains__)
    )
    if not len(rows):
        return None
    rows = rows[np.lexsort((events.end_us[rows], events.start_us[rows]))]
    codes = [names.index(events.names[code]) for code in events.name[rows].tolist()]
    return np.array([*codes, -1])[
        intervals.index_at(events.start_us[rows], events.end_us[rows], attribution.launch_us)
    ]


def reduction_ends_us(attribution: Attribution) -> dict[int | None, list[float]]:
    """When DDP had copied the last gradient out of its bucket, by the step's number, for each time
    that it reduced in it.

    Microseconds after the trace's start. On a device the end of the last event that the backward
    pass launched, on all devices of the process: empty without dpscope's ranges. On a CPU the end
    of the last of DDP's copies after each of its forward passes.
    """
    events, ends_us = attribution.events, dict[int | None, list[float]]()
    passes = np.zeros(len(events), dtype=np.int64)  # the forward pass that each event follows
    if attribution.on_device:
        if (phase := _phase_of_launch(attribution)) is None:
            return ends_us
        launched = attribution.rows(*DEVICE_KINDS) & (attribution.step >= 0) & ~attribution.by_time
        last = launched & (phase == phases.STEP_PHASES.index(phases.BACKWARD))
    else:
        last = gloo.copies_out(events)
        passes = np.searchsorted(
            np.sort(events.start_us[named_annotations(events, _DDP_FORWARD)]), events.start_us
        )
    for number, rows in zip(attribution.steps.numbers, attribution.by_step(last), strict=True):
        if len(rows):
            reduced = (rows[passes[rows] == pass_number] for pass_number in np.unique(passes[rows]))
            ends_us[number] = sorted(float(events.end_us[copies].max()) for copies in reduced)
    return ends_us


def _cpu_rows(attribution: Attribution) -> Iterator[_Row]:
    events, steps, numbers = attribution.events, attribution.steps, attribution.steps.numbers
    if not len(events):
        return
    compute, empty = cpu_compute(attribution), set(empty_steps(attribution).tolist())
    annotations = events.is_category(Category.USER_ANNOTATION)
    # else the trace has no such ranges at all
    named = _PHASE_COLUMNS.items() if phases.FORWARD in events.names else ()
    ranges_of_step = {
        name: attribution.by_step(annotations & events.named(phase.__eq__)) for name, phase in named
    }
    first_us, last_us = float(events.start_us.min()), float(events.end_us.max())
    for index, rows in enumerate(
        attribution.by_step(attribution.rows(Kind.COLLECTIVE, Kind.HOST_RANGE))
    ):
        start, end = (
            max(float(steps.start_us[index]), first_us),
            min(float(steps.end_us[index]), last_us),
        )
        if attribution.windows.cut[index]:
            yield _cut_row(attribution, index), intervals.EMPTY
            continue
        if index in empty:
            yield (
                {"step": numbers[index], "step_us": end - start, "partial_window": True},
                intervals.EMPTY,
            )
            continue
        called = intervals.of_events(events, rows)
        communication = intervals.clip(called, start, end)
        compute_us = intervals.length_within(compute, np.array([[start, end]]))
        communication_us = intervals.length(communication)
        hidden_us = intervals.length_within(compute, communication)
        in_ranges = {
            name: intervals.of_events(events, of_step[index])
            for name, of_step in ranges_of_step.items()
        }
        row: dict[str, object] = {
            "step": numbers[index],
            "step_us": end - start,
            "compute_us": compute_us,
            "communication_us": communication_us,
            "hidden_us": hidden_us,
            "exposed_us": communication_us - hidden_us,
            "idle_us": (end - start) - compute_us - (communication_us - hidden_us),
            "clipped_us": intervals.length(called) - communication_us,
            "partial_window": numbers[index] is None or index == len(numbers) - 1 > 0,
            "collective_count": int((attribution.kind[rows] == Kind.COLLECTIVE).sum()),
            **{name: intervals.length_within(compute, spans) for name, spans in in_ranges.items()},
        }
        yield row, intervals.difference(communication, intervals.clip(compute, start, end))


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
    kinds = (Kind.COMPUTE, Kind.HOST_RANGE, Kind.COMMUNICATION_CALL)
    compute, copies, calls = (np.flatnonzero(attribution.rows(kind)) for kind in kinds)
    waiting_threads, waits = _waits_in_callers(attribution)
    for thread in np.unique(events.thread[compute]).tolist():
        operators, copies_here, calls_here = (
            rows[events.thread[rows] == thread] for rows in (compute, copies, calls)
        )
        waits_here = np.concatenate(
            (intervals.spans(events, calls_here), waits[waiting_threads == thread])
        )
        computed = _innermost(intervals.spans(events, operators), waits_here)
        yield operators, intervals.difference(computed, intervals.of_events(events, copies_here))


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
    if not len(others):
        return np.zeros(len(spans), dtype=np.bool_)
    place = intervals.index_at(others[:, 0], others[:, 1], spans[:, 0])
    around = others[place]
    return (place >= 0) & ((spans[:, 0] > around[:, 0]) | (spans[:, 1] < around[:, 1]))


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
    functional = (
        innermost(events, callers, named_operators(events, "_c10d_functional", "c10d_functional"))
        >= 0
    )
    rows = np.flatnonzero((within >= 0) & ~functional)
    starts = events.start_us[callers[rows]]
    ends = np.minimum(events.end_us[within[rows]], events.end_us[collectives[rows]])
    return events.thread[callers[rows]], np.stack((starts, np.maximum(starts, ends)), axis=1)
