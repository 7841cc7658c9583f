"""From a chunk's text to its events: all at once where the text is sound, event by event where it is not.

Repair costs at most a constant times the chunk, whatever is broken. Text is cut into pieces that look like events; each
is decoded once by itself. Where that fails, the braces show which pieces may be one event that was cut inside, and brackets
where the events may end; such tries over several pieces share an allowance, and are over when it is spent.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

from dpscope.analysis.traces.reading.json_events import Codec

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


def decode_chunk(
    chunk: bytearray, kineto_layout: bool, codec: Codec[_Event], goes_on: bool = True, hopeless: bool = False
) -> DecodedChunk[_Event]:
    """Events of one chunk, a JSON array or what damage made of it; never raises on bad text.

    Where text `goes_on` behind it, an event that seems to as well is left `unfinished`. A damaged chunk of a `hopeless`
    file is repaired only if there is an event at its end.
    """
    try:
        return DecodedChunk(codec.chunk(chunk))
    except _UNREADABLE:
        pass
    end = chunk.rfind(b"\n  ]") if kineto_layout else -1
    if end >= 0:
        try:
            return DecodedChunk(codec.chunk(chunk[:end] + b"]"), tail=bytes(chunk[end:-1]))
        except _UNREADABLE:
            pass
    try:
        return DecodedChunk(codec.lax_chunk(chunk))
    except _UNREADABLE:
        text = bytes(chunk[1:-1])
    if hopeless:
        last = _Repair(text[-_LOOKED_AT:], kineto_layout, codec).decoded(goes_on=False)
        if last.tail is None and not any(codec.is_event(event) for event in last.events):
            return DecodedChunk([], skipped=text.count(b"},") + 1)
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
                result.repaired += self._stray[last] and result.tail is None
            elif index == 0 and self._piece(0).lstrip().startswith(b"]"):  # no event at all
                result.tail = self._text
            elif index + 1 < len(self._starts) or self._piece(index).rstrip().endswith((b"}", b"]")):
                result.skipped += 1
            index = last + 1
        return result

    def _piece(self, index: int) -> bytes:
        return self._text[self._starts[index] : self._ends[index]]

    def _event(self, start: int, end: int) -> _Event | None:
        piece = self._text[start:end]
        try:
            return self._codec.one(piece)
        except _UNREADABLE:
            event = self._codec.lenient(piece) if len(piece) <= _MOST_LENIENT else None
            self._result.repaired += event is not None and self._codec.is_timed(event)
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
