"""Interval arithmetic on numpy arrays.

A set of intervals is an array of shape (n, 2), float64: [start, end) rows, sorted and disjoint
unless stated otherwise. Times are microseconds here, but any unit serves.
"""

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    EventTable,
    FloatColumn,
    IntColumn,
)

Intervals = npt.NDArray[np.float64]

EMPTY: Intervals = np.empty((0, 2))


def spans(events: EventTable, rows: BoolColumn | IntColumn) -> Intervals:
    """Start and end of the events that are marked or listed, in their order, overlaps among
    them.
    """
    return np.stack((events.start_us[rows], events.end_us[rows]), axis=1)


def of_events(events: EventTable, rows: BoolColumn | IntColumn) -> Intervals:
    """The union of the events that are marked or listed."""
    return union(events.start_us[rows], events.end_us[rows])


def union(starts: FloatColumn, ends: FloatColumn) -> Intervals:
    """The disjoint union of intervals in any order; empty ones vanish."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    reach = np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return np.stack((starts[opens], reach[closes]), axis=1)


def merge(*sets: Intervals) -> Intervals:
    """The union of sets whose intervals may overlap."""
    stacked = np.concatenate(sets) if sets else EMPTY
    return union(stacked[:, 0], stacked[:, 1])


def length(intervals: Intervals) -> float:
    """Total length of disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The intersection of two disjoint sets."""
    times = np.concatenate((first, second)).ravel()
    steps = np.tile([1, -1], len(times) // 2)
    order = np.lexsort((-steps, times))  # at one time, open before closing
    times, counts = times[order], np.cumsum(steps[order])
    opens = np.flatnonzero((counts[:-1] >= 2) & (times[1:] > times[:-1]))
    return union(times[opens], times[opens + 1])


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The first set without the second."""
    if not len(first) or not len(second):
        return first
    outside = np.concatenate(([-np.inf], second.ravel(), [np.inf])).reshape(-1, 2)
    return intersection(first, outside)


def clip(intervals: Intervals, start: float, end: float) -> Intervals:
    """The part in [start, end); only the intervals there are examined."""
    if not start < end:
        return EMPTY
    first = np.searchsorted(intervals[:, 1], start, side="right")
    last = np.searchsorted(intervals[:, 0], end, side="left")
    return np.clip(intervals[first:last], start, end)


def length_before(intervals: Intervals, times: FloatColumn) -> FloatColumn:
    """Length of disjoint intervals that lies before each of `times`: shape of `times`."""
    if not len(intervals):
        return np.zeros_like(times, dtype=np.float64)
    cumulative = np.concatenate(([0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])))
    last = np.searchsorted(intervals[:, 0], times, side="right") - 1
    inside = np.minimum(times, intervals[last, 1]) - intervals[last, 0]
    return np.asarray(np.where(last < 0, 0.0, cumulative[last] + inside))


def lengths_within(intervals: Intervals, starts: FloatColumn, ends: FloatColumn) -> FloatColumn:
    """Length of disjoint intervals inside each window, however many windows: one pass."""
    return length_before(intervals, ends) - length_before(intervals, starts)


def length_within(intervals: Intervals, windows: Intervals) -> float:
    """Length of a disjoint set inside another disjoint set."""
    return float(lengths_within(intervals, windows[:, 0], windows[:, 1]).sum())


def index_at(starts: FloatColumn, ends: FloatColumn, times: FloatColumn) -> IntColumn:
    """For each time the last interval, in order of `starts`, that has begun; -1 if there is none or
    it has ended.
    """
    index = np.searchsorted(starts, times, side="right") - 1
    return np.where(times < np.append(ends, -np.inf)[index], index, -1)


class Pieces:
    """Disjoint intervals in order, each with its row: where intervals overlap, the time belongs to
    the one that began first.
    """

    def __init__(self, starts: FloatColumn, ends: FloatColumn, rows: IntColumn) -> None:
        order = np.argsort(starts, kind="stable")
        starts, ends, rows = starts[order], ends[order], rows[order]
        reach = np.maximum.accumulate(np.concatenate(([-np.inf], ends[:-1]))) if len(ends) else ends
        starts = np.maximum(starts, reach)
        kept = ends > starts
        self.starts, self.ends, self.rows = starts[kept], ends[kept], rows[kept]

    def row_at(self, times: FloatColumn) -> IntColumn:
        """The row whose piece holds each time, -1 for none."""
        return np.append(self.rows, -1)[index_at(self.starts, self.ends, times)]


def innermost(events: EventTable, at_rows: IntColumn, candidates: BoolColumn) -> IntColumn:
    """For each of `at_rows` (-1 for none) the innermost candidate range of its thread in which it
    begins, else -1.

    Ranges of a thread nest: two of them never overlap in part.
    """
    result = np.full(len(at_rows), -1, dtype=np.int64)
    ranges, given = np.flatnonzero(candidates), np.flatnonzero(at_rows >= 0)
    threads = events.thread[at_rows[given]]
    for thread in np.intersect1d(threads, events.thread[ranges]):
        of_thread = ranges[events.thread[ranges] == thread]
        of_thread = of_thread[
            np.lexsort((-events.duration_us[of_thread], events.start_us[of_thread]))
        ]
        given_here = given[threads == thread]
        index = innermost_at(
            events.start_us[of_thread],
            events.end_us[of_thread],
            events.start_us[at_rows[given_here]],
        )
        result[given_here] = np.append(of_thread, -1)[index]
    return result


def innermost_at(starts: FloatColumn, ends: FloatColumn, times: FloatColumn) -> IntColumn:
    """For each time the innermost of nested ranges that holds it, -1 for none.

    Ranges are in order of start, the longer first of those that start together.
    """
    index = np.searchsorted(starts, times, side="right") - 1
    ends, parents = np.append(ends, np.inf), None
    while (outside := times > ends[index]).any():
        parents = _parents(starts, ends[:-1]) if parents is None else parents
        index[outside] = parents[index[outside]]
    return index


def _parents(starts: FloatColumn, ends: FloatColumn) -> IntColumn:
    """For each range, in order of start, the latest earlier one that is still open when it starts;
    -1 for none.
    """
    parents = np.full(len(starts), -1, dtype=np.int64)
    open_ranges: list[int] = []
    for index, start in enumerate(starts.tolist()):
        while open_ranges and ends[open_ranges[-1]] <= start:
            open_ranges.pop()
        parents[index] = open_ranges[-1] if open_ranges else -1
        open_ranges.append(index)
    return parents
