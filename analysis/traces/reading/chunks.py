"""From a trace file to its events, a piece of text at a time that fits a core's cache; damaged text
is repaired.

A trace is a JSON object whose `traceEvents` array holds nearly all of it. Kineto writes one event
after another, each closed by a line of two blanks and a brace; a raw newline never occurs inside a
JSON string, so such a line is a safe place to cut even when an event's own text is damaged. Files
saved again by another tool (one line, or other indentation) are cut where one object ends and the
next begins; whether that cut was right shows when it is decoded.

A piece is decoded at once where its text is sound, event by event where it is not: each event once,
by itself, whatever is broken.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Generic, TypeVar

import msgspec
from isal import igzip_lib

from dpscope.analysis.traces.reading.json_events import Codec
from dpscope.profiling.records.finding import Finding, Severity
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError, unreadable


@dataclass(frozen=True)
class ReadLimits:
    """Of a file with more bytes the rest is not read: a small compressed file can expand without
    end.

    A file with more events is refused. The default number of events is that of about 2.5 GB of text
    as Kineto writes it. `steps_by` names the ranges that are steps, where the profiler's are not.
    """

    max_bytes: int = 16 << 30  # uncompressed
    max_events: int = 10_000_000
    # of ranges, without their numbers
    steps_by: str | None = None


DEFAULT_LIMITS = ReadLimits()
RUN_LIMITS = ReadLimits(max_events=sys.maxsize)
"""Of a run's own traces, which are always read whole."""

BLOCK_BYTES = 1 << 16  # read from the file at once
INFLATED_BYTES = 1 << 18  # inflated at once, however far a block expands
CHUNK_BYTES = 1 << 18  # decoded at once: text and events of a chunk together fit a core's own cache
EVENT_BYTES = 16 << 20  # a longer event is none: the rest is not read
TAIL_BYTES = 64 << 20  # behind the events that are looked at
HEAD_BYTES = 64 << 20  # in which the events must begin

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\s{0,4096}\[")  # Chrome's other form
# what must be somewhere in the text, and the end of an event, from its brace on
_Cut = tuple[bytes, re.Pattern[bytes]]
# begins with a text that is searched for fast
_KINETO_CUT: _Cut = b"\n  },", re.compile(rb"\}(?<=\n  \}),")
# a quote within a string would be escaped
_ANY_CUT: _Cut = b"{", re.compile(rb'\}\s*,\s*(?=\{\s*")')
# bytes at a chunk's end in which its last event is looked for, in turn
_WINDOWS = (1 << 12, 1 << 16, 1 << 40)
_LONGEST_CUT = 4096  # bytes; one with more blanks is found when the text behind it is
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.){1,64}")')
_GZIP_MAGIC = b"\x1f\x8b"
_SQLITE_MAGIC = b"SQLite format 3"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

WANTED = (
    "name a file that export_chrome_trace or tensorboard_trace_handler wrote, an nsys export (.sqlite), or a record of "
    "Flight Recorder or NCCL Inspector"
)
ReportFinding = Callable[[Finding], None]


