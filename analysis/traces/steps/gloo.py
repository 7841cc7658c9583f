"""How long gloo's collectives queued before a worker thread took them up.

A process group's workers serve one queue, first come, first served, and each carries out one work
after another. The `gloo:` range lies on the worker's thread. Depending on torch's version it begins
when the work is created, and then overlaps its worker's previous one while it queues, or when the
worker takes it up; then the operator that created it ended before.
"""

from dataclasses import replace

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    EventTable,
    FloatColumn,
    IntColumn,
)
from dpscope.analysis.traces.reading.table import Groups, Words
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.event_kind import (
    collective_kind,
    named_annotations,
    named_operators,
)
from dpscope.profiling.records import range_names as phases

_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"  # once for each gradient


def queue_us(events: EventTable, rows: IntColumn) -> FloatColumn:
    """For each `gloo:` range the time from its creation until a worker was free for it; NaN if
    unknown.
    """
    created, taken_up = created_us(events, rows), in_flight(events, rows)[:, 0]
    return np.clip(taken_up - created, 0.0, events.end_us[rows] - created)


def created_us(events: EventTable, rows: IntColumn) -> FloatColumn:
    """When each `gloo:` range's work was created, which is when its data were ready; NaN if
    unknown.

    At its start where it overlaps the one before it on its thread. Elsewhere the start may be the
    taking up: the evidence is the operator that created it.
    """
    starts = events.start_us[rows]
    by_operator = np.append(events.end_us, np.nan)[creators(events, rows)]
    begins_created = np.where(in_flight(events, rows)[:, 0] > starts, starts, np.nan)
    return np.where(np.isfinite(by_operator), np.minimum(by_operator, starts), begins_created)


def in_flight(events: EventTable, rows: IntColumn) -> FloatColumn:
    """When each `gloo:` range's worker carried it out: shape (rows, 2), from its taking up to its
    end.

    It takes up a work when it is done with the one before, or at the range's start if that is
    later.
    """
    ends = events.end_us[rows]
    taken_up = events.start_us[rows]
    for of_thread in Groups.by([events.thread[rows]], len(rows)).rows():
        works = of_thread[np.argsort(ends[of_thread], kind="stable")]
        taken_up[works[1:]] = np.maximum(taken_up[works[1:]], ends[works[:-1]])
    return np.column_stack((taken_up, ends))


def creators(events: EventTable, rows: IntColumn) -> IntColumn:
    """The `c10d` operator (an event's row) that created each range; -1 if unknown.

    The operators of a kind and size and its ranges are in the same order, that of creation. gloo
    carries out a reduce-scatter as an all-reduce of the whole, and names it so. Where they are not
    as many, or only some ranges record their size, since a worker had not closed its last one when
    the tracer stopped, a range that began within an operator is that one's (torch up to 2.11).
    """
    operator_of_range = np.full(len(rows), -1, dtype=np.int64)
    elements = np.zeros(len(events), dtype=np.int64)  # 0 if not recorded
    for row, args in events.communication.items():
        elements[row] = args.input_elements or 0
    called = np.flatnonzero(named_operators(events, "c10d::"))
    kind_of_operator = _kinds(events, called)
    kind_of_range = _kinds(events, rows)
    for kind in kind_of_range.counts:
        performed_as = [kind]
        if kind == "all_reduce" and "reduce_scatter" not in kind_of_range.counts:
            performed_as.append("reduce_scatter")
        operators = called[kind_of_operator.isin(*performed_as)]
        places = np.flatnonzero(kind_of_range.isin(kind))
        ranges = rows[places]
        if len(operators) != len(ranges) or len(np.unique(elements[ranges] > 0)) > 1:
            operator_of_range[places] = _around(events, ranges, operators)
            continue
        # By size and, within a size, by start: gloo's workers may begin works of several sizes out
        # of order.
        order = np.lexsort((events.start_us[ranges], elements[ranges]))
        operators = operators[np.lexsort((events.start_us[operators], elements[operators]))]
        if (events.start_us[operators] <= events.end_us[ranges[order]]).all():
            operator_of_range[places[order]] = operators
    return operator_of_range


def _kinds(events: EventTable, rows: IntColumn) -> Words:
    """The kind of collective that each of the events names."""
    return Words.of(collective_kind(events.name_of(row)) for row in rows.tolist())


def _around(events: EventTable, rows: IntColumn, operators: IntColumn) -> IntColumn:
    """The operator during which each range began; -1 for none, and for those that several ranges
    began in.
    """
    operators = events.in_order(operators)
    starts = events.start_us[rows]
    last = np.searchsorted(events.start_us[operators], starts, side="right") - 1
    around = np.append(operators, -1)[last]
    within = (around >= 0) & (starts <= events.end_us[around])
    alone = np.bincount(last[within], minlength=len(operators) + 1)[last] == 1
    return np.where(within & alone, around, -1)


def copies_out(events: EventTable) -> BoolColumn:
    """DDP's copies of reduced gradients out of their buckets."""
    return events.named(_COPY_OUT.__eq__)


def ended_in_their_pass(events: EventTable) -> EventTable:
    """The table, with `gloo:` ranges ending at the latest where what waited for them did.

    Those that begin in dpscope's own range of a forward or backward pass end with it. In a trace
    without such ranges that shows DDP they end before the next optimizer step begins, both by
    torch's own ranges: DDP's backward pass has waited for them by then. A pass's only one also ends
    before DDP copies the first gradient out of its bucket.
    """
    rows = np.flatnonzero(named_annotations(events, "gloo:"))
    if not len(rows):
        return events
    starts = events.start_us[rows]
    pass_ends_us = _end_of_pass_us(events, starts)
    # With several buckets, the first copy only shows that the first one was reduced.
    passes = Groups.by([events.name[rows], pass_ends_us], len(rows))
    alone = passes.sizes[passes.code] == 1
    first_copy_us = np.where(alone, _next(events.start_us[copies_out(events)], starts), np.inf)
    latest_us = np.minimum(pass_ends_us, first_copy_us)
    duration_us = events.duration_us.copy()
    duration_us[rows] = np.minimum(duration_us[rows], latest_us - starts)
    return replace(events, duration_us=duration_us)


def _end_of_pass_us(events: EventTable, starts: FloatColumn) -> FloatColumn:
    """The end of the pass that each time lies in, infinite where nothing shows it."""
    forward = named_annotations(events, phases.FORWARD)
    passes = np.flatnonzero(forward | named_annotations(events, phases.BACKWARD))
    if len(passes):
        begins, ends = intervals.spans(events, events.in_order(passes)).T
        return np.append(ends, np.inf)[intervals.index_at(begins, ends, starts)]
    if named_annotations(events, "DistributedDataParallel.forward").any():
        optimizer = named_annotations(events, "Optimizer.step#")
        return _next(events.start_us[optimizer], starts)
    return np.full(len(starts), np.inf)


def _next(begins: FloatColumn, times: FloatColumn) -> FloatColumn:
    """For each time the first beginning after it, infinite where none follows."""
    begins = np.append(np.sort(begins), np.inf)
    return begins[np.searchsorted(begins[:-1], times, side="right")]
