"""From a trace file to its events, a piece of text at a time that fits a core's cache; damaged text is repaired.

A trace is a JSON object whose `traceEvents` array holds nearly all of it. Kineto writes one event after another,
each closed by a line of two blanks and a brace; a raw newline never occurs inside a JSON string, so such a line is
a safe place to cut even when an event's own text is damaged. Files saved again by another tool (one line, or other
indentation) are cut where one object ends and the next begins; whether that cut was right shows when it is decoded.

A piece is decoded at once where its text is sound, event by event where it is not. Repair costs at most a constant times the
piece, whatever is broken. Text is cut into pieces that look like events; each is decoded once by itself. Where that fails, the
braces show which pieces may be one event that was cut inside, and brackets where the events may end; such tries over several
pieces share an allowance, and are over when it is spent.
"""

import os
import re
import stat
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Generic, TypeVar

import msgspec
from isal import igzip_lib

from dpscope.analysis.traces.reading.json_events import Codec
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError, unreadable


@dataclass(frozen=True)
class ReadLimits:
    """Of a file with more bytes the rest is not read: a small compressed file can expand without end.

    A file with more events is refused. The default number of events is that of about 2.5 GB of text as Kineto writes it.
    """

    max_bytes: int = 16 << 30  # uncompressed
    max_events: int = 10_000_000


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
_Cut = tuple[bytes, re.Pattern[bytes]]  # what must be somewhere in the text, and the end of an event, from its brace on
_KINETO_CUT: _Cut = b"\n  },", re.compile(rb"\}(?<=\n  \}),")  # begins with a text that is searched for fast
_ANY_CUT: _Cut = b"{", re.compile(rb'\}\s*,\s*(?=\{\s*")')  # a quote within a string would be escaped
_WINDOWS = (1 << 12, 1 << 16, 1 << 40)  # bytes at a chunk's end in which its last event is looked for, in turn
_LONGEST_CUT = 4096  # bytes; one with more blanks is found when the text behind it is
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.){1,64}")')
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

WANTED = "name a file that export_chrome_trace or tensorboard_trace_handler wrote"
ReportFinding = Callable[[Finding], None]


class TraceText:
    """A trace file's text, gzip-compressed or plain, in pieces: `head` before the events, the events' chunks, `tail` after them.

    Raises DpscopeError when the file cannot be read, is empty or holds no `traceEvents`; what is lost of a damaged
    file goes to `report` as findings.
    """

    def __init__(self, path: Path, max_bytes: int, report: ReportFinding) -> None:
        self.path, self._report = path, report
        self.compressed = False  # the file is gzip's by its first bytes
        self.damaged = False  # compressed text that ends, or cannot be read on, before its end
        self.tail = bytearray()  # filled once `chunks` is exhausted
        self.unfinished = b""  # of the last chunk, given back by who decoded it: the next one begins with it
        self.goes_on = True  # behind the last chunk
        blocks = self._blocks(max_bytes)
        buffer, searched = bytearray(), 0
        for block in blocks:
            buffer += block
            if not searched and buffer.startswith(_BYTE_ORDER_MARK):
                del buffer[: len(_BYTE_ORDER_MARK)]
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
        self.is_array = self.head.lstrip()[:1] == b"["  # the bare array of events, Chrome's other form
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
        """JSON arrays of whole events, CHUNK_BYTES or more; the last one may hold more, or less: the array's end and the tail."""
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
                endless = (
                    f"more than {_MOST_LET_GO * EVENT_BYTES >> 20} MiB in which no event ends; the rest was not read"
                )
                self._report(TraceCode.EVENTS_UNREADABLE.finding(f"{self.path} holds {endless}"))
                break
            if cut is None:  # one event larger than a chunk
                parts, wanted, searched = [bytes(chunk)], 2 * size, size
                continue
            rest = bytes(chunk[cut + 1 :]).lstrip().removeprefix(b",")
            chunk[cut + 1 :] = b"]"
            yield chunk
            let_go = searched = given_back = 0
            if self.unfinished:  # it ends where it was cut: cutting there again would get no further
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
                    os.scandir(self.path).close()  # a folder that cannot be searched is reported as such
                raise DpscopeError(f"{self.path} is not a regular file; name a trace file or a folder of them")
            with open(self.path, "rb") as file:
                self.compressed = file.read(2) == _GZIP_MAGIC
                file.seek(0)
                for block in self._inflated(file) if self.compressed else iter(lambda: file.read(BLOCK_BYTES), b""):
                    total += len(block)
                    if total > max_bytes:
                        yield block[: max_bytes - total]
                        text = f"{self.path} expands to more than {max_bytes} bytes; the rest was not read"
                        self._report(TraceCode.TRACE_TOO_LARGE.finding(text))
                        return
                    yield block
        except OSError as error:
            raise DpscopeError(f"{unreadable(self.path, error)}; check the name and its permissions") from error

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """The text of a gzip file of one or more members, up to where it is damaged; never more than a block at once."""
        inflater, data = _inflater(), file.read(BLOCK_BYTES)
        while True:
            try:
                text = inflater.decompress(data, INFLATED_BYTES)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stubs call it a plain object
                return self._damage(f"is damaged ({error})")
            if text:
                yield text
            data = b""
            if inflater.eof:
                data = inflater.unused_data or file.read(BLOCK_BYTES)
                if len(data) < len(_GZIP_MAGIC):
                    data += file.read(BLOCK_BYTES)
                if not data.startswith(_GZIP_MAGIC):
                    while data and not data.strip(b"\0"):  # padding
                        data = file.read(BLOCK_BYTES)
                    return (
                        self._damage("has other bytes after its end", TraceCode.GZIP_TRAILING_BYTES) if data else None
                    )
                inflater = _inflater()
            elif inflater.needs_input:
                data = file.read(BLOCK_BYTES)
                if not data:
                    return self._damage("is cut short")

    def _damage(self, what: str, code: TraceCode = TraceCode.GZIP_DAMAGED) -> None:
        self.damaged = code is TraceCode.GZIP_DAMAGED
        self._report(code.finding(f"the gzip file {self.path} {what}; what comes before was read"))


