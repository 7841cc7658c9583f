"""The processes and threads of a merged trace, and the tracks that it adds: what communicates,
waits, transfers.

All processes and threads get fresh numbers. Kineto takes a device's index as its process id, so
that all ranks' devices would be one process; and Perfetto names threads by their number alone, so
that stream 7 of every device would bear the last one's name.

A collective stands on the communication track for its whole duration. If the traces of all its
ranks were read, its beginning is on the wait track, until the latest rank came, and its end on the
transfer track (see docs/measures.md).
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np

from dpscope.analysis.text.units import show_bytes
from dpscope.analysis.traces.reading.event_table import (
    Category,
    FloatColumn,
    IntColumn,
    category_of,
    is_on_device,
)
from dpscope.analysis.traces.reading.json_events import MOST_US, Event, RawEvent
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import grouped

# numbers of processes and threads that each rank has; 42,000 ranks fit 32 bits
NUMBER_STRIDE = 100_000
# Perfetto orders a process's threads by number: added tracks come first
_FIRST_TRACK, _FIRST_THREAD = 1_000, 10_000
PROCESS_STRIDE = 1000  # places in the order of processes that each rank has
# Kineto's processes for its own records: shown as one
_PROFILER = frozenset({"Spans", "Traces", ""})
_DEVICE_LABEL = re.compile(r"GPU (\d+)")
# the argument of the metadata events that label a process
_LABEL_OF = {"process_name": "name", "process_labels": "labels"}


@dataclass
class Process:
    """One process of one rank: its number, what it was numbered in the rank's file, what is known
    of it.
    """

    number: int
    original: int | str
    on_device: bool = False
    has_operators: bool = False
    labels: dict[str, str] = field(default_factory=dict)  # its process_name and process_labels

    def note(self, category: object) -> None:
        """Learn from an event of this category what the process is."""
        self.on_device = self.on_device or is_on_device(category)
        self.has_operators = self.has_operators or category_of(category) is Category.CPU_OP

    @property
    def label(self) -> str:
        """CPU or GPU <index> where its label or its events say so, else its own name."""
        label = self.labels.get("process_labels", "")
        if label == "CPU" or _DEVICE_LABEL.fullmatch(label):
            return label
        if self.on_device:
            return f"GPU {self.original}"
        if self.has_operators:
            return "CPU"
        return self.labels.get("process_name") or str(self.original)

    @property
    def order(self) -> tuple[int, str, int]:
        """The host before its devices, by their index, before whatever else."""
        if self.label == "CPU":
            return 0, "", 0
        device = _DEVICE_LABEL.fullmatch(self.label)
        if device is not None:
            return 1, "", int(device[1])
        return 2, self.label, 0


class RankTracks:
    """The processes and threads of one rank, as its events name them; `position` is the rank's
    among all.
    """

    def __init__(self, position: int) -> None:
        self._position = position
        first = position * NUMBER_STRIDE
        self._process_numbers = count(first + 1)
        # numbers of added tracks, before all threads of the file
        self.new_tracks = count(first + _FIRST_TRACK)
        self._thread_numbers = count(first + _FIRST_THREAD)
        self._processes: dict[int | str, Process] = {}
        self._threads: dict[tuple[int | str, int | str, int], tuple[Process, int]] = {}
        self._thread_args: dict[tuple[int | str, int | str], dict[str, dict[str, Any]]] = (
            defaultdict(dict)
        )
        self._process_labels: dict[int | str, dict[str, str]] = defaultdict(dict)

    def thread(self, pid: int | str, tid: int | str, lane: int = 0) -> tuple[Process, int]:
        """The process and the fresh number of a thread, or of a further lane of it."""
        place = pid, tid, lane
        if place not in self._threads:
            self._threads[place] = (self._process(pid), next(self._thread_numbers))
        return self._threads[place]

    def _process(self, pid: int | str) -> Process:
        if pid in _PROFILER:
            pid = "profiler"
        if pid not in self._processes:
            number = next(self._process_numbers)
            self._processes[pid] = Process(number, pid, labels=self._process_labels[pid])
        return self._processes[pid]

    def learn(self, event: RawEvent) -> None:
        """Take in a metadata event."""
        name = event.get("name")
        args = event.get("args")
        pid = hashable(event.get("pid"))
        if not isinstance(args, dict) or not isinstance(name, str):
            return
        if name in ("thread_name", "thread_sort_index"):
            thread = pid, hashable(event.get("tid"))
            self._thread_args[thread][name] = args
        label = args.get(_LABEL_OF.get(name))
        if isinstance(label, str):
            self._process_labels[pid][name] = label

    def process_of_device(self, device: int | None) -> Process:
        """The process that shows a device; the host's for None, or where no process shows it."""
        by_label = {process.label: process for process in self._processes.values()}
        return by_label.get(f"GPU {device}") or by_label.get("CPU") or self._process("")

    def metadata(self, title: str) -> Iterator[RawEvent]:
        """Names and order of the processes and threads that hold events."""
        processes = sorted(self._processes.values(), key=lambda process: process.order)
        for index, process in enumerate(processes):
            yield metadata_event("process_name", process.number, 0, name=f"{title} {process.label}")
            if process.labels:
                labels = ", ".join(dict.fromkeys(process.labels.values()))
                yield metadata_event("process_labels", process.number, 0, labels=labels)
            sort_index = self._position * PROCESS_STRIDE + index
            yield metadata_event("process_sort_index", process.number, 0, sort_index=sort_index)
        for (pid, tid, lane), (process, number) in self._threads.items():
            args = self._thread_args.get((pid, tid), {})
            fallback = tid or "window"
            if isinstance(tid, int):
                fallback = f"thread {tid}"
            name = str(args.get("thread_name", {}).get("name") or fallback).strip()
            yield metadata_event("thread_name", process.number, number, name=_of_lane(name, lane))
            order = args.get("thread_sort_index")
            if order is not None:
                yield metadata_event("thread_sort_index", process.number, number, **order)


