"""Kineto's JSON events as typed structs, and how one is read that is no strict JSON."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

_decode_lenient = json.JSONDecoder(strict=False).decode
NONE = -1  # stands for a number the trace does not give
MOST_US = 2.0**53  # 285 years: what is longer is no time
MOST_ORDINAL = 2**31 - 1  # of ranks, devices and processes: c10d, CUDA and Linux count them in a C int


class EventArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments dpscope reads; names as Kineto writes them."""

    device: int = NONE
    copy_device: int = msgspec.field(default=NONE, name="inDevice")  # a peer copy has no `device`
    correlation: int = NONE
    bytes: int = NONE
    copy_kind: int | str | None = msgspec.field(default=None, name="copy kind")  # of a copy whose name has none
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
    rank: int | str | None = NONE  # given where a tool fused several ranks into one file


class LabelArgs(EventArgs, gc=False, frozen=True):
    """The same, with what metadata events call a process."""

    process_name: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="name")
    process_labels: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="labels")


NO_ARGS = EventArgs()
NO_LABEL_ARGS = LabelArgs()


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


class LabelEvent(Event, gc=False):
    """The same, with what processes are called."""

    args: LabelArgs = NO_LABEL_ARGS


_Event = TypeVar("_Event")
_Traced = TypeVar("_Traced", bound=Event)
_Text = bytes | bytearray


@dataclass(frozen=True)
class Codec(Generic[_Event]):
    """How events are decoded: all of a chunk at once, one alone, and one that is no strict JSON (None when even that fails)."""

    chunk: Callable[[_Text], list[_Event]]
    lax_chunk: Callable[[_Text], list[_Event]]  # numbers may be strings
    one: Callable[[_Text], _Event]
    lenient: Callable[[bytes], _Event | None]
    is_event: Callable[[_Event], object]  # truly so: has a phase
    is_timed: Callable[[_Event], bool]  # has a start and a duration


def _lenient_event(text: bytes, event_type: type[_Traced], args_type: type[EventArgs]) -> _Traced | None:
    """An event that is not strict JSON: NaN and Infinity, control characters, bad UTF-8, huge integers.

    None when even that fails. A field of a wrong type is left out; the event stays if its times are sound.
    """
    try:
        value = _decode_lenient(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    fields = {key: _sound(value[key]) for key in ("ph", "cat", "name") if isinstance(value.get(key), str)}
    fields |= {key: _sound(value[key]) for key in ("pid", "tid") if isinstance(value.get(key), int | str)}
    fields |= {key: finite(value.get(key)) for key in ("ts", "dur")}
    return event_type(**fields, args=_lenient_args(args if isinstance(args, dict) else {}, args_type))


def _lenient_args(args: dict[str, Any], args_type: type[EventArgs]) -> EventArgs:
    kept: dict[str, Any] = {}
    for name, encoded in zip(args_type.__struct_fields__, args_type.__struct_encode_fields__, strict=True):
        value = args.get(encoded)
        if name in ("input_dims", "input_type", "grid", "block", "group_ranks", "process_name", "process_labels"):
            if value is not None:
                kept[name] = msgspec.Raw(json.dumps(value).encode())
        elif name in ("collective_name", "dtype", "group"):
            kept[name] = _sound(value) if isinstance(value, str) else None
        elif name == "rank" and isinstance(value, str):
            kept[name] = _sound(value)
        elif (number := int64(value)) is not None:
            kept[name] = number
    return args_type(**kept)


def _sound(value: Any) -> Any:
    """A string without halves of characters, which no encoding takes; anything else as it is."""
    return value.encode("utf-8", errors="replace").decode() if isinstance(value, str) else value


def finite(value: object) -> float | None:
    """A number, also one written as a string, as a float; None if it is none, or not finite."""
    if type(value) is float and math.isfinite(value):
        return value
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
    return number if number is not None and abs(number) < MOST_US else None


def int64(value: object) -> int | None:
    """A whole number that fits 64 bits, else None."""
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else None
    number = finite(value)
    return int(number) if number is not None and abs(number) < 2**63 and number == int(number) else None


def ordinal(value: object) -> int | None:
    """A rank's, device's or process's number, also one written as a string; None if it is none, or out of range."""
    number = int64(value)
    return number if number is not None and 0 <= number <= MOST_ORDINAL else None


def _event_codec(event_type: type[_Traced], args_type: type[EventArgs]) -> Codec[_Traced]:
    return Codec(
        chunk=msgspec.json.Decoder(list[event_type]).decode,  # type: ignore[valid-type]
        lax_chunk=msgspec.json.Decoder(list[event_type], strict=False).decode,  # type: ignore[valid-type]
        one=msgspec.json.Decoder(event_type, strict=False).decode,
        lenient=lambda text: _lenient_event(text, event_type, args_type),
        is_event=attrgetter("ph"),
        is_timed=lambda event: event.ts is not None and event.dur is not None,
    )


EVENTS = _event_codec(Event, EventArgs)
"""The events of which tables are made: their fields that dpscope reads."""
LABEL_EVENTS = _event_codec(LabelEvent, LabelArgs)
"""The same, with what processes are called."""
