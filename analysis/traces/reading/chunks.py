"""From a trace file to its events, a piece of text at a time that fits a core's cache; damaged text
is repaired.

A trace is a JSON object whose `traceEvents` array holds nearly all of it. Kineto writes one event
after another, each closed by a line of two blanks and a brace; a raw newline never occurs inside a
JSON string, so such a line is a safe place to cut even when an event's own text is damaged. Files
saved again by another tool (one line, or other indentation) are cut where one object ends and the
next begins; whether that cut was right shows when it is decoded.

A piece is decoded at once where its text is sound, event by event where it is not. Repair costs at
most a constant times the piece, whatever is broken: text is cut into what look like events, and
each is decoded once by itself. Where one goes on beyond the next cut, since objects within an event
look alike, it is read from its beginning; such tries share an allowance.
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
EVENT_BYTES = 16 << 20  # a longer event is none; what is read of it is let go
_MOST_LET_GO = 4  # times in a row; then the file has no more events
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
        # of the last chunk, given back by who decoded it: the next one begins with it
        self.unfinished = b""
        self.goes_on = True  # behind the last chunk
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
        cuts, rest = [_KINETO_CUT] if self.kineto_layout else _cuts(self._first), self._first
        let_go = searched = given_back = 0
        parts, size, wanted = [b"[", rest], len(rest), CHUNK_BYTES
        for block in self._rest:
            parts.append(block)
            size += len(block)
            if size < wanted:
                continue
            chunk = bytearray().join(parts)
            cut = _last_cut(chunk, cuts, max(given_back, searched - _LONGEST_CUT))
            if cut is None and size > EVENT_BYTES:
                parts, size, wanted, searched, given_back = [b"["], 0, CHUNK_BYTES, 0, 0
                let_go += 1
                if let_go < _MOST_LET_GO:
                    continue
                endless = f"more than {_MOST_LET_GO * EVENT_BYTES >> 20} MiB in which no event ends; the rest was not read"
                self._report(TraceCode.EVENTS_DAMAGED.finding(f"{self.path} holds {endless}"))
                break
            if cut is None:  # one event larger than a chunk
                parts, wanted, searched = [bytes(chunk)], 2 * size, size
                continue
            rest = bytes(chunk[cut + 1 :]).lstrip().removeprefix(b",")
            chunk[cut + 1 :] = b"]"
            yield chunk
            let_go = searched = given_back = 0
            # it ends where it was cut: cutting there again would get no further
            if self.unfinished:
                given_back = 1 + len(self.unfinished)
                rest, self.unfinished = self.unfinished + b"," + rest, b""
            parts, size, wanted = [b"[", rest], len(rest), CHUNK_BYTES
        if size:
            yield bytearray().join([*parts, b"]"])
        if self.unfinished:
            self.goes_on = False
            yield bytearray(b"[" + self.unfinished + b"]")

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


# Between two events, a bracket that ends nothing perhaps among it.
_KINETO_BETWEEN = re.compile(r'(?<=\n  \})(?:,\s*|\s*\]\s*,\s*(?=\{\s*"))')
_ANY_BETWEEN = re.compile(r'(?<=\})\s*(?:\]\s*)?,\s*(?=\{\s*")')
# Behind the events: the text's end, the end of the object they are in, or its next key.
_ARRAY_END = re.compile(r'\s*\](?=\s*(?:\Z|\}(?!\s*[\]},])|,\s*"))')
_BLANK_END = re.compile(r"\s*\Z")
_MOST_UNFINISHED = 1 << 16  # characters at a chunk's end that may be an event's beginning
_MOST_IN_VAIN = 1 << 20  # characters of a chunk that are read leniently and are no event
_COST_OF_TRY = 1000  # characters that are read in the time of a try that fails at once
_NO_UTF_8 = "\ufffd"  # what stands in the text for bytes that are none
# characters of an event that is no strict JSON: its objects take up to 30 times as much
_MOST_LENIENT = 1 << 20
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)

_Event = TypeVar("_Event")


@dataclass
class DecodedChunk(Generic[_Event]):
    """Events of a chunk, what could not be read of it, and the text behind the array's end."""

    events: list[_Event]
    skipped: int = 0
    repaired: int = 0
    tail: bytes | None = None  # set when the array ended in this chunk
    unfinished: bytes = b""  # the last event, where it may go on in the next chunk
    subtracted_us: int = 0  # from the events' times, to fit a float


