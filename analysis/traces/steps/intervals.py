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
    return np.column_stack((events.start_us[rows], events.end_us[rows]))


def of_events(events: EventTable, rows: BoolColumn | IntColumn) -> Intervals:
    """The union of the events that are marked or listed."""
    return union(events.start_us[rows], events.end_us[rows])


def union(starts: FloatColumn, ends: FloatColumn) -> Intervals:
    """The disjoint union of intervals in any order; empty ones vanish."""
    kept = np.flatnonzero(ends > starts)
    if not len(kept):
        return EMPTY
    kept = kept[np.argsort(starts[kept], kind="stable")]
    starts = starts[kept]
    reach = np.maximum.accumulate(ends[kept])
    return between_gaps(starts, reach, np.flatnonzero(starts[1:] > reach[:-1]))


def between_gaps(starts: FloatColumn, ends: FloatColumn, last: IntColumn) -> Intervals:
    """Intervals joined where no gap follows; `last` are the ones that a gap follows."""
    begins = np.append(starts[:1], starts[last + 1])
    stops = np.append(ends[last], ends[-1:])
    return np.column_stack((begins, stops))


def merge(*sets: Intervals) -> Intervals:
    """The union of sets whose intervals may overlap."""
    stacked = np.concatenate((EMPTY, *sets))
    return union(stacked[:, 0], stacked[:, 1])


def length(intervals: Intervals) -> float:
    """Total length of disjoint intervals."""
    return float(np.diff(intervals).sum())


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The intersection of two disjoint sets."""
    times = np.concatenate((first, second)).ravel()
    steps = np.tile([1, -1], len(times) // 2)
    order = np.lexsort((-steps, times))  # at one time, open before closing
    times = times[order]
    counts = np.cumsum(steps[order])
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
    starts, ends = intervals.T
    before = np.append(0.0, np.cumsum(ends - starts))
    last = np.searchsorted(starts, times, side="right") - 1
    inside = np.minimum(times, ends[last]) - starts[last]
    total: FloatColumn = np.where(last < 0, 0.0, before[last] + inside)
    return total


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


def reached_before(ends: FloatColumn) -> FloatColumn:
    """The latest end of all before each one; minus infinity before the first."""
    reached: FloatColumn = np.maximum.accumulate(np.append(-np.inf, ends))[:-1]
    return reached


class Pieces:
    """Disjoint intervals in order, each with its row: where intervals overlap, the time belongs to
    the one that began first.
    """

    def __init__(self, starts: FloatColumn, ends: FloatColumn, rows: IntColumn) -> None:
        order = np.argsort(starts, kind="stable")
        ends = ends[order]
        starts = np.maximum(starts[order], reached_before(ends))
        kept = ends > starts
        self.starts = starts[kept]
        self.ends = ends[kept]
        self.rows = rows[order][kept]

    def row_at(self, times: FloatColumn) -> IntColumn:
        """The row whose piece holds each time, -1 for none."""
        return np.append(self.rows, -1)[index_at(self.starts, self.ends, times)]


def innermost(events: EventTable, at_rows: IntColumn, candidates: BoolColumn) -> IntColumn:
    """For each of `at_rows` (-1 for none) the innermost candidate range of its thread in which it
    begins, else -1.

    Ranges of a thread nest: two of them never overlap in part.
    """
    result = np.full(len(at_rows), -1, dtype=np.int64)
    ranges = np.flatnonzero(candidates)
    places = np.flatnonzero(at_rows >= 0)
    threads = events.thread[at_rows[places]]
    for thread in np.intersect1d(threads, events.thread[ranges]):
        of_thread = events.outer_first(ranges[events.thread[ranges] == thread])
        here = places[threads == thread]
        times = events.start_us[at_rows[here]]
        index = innermost_at(events.start_us[of_thread], events.end_us[of_thread], times)
        result[here] = np.append(of_thread, -1)[index]
    return result


def innermost_at(starts: FloatColumn, ends: FloatColumn, times: FloatColumn) -> IntColumn:
    """For each time the innermost of nested ranges that holds it, -1 for none.

    Ranges are in order of start, the longer first of those that start together.
    """
    index = np.searchsorted(starts, times, side="right") - 1
    ends = np.append(ends, np.inf)
    outside = times > ends[index]
    parents = _parents(starts, ends[:-1]) if outside.any() else index
    while outside.any():
        index[outside] = parents[index[outside]]
        outside = times > ends[index]
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