_inflater = partial(igzip_lib.IgzipDecompressor, flag=igzip_lib.DECOMP_GZIP)


def _cuts(events: bytes) -> list[_Cut]:
    """Surest first: before an object that begins as the first event does, before any object."""
    first = _FIRST_KEY.match(events)
    same = [(first[1], re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(first[1]) + rb")"))] if first else []
    return [*same, _ANY_CUT]


def _last_cut(buffer: bytearray, cuts: Sequence[_Cut], begin: int) -> int | None:
    """Offset of the brace that closes the last event known, or in other layouts thought, to be whole.

    Only from `begin` on: each byte is looked at once, however large an event grows.
    """
    for key, cut in cuts:
        for window in _WINDOWS if buffer.find(key, begin) >= 0 else ():
            if matches := list(cut.finditer(buffer, max(begin, len(buffer) - window))):
                return matches[-1].start()
    return None


_EVENT_CUT_KINETO = re.compile(rb'(?<=\n  \})(?:,\s*|\s*(\])\s*,\s*(?=\{\s*"))')
_EVENT_CUT = re.compile(rb'(?<=\})\s*(?:(\])\s*)?,\s*(?=\{\s*")')
# Behind the events: the text's end, the end of the object they are in, or its next key.
_ARRAY_END = re.compile(rb'\}(\s*\])(?=\s*(?:\Z|\}(?!\s*[\]},])|,\s*"))')
_MOST_ENDS = 8  # of an array that are tried in one event
_MOST_UNFINISHED = 1 << 16  # bytes at a chunk's end that may be an event's beginning
_TRIED_AGAIN = 4  # times a chunk's bytes, which may be decoded once more in other cuts
_MOST_LENIENT = 1 << 20  # bytes of an event that is no strict JSON: its objects take up to 30 times as much
_LOOKED_AT = 1 << 12  # bytes at a chunk's end, where nothing was readable for long
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

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
    fragments: int = 0  # pieces that were tried one by one and are no events


class Hope(Enum):
    """What is to be expected of a damaged chunk, by the chunks before it."""

    SOUND = auto()
    DIM = auto()  # nothing was readable for long: repaired only if there is an event at its end
    NONE = auto()  # too many fragments: only its end is looked at