def _of_lane(name: str, lane: int) -> str:
    """A track's name, with the lane of those behind the first."""
    return f"{name} (lane {lane + 1})" if lane else name


def metadata_event(kind: str, process: int, thread: int, /, **args: object) -> RawEvent:
    """A trace event that names or orders a process or thread."""
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": args}


def hashable(value: object) -> int | str:
    """A process's or thread's id as a trace gives it: a number or a name; -1 for anything else."""
    return value if isinstance(value, int | str) else -1


EventPlace = tuple[int | str, int | str, float, float]  # pid, tid, ts, dur: as the file gives them


class TrackScan:
    """Collects all events of one trace; finds those that partly overlap another on their track, and
    the time of the first one.

    Viewers of Chrome's trace format nest the complete events of a thread. Perfetto drops one that
    begins inside another and ends after it (its statistic `slice_drop_overlapping_complete_event`);
    gloo's ranges on one worker thread do that, as they begin when their work is created. Such
    events go to a further lane of their thread, so that all are seen.
    """

    def __init__(self) -> None:
        self.first_us = float("inf")  # of all events with a time
        self._tracks: dict[tuple[int | str, int | str], int] = {}  # pid, tid -> code
        # of each event its track's code, start, duration
        self._complete: list[FloatColumn] = [np.empty((0, 3))]

    def add(self, events: Sequence[Event]) -> None:
        """Note the next events, in file order."""
        starts = np.array([event.ts for event in events], dtype=np.float64)
        durations = np.array([event.dur for event in events], dtype=np.float64)
        phases = np.array([event.ph for event in events], dtype=np.str_)
        timed = np.abs(starts) < MOST_US
        self.first_us = float(starts[timed & (phases != "M")].min(initial=self.first_us))
        complete = timed & (phases == "X") & (durations >= 0) & (durations < MOST_US)
        codes = self._tracks
        track = np.empty(len(events))
        for row in np.flatnonzero(complete).tolist():
            thread = events[row].pid, events[row].tid
            track[row] = codes.setdefault(thread, len(codes))
        columns = np.column_stack((track, starts, durations))
        self._complete.append(columns[complete])

    def moved(self) -> dict[EventPlace, int]:
        """The lane, 1 or higher, of each event that must move to another lane."""
        code, start, duration = np.concatenate(self._complete).T
        lane = lanes(code.astype(np.int64), start, duration)
        tracks = list(self._tracks)
        moved: dict[EventPlace, int] = {}
        for row in np.flatnonzero(lane).tolist():
            pid, tid = tracks[int(code[row])]
            moved[pid, tid, float(start[row]), float(duration[row])] = int(lane[row])
        return moved


