"""Grows one process's event table from decoded events, chunk by chunk."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np

from dpscope.analysis.traces.reading.categories import CATEGORIES, is_unread_device
from dpscope.analysis.traces.reading.event_table import Category, CommunicationArgs, EventTable, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.json_events import MOST_ORDINAL, MOST_US, NONE, Event, EventArgs, int64, ordinal
from dpscope.analysis.traces.reading.tensor_sizes import Buffers, recorded_buffers

_CATEGORY_CODES = {name: int(category) for name, category in CATEGORIES.items()}

# Whose shapes are read: what communicates, DataParallel's two coalesced functions, and what gradients become ready in.
_COMMUNICATION_NAME = re.compile(
    r"^(?:gloo:|_?c10d|record_param_comms|Broadcast$|ReduceAddCoalesced$|torch::autograd::AccumulateGrad$)|nccl|rccl|msccl",
    re.IGNORECASE,
)
_EPOCH_MICROSECONDS = re.compile(rb'"ts"\s*:\s*"?(\d{16})\.\d')
_LONG_TIME = re.compile(rb'("ts"\s*:\s*"?)(\d{16})(?!\d)(?:\.(\d{1,17})\d*)?')
_SEARCHED_WHOLE = 4  # chunks: a file may begin with much metadata, which has no times

_DIGIT = re.compile(rb"\d")
_LONGEST_NAME = 1 << 14  # characters: C++ names of kernels have hundreds
_LONGEST_TEXT = 1 << 16  # bytes of what describes a collective; a list of 8,000 ranks has 48,000

COLUMN_TYPES: dict[str, type] = {
    "start_us": np.float64, "duration_us": np.float64, "category": np.uint8, "name": np.int64,
    "thread": np.int64, "device": np.int64, "correlation": np.int64, "bytes": np.int64,
    "shape": np.int64,
}  # fmt: skip


_Event = TypeVar("_Event", bound=Event)


class TextBase:
    """Microseconds since 1970 with a fraction do not fit a float: they are shortened in the text, all by one number."""

    def __init__(self) -> None:
        self.subtracted_us = 0
        self._chunks = 0

    def rebased(self, chunk: bytearray) -> bytearray:
        """The chunk with its times shortened, if they need it."""
        self._chunks += 1
        looked_at = len(chunk) if self._chunks <= _SEARCHED_WHOLE else 1 << 16
        match = None if self.subtracted_us else _EPOCH_MICROSECONDS.search(chunk, 0, looked_at)
        if match is None and not self.subtracted_us:
            return chunk
        self.subtracted_us = self.subtracted_us or int(match[1] if match else 0)
        return bytearray(_LONG_TIME.sub(self._shortened, chunk))

    def _shortened(self, found: re.Match[bytes]) -> bytes:
        """The time minus the base; before the base the fraction counts the other way: -3 and .25 are -2.75."""
        key, whole, fraction = found.groups()
        difference = int(whole) - self.subtracted_us
        if not fraction:
            return b"%s%d" % (key, difference)
        if difference >= 0 or not fraction.strip(b"0"):
            return b"%s%d.%s" % (key, difference, fraction)
        return b"%s-%d.%0*d" % (key, -difference - 1, len(fraction), 10 ** len(fraction) - int(fraction))


Loss = Literal["without_time", "negative", "shapes", "device"]
"""Events without a usable time, with a negative duration, with shapes that are damaged, and on a device without a number."""


class TableBuilder:
    """The events of one process, in file order."""

    def __init__(self) -> None:
        self.base_us: int | None = None  # the table's time 0, as the file writes times: amid the first events
        self.parts: dict[str, list[Any]] = {name: [] for name in COLUMN_TYPES}
        self.name_codes: dict[str, int] = {}
        self.communication: dict[int, CommunicationArgs] = {}
        self.communicates = bytearray()  # one truth per name code
        self.rows = 0
        self.lost: Counter[Loss] = Counter()
        self.unread: Counter[str] = Counter()  # events of a device in categories that are not read
        # Who launched, annotated and ran operators: more than one process, or rank, means several ranks in one file.
        self.launching_processes: Counter[int | str] = Counter()
        self.annotating_processes: Counter[int | str] = Counter()
        self.operating_processes: Counter[int | str] = Counter()
        self.ranks: Counter[int | str | None] = Counter()

    @property
    def is_fused(self) -> bool:
        """Whether these are the events of several processes; one event that names another is a damaged one.

        A process without operators, where another has some, is no rank: some tracers (MTIA) give a rank's calls of the runtime
        another process id than its operators.
        """
        processes = self.launching_processes or self.annotating_processes
        if self.operating_processes:
            processes = Counter({one: count for one, count in processes.items() if self.operating_processes[one] > 1})
        named = Counter({rank: count for rank, count in self.ranks.items() if rank not in (NONE, None)})
        return _several(processes) or _several(named)

    @property
    def process_id(self) -> int | None:
        """The process that launched or annotated most, where the trace numbers it."""
        for counted in (self.launching_processes, self.annotating_processes):
            for process, _ in counted.most_common(1):
                return process if isinstance(process, int) else None
        return None

    def add(self, decoded: Sequence[_Event], subtracted_us: int = 0) -> list[_Event]:
        """Append those of the events that are of a category read here and have sound times, shortened by `subtracted_us`.

        Returns them: a row each, in order.
        """
        known = _CATEGORY_CODES
        events = [event for event in decoded if event.ph == "X"]
        if others := {event.cat for event in events} - known.keys():
            unread = {category for category in others if is_unread_device(category)}
            self.unread.update([event.cat for event in events if event.cat in unread] if unread else ())
            events = [event for event in events if event.cat in known]
        events, starts, durations = self._with_sound_times(events)
        if not events:
            return events
        if self.base_us is None:
            self.base_us = int(np.median(starts)) + subtracted_us
        category = np.array([known[event.cat] for event in events], dtype=np.uint8)
        names = self._name_codes(_names(events, category))
        self._append(
            start_us=starts - float(self.base_us - subtracted_us),
            duration_us=durations,
            category=category,
            name=names,
            thread=_integers([event.tid for event in events]),
            device=self._devices(events, category),
            correlation=_of_some(events, np.flatnonzero(category >= Category.RUNTIME), _correlation),
            bytes=_of_some(events, np.flatnonzero(category == Category.MEMCPY), _bytes),
            shape=_of_some(
                events, np.flatnonzero((category == Category.CPU_OP) | (category == Category.KERNEL)), _shape
            ),
        )
        self._note_processes(events, category)
        self._add_communication(events, names)
        self.rows += len(events)
        return events

    def _name_codes(self, names: list[str]) -> IntColumn:
        """A number for each name, the same whenever it comes; of new names it is noted which communicate."""
        codes = self.name_codes
        for name in dict.fromkeys(names):
            if name not in codes:
                if len(name) > _LONGEST_NAME:
                    return self._name_codes([one[:_LONGEST_NAME] for one in names])
                codes[name] = len(codes)
                self.communicates.append(_COMMUNICATION_NAME.search(name) is not None)
        return np.fromiter(map(codes.__getitem__, names), dtype=np.int64, count=len(names))

    def _devices(self, events: Sequence[Event], category: "np.ndarray[Any, np.dtype[np.uint8]]") -> IntColumn:
        rows = np.flatnonzero(category >= Category.KERNEL)
        devices = _of_some(events, rows, _device)
        self.lost["device"] += int((devices[rows] == NONE).sum())
        return devices

    def _with_sound_times(self, events: list[_Event]) -> tuple[list[_Event], FloatColumn, FloatColumn]:
        """The events that have a start and a duration, these two, and a count of the others."""
        starts = np.array([event.ts for event in events], dtype=np.float64)
        durations = np.array([event.dur for event in events], dtype=np.float64)
        # A comparison with NaN is False.
        sound = (np.abs(starts) < MOST_US) & (durations >= 0) & (durations < MOST_US)
        if sound.all():
            return events, starts, durations
        negative = durations < 0
        self.lost["negative"] += int(negative.sum())
        self.lost["without_time"] += int((~sound & ~negative).sum())
        kept = [event for event, keep in zip(events, sound, strict=True) if keep]
        return kept, starts[sound], durations[sound]

    def _note_processes(self, events: Sequence[Event], category: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
        launches = np.flatnonzero(category == Category.RUNTIME).tolist()
        annotations = np.flatnonzero(category == Category.USER_ANNOTATION).tolist()
        self.launching_processes.update([events[row].pid for row in launches])
        self.annotating_processes.update([events[row].pid for row in annotations])
        self.operating_processes.update(
            [events[row].pid for row in np.flatnonzero(category == Category.CPU_OP).tolist()]
        )
        self.ranks.update([events[row].args.rank for row in launches or annotations])

    def _add_communication(self, events: Sequence[Event], names: IntColumn) -> None:
        """Sizes and groups of events that record them and whose name is that of communication."""
        for row in np.flatnonzero(np.array(self.communicates, dtype=np.bool_)[names]).tolist():
            args = events[row].args
            counted = args.input_elements is not None or args.output_elements is not None
            if args.collective_name is not None or args.input_dims or counted:
                shapes = recorded_buffers(events[row].name, bytes(args.input_dims), bytes(args.input_type))
                self.lost["shapes"] += shapes is None
                self.communication[self.rows + row] = communication_args(args, shapes or Buffers())

    def _append(self, **columns: Any) -> None:
        for name, column in columns.items():
            self.parts[name].append(column.astype(COLUMN_TYPES[name], copy=False))

    def table(self) -> EventTable:
        """What was added, once: each column's parts are let go as soon as it is made of them."""
        columns = {}
        for name, dtype in COLUMN_TYPES.items():
            parts = self.parts.pop(name)
            columns[name] = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
        return EventTable(**columns, names=list(self.name_codes), communication=self.communication)


_COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
"""CUpti_ActivityMemcpyKind of CUPTI's cupti_activity.h, by number."""


def copy_name(name: str, kind: int | str | None) -> str:
    """A copy's name with its kind, for tools that call all copies ``Memcpy`` and state the kind as an argument."""
    if isinstance(kind, int):
        kind = _COPY_KINDS[kind] if 0 < kind < len(_COPY_KINDS) else None
    return name if not kind or kind in name else f"{name} {kind}"


def _names(events: Sequence[Event], category: "np.ndarray[Any, np.dtype[np.uint8]]") -> list[str]:
    names = [event.name for event in events]
    for row in np.flatnonzero(category == Category.MEMCPY).tolist():
        names[row] = copy_name(names[row], events[row].args.copy_kind)
    return names


def _several(owners: Counter[Any]) -> bool:
    """Whether two or more own more than one event."""
    return sum(count > 1 for count in owners.values()) > 1


def communication_args(args: EventArgs, shapes: Buffers) -> CommunicationArgs:
    """What the arguments of one event, and the shapes among them, say of a collective's size and group."""
    counted = args.input_elements is not None or args.output_elements is not None
    if counted:
        elements = (int64(args.input_elements), int64(args.output_elements))
        types: tuple[int | None, int | None] = (None, None)
        dtype = args.dtype or shapes.dtype
    else:
        elements, types = (shapes.input_elements, shapes.output_elements), (shapes.input_bytes, shapes.output_bytes)
        dtype = shapes.dtype or args.dtype
    return CommunicationArgs(
        collective_name=_described(args.collective_name),
        input_elements=elements[0],
        output_elements=elements[1],
        dtype=_described(dtype),
        group=_described(str(args.group)) if args.group is not None else None,
        group_ranks=_described(bytes(args.group_ranks).decode("utf-8", errors="replace").strip('"')) or None,
        group_size=ordinal(args.group_size) or None,
        sequence=int64(args.sequence),
        input_bytes=types[0],
        output_bytes=types[1],
    )