def decode_chunk(
    chunk: bytearray, kineto_layout: bool, codec: Codec[_Event], goes_on: bool = True, hope: Hope = Hope.SOUND
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
    text = bytes(chunk[1:-1])
    if hope is not Hope.SOUND:
        begin = max(0, len(text) - _LOOKED_AT)
        last = _Repair(text[max(begin, text.find(b"{", begin)) :], kineto_layout, codec).decoded(goes_on=False)
        events = [event for event in last.events if codec.is_event(event)]
        if hope is Hope.NONE or (last.tail is None and not events):
            return DecodedChunk(events, skipped=text.count(b"},") + 1 - len(events), tail=last.tail)
    return _Repair(text, kineto_layout, codec).decoded(goes_on)


class _Repair(Generic[_Event]):
    """A damaged chunk, event by event: the sound ones are kept, the damaged ones repaired or counted."""

    def __init__(self, text: bytes, kineto_layout: bool, codec: Codec[_Event]) -> None:
        cuts = list((_EVENT_CUT_KINETO if kineto_layout else _EVENT_CUT).finditer(text))
        self._text, self._codec, self._kineto_layout = text, codec, kineto_layout
        self._starts = [0, *(cut.end() for cut in cuts)]
        self._ends = [*(cut.start() for cut in cuts), len(text)]
        self._stray = [cut[1] is not None for cut in cuts] + [False]  # a bracket behind the piece that ends nothing
        self._allowance = _TRIED_AGAIN * len(text)
        self._result: DecodedChunk[_Event] = DecodedChunk([])

    def decoded(self, goes_on: bool) -> DecodedChunk[_Event]:
        """All that can be read; an event that no closing brace ends is left unfinished where text `goes_on` behind."""
        result, index = self._result, 0
        while index < len(self._starts) and result.tail is None:
            event = self._event(self._starts[index], self._ends[index])
            last = index
            if event is None and not self._kineto_layout:
                closing = self._closing[index]
                if closing is None and goes_on and len(self._text) - self._starts[index] < _MOST_UNFINISHED:
                    result.unfinished = self._text[self._starts[index] :]
                    break
                if closing is not None and closing > index:
                    event = self._tried_again(self._starts[index], self._ends[closing])
                    last = closing if event is not None else index
            if event is None:
                event = self._last_event(index)
            if event is not None:
                result.events.append(event)
                result.fragments += not self._codec.is_event(event)
                result.repaired += self._stray[last] and result.tail is None
            elif index == 0 and self._text[: self._ends[0]].lstrip().startswith(b"]"):  # no event at all
                result.tail = self._text
            elif index + 1 < len(self._starts) or self._text[self._starts[index] :].rstrip().endswith((b"}", b"]")):
                result.skipped += 1
                result.fragments += 1
            index = last + 1
        return result

    def _event(self, start: int, end: int) -> _Event | None:
        piece = self._text[start:end]
        with suppress(*_UNREADABLE):
            return self._codec.one(piece)
        event, field = self._codec.lenient(piece) if len(piece) <= _MOST_LENIENT else None, self._codec.field
        if event is not None:
            self._result.repaired += None not in (field(event, "ts"), field(event, "dur"))
        return event

    def _tried_again(self, start: int, end: int) -> _Event | None:
        """The event that this text is, as long as there is an allowance for it."""
        self._allowance -= end - start
        return self._event(start, end) if self._allowance >= 0 else None

    def _last_event(self, index: int) -> _Event | None:
        """The event that begins with this piece, when the array's closing bracket is in it: what is behind becomes the tail."""
        start = self._starts[index]
        closing = index if self._kineto_layout else self._closing[index]
        end = self._ends[closing] if closing is not None else len(self._text)
        first = bisect_left(self._array_ends, start)
        for brace in self._array_ends[first : first + _MOST_ENDS]:
            if brace >= end:
                break
            decoded = self._event if brace < self._ends[index] else self._tried_again
            event = decoded(start, brace + 1)
            if event is not None and self._codec.is_event(event):
                self._result.tail = self._text[brace + 1 :]
                return event
        return None

    @cached_property
    def _array_ends(self) -> list[int]:
        """Where braces close what may be the last event."""
        return [match.start() for match in _ARRAY_END.finditer(self._text)]

    @cached_property
    def _closing(self) -> list[int | None]:
        """For each piece the first, it or a later one, with which its braces balance; None where they never do."""
        text, depth = self._text, 0
        depths = [0]
        for start, end in zip(self._starts, self._ends, strict=True):
            depth += text.count(b"{", start, end) - text.count(b"}", start, end)
            depths.append(depth)
        closing: list[int | None] = [None] * len(self._starts)
        open_pieces: list[int] = []  # their depths rise
        for piece, depth in enumerate(depths[1:]):
            open_pieces.append(piece)
            while open_pieces and depths[open_pieces[-1]] >= depth:
                closing[open_pieces.pop()] = piece
        return closing
