"""Tracks that a merged trace adds to those of its ranks: what communicates, how long it only waits, how long it transfers.

A collective stands on the communication track for its whole duration. If the traces of all its ranks were read, its beginning
is on the wait track, until the latest rank came, and its end on the transfer track (see docs/measures.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.text.units import show_bytes
from dpscope.analysis.traces.merge.lanes import lanes
from dpscope.analysis.traces.merge.names import RankTracks, RawEvent, metadata_event
from dpscope.analysis.traces.reading.event_table import EventTable
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind
from dpscope.profiling.records.range_names import PREFIX

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
        args = {name: _shown(known[name]) for name in _ARGS if known.get(name) is not None}
        size = known["bytes"]
        name = " ".join([known["kind"] or "collective", *([] if size is None else [show_bytes(size)])])
        device, start, duration = known["device"], known["start_us"], known["duration_us"]
        yield Span("communication", device, name, start, duration, args)
        wait = known["wait_us"]
        if wait is not None:
            yield Span("transfer", device, f"transfer {name}", start + wait, duration - wait, args)
            if wait >= _SHORTEST_US:
                yield Span("wait", device, f"wait {name}", start, wait, args)


def _shown(value: object) -> object:
    return float(f"{value:.9g}") if isinstance(value, float) else value


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