class TraceText:
    """A trace file's text, gzip-compressed or plain, in pieces: `head` before the events, the
    events' chunks, `tail` after them.

    Raises DpscopeError when the file cannot be read, is empty or holds no `traceEvents`; what is
    lost of a damaged file goes to `report` as findings.
    """

    def __init__(self, path: Path, max_bytes: int, report: ReportFinding) -> None:
        self.path, self._report = path, report
        self.compressed = False  # the file is gzip's by its first bytes
        self.damaged = False  # compressed text that ends, or cannot be read on, before its end
        self.tail = bytearray()  # filled once `chunks` is exhausted
        blocks = self._blocks(max_bytes)
        buffer, searched = bytearray(), 0
        for block in blocks:
            buffer += block
            if not searched and buffer.startswith(_BYTE_ORDER_MARK):
                del buffer[: len(_BYTE_ORDER_MARK)]
            if not searched and buffer.startswith(_SQLITE_MAGIC):
                raise DpscopeError(
                    f"{path} holds a database, as an nsys export does: "
                    "let its name end in .sqlite.gz if it is compressed "
                    "(in Python, read_traces reads it)"
                )
            if begin := _EVENTS_KEY.search(buffer, searched) or _BARE_ARRAY.match(buffer):
                break
            if len(buffer) > HEAD_BYTES:
                raise DpscopeError(
                    f'{path} is not a torch.profiler trace: no "traceEvents" list begins in its first {HEAD_BYTES >> 20} MiB; '
                    f"{WANTED}"
                )
            searched = max(0, len(buffer) - 4096)
        else:
            raise self._no_trace(bool(buffer.strip()))
        self.head = bytes(buffer[: begin.end()])
        del buffer[: begin.end()]
        while len(buffer) < 4096 and (block := next(blocks, b"")):
            buffer += block
        # the bare array of events, Chrome's other form
        self.is_array = self.head.lstrip()[:1] == b"["
        self.kineto_layout = re.match(rb"\s*\n  \{", buffer) is not None
        self._first, self._rest = bytes(buffer), blocks

    def _no_trace(self, holds_something: bool) -> DpscopeError:
        """What a file without events is, so that users do not look for a trace in it."""
        if holds_something:
            content = "its decompressed content" if self.compressed else "it"
            what = f'is not a torch.profiler trace: {content} has no "traceEvents" list; {WANTED}'
        elif self.damaged:
            what = (
                "starts like a gzip file, but nothing in it can be decompressed: it is truncated, damaged or not a gzip file; "
                f"copy it again, or {WANTED}"
            )
        else:
            inside = "is an empty gzip file" if self.compressed else "is empty"
            what = f"{inside}, not a trace: the process may have been killed before it exported one"
        return DpscopeError(f"{self.path} {what}")

    def chunks(self) -> Iterator[bytearray]:
        """JSON arrays of whole events, CHUNK_BYTES or more; the last one may hold more, or less:
        the array's end and the tail.
        """
        cuts = [_KINETO_CUT] if self.kineto_layout else _cuts(self._first)
        buffer = bytearray(b"[" + self._first)
        wanted = CHUNK_BYTES
        searched = 0
        for block in self._rest:
            buffer += block
            if len(buffer) < wanted:
                continue
            cut = _last_cut(buffer, cuts, max(0, searched - _LONGEST_CUT))
            if cut is None and len(buffer) > EVENT_BYTES:
                endless = f"more than {EVENT_BYTES >> 20} MiB in which no event ends; the rest was not read"
                self._report(TraceCode.EVENTS_DAMAGED.finding(f"{self.path} holds {endless}"))
                return
            if cut is None:  # one event larger than a chunk
                searched = len(buffer)
                wanted = 2 * searched
                continue
            rest = buffer[cut + 1 :].lstrip().removeprefix(b",")
            buffer[cut + 1 :] = b"]"
            yield buffer
            buffer = bytearray(b"[") + rest
            wanted = CHUNK_BYTES
            searched = 0
        if len(buffer) > 1:
            yield buffer + b"]"

    def _blocks(self, max_bytes: int) -> Iterator[bytes]:
        total = 0
        try:
            if not stat.S_ISREG(mode := self.path.stat().st_mode):
                if stat.S_ISDIR(mode):
                    # a folder that cannot be searched is reported as such
                    os.scandir(self.path).close()
                raise DpscopeError(
                    f"{self.path} is not a regular file; name a trace file or a folder of them"
                )
            with open(self.path, "rb") as file:
                self.compressed = file.read(2) == _GZIP_MAGIC
                file.seek(0)
                for block in (
                    self._inflated(file)
                    if self.compressed
                    else iter(lambda: file.read(BLOCK_BYTES), b"")
                ):
                    total += len(block)
                    if total > max_bytes:
                        yield block[: max_bytes - total]
                        text = f"{self.path} expands to more than {max_bytes} bytes; the rest was not read"
                        self._report(TraceCode.TRACE_TOO_LARGE.finding(text))
                        return
                    yield block
        except OSError as error:
            raise DpscopeError(
                f"{unreadable(self.path, error)}; check the name and its permissions"
            ) from error

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """The text of a gzip file of one or more members, up to where it is damaged; never more
        than a block at once.
        """
        inflater = _inflater()
        data = file.read(BLOCK_BYTES)
        while True:
            try:
                text = inflater.decompress(data, INFLATED_BYTES)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stubs call it a plain object
                self._damage(f"is damaged ({error})")
                return
            if text:
                yield text
            data = b""
            if inflater.eof:  # of a member; another may follow
                data = inflater.unused_data or file.read(BLOCK_BYTES)
                if len(data) < len(_GZIP_MAGIC):
                    data += file.read(BLOCK_BYTES)
                if not data.startswith(_GZIP_MAGIC):
                    while data and not data.strip(b"\0"):  # padding
                        data = file.read(BLOCK_BYTES)
                    if data:
                        self._damage("has other bytes after its end", "warning")
                    return
                inflater = _inflater()
            elif inflater.needs_input:
                data = file.read(BLOCK_BYTES)
                if not data:
                    self._damage("is cut short")
                    return

    def _damage(self, what: str, severity: Severity = "error") -> None:
        self.damaged = severity == "error"
        message = f"the gzip file {self.path} {what}; what comes before was read"
        self._report(TraceCode.TRACE_CUT_SHORT.finding(message, severity=severity))


_inflater = partial(igzip_lib.IgzipDecompressor, flag=igzip_lib.DECOMP_GZIP)