def _described(text: str | None) -> str | None:
    """A text of the usual length; one of megabytes is damage."""
    return text if text is None or len(text) <= _LONGEST_TEXT else None


def _of_some(events: Sequence[Event], rows: IntColumn, value: Callable[[Event], int]) -> IntColumn:
    """A column that only these rows have a value in."""
    column = np.full(len(events), NONE, dtype=np.int64)
    if len(rows):
        column[rows] = _integers(list(map(value, map(events.__getitem__, rows.tolist()))))
    return column


def _device(event: Event) -> int:
    """The device an event ran on; peer copies name it otherwise, or only by their process id."""
    args = event.args
    for device in (args.device, args.copy_device):
        if 0 <= device <= MOST_ORDINAL:
            return device
    return event.pid if isinstance(event.pid, int) and 0 <= event.pid <= MOST_ORDINAL else NONE


_correlation: Callable[[Event], int] = attrgetter("args.correlation")  # of a hundred thousand events: no call of Python
_bytes: Callable[[Event], int] = attrgetter("args.bytes")


def _shape(event: Event) -> int:
    """A checksum of an operator's input sizes, or of a kernel's grid and block; NONE where no size is recorded."""
    args = event.args
    text = bytes(args.input_dims) or bytes(args.grid) + bytes(args.block)
    return zlib.crc32(text.translate(None, b" \t\r\n")) if _DIGIT.search(text) else NONE


def _integers(values: list[Any]) -> IntColumn:
    try:
        return np.array(values, dtype=np.int64)
    except (OverflowError, ValueError, TypeError):  # beyond 64 bits, or a thread with a name
        return np.array([_integer_or_hash(value) for value in values], dtype=np.int64)


def _integer_or_hash(value: object) -> int:
    number = int64(value)
    if number is not None:
        return number
    return -2 - zlib.crc32(value.encode()) if isinstance(value, str) else NONE
