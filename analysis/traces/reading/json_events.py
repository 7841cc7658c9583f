"""Kineto's JSON events as typed structs, and how one is read that is no strict JSON."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar

import msgspec

NONE = -1  # stands for a number the trace does not give
MOST_US = 2.0**53  # 285 years: what is longer is no time
# 64 TiB: beyond the memory of any host, and millions of them add up to a 64-bit number
MOST_COUNT = 2**46
# of ranks, devices and processes: c10d, CUDA and Linux count them in a C int
MOST_ORDINAL = 2**31 - 1


class EventArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments dpscope reads; names as Kineto writes them."""

    device: int = NONE
    copy_device: int = msgspec.field(default=NONE, name="inDevice")  # a peer copy has no `device`
    from_device: int = msgspec.field(default=NONE, name="fromDevice")
    to_device: int = msgspec.field(default=NONE, name="toDevice")
    correlation: int = NONE
    bytes: int = NONE
    # of a copy whose name has none
    copy_kind: int | str | None = msgspec.field(default=None, name="copy kind")
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
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    rank: int | str | None = NONE  # given where a tool joined several ranks in one file


class Event(msgspec.Struct, gc=False):
    """One trace event; times in microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float | None = None
    dur: float | None = None
    args: EventArgs = EventArgs()


RawEvent = dict[str, Any]
_Event = TypeVar("_Event")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


@dataclass(frozen=True)
class Codec(Generic[_Event]):
    """How events are decoded: all of a chunk at once, one alone, and the one that a text begins
    with, which is no strict JSON.
    """

    chunk: Callable[[bytes | bytearray], list[_Event]]
    lax_chunk: Callable[[bytes | bytearray], list[_Event]]  # numbers may be strings
    one: Callable[[str], _Event]
    lenient: Callable[[str], tuple[_Event | None, int]]  # and where it ends; None, 0 for none
    field: Callable[[_Event, str], object]

    def is_event(self, event: _Event) -> bool:
        """Truly so: it has a phase."""
        return bool(self.field(event, "ph"))


def _raw_event(text: str) -> tuple[RawEvent | None, int]:
    """The object that the text begins with, and where it ends; None and 0 if it begins with none.

    It may hold control characters, and NaN and Infinity, which become null.
    """
    try:
        value, end = _lenient_json().raw_decode(text)
    except (ValueError, RecursionError):  # no JSON; a number of thousands of digits; lists in lists
        return None, 0
    if not isinstance(value, dict):
        return None, 0
    return value, end


@cache
def _lenient_json() -> json.JSONDecoder:
    """Made once: it takes longer to make than an event to decode."""
    return json.JSONDecoder(strict=False, parse_float=finite, parse_constant=lambda _: None)


_decoder = cache(partial(msgspec.json.Decoder, strict=False))
_fields = cache(msgspec.structs.fields)  # whose types take longer to find than an event to decode


def _event(text: str) -> tuple[Event | None, int]:
    """The same as a struct; a field of a wrong type is left out."""
    value, end = _raw_event(text)
    if value is None:
        return None, 0
    content = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    try:
        return _fitting(content, Event), end
    except (msgspec.DecodeError, RecursionError):
        return None, 0


def _fitting(text: bytes | msgspec.Raw, kind: type[_Struct]) -> _Struct:
    """The fields of the right type."""
    values = _decoder(dict[str, msgspec.Raw]).decode(text)
    fitting: dict[str, Any] = {}
    for field in _fields(kind):
        value = values.get(field.encode_name)
        if value is None:
            continue
        with suppress(msgspec.ValidationError):
            if field.type is EventArgs:
                fitting[field.name] = _fitting(value, EventArgs)
            else:
                fitting[field.name] = _decoder(field.type).decode(value)
    return kind(**fitting)


def finite(value: object) -> float | None:
    """A number, also one written as a string, as a float; None if it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def sound_us(value: object) -> float | None:
    """A time in microseconds that an event may have; None if it is no number or out of range."""
    number = finite(value)
    if number is None or abs(number) >= MOST_US:
        return None
    return number


def int64(value: object) -> int | None:
    """A whole number that fits 64 bits, else None."""
    if type(value) is int:
        fits = -(2**63) <= value < 2**63
        return value if fits else None
    number = finite(value)
    if number is None or abs(number) >= 2**63 or not number.is_integer():
        return None
    return int(number)


def count_of(value: object) -> int | None:
    """A number of elements or bytes, or one in a sequence; None if it is none, negative, or more
    than any machine holds.
    """
    return _up_to(MOST_COUNT - 1, value)


def ordinal(value: object) -> int | None:
    """A rank's, device's or process's number, also one written as a string; None if it is none, or
    out of range.
    """
    return _up_to(MOST_ORDINAL, value)


def _up_to(most: int, value: object) -> int | None:
    number = int64(value)
    if number is None or not 0 <= number <= most:
        return None
    return number


EVENTS = Codec[Event](
    chunk=msgspec.json.Decoder(list[Event]).decode,
    lax_chunk=msgspec.json.Decoder(list[Event], strict=False).decode,
    one=msgspec.json.Decoder(Event, strict=False).decode,
    lenient=_event,
    field=getattr,
)
"""The fields that dpscope reads, of which tables are made."""
_raw_events = msgspec.json.Decoder(list[RawEvent]).decode
_raw_one = msgspec.json.Decoder(RawEvent).decode
RAW_EVENTS = Codec[RawEvent](
    _raw_events, _raw_events, _raw_one, _raw_event, field=lambda event, name: event.get(name)
)
"""All fields."""
