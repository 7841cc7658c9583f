"""One rank's events as written to a merged trace, and the trace's text: JSON in Kineto's layout,
plain or gzipped.

Events are on the common time axis, with ids distinct from other ranks' ids. Many processes write
the ranks' events, each to its own file; joined they are one gzip member: Perfetto reads no
further than the first.
"""

import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
from isal import igzip

from dpscope.analysis.traces.merge.tracks import (
    EventPlace,
    RankTracks,
    Span,
    hashable,
    track_events,
)
from dpscope.analysis.traces.reading.chunks import DecodedChunk, ReadLimits
from dpscope.analysis.traces.reading.json_events import RAW_EVENTS, RawEvent, sound_us
from dpscope.analysis.traces.reading.reader import read_events
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import DPSCOPE_TRACE_HEAD

ID_STRIDE = 10_000_000_000
"""Ids keep their digits behind the rank's position: 30000019001 is id 19001 of the rank at position
3.
"""

_PAIRED_ARGS = ("correlation", "External id", "external id", "wait_on_cuda_event_record_corr_id")
_FLOW = ("s", "t", "f")  # its start, step and end
_SEPARATOR = b",\n  "
_LEVEL = 2  # of isal's 0 to 3
_PART_LEVEL = 0  # of the ranks' own files, which are read once
_BATCH = 4096  # events encoded at once
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class RankJob:
    """What is to be written of a rank, and where it goes: a time t of its file becomes t -
    `zero_us` + `place_us`.
    """

    path: Path
    limits: ReadLimits
    position: int  # among the ranks
    zero_us: int
    place_us: float
    moved: dict[EventPlace, int]  # events that need a further lane of their thread
    title: str
    spans: list[Span]  # of the added tracks
    part: Path


@dataclass(frozen=True)
class MergedPart:
    """A rank's events in a separate file, gzipped: how many, how many left out."""

    path: Path
    events: int
    left_out: int


def write_rank(job: RankJob) -> MergedPart:
    """Read a rank's file again and write its part."""
    tracks = RankTracks(job.position)
    rewriter = _RankRewriter(job, tracks)
    with writing(job.part), igzip.open(job.part, "wb", _PART_LEVEL) as file:  # type: ignore[no-untyped-call]
        writer = _EventWriter(file)

        def use(decoded: DecodedChunk[RawEvent]) -> None:
            writer.write_events(rewriter.rewritten(decoded.events))
            rewriter.left_out += decoded.skipped

        read_events(job.path, job.limits, RAW_EVENTS, use)
        writer.write_events(track_events(job.spans, job.place_us, tracks))
        writer.write_events(tracks.metadata(job.title))
    return MergedPart(job.part, rewriter.kept, rewriter.left_out)


class _RankRewriter:
    """Rewrites the events of one rank; counts those kept and those left out."""

    def __init__(self, job: RankJob, tracks: RankTracks) -> None:
        self.kept = self.left_out = 0
        self._job, self._tracks = job, tracks
        self._id_base = job.position * ID_STRIDE
        self._moved_starts = {place[:3]: lane for place, lane in job.moved.items()}

    def rewritten(self, events: list[RawEvent]) -> Iterator[RawEvent]:
        """The sound events, changed in place; metadata go to the tracks."""
        for event in events:
            if event.get("ph") == "M":
                self._tracks.learn(event)
            elif self._rewrite(event):
                self.kept += 1
                yield event
            else:
                self.left_out += 1

    def _rewrite(self, event: RawEvent) -> bool:
        """False for an event without a phase or without sound times, or a flow without an id."""
        phase, start, duration = (
            event.get("ph"),
            sound_us(event.get("ts")),
            sound_us(event.get("dur")),
        )
        if start is None or not isinstance(phase, str) or not phase:
            return False
        if phase == "X" and (duration is None or duration < 0):
            return False
        if phase in _FLOW and not isinstance(event.get("id"), int | str):
            return False
        self._make_sound(event)
        self._move(event, start, duration if phase == "X" else None)
        self._number(event, ("id",))
        if isinstance(args := event.get("args"), dict):
            self._number(args, _PAIRED_ARGS)
        return True

    @staticmethod
    def _make_sound(event: RawEvent) -> None:
        if not isinstance(event.get("name"), str):
            event["name"] = str(event.get("name", ""))
        if not isinstance(event.get("cat", ""), str):
            del event["cat"]

    def _move(self, event: RawEvent, start: float, duration: float | None) -> None:
        """To its place on the common time axis, in its own process, thread and lane."""
        place = hashable(event.get("pid")), hashable(event.get("tid")), start
        if duration is None:  # a flow goes where the event went that begins with it
            lane = self._moved_starts.get(place, 0)
        else:
            lane = self._job.moved.get((*place, duration), 0)
            event["dur"] = round(duration, 3)
        process, event["tid"] = self._tracks.thread(place[0], place[1], lane)
        event["pid"] = process.number
        event["ts"] = round(start - self._job.zero_us + self._job.place_us, 3) + 0.0  # no -0.0
        if duration is not None:
            process.note(event.get("cat"))

    def _number(self, holder: dict[str, object], keys: Iterable[str]) -> None:
        """Gives these ids the rank's place."""
        for key in holder.keys() & keys:
            holder[key] = self._id(holder[key])

    def _id(self, value: object) -> object:
        """An id of this rank alone. Perfetto pairs numbers only; one with no room behind the
        position is folded.
        """
        if type(value) is int:
            return self._id_base + value % ID_STRIDE
        return (
            self._id_base + zlib.crc32(value.encode("utf-8", "replace"))
            if isinstance(value, str)
            else value
        )


class _EventWriter:
    """Writes events, each of which ends on a separate line, where readers may cut."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._separator = b""  # before the next events

    def write_events(self, events: Iterable[RawEvent]) -> None:
        remaining = iter(events)
        while batch := list(islice(remaining, _BATCH)):
            text = _SEPARATOR.join(encoded(event)[:-1] + b"\n  }" for event in batch)
            self._file.write(self._separator + text)
            self._separator = _SEPARATOR


def encoded(event: RawEvent) -> bytes:
    """An event as strict JSON; halves of characters, which damaged traces hold and UTF-8 does not,
    become question marks.
    """
    try:
        return _encode(event)
    except (OverflowError, UnicodeEncodeError):  # also integers beyond 64 bits
        return json.dumps(event, ensure_ascii=False).encode("utf-8", errors="replace")


def write_merged(
    path: Path, parts: Iterable[MergedPart], fields: dict[str, Any], compressed: bool
) -> None:
    """A trace at `path` of these ranks' events and fields, whole or not at all."""
    with writing(path), atomic_path(path) as temporary, open(temporary, "wb") as plain:
        file = igzip.IGzipFile("", "wb", _LEVEL, plain, mtime=0) if compressed else plain  # type: ignore[no-untyped-call]
        file.write(DPSCOPE_TRACE_HEAD)
        separator = b""
        for part in parts:
            with igzip.open(part.path) as events:  # type: ignore[no-untyped-call]
                if first := events.read(1):
                    file.write(separator + first)
                    separator = _SEPARATOR
                shutil.copyfileobj(events, file, 1 << 20)
        file.write(b"\n  ]")
        for key, value in fields.items():
            file.write(f",\n  {json.dumps(key)}: {json.dumps(value)}".encode())
        file.write(b"\n}\n")
        file.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the system in writing `path` becomes a DpscopeError."""
    try:
        yield
    except OSError as error:
        raise DpscopeError(
            f"cannot write {path}: {error.strerror or error}; choose another place with -o"
        ) from error
