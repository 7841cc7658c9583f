"""Which range of a CPU thread holds a moment of that thread: how a launch finds its operator."""

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.event_table import BoolColumn, EventTable, IntColumn

NO_RANGE = -1


def innermost(events: EventTable, at_rows: IntColumn, candidates: BoolColumn) -> IntColumn:
    """For each of `at_rows` (-1 for none) the innermost candidate range of its thread in which it begins, else -1.

    Ranges of a thread nest: two of them never overlap in part.
    """
    result: npt.NDArray[np.int64] = np.full(len(at_rows), NO_RANGE, dtype=np.int64)
    ranges = np.flatnonzero(candidates)
    known = at_rows >= 0
    if not len(ranges) or not known.any():
        return result
    threads = np.where(known, events.thread[np.maximum(at_rows, 0)], NO_RANGE)
    for thread in np.intersect1d(threads[known], events.thread[ranges]):
        own = ranges[events.thread[ranges] == thread]
        own = own[np.lexsort((-events.duration_us[own], events.start_us[own]))]
        starts, ends = events.start_us[own], events.end_us[own]
        mine = np.flatnonzero(known & (threads == thread))
        times = events.start_us[at_rows[mine]]
        index = np.searchsorted(starts, times, side="right") - 1
        outside = (index >= 0) & (times > ends[np.maximum(index, 0)])
        parents = _parents(starts, ends) if outside.any() else None
        while parents is not None and outside.any():
            index[outside] = parents[index[outside]]
            outside = (index >= 0) & (times > ends[np.maximum(index, 0)])
        inside = index >= 0
        result[mine[inside]] = own[index[inside]]
    return result


def _parents(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> IntColumn:
    """For each range, in order of start, the latest earlier one that is still open when it starts; -1 for none."""
    parents = np.full(len(starts), NO_RANGE, dtype=np.int64)
    open_ranges: list[int] = []
    for index, start in enumerate(starts.tolist()):
        while open_ranges and ends[open_ranges[-1]] <= start:
            open_ranges.pop()
        parents[index] = open_ranges[-1] if open_ranges else NO_RANGE
        open_ranges.append(index)
    return parents