def lanes(track: IntColumn, start_us: FloatColumn, duration_us: FloatColumn) -> IntColumn:
    """For each event the lane of its track, from 0, on which it nests with the others there; all
    arrays (events,).

    In order of start, and of the file where starts are equal, as a viewer goes; times as the
    nanoseconds they are read as.
    """
    lane = np.zeros(len(start_us), dtype=np.int64)
    if not len(start_us):
        return lane
    since = np.floor(start_us.min())  # nanoseconds since 1970 would not fit a float
    start = _nanoseconds(start_us - since)
    end = start + _nanoseconds(duration_us)
    order = np.lexsort((start, track))
    firsts = np.flatnonzero(np.diff(track[order])) + 1
    for rows in np.split(order, firsts):
        reach = np.maximum.accumulate(end[rows])
        if not (start[rows[1:]] < reach[:-1]).any():
            continue  # they follow one another without overlap
        # per lane the ends of the events that are open, the innermost last
        open_ends: list[list[int]] = []
        for row in rows.tolist():
            lane[row] = _place(open_ends, int(start[row]), int(end[row]))
    return lane


def _nanoseconds(times_us: FloatColumn) -> IntColumn:
    """The sum of two such times fits 64 bits: beyond 142 years all are equal."""
    return np.rint(np.minimum(times_us, MOST_US / 2) * 1e3).astype(np.int64)


def _place(open_ends: list[list[int]], begin: int, stop: int) -> int:
    """The first lane whose innermost open event holds [begin, stop), or that has none open; opens
    it there.
    """
    for index, stack in enumerate(open_ends):
        while stack and stack[-1] <= begin:
            stack.pop()
        if not stack or stop <= stack[-1]:
            stack.append(stop)
            return index
    open_ends.append([stop])
    return len(open_ends) - 1


TRACKS = ("communication", "wait", "transfer")
"""In the order in which they stand above a device's streams, or a host's threads."""

_ARGS = (
    "kind",
    "bytes",
    "group",
    "sequence",
    "group_size",
    "step",
    "transfer_us",
    "wait_us",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
    "lower_bound_gb_per_s",
    "queue_us",
)
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


def collective_spans(matched: Table) -> Iterator[Span]:
    """The spans of one rank's rows of `match_tables`' table. What is unknown has no argument."""
    for known in matched.records():
        args = {}
        for argument in _ARGS:
            value = known.get(argument)
            if isinstance(value, float):
                value = float(f"{value:.9g}")
            if value is not None:
                args[argument] = value
        name = known["kind"] or "collective"
        if known["bytes"] is not None:
            name = f"{name} {show_bytes(known['bytes'])}"
        device = known["device"]
        start, duration = known["start_us"], known["duration_us"]
        yield Span("communication", device, name, start, duration, args)
        wait = known["wait_us"]
        if wait is None:
            continue
        yield Span("transfer", device, f"transfer {name}", start + wait, duration - wait, args)
        if wait >= _SHORTEST_US:
            yield Span("wait", device, f"wait {name}", start, wait, args)


def track_events(spans: list[Span], place_us: float, tracks: RankTracks) -> Iterator[RawEvent]:
    """The added tracks' events, `place_us` after the table's times, and their threads' names and
    order.
    """
    tracked = grouped(((TRACKS.index(span.track), span.device), span) for span in spans)
    # the host's before those of devices
    for order, device in sorted(
        tracked, key=lambda place: (place[0], -1 if place[1] is None else place[1])
    ):
        of_track = tracked[order, device]
        process = tracks.process_of_device(device).number
        starts = np.array([span.start_us for span in of_track])
        durations = np.array([span.duration_us for span in of_track])
        lane_of = lanes(np.zeros(len(of_track), dtype=np.int64), starts, durations)
        threads = list(islice(tracks.new_tracks, int(lane_of.max()) + 1))
        for lane, thread in enumerate(threads):
            name = _of_lane(TRACKS[order], lane)
            sort_index = _FIRST_PLACE + 100 * order + lane
            yield metadata_event("thread_name", process, thread, name=name)
            yield metadata_event("thread_sort_index", process, thread, sort_index=sort_index)
        for span, lane in zip(of_track, lane_of.tolist(), strict=True):
            yield {
                "ph": "X",
                "cat": "dpscope",
                "name": span.name,
                "pid": process,
                "tid": threads[lane],
                "ts": round(span.start_us + place_us, 3),
                "dur": round(span.duration_us, 3),
                "args": span.args,
            }
