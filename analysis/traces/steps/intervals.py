"""Interval arithmetic on numpy arrays.

A set of intervals is an array of shape (n, 2), float64: [start, end) rows, sorted and disjoint unless stated
otherwise. Times are microseconds here, but any unit serves.
"""

from typing import cast

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.float64]

EMPTY: Intervals = np.empty((0, 2))


def union(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> Intervals:
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
    """The union of several sets."""
    stacked = np.concatenate(sets) if sets else EMPTY
    return union(stacked[:, 0], stacked[:, 1])


def length(intervals: Intervals) -> float:
    """Total length of disjoint intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """What lies in both of two disjoint sets."""
    return _where_depth(first, second, 2)


def difference(first: Intervals, second: Intervals) -> Intervals:
    """What lies in the first set and not in the second."""
    if not len(first) or not len(second):
        return first
    low = min(first[0, 0], second[0, 0])
    high = max(first[-1, 1], second[-1, 1])
    edges = np.concatenate(([low], second.ravel(), [high]))
    outside = edges.reshape(-1, 2)
    return intersection(first, outside[outside[:, 1] > outside[:, 0]])


def clip(intervals: Intervals, start: float, end: float) -> Intervals:
    """What lies in [start, end); only the intervals there are looked at."""
    if not start < end:
        return EMPTY
    first = np.searchsorted(intervals[:, 1], start, side="right")
    last = np.searchsorted(intervals[:, 0], end, side="left")
    return np.clip(intervals[first:last], start, end)


def length_before(intervals: Intervals, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Length of disjoint intervals that lies before each of `times`: shape of `times`.

    The difference of two such values is the length inside a window, so that many windows cost one pass.
    """
    if not len(intervals):
        return np.zeros_like(times, dtype=np.float64)
    cumulative = np.concatenate(([0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])))
    index = np.searchsorted(intervals[:, 0], times, side="right")
    inside = np.minimum(times, intervals[np.maximum(index - 1, 0), 1]) - intervals[np.maximum(index - 1, 0), 0]
    partial = cumulative[np.maximum(index - 1, 0)] + inside
    return cast(npt.NDArray[np.float64], np.where(index == 0, 0.0, partial))


def length_within(intervals: Intervals, windows: Intervals) -> float:
    """Length of a disjoint set inside another disjoint set."""
    if not len(windows):
        return 0.0
    return float((length_before(intervals, windows[:, 1]) - length_before(intervals, windows[:, 0])).sum())


def _where_depth(first: Intervals, second: Intervals, depth: int) -> Intervals:
    """Where at least `depth` of two disjoint sets are open."""
    both = np.concatenate((first, second))
    if not len(both):
        return EMPTY
    times = both.ravel()
    steps = np.tile([1, -1], len(both))
    order = np.lexsort((-steps, times))  # at one time, open before closing
    times, counts = times[order], np.cumsum(steps[order])
    opens = np.flatnonzero((counts[:-1] >= depth) & (times[1:] > times[:-1]))
    return union(times[opens], times[opens + 1])
