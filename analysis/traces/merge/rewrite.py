"""One rank's events as written to a merged trace, and the trace's text: JSON in Kineto's layout, plain or gzipped.

Events are on the common time axis, with ids distinct from other ranks' ids. The text is written in parts. They are compressed
where they are made, each ending on a byte (a full flush), so that many processes can make them. Joined they are one gzip member:
Perfetto reads no further than the first. The way of pigz (Adler), RFC 1951 and 1952.
"""

import json
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
from isal import isal_zlib

from dpscope.analysis.traces.merge.tracks import EventPlace, RankTracks, Span, hashable, track_events
from dpscope.analysis.traces.reading.chunks import DecodedChunk, ReadLimits
from dpscope.analysis.traces.reading.json_events import RAW_EVENTS, RawEvent, sound_us
from dpscope.analysis.traces.reading.reader import read_events
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path
from dpscope.profiling.store.ownership import DPSCOPE_TRACE_HEAD

ID_STRIDE = 10_000_000_000
"""Ids keep their digits behind the rank's position: 30000019001 is id 19001 of the rank at position 3."""

_PAIRED_ARGS = ("correlation", "External id", "external id", "wait_on_cuda_event_record_corr_id")
_SEPARATOR = b",\n  "
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, system unknown
_RAW_DEFLATE = -15
_LEVEL = 2  # of isal's 0 to 3
_BATCH = 4096  # events encoded at once
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class RankJob:
    """What is to be written of a rank, and where it goes: a time t of its file becomes t - `zero_us` + `place_us`."""

    path: Path
    limits: ReadLimits
    position: int  # among the ranks
    zero_us: int
    place_us: float
    moved: dict[EventPlace, int]  # events that need a further lane of their thread
    title: str
    spans: list[Span]  # of the added tracks
    part: Path
    compressed: bool


@dataclass(frozen=True)
class MergedPart:
    """A rank's events in a separate file: how many, how many left out; its text's checksum and length, for the gzip trailer."""

    path: Path
    crc: int
    text_bytes: int
    events: int
    left_out: int


def write_rank(job: RankJob) -> MergedPart:
    """Read a rank's file again and write its part."""
    tracks = RankTracks(job.position)
    rewriter = _RankRewriter(job, tracks)
    with writing(job.part), open(job.part, "wb") as file:
        writer = TraceWriter(file, job.compressed)

        def use(decoded: DecodedChunk[RawEvent]) -> None:
            writer.write_events(rewriter.rewritten(decoded.events))
            rewriter.left_out += decoded.skipped

        read_events(job.path, job.limits, RAW_EVENTS, use)
        writer.write_events(track_events(job.spans, job.place_us, tracks))
        writer.write_events(tracks.metadata(job.title))
        writer.flush()
        return MergedPart(job.part, writer.crc, writer.text_bytes, rewriter.kept, rewriter.left_out)


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
        phase, start, duration = event.get("ph"), sound_us(event.get("ts")), None
        if start is None or not isinstance(phase, str) or not phase:
            return False
        if phase == "X":
            duration = sound_us(event.get("dur"))
            if duration is None or duration < 0:
                return False
            event["dur"] = round(duration, 3)
        if phase in ("s", "t", "f") and not isinstance(event.get("id"), int | str):  # a flow's start, step and end
            return False
        if not isinstance(event.get("name"), str):
            event["name"] = str(event.get("name", ""))
        if not isinstance(event.get("cat", ""), str):
            del event["cat"]
        # A flow goes where the event went that begins with it.
        place = hashable(event.get("pid")), hashable(event.get("tid")), start
        moved, moved_starts = self._job.moved, self._moved_starts
        lane = moved_starts.get(place, 0) if duration is None else moved.get((*place, duration), 0)
        process, event["tid"] = self._tracks.thread(place[0], place[1], lane)
        event["pid"] = process.number
        if duration is not None:
            process.note(event.get("cat"))
        event["ts"] = round(start - self._job.zero_us + self._job.place_us, 3) + 0.0  # no -0.0
        args = event.get("args")
        for holder, keys in ((event, ("id",)), (args if isinstance(args, dict) else {}, _PAIRED_ARGS)):
            for key in keys:
                if key in holder:
                    holder[key] = self._id(holder[key])
        return True

    def _id(self, value: object) -> object:
        """An id of this rank alone. Perfetto pairs numbers only; one with no room behind the position is folded."""
        if type(value) is int:
            return self._id_base + value % ID_STRIDE
        return self._id_base + zlib.crc32(value.encode("utf-8", "replace")) if isinstance(value, str) else value


class TraceWriter:
    """Writes text, compressed or plain, with its checksum and length; parts written elsewhere may stand amid it."""

    def __init__(self, file: IO[bytes], compressed: bool) -> None:
        self.crc = self.text_bytes = 0
        self._file = file
        self._deflate = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _RAW_DEFLATE) if compressed else None
        self._has_events = False

    def write(self, text: bytes) -> None:
        self.crc = isal_zlib.crc32(text, self.crc)
        self.text_bytes += len(text)
        self._file.write(self._deflate.compress(text) if self._deflate else text)

    def write_events(self, events: Iterable[RawEvent]) -> None:
        """Append events; each ends on a separate line, where readers may cut."""
        remaining = iter(events)
        while batch := list(islice(remaining, _BATCH)):
            text = _SEPARATOR.join(encoded(event)[:-1] + b"\n  }" for event in batch)
            self.write(_SEPARATOR + text if self.text_bytes else text)

    def flush(self, how: int = isal_zlib.Z_FULL_FLUSH) -> None:
        """End what was written on a byte; what comes behind refers to nothing before."""
        if self._deflate:
            self._file.write(self._deflate.flush(how))
        self._file.flush()

    def append(self, part: MergedPart) -> None:
        """Add a part made with the same compression."""
        if not part.text_bytes:
            return
        if self._has_events:
            self.write(_SEPARATOR)
        self.flush()
        self._has_events = True
        with open(part.path, "rb") as file:
            shutil.copyfileobj(file, self._file, 1 << 20)
        self.crc = isal_zlib.crc32_combine(self.crc, part.crc, part.text_bytes)
        self.text_bytes += part.text_bytes

    def close(self, fields: dict[str, Any]) -> None:
        """End the events and the file, with these fields of the trace."""
        text = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        self.write(b"\n  ]" + text.encode() + b"\n}\n")
        self.flush(isal_zlib.Z_FINISH)
        if self._deflate:
            self._file.write(struct.pack("<II", self.crc, self.text_bytes % 2**32))


def encoded(event: RawEvent) -> bytes:
    """An event as strict JSON; halves of characters, which damaged traces hold and UTF-8 does not, become question marks."""
    try:
        return _encode(event)
    except (OverflowError, UnicodeEncodeError):  # also integers beyond 64 bits
        return json.dumps(event, ensure_ascii=False).encode("utf-8", errors="replace")


@contextmanager
def merged_file(path: Path, compressed: bool) -> Iterator[TraceWriter]:
    """A merged trace at `path`; whole or not at all."""
    with writing(path), atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(_GZIP_HEADER if compressed else b"")
        writer = TraceWriter(file, compressed)
        writer.write(DPSCOPE_TRACE_HEAD)
        yield writer


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the system in writing `path` becomes a DpscopeError."""
    try:
        yield
    except OSError as error:
        raise DpscopeError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
