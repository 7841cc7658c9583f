"""From a trace file to runs of whole events, as bytes, a piece at a time that fits a core's cache.

A trace is a JSON object whose `traceEvents` array holds nearly all of it. Kineto writes one event after another,
each closed by a line of two blanks and a brace; a raw newline never occurs inside a JSON string, so such a line is
a safe place to cut even when an event's own text is damaged. Files saved again by another tool (one line, or other
indentation) are cut where one object ends and the next begins; whether that cut was right shows when it is decoded.
"""

import re
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from isal import igzip_lib

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
_KINETO_CUT = b"\n  },"
_ANY_CUT = re.compile(rb'\}\s*,\s*(?=\{\s*")')  # a quote within a string would be escaped
_WINDOWS = (1 << 12, 1 << 16, 1 << 40)  # bytes at a chunk's end in which its last event is looked for, in turn
_LONGEST_CUT = 4096  # bytes; one with more blanks is found when the text behind it is
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.){1,64}")')
_Cut = tuple[bytes, re.Pattern[bytes]]  # the key of an object, and what ends an event before such an object
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

WANTED = "name a file that export_chrome_trace or tensorboard_trace_handler wrote"
ReportFinding = Callable[[Finding], None]


@dataclass
class TraceText:
    """A trace's text, in pieces: `head` before the events, the events' chunks, `tail` after them."""

    head: bytes = b""
    chunks: Iterator[bytearray] = field(default_factory=lambda: iter(()))
    """Each a JSON array of whole events; the last one may hold more, or less."""
    kineto_layout: bool = False
    tail: bytearray = field(default_factory=bytearray)  # filled once `chunks` is exhausted
    compressed: bool = False  # the file is gzip's by its first bytes
    damaged: bool = False  # compressed text that ends, or cannot be read on, before its end
    unfinished: bytes = b""  # of the last chunk, given back by who decoded it: the next one begins with it

    @property
    def is_array(self) -> bool:
        """Whether the file is the bare array of events, Chrome's other form."""
        return self.head.lstrip()[:1] == b"["


def open_trace(path: Path, max_bytes: int, report: ReportFinding) -> TraceText:
    """Open a trace file, gzip-compressed or plain.

    Raises DpscopeError when the file cannot be read, is empty or holds no `traceEvents`; what is lost of a damaged
    file goes to `report` as findings.
    """
    text = TraceText()
    blocks = _limited(_blocks(path, text, report), path, max_bytes, report)
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
        raise _no_trace(path, text, bool(buffer.strip()))
    text.head = bytes(buffer[: begin.end()])
    del buffer[: begin.end()]
    while len(buffer) < 4096 and (block := next(blocks, b"")):
        buffer += block
    text.kineto_layout = re.match(rb"\s*\n  \{", buffer) is not None
    endless = (
        f"{path} holds more than {_MOST_LET_GO * EVENT_BYTES >> 20} MiB in which no event ends; the rest was not read"
    )
    text.chunks = _chunks(bytes(buffer), blocks, text, lambda: report(TraceCode.EVENTS_UNREADABLE.finding(endless)))
    return text


def _no_trace(path: Path, text: TraceText, holds_something: bool) -> DpscopeError:
    """What a file without events is, so that users do not look for a trace in it."""
    if holds_something:
        content = "its decompressed content" if text.compressed else "it"
        what = f'is not a torch.profiler trace: {content} has no "traceEvents" list; {WANTED}'
    elif text.damaged:
        what = (
            "starts like a gzip file, but nothing in it can be decompressed: it is truncated, damaged or not a gzip file; "
            f"copy it again, or {WANTED}"
        )
    else:
        inside = "is an empty gzip file" if text.compressed else "is empty"
        what = f"{inside}, not a trace: the process may have been killed before it exported one"
    return DpscopeError(f"{path} {what}")


