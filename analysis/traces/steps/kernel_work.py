"""What a step computes, kernel by kernel: classes of kernels whose times add up to the compute time
of their step.
"""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table, Words, joined, without_rows
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import compute_by_thread
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.analysis.traces.steps.intervals import Pieces, index_at, innermost_at, spans
from dpscope.analysis.traces.steps.kernel_times import next_to_communication_us, operators_of

CLASS = ("operator", "kernel", "sizes", "launch")
"""What the kernels of a class share: the operator that launched them, their name, its input sizes,
grid and block. On a CPU timeline operators stand for kernels, and kernels for operators where none
is recorded: in CUDA graphs, and in exports of nsys.
"""
_SUMS = ("calls", "time_us", "free_calls", "free_us")
COLUMNS = ("rank", "device", "step", *CLASS, *_SUMS)


def kernel_work(attribution: Attribution) -> Table:
    """A row of COLUMNS per (rank, device, step) and class.

    `time_us` is the time of the step's window in which a kernel of the class runs; where several
    run at once, it counts for the one that began first, so that a step's rows add up to its
    compute_us. `calls` are the kernels that the step launched. `free_calls` and `free_us` are those
    next to which no communication runs. `sizes` and `launch` stand for equal sizes, grids and
    blocks in any trace, and are negative where the trace records none.
    """
    timelines = _on_devices(attribution) if attribution.on_device else [_on_cpu(attribution)]
    tables = [_classes(attribution, *timeline) for timeline in timelines]
    return joined([without_rows(COLUMNS), *tables]).select(COLUMNS)


_Timeline = tuple[int, IntColumn, Pieces]
"""A device, the rows of its kernels, and the pieces of time that belong to each."""


def _on_devices(attribution: Attribution) -> Iterator[_Timeline]:
    events = attribution.events
    computes = attribution.in_steps(Kind.COMPUTE)
    for device in np.unique(events.device[computes]).tolist():
        rows = np.flatnonzero(computes & (events.device == device))
        pieces = Pieces(events.start_us[rows], events.end_us[rows], rows)
        yield device, rows, pieces


def _on_cpu(attribution: Attribution) -> _Timeline:
    """A piece belongs to the operator that is the innermost of its thread and computes."""
    operators = np.flatnonzero(attribution.in_steps(Kind.COMPUTE))
    events = attribution.events
    starts = [np.empty(0)]
    ends = [np.empty(0)]
    rows = [operators[:0]]
    for of_thread, computed in compute_by_thread(attribution):
        outer_first = events.outer_first(of_thread)
        begin_us, end_us = spans(events, outer_first).T
        # nothing begins or ends between two edges: the middle stands for all of the time
        edges = np.unique(np.concatenate([begin_us, end_us, computed.ravel()]))
        middles = _middles(edges)
        innermost = innermost_at(begin_us, end_us, middles)
        computed_from, computed_to = computed.T
        computes = index_at(computed_from, computed_to, middles) >= 0
        kept = computes & (innermost >= 0)
        starts.append(edges[:-1][kept])
        ends.append(edges[1:][kept])
        rows.append(outer_first[innermost[kept]])
    pieces = Pieces(np.concatenate(starts), np.concatenate(ends), np.concatenate(rows))
    return UNKNOWN, operators, pieces


def _middles(edges: FloatColumn) -> FloatColumn:
    return (edges[1:] + edges[:-1]) / 2


def _classes(attribution: Attribution, device: int, kernels: IntColumn, pieces: Pieces) -> Table:
    """The classes of one device, or of the CPU: a row for each call and each piece, summed."""
    step, kernel, piece_us = _pieces_in_steps(attribution, pieces)
    # first the calls, which take no time by themselves, then the pieces
    rows = np.append(kernels, kernel)
    calls = np.append(np.ones(len(kernels)), np.zeros(len(kernel)))
    time_us = np.append(np.zeros(len(kernels)), piece_us)
    is_free = np.zeros(len(attribution.events))
    is_free[kernels] = next_to_communication_us(attribution, kernels) == 0
    free = is_free[rows]
    both = Table.of(
        index=np.append(attribution.step[kernels], step),
        calls=calls,
        time_us=time_us,
        free_calls=calls * free,
        free_us=time_us * free,
        **_class_of(attribution, rows),
    )
    groups = both.group("index", *CLASS)
    sums = {name: groups.sums(both[name]) for name in _SUMS}
    classes = both.take(groups.first).assign(**sums)
    return classes.assign(
        rank=attribution.trace.rank,
        device=device,
        step=[attribution.steps.numbers[index] for index in classes["index"].tolist()],
    )


def _class_of(attribution: Attribution, rows: IntColumn) -> dict[str, object]:
    """The columns of CLASS for these events, of which an event may occur several times."""
    events = attribution.events
    # each event's operator is looked for once
    kernels, place = np.unique(rows, return_inverse=True)
    operator = operators_of(attribution, kernels)
    has_operator = operator >= 0
    sizes = np.where(has_operator, events.shape[operator], -1)
    operator = np.where(has_operator, operator, kernels)
    return {
        "operator": Words.coded(events.name[operator][place], events.names),
        "kernel": Words.coded(events.name[rows], events.names),
        "sizes": sizes[place],
        "launch": events.shape[rows],
    }


def _pieces_in_steps(
    attribution: Attribution, pieces: Pieces
) -> tuple[IntColumn, IntColumn, FloatColumn]:
    """The pieces cut at the steps' edges: of each its step's index, its event's row, its length."""
    windows = attribution.windows if attribution.on_device else attribution.steps
    timed = np.flatnonzero(~np.isnan(windows.start_us))
    starts = windows.start_us[timed]
    ends = windows.end_us[timed]
    edges = np.unique(np.concatenate([pieces.starts, pieces.ends, starts, ends]))
    middles = _middles(edges)
    row = pieces.row_at(middles)
    window = index_at(starts, ends, middles)
    inside = (row >= 0) & (window >= 0)
    return timed[window[inside]], row[inside], np.diff(edges)[inside]