def decode_chunk(
    chunk: bytearray, kineto_layout: bool, codec: Codec[_Event], goes_on: bool = True
) -> DecodedChunk[_Event]:
    """Events of one chunk, a JSON array or what damage made of it; never raises on bad text.

    Where text `goes_on` behind it, an event that seems to as well is left `unfinished`.
    """
    with suppress(*_UNREADABLE):
        return DecodedChunk(codec.chunk(chunk))
    if kineto_layout and (end := chunk.rfind(b"\n  ]")) >= 0:
        with suppress(*_UNREADABLE):
            return DecodedChunk(codec.chunk(chunk[:end] + b"]"), tail=bytes(chunk[end:-1]))
    with suppress(*_UNREADABLE):
        return DecodedChunk(codec.lax_chunk(chunk))
    return _Repair(chunk[1:-1].decode("utf-8", "replace"), kineto_layout, codec).decoded(goes_on)


class _Repair(Generic[_Event]):
    """A damaged chunk, event by event: the sound ones are kept, the damaged ones repaired or
    counted.
    """

    def __init__(self, text: str, kineto_layout: bool, codec: Codec[_Event]) -> None:
        self._text, self._codec, self._kineto_layout = text, codec, kineto_layout
        self._between = _KINETO_BETWEEN if kineto_layout else _ANY_BETWEEN
        self._allowance = _MOST_IN_VAIN
        self._result: DecodedChunk[_Event] = DecodedChunk([])

    def decoded(self, goes_on: bool) -> DecodedChunk[_Event]:
        """All that can be read; an event that no closing brace ends is left unfinished where text
        `goes_on` behind.
        """
        result, text = self._result, self._text
        start = len(text) - len(text.lstrip())
        if _ARRAY_END.match(text, start):  # without an event in this chunk
            result.tail, start = text.encode(), len(text)
        while start < len(text):
            between = self._between.search(text, start)
            event, stop = self._event(start, between.start() if between else len(text))
            if event is not None:
                result.events.append(event)
                if _ARRAY_END.match(text, stop):
                    result.tail = text[stop:].encode()
                    break
                between = self._between.match(text, stop)
                result.repaired += between is not None and "]" in between[0]
            elif goes_on and self._may_go_on(start):
                result.unfinished = text[start:].encode()
                break
            else:
                result.skipped += between is not None or text.rstrip().endswith(("}", "]"))
            start = between.end() if between else len(text)
        return result

    def _event(self, start: int, end: int) -> tuple[_Event | None, int]:
        """The event that begins at `start` and where it ends: mostly at `end`, before the next cut;
        None if there is none.
        """
        text = self._text[start:end]
        with suppress(*_UNREADABLE):
            event = self._codec.one(text)
            self._result.repaired += _NO_UTF_8 in text and self._is_timed(event)
            return event, end
        ends = (
            (end,) if self._kineto_layout else (end, len(self._text))
        )  # an object within it may look like the next one
        for last in ends:
            # with the last event goes what is behind the events
            if self._allowance > 0 or end == len(self._text):
                found, stop = self._lenient(start, last)
                if found is not None:
                    return found, stop
                self._allowance -= _COST_OF_TRY + stop - start
        return None, end

    def _lenient(self, start: int, end: int) -> tuple[_Event | None, int]:
        """The same for text that need not be strict JSON, or goes on behind the event; without an
        event, how far it was read.
        """
        piece = self._text[start : min(end, start + _MOST_LENIENT)]
        event, length = self._codec.lenient(piece)
        stop = start + length
        behind = (self._between, _ARRAY_END, _BLANK_END)
        if event is None or not any(pattern.match(self._text, stop) for pattern in behind):
            return None, stop
        with suppress(*_UNREADABLE):
            return self._codec.one(piece[:length]), stop
        self._result.repaired += self._is_timed(event)
        return event, stop

    def _is_timed(self, event: _Event) -> bool:
        """Whether the event has a time; one without is reported as such."""
        return None not in (self._codec.field(event, "ts"), self._codec.field(event, "dur"))

    def _may_go_on(self, start: int) -> bool:
        """Whether the event may lack only what follows in the next chunk."""
        rest = self._text[start : start + _MOST_UNFINISHED]
        is_last = not self._kineto_layout and len(rest) == len(self._text) - start
        return is_last and rest.count("{") > rest.count("}")