def _chunks(rest: bytes, blocks: Iterator[bytes], text: TraceText, give_up: Callable[[], None]) -> Iterator[bytearray]:
    """Runs of whole events in brackets, CHUNK_BYTES or more; the last still holds the array's end and the tail."""
    cuts = _cuts(rest)
    let_go = searched = given_back = 0
    parts, size, wanted = [b"[", rest], len(rest), CHUNK_BYTES
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size < wanted:
            continue
        chunk = bytearray().join(parts)
        cut = _last_cut(chunk, text.kineto_layout, cuts, max(given_back, searched - _LONGEST_CUT))
        if cut is None and size > EVENT_BYTES:
            parts, size, wanted, searched, given_back = [b"["], 0, CHUNK_BYTES, 0, 0
            let_go += 1
            if let_go < _MOST_LET_GO:
                continue
            give_up()
            return
        if cut is None:  # one event larger than a chunk
            parts, wanted, searched = [bytes(chunk)], 2 * size, size
            continue
        rest = bytes(chunk[cut + 1 :]).lstrip().removeprefix(b",")
        chunk[cut + 1 :] = b"]"
        yield chunk
        let_go = searched = given_back = 0
        if text.unfinished:  # it ends where it was cut: cutting there again would get no further
            given_back = 1 + len(text.unfinished)
            rest, text.unfinished = text.unfinished + b"," + rest, b""
        parts, size, wanted = [b"[", rest], len(rest), CHUNK_BYTES
    if size:
        yield bytearray().join([*parts, b"]"])


def _cuts(events: bytes) -> tuple[_Cut, ...]:
    """Surest first: before an object that begins as the first event does, before any object."""
    any_object = (b'"', _ANY_CUT)
    if (first := _FIRST_KEY.match(events)) is None:
        return (any_object,)
    return (first[1], re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(first[1]) + rb")")), any_object


def _last_cut(buffer: bytearray, kineto_layout: bool, cuts: tuple[_Cut, ...], begin: int) -> int | None:
    """Offset of the brace that closes the last event known, or in other layouts thought, to be whole.

    Only from `begin` on: each byte is looked at once, however large an event grows.
    """
    if kineto_layout:
        found = buffer.rfind(_KINETO_CUT, begin)
        return found + len(_KINETO_CUT) - 2 if found >= 0 else None
    if buffer.find(b"{", begin) < 0 or _ANY_CUT.search(buffer, begin) is None:
        return None
    for key, cut in cuts:
        if buffer.find(key, begin) < 0:
            continue
        for window in _WINDOWS:
            if matches := list(cut.finditer(buffer, max(begin, len(buffer) - window))):
                return matches[-1].start()
    return None


def _limited(blocks: Iterator[bytes], path: Path, max_bytes: int, report: ReportFinding) -> Iterator[bytes]:
    """Stop after `max_bytes`: a small compressed file can expand without end."""
    total = 0
    for block in blocks:
        if total + len(block) > max_bytes:
            yield block[: max_bytes - total]
            text = f"{path} expands to more than {max_bytes} bytes; the rest was not read"
            report(TraceCode.TRACE_TOO_LARGE.finding(text))
            return
        total += len(block)
        yield block


def _blocks(path: Path, text: TraceText, report: ReportFinding) -> Iterator[bytes]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DpscopeError(f"{path} is not a regular file; name a trace file or a folder of them")
        with open(path, "rb") as file:
            magic = file.read(2)
            file.seek(0)
            text.compressed = magic == _GZIP_MAGIC
            plain = iter(lambda: file.read(BLOCK_BYTES), b"")
            yield from _inflated(file, path, text, report) if text.compressed else plain
    except OSError as error:
        raise DpscopeError(f"{unreadable(path, error)}; check the name and its permissions") from error


def _inflated(file: IO[bytes], path: Path, whole: TraceText, report: ReportFinding) -> Iterator[bytes]:
    """The text of a gzip file of one or more members, up to where it is damaged; never more than a block at once."""

    def damage(what: str, code: TraceCode = TraceCode.GZIP_DAMAGED) -> None:
        whole.damaged = code is TraceCode.GZIP_DAMAGED
        report(code.finding(f"the gzip file {path} {what}; what comes before was read"))

    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    data = file.read(BLOCK_BYTES)
    while True:
        try:
            text = inflater.decompress(data, INFLATED_BYTES)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stubs call it a plain object
            return damage(f"is damaged ({error})")
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
                if data:
                    damage("has other bytes after its end", TraceCode.GZIP_TRAILING_BYTES)
                return
            inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        elif inflater.needs_input:
            data = file.read(BLOCK_BYTES)
            if not data:
                return damage("is cut short")
