"""What a step computes, kernel by kernel: classes of kernels whose times add up to the compute time
of their step.
"""

import numpy as np

from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table, Words, joined
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.breakdown import compute_by_thread
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.analysis.traces.steps.intervals import Pieces, index_at, innermost_at
from dpscope.analysis.traces.steps.kernel_times import next_to_communication_us, operators_of

CLASS = ("operator", "kernel", "sizes", "launch")
"""What the kernels of a class share: the operator that launched them, their name, its input sizes,
grid and block. On a CPU timeline operators stand for kernels.
"""
NO_OPERATOR = "unknown"
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
    devices = _on_devices(attribution) if attribution.on_device else [_on_cpu(attribution)]
    rows = [_classes(attribution, *one) for one in devices]
    return joined([Table.of(**dict.fromkeys(COLUMNS, ())), *rows]).select(COLUMNS)


def _on_devices(attribution: Attribution) -> list[tuple[int, IntColumn, Pieces]]:
    """Of each device its kernels, and the pieces of time that belong to them."""
    events = attribution.events
    computes = attribution.rows(Kind.COMPUTE) & (attribution.step >= 0)
    found = []
    for device in np.unique(events.device[computes]).tolist():
        rows = np.flatnonzero(computes & (events.device == device))
        found.append((device, rows, Pieces(events.start_us[rows], events.end_us[rows], rows)))
    return found


def _on_cpu(attribution: Attribution) -> tuple[int, IntColumn, Pieces]:
    """The operators, and the pieces of time in which each is the innermost of its thread and
    computes.
    """
    events = attribution.events
    every = np.flatnonzero(attribution.rows(Kind.COMPUTE) & (attribution.step >= 0))
    starts, ends = [np.empty(0)], [np.empty(0)]
    rows = [np.empty(0, dtype=np.int64)]
    for operators, computed in compute_by_thread(attribution):
        order = np.lexsort((-events.duration_us[operators], events.start_us[operators]))
        own = operators[order]
        own_starts, own_ends = events.start_us[own], events.end_us[own]
        edges = np.unique(np.concatenate([own_starts, own_ends, computed.ravel()]))
        middles = (edges[1:] + edges[:-1]) / 2
        innermost = innermost_at(own_starts, own_ends, middles)
        computes = index_at(computed[:, 0], computed[:, 1], middles) >= 0
        kept = computes & (innermost >= 0)
        starts.append(edges[:-1][kept])
        ends.append(edges[1:][kept])
        rows.append(own[innermost[kept]])
    pieces = Pieces(*(np.concatenate(parts) for parts in (starts, ends, rows)))
    return UNKNOWN, every, pieces


def _classes(attribution: Attribution, device: int, kernels: IntColumn, pieces: Pieces) -> Table:
    """The classes of one device, or of the CPU."""
    free = np.zeros(len(attribution.events), dtype=bool)
    free[kernels] = next_to_communication_us(attribution, kernels) == 0
    step, row, time_us = _times_in_steps(attribution, pieces)
    calls = np.repeat([1.0, 0.0], [len(kernels), len(row)])
    rows = np.concatenate([kernels, row])
    times_us = np.concatenate([np.zeros(len(kernels)), time_us])
    both = Table.of(
        index=np.concatenate([attribution.step[kernels], step]),
        calls=calls,
        time_us=times_us,
        free_calls=calls * free[rows],
        free_us=times_us * free[rows],
        **_class_of(attribution, rows),
    )
    groups = both.group("index", *CLASS)
    numbers = [UNKNOWN if one is None else one for one in attribution.steps.numbers]
    found = both.take(groups.first).assign(**{name: groups.sums(both[name]) for name in _SUMS})
    return found.assign(
        rank=attribution.trace.rank,
        device=np.full(len(found), device),
        step=np.array(numbers)[found["index"]],
    )


def _class_of(attribution: Attribution, rows: IntColumn) -> dict[str, object]:
    """The columns of CLASS for these events, of which an event may occur several times."""
    events = attribution.events
    kernels, place = np.unique(rows, return_inverse=True)
    operator = operators_of(attribution, kernels)
    called = np.append(events.name, len(events.names))[operator]
    return {
        "operator": Words.coded(called[place], [*events.names, NO_OPERATOR]),
        "kernel": Words.coded(events.name[rows], events.names),
        "sizes": np.append(events.shape, -1)[operator][place],
        "launch": events.shape[rows],
    }


def _times_in_steps(
    attribution: Attribution, pieces: Pieces
) -> tuple[IntColumn, IntColumn, FloatColumn]:
    """The pieces cut at the steps' edges: of each its step's index, its event's row and its length."""
    windows = attribution.windows if attribution.on_device else attribution.steps
    known = np.flatnonzero(~np.isnan(windows.start_us))
    starts, ends = windows.start_us[known], windows.end_us[known]
    edges = np.unique(np.concatenate([pieces.starts, pieces.ends, starts, ends]))
    middles, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    row, window = pieces.row_at(middles), index_at(starts, ends, middles)
    inside = (row >= 0) & (window >= 0)
    return known[window[inside]], row[inside], lengths[inside]
