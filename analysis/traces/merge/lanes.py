"""Which events of a trace cannot stand on their own track, since they partly overlap another there.

Viewers of Chrome's trace format nest the complete events of a thread. Perfetto drops one that begins inside another and
ends after it (its statistic `slice_drop_overlapping_complete_event`); gloo's ranges on one worker thread do that, as they
begin when their work is created. Such events go to a further lane of their thread, so that all are seen.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.reading.json_events import MOST_US, Event

Track = tuple[int | str, int | str]  # pid, tid
EventPlace = tuple[int | str, int | str, float, float]  # pid, tid, ts, dur: as the file gives them
_IntColumn = npt.NDArray[np.int64]


class TrackScan:
    """Collects all events of one trace; finds those that must move, and the time of the first one."""

    def __init__(self) -> None:
        self.first_us = float("inf")  # of all events with a time
        self._tracks: dict[Track, int] = {}
        self._starts: list[npt.NDArray[np.float64]] = []
        self._durations: list[npt.NDArray[np.float64]] = []
        self._codes: list[_IntColumn] = []

    def add(self, events: Sequence[Event]) -> None:
        """Note the next events, in file order."""
        starts = np.array([event.ts for event in events if event.ph != "M"], dtype=np.float64)
        starts = starts[np.abs(starts) < MOST_US]
        if len(starts):
            self.first_us = min(self.first_us, float(starts.min()))
        complete = [event for event in events if event.ph == "X" and _has_sound_times(event)]
        codes = self._tracks
        self._codes.append(np.array([codes.setdefault((e.pid, e.tid), len(codes)) for e in complete], dtype=np.int64))
        self._starts.append(np.array([event.ts for event in complete], dtype=np.float64))
        self._durations.append(np.array([event.dur for event in complete], dtype=np.float64))

    def moved(self) -> dict[EventPlace, int]:
        """The lane, 1 or higher, of each event that has to leave its track."""
        if not self._codes:
            return {}
        code = np.concatenate(self._codes)
        start, duration = np.concatenate(self._starts), np.concatenate(self._durations)
        lane = lanes(code, start, duration)
        tracks = list(self._tracks)
        return {
            (*tracks[code[row]], float(start[row]), float(duration[row])): int(lane[row])
            for row in np.flatnonzero(lane).tolist()
        }


def _has_sound_times(event: Event) -> bool:
    return event.ts is not None and event.dur is not None and abs(event.ts) < MOST_US and 0 <= event.dur < MOST_US


def lanes(track: _IntColumn, start_us: npt.NDArray[np.float64], duration_us: npt.NDArray[np.float64]) -> _IntColumn:
    """For each event the lane of its track, from 0, on which it nests with the others there; all arrays (events,).

    In order of start, and of the file where starts are equal, as a viewer goes; times as the nanoseconds they are read as.
    """
    if not len(start_us):
        return np.zeros(0, dtype=np.int64)
    since = np.floor(start_us.min())  # nanoseconds since 1970 would not fit a float
    start = _nanoseconds(start_us - since)
    end = start + _nanoseconds(duration_us)
    lane = np.zeros(len(start), dtype=np.int64)
    order = np.lexsort((start, track))
    for rows in _unnested(order, track, start, end):
        open_ends: list[list[int]] = []  # per lane the ends of the events that are open, the innermost last
        for row, begin, stop in zip(rows.tolist(), start[rows].tolist(), end[rows].tolist(), strict=True):
            lane[row] = _place(open_ends, begin, stop)
    return lane


def _nanoseconds(times_us: npt.NDArray[np.float64]) -> _IntColumn:
    """Of two such times the sum fits 64 bits: beyond 142 years all are equal."""
    return np.rint(np.minimum(times_us, MOST_US / 2) * 1e3).astype(np.int64)


def _unnested(order: _IntColumn, track: _IntColumn, start: _IntColumn, end: _IntColumn) -> list[_IntColumn]:
    """The rows of each track, in order; a track whose events follow one another without overlap is left out."""
    bounds = np.flatnonzero(np.diff(track[order])) + 1
    parts = np.split(order, bounds)
    return [rows for rows in parts if (start[rows[1:]] < np.maximum.accumulate(end[rows])[:-1]).any()]


def _place(open_ends: list[list[int]], begin: int, stop: int) -> int:
    """The first lane whose innermost open event holds [begin, stop), or that has none open; opens it there."""
    for index, stack in enumerate(open_ends):
        while stack and stack[-1] <= begin:
            stack.pop()
        if not stack or stop <= stack[-1]:
            stack.append(stop)
            return index
    open_ends.append([stop])
    return len(open_ends) - 1