def _cuts(events: bytes) -> list[_Cut]:
    """Surest first: before an object that begins as the first event does, before any object."""
    first = _FIRST_KEY.match(events)
    same = (
        [(first[1], re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(first[1]) + rb")"))]
        if first
        else []
    )
    return [*same, _ANY_CUT]


def _last_cut(buffer: bytearray, cuts: Sequence[_Cut], begin: int) -> int | None:
    """Offset of the brace that closes the last event known, or in other layouts thought, to be
    whole.

    Only from `begin` on: each byte is looked at once, however large an event grows.
    """
    for key, cut in cuts:
        for window in _WINDOWS if buffer.find(key, begin) >= 0 else ():
            if matches := list(cut.finditer(buffer, max(begin, len(buffer) - window))):
                return matches[-1].start()
    return None


_KINETO_BETWEEN = re.compile(r"(?<=\n  \}),\s*")
_ANY_BETWEEN = re.compile(r'(?<=\})\s*,\s*(?=\{\s*")')
# Behind the events: the text's end, the end of the object they are in, or its next key.
_ARRAY_END = re.compile(r'\s*\](?=\s*(?:\Z|\}(?!\s*[\]},])|,\s*"))')
_NO_UTF_8 = "\ufffd"  # what stands in the text for bytes that are none
# characters in which an event that is no strict JSON, or goes on behind the next cut, must end
_MOST_LENIENT = 1 << 20
_MOST_IN_VAIN = 100  # events of a chunk that are looked for behind the next cut, and do not end
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)

_Event = TypeVar("_Event")


@dataclass
class DecodedChunk(Generic[_Event]):
    """Events of a chunk, what could not be read of it, and the text behind the array's end."""

    events: list[_Event]
    skipped: int = 0
    repaired: int = 0
    tail: bytes | None = None  # set when the array ended in this chunk
    subtracted_us: int = 0  # from the events' times, to fit a float


def decode_chunk(
    chunk: bytearray, kineto_layout: bool, codec: Codec[_Event]
) -> DecodedChunk[_Event]:
    """Events of one chunk, a JSON array or what damage made of it; never raises on bad text."""
    with suppress(*_UNREADABLE):
        return DecodedChunk(codec.chunk(chunk))
    tail = None
    end = -1
    if kineto_layout:
        end = chunk.rfind(b"\n  ]", 0, len(chunk) - 1)  # the last bracket is no file's
    if end >= 0:
        tail = bytes(chunk[end:-1])
        chunk = chunk[:end] + b"]"
    for decode in (codec.chunk, codec.lax_chunk):
        with suppress(*_UNREADABLE):
            return DecodedChunk(decode(chunk), tail=tail)
    text = chunk[1:-1].decode("utf-8", "replace").lstrip()
    decoded = _repaired(text, _KINETO_BETWEEN if kineto_layout else _ANY_BETWEEN, codec)
    if end >= 0:
        decoded.tail = tail
    return decoded


def _repaired(text: str, between: re.Pattern[str], codec: Codec[_Event]) -> DecodedChunk[_Event]:
    """A damaged chunk: the sound events are kept, the damaged ones repaired or counted."""
    decoded: DecodedChunk[_Event] = DecodedChunk([])
    start = in_vain = 0
    while start < len(text):
        cut = between.search(text, start)
        end = cut.start() if cut else len(text)
        piece = text[start:end]
        strict = _strict(piece, codec)
        if strict:
            event: _Event | None = strict[0]
            length = len(piece)
            is_sound = _NO_UTF_8 not in piece
        else:
            # an object within it may look like the next event, and the text behind all events follows the last
            most = end if in_vain > _MOST_IN_VAIN else start + _MOST_LENIENT
            event, length = codec.lenient(text[start:most])
            is_sound = bool(_strict(text[start : start + length], codec))
            in_vain += event is None
        stop = start + length
        if event is not None:
            decoded.events.append(event)
            decoded.repaired += not is_sound and _is_timed(event, codec)
        if _ARRAY_END.match(text, stop):
            decoded.tail = text[stop:].encode()
            break
        cut = between.search(text, stop)
        lost = text[stop : cut.start() if cut else len(text)].rstrip()
        decoded.skipped += lost.endswith(("}", "]"))  # else the file ends in it
        start = cut.end() if cut else len(text)
    return decoded


def _strict(piece: str, codec: Codec[_Event]) -> list[_Event]:
    """The event that a piece is; empty where it is none."""
    with suppress(*_UNREADABLE):
        return [codec.one(piece)]
    return []


def _is_timed(event: _Event, codec: Codec[_Event]) -> bool:
    """Whether the event has a time; one without is reported as such."""
    return None not in (codec.field(event, "ts"), codec.field(event, "dur"))
