"""Kineto's JSON events as typed structs: fast where the text is sound, event by event where it is not."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

_EVENT_CUT_KINETO = re.compile(rb"(?<=\n  \}),\s*")
_EVENT_CUT = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_ARRAY_END = re.compile(rb"\}(\s*\])")
NONE = -1  # stands for a number the trace does not give
_MAX_JOINED = 32  # pieces an event may have been cut into, before it is given up


class EventArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments dpscope reads; names as Kineto writes them."""

    device: int = NONE
    copy_device: int = msgspec.field(default=NONE, name="inDevice")  # a peer copy has no `device`
    correlation: int = NONE
    bytes: int = NONE
    collective_name: str | None = msgspec.field(default=None, name="Collective name")
    input_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    output_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group: str | int | None = msgspec.field(default=None, name="Process Group Name")
    group_ranks: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Process Group Ranks")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    input_dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    rank: int | str | None = NONE  # given where a tool fused several ranks into one file


NO_ARGS = EventArgs()


class Event(msgspec.Struct, gc=False):
    """One trace event; times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float | None = None
    dur: float | None = None
    args: EventArgs = NO_ARGS


_strict = msgspec.json.Decoder(list[Event])
_lax = msgspec.json.Decoder(list[Event], strict=False)  # numbers as strings
_one = msgspec.json.Decoder(Event, strict=False)


class DecodedChunk(msgspec.Struct):
    """Events of a chunk, what could not be read of it, and the text behind the array's end."""

    events: list[Event]
    skipped: int = 0
    repaired: int = 0
    tail: bytes | None = None  # set when the array ended in this chunk
    cut_short: bool = False  # the chunk's last event is not whole


def decode_chunk(chunk: bytearray, kineto_layout: bool) -> DecodedChunk:
    """Events of one chunk, a JSON array or what damage made of it; never raises on bad text."""
    try:
        return DecodedChunk(_strict.decode(chunk))
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    end = chunk.rfind(b"\n  ]") if kineto_layout else -1
    if end >= 0:
        try:
            return DecodedChunk(_strict.decode(chunk[:end] + b"]"), tail=bytes(chunk[end:-1]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    try:
        return DecodedChunk(_lax.decode(chunk))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_each(bytes(chunk[1:-1]), kineto_layout)


def _decode_each(chunk: bytes, kineto_layout: bool) -> DecodedChunk:
    """Event by event: the sound ones are kept, the damaged ones repaired or counted."""
    result = DecodedChunk([])
    pieces = list(_pieces(chunk, kineto_layout))
    index = 0
    while index < len(pieces):
        piece = pieces[index]
        used = 1
        event = _decode_one(piece, result)
        if event is None and (ended := _array_end(piece, result)) is not None:
            event, result.tail = ended
            result.tail += b"".join(b"," + rest for rest in pieces[index + 1 :])
            used = len(pieces) - index
        elif event is None and not kineto_layout:
            event, used = _join(pieces, index)
        if event is not None:
            result.events.append(event)
        elif index + used == len(pieces) and not _is_closed(piece):
            result.cut_short = bool(piece.strip())
        else:
            result.skipped += 1
        index += used
    return result


def _pieces(chunk: bytes, kineto_layout: bool) -> Iterator[bytes]:
    yield from (_EVENT_CUT_KINETO if kineto_layout else _EVENT_CUT).split(chunk)


def _is_closed(piece: bytes) -> bool:
    return piece.rstrip().endswith((b"}", b"]"))


def _decode_one(piece: bytes, result: DecodedChunk) -> Event | None:
    try:
        return _one.decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError):
        event = lenient_event(piece)
        result.repaired += event is not None and event.ts is not None and event.dur is not None
        return event


def _array_end(piece: bytes, result: DecodedChunk) -> tuple[Event, bytes] | None:
    """The last event and the text behind it, when the array's closing bracket is in this piece."""
    for match in _ARRAY_END.finditer(piece):
        event = _decode_one(piece[: match.start() + 1], result)
        if event is not None:
            return event, piece[match.start(1) :]
    return None


def _join(pieces: list[bytes], index: int) -> tuple[Event | None, int]:
    """An event whose arguments hold objects of their own was cut inside; put it together again."""
    joined = pieces[index]
    if joined.count(b"{") <= joined.count(b"}"):
        return None, 1
    for used in range(2, min(_MAX_JOINED, len(pieces) - index) + 1):
        joined += b"," + pieces[index + used - 1]
        if joined.count(b"{") == joined.count(b"}"):
            try:
                return _one.decode(joined), used
            except (msgspec.DecodeError, UnicodeDecodeError):
                event = lenient_event(joined)
                return event, used if event is not None else 1
    return None, 1


def lenient_event(text: bytes) -> Event | None:
    """An event that is not strict JSON: NaN and Infinity, control characters, bad UTF-8, huge integers.

    None when even that fails. A field of a wrong type is left out; the event stays if its times are sound.
    """
    try:
        value = json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    fields = {key: value[key] for key in ("ph", "cat", "name") if isinstance(value.get(key), str)}
    fields |= {key: value[key] for key in ("pid", "tid") if isinstance(value.get(key), int | str)}
    fields |= {key: _finite(value.get(key)) for key in ("ts", "dur")}
    return Event(**fields, args=_lenient_args(args) if isinstance(args, dict) else NO_ARGS)


def _lenient_args(args: dict[str, Any]) -> EventArgs:
    kept: dict[str, Any] = {}
    for name, encoded in zip(EventArgs.__struct_fields__, EventArgs.__struct_encode_fields__, strict=True):
        value = args.get(encoded)
        if name in ("input_dims", "input_type", "group_ranks"):
            if value is not None:
                kept[name] = msgspec.Raw(json.dumps(value).encode())
        elif name in ("collective_name", "dtype", "group"):
            kept[name] = value if isinstance(value, str) else None
        elif name == "rank" and isinstance(value, str):
            kept[name] = value
        elif (number := int64(value)) is not None:
            kept[name] = number
    return EventArgs(**kept)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def int64(value: object) -> int | None:
    """A whole number that fits 64 bits, else None."""
    number = _finite(value)
    return int(number) if number is not None and abs(number) < 2**63 and number == int(number) else None
