"""Tracks that a merged trace adds to those of its ranks: what communicates, how long it only waits, how long it transfers.

A collective stands on the communication track for its whole duration. If the traces of all its ranks were read, its beginning
is on the wait track, until the latest rank came, and its end on the transfer track (see docs/measures.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpscope.analysis.text.units import show_bytes
from dpscope.analysis.traces.merge.names import RankTracks, metadata_event
from dpscope.analysis.traces.reading.event_table import EventTable
from dpscope.analysis.traces.reading.json_events import MOST_US, Event, RawEvent
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.profiling.records.range_names import PREFIX

Track = tuple[int | str, int | str]  # pid, tid
EventPlace = tuple[int | str, int | str, float, float]  # pid, tid, ts, dur: as the file gives them
_IntColumn = npt.NDArray[np.int64]


class TrackScan:
    """Collects all events of one trace; finds those that partly overlap another on their track, and the time of the first one.

    Viewers of Chrome's trace format nest the complete events of a thread. Perfetto drops one that begins inside another and
    ends after it (its statistic `slice_drop_overlapping_complete_event`); gloo's ranges on one worker thread do that, as they
    begin when their work is created. Such events go to a further lane of their thread, so that all are seen.
    """

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
        """The lane, 1 or higher, of each event that must move to another lane."""
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


CATEGORY = "dpscope"
TRACKS = ("communication", "wait", "transfer", "peer copies", "host copies")
"""In the order in which they stand above a device's streams, or a host's threads."""

_ARGS = (
    "kind", "bytes", "group", "sequence", "group_size", "step", "transfer_us", "wait_us", "algbw_gb_per_s", "busbw_gb_per_s",
    "lower_bound_gb_per_s", "queue_us",
)  # fmt: skip
_FIRST_PLACE = -1000  # threads are ordered by number: before all of a device's streams
_SHORTEST_US = 0.001  # the resolution of a trace


@dataclass(frozen=True)
class Span:
    """Something on one of the added tracks; times in microseconds of the rank's own table."""

    track: str
    device: int | None
    name: str
    start_us: float
    duration_us: float
    args: dict[str, object]


def other_transfers(attribution: Attribution) -> list[Span]:
    """What moves data between devices and is no collective: peer copies, and the ranges of dp-host's stand-ins."""
    events, found = attribution.events, []
    for row in np.flatnonzero(attribution.rows(Kind.PEER_COPY)).tolist():
        size, device = int(events.bytes[row]), int(events.device[row])
        known: dict[str, object] = {"bytes": size} if size >= 0 else {}
        name = f"peer copy {show_bytes(size)}" if known else "peer copy"
        found.append(Span("peer copies", device, name, *_when(events, row), known))
    for row in np.flatnonzero(attribution.rows(Kind.HOST_RANGE)).tolist():
        name = events.names[events.name[row]].removeprefix(f"{PREFIX}dp_")
        found.append(Span("host copies", None, name, *_when(events, row), {}))
    return found


def _when(events: EventTable, row: int) -> tuple[float, float]:
    return float(events.start_us[row]), float(events.duration_us[row])


def collective_spans(matched: Table) -> Iterator[Span]:
    """The spans of one rank's rows of `match_tables`' table. What is unknown has no argument."""
    for known in matched.records():
        args = {
            name: float(f"{value:.9g}") if isinstance(value, float) else value
            for name in _ARGS
            if (value := known.get(name)) is not None
        }
        size = known["bytes"]
        name = " ".join([known["kind"] or "collective", *([] if size is None else [show_bytes(size)])])
        device, start, duration = known["device"], known["start_us"], known["duration_us"]
        yield Span("communication", device, name, start, duration, args)
        wait = known["wait_us"]
        if wait is not None:
            yield Span("transfer", device, f"transfer {name}", start + wait, duration - wait, args)
            if wait >= _SHORTEST_US:
                yield Span("wait", device, f"wait {name}", start, wait, args)


def track_events(spans: list[Span], place_us: float, tracks: RankTracks) -> Iterator[RawEvent]:
    """The added tracks' events, `place_us` after the table's times, and their threads' names and order."""
    places = sorted({(TRACKS.index(span.track), span.device is not None, span.device or 0) for span in spans})
    for order, on_device, index in places:
        device = index if on_device else None
        own = [span for span in spans if span.track == TRACKS[order] and span.device == device]
        process = tracks.process_of_device(device).number
        starts = np.array([span.start_us for span in own])
        durations = np.array([span.duration_us for span in own])
        lane_of = lanes(np.zeros(len(own), dtype=np.int64), starts, durations)
        threads = [tracks.new_track() for _ in range(int(lane_of.max()) + 1)]
        for lane, thread in enumerate(threads):
            name = f"{TRACKS[order]} (lane {lane + 1})" if lane else TRACKS[order]
            yield metadata_event("thread_name", process, thread, name=name)
            yield metadata_event("thread_sort_index", process, thread, sort_index=_FIRST_PLACE + 100 * order + lane)
        for span, lane in zip(own, lane_of.tolist(), strict=True):
            yield _event(span, place_us, process, threads[lane])


def _event(span: Span, place_us: float, process: int, thread: int) -> RawEvent:
    return {
        "ph": "X",
        "cat": CATEGORY,
        "name": span.name,
        "pid": process,
        "tid": thread,
        "ts": round(span.start_us + place_us, 3),
        "dur": round(span.duration_us, 3),
        "args": span.args,
    }
