"""Interval arithmetic against a raster of unit cells."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpscope.analysis.traces.steps import intervals

SIZE = 60
pairs = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=12)


def raster(rows: list[tuple[int, int]]) -> np.ndarray:
    cells = np.zeros(SIZE, dtype=bool)
    for start, end in rows:
        cells[start : max(start, end)] = True
    return cells


def as_set(rows: list[tuple[int, int]]) -> intervals.Intervals:
    array = np.array(rows, dtype=float).reshape(-1, 2)
    return intervals.union(array[:, 0], array[:, 1])


def rastered(found: intervals.Intervals) -> np.ndarray:
    return raster([(int(start), int(end)) for start, end in found])


@given(pairs)
def test_union_is_sorted_disjoint_and_covers_the_same_cells(rows: list[tuple[int, int]]) -> None:
    found = as_set(rows)
    assert (rastered(found) == raster(rows)).all()
    assert intervals.length(found) == raster(rows).sum()
    assert (found[1:, 0] > found[:-1, 1]).all()


@given(pairs, pairs)
def test_two_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    one, other = as_set(first), as_set(second)
    assert (rastered(intervals.intersection(one, other)) == (raster(first) & raster(second))).all()
    assert (rastered(intervals.difference(one, other)) == (raster(first) & ~raster(second))).all()
    assert (rastered(intervals.merge(one, other)) == (raster(first) | raster(second))).all()
    assert intervals.length_within(one, other) == (raster(first) & raster(second)).sum()


@given(pairs, st.integers(0, SIZE), st.integers(0, SIZE))
def test_windows(rows: list[tuple[int, int]], start: int, end: int) -> None:
    found = as_set(rows)
    cells = raster(rows)
    assert (intervals.length_before(found, np.array([float(start)])) == cells[:start].sum()).all()
    if end >= start:
        clipped = intervals.clip(found, start, end)
        assert intervals.length(clipped) == cells[start:end].sum()


@given(pairs)
def test_pieces_belong_to_the_interval_that_began_first(rows: list[tuple[int, int]]) -> None:
    starts, ends = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    pieces = intervals.Pieces(starts, ends, np.arange(len(rows)))
    times = np.arange(SIZE, dtype=np.float64) + 0.5
    order = sorted(range(len(rows)), key=lambda row: rows[row][0])
    first = [next((row for row in order if starts[row] < t < ends[row]), -1) for t in times]
    assert pieces.row_at(times).tolist() == first
