"""Grows one process's event table from decoded events, chunk by chunk."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from dpscope.analysis.traces.reading import event_table
from dpscope.analysis.traces.reading.event_table import (
    Category,
    CodeColumn,
    CommunicationArgs,
    EventTable,
    FloatColumn,
    IntColumn,
)
from dpscope.analysis.traces.reading.json_events import (
    MOST_ORDINAL,
    MOST_US,
    NONE,
    Event,
    count_of,
    int64,
    ordinal,
)
from dpscope.analysis.traces.reading.tensor_sizes import recorded_buffers

# Whose shapes are read: what communicates, DataParallel's two coalesced functions, and what
# gradients become ready in.
_COMMUNICATION_NAME = re.compile(
    r"^(?:gloo:|_?c10d|record_param_comms|Broadcast$|ReduceAddCoalesced$|torch::autograd::AccumulateGrad$)|nccl|rccl|msccl",
    re.IGNORECASE,
)
_EPOCH_MICROSECONDS = re.compile(rb'"ts"\s*:\s*"?(\d{16})\.\d')
_LONG_TIME = re.compile(rb'("ts"\s*:\s*"?)(\d{16})(?!\d)(?:\.(\d{1,17})\d*)?')
_SEARCHED_WHOLE = 4  # chunks: a file may begin with much metadata, which has no times

# Plain ints, which numpy takes faster.
_CATEGORY_CODES = {name: int(one) for name, one in event_table.CATEGORIES.items()}
_CORRELATION = attrgetter("args.correlation")
_WITH_SHAPE = (Category.CPU_OP, Category.KERNEL)
_DIGIT = re.compile(rb"\d")
_LONGEST_NAME = 1 << 14  # characters: C++ names of kernels have hundreds
_LONGEST_TEXT = 1 << 16  # bytes of what describes a collective; a list of 8,000 ranks has 48,000

_COLUMNS: dict[str, type] = dict.fromkeys(
    ("name", "thread", "device", "peer", "correlation", "bytes", "shape"), np.int64
)
_COLUMNS |= {"start_us": np.float64, "duration_us": np.float64, "category": np.uint8}


class TextBase:
    """Microseconds since 1970 with a fraction do not fit a float: they are shortened in the text,
    all by one number.
    """

    def __init__(self) -> None:
        self.subtracted_us = 0
        self._chunks = 0

    def rebased(self, chunk: bytearray) -> bytearray:
        """The chunk with its times shortened, if they need it."""
        self._chunks += 1
        if not self.subtracted_us:
            looked_at = len(chunk) if self._chunks <= _SEARCHED_WHOLE else 1 << 16
            match = _EPOCH_MICROSECONDS.search(chunk, 0, looked_at)
            if match is None:
                return chunk
            self.subtracted_us = int(match[1])
        return bytearray(_LONG_TIME.sub(self._shortened, chunk))

    def _shortened(self, found: re.Match[bytes]) -> bytes:
        """The time minus the base; before the base the fraction counts the other way: -3 and .25
        are -2.75.
        """
        key, whole, fraction = found.groups()
        difference = int(whole) - self.subtracted_us
        if not fraction:
            return b"%s%d" % (key, difference)
        if difference >= 0 or not fraction.strip(b"0"):
            return b"%s%d.%s" % (key, difference, fraction)
        digits = len(fraction)
        rest = 10**digits - int(fraction)
        return b"%s-%d.%0*d" % (key, -difference - 1, digits, rest)


Loss = Literal["without_time", "negative", "shapes", "device"]
"""Events without a usable time, with a negative duration, with shapes that are damaged, and on a
device without a number.
"""


class TableBuilder:
    """The events of one process, in file order."""

    def __init__(self) -> None:
        # the table's time 0, as the file writes times: amid the first events
        self.base_us: int | None = None
        self.rows = 0
        self.lost: Counter[Loss] = Counter()
        self.unread: Counter[str] = Counter()  # events of a device in categories that are not read
        # Who launched, annotated and ran operators: more than one process, or rank, means several
        # ranks in one file.
        self.processes: dict[Category, Counter[int | str]] = {
            host_category: Counter() for host_category in event_table.HOST
        }
        self.ranks: Counter[int | str | None] = Counter()
        self._parts: dict[str, list[Any]] = {
            name: [np.empty(0, kind)] for name, kind in _COLUMNS.items()
        }
        self._name_codes: dict[str, int] = {}
        self._communicates = bytearray()  # one truth per name code
        self._communication: dict[int, CommunicationArgs] = {}

    @property
    def has_several_ranks(self) -> bool:
        """Whether these are the events of several processes or ranks; one event that names another
        is a damaged one.

        A process without operators, where another has some, is no rank: some tracers (MTIA) give a
        rank's calls of the runtime another process id than its operators.
        """
        operating = self.processes[Category.CPU_OP]
        processes = set()
        for process, count in self._known_processes.items():
            is_rank = not operating or operating[process] > 1
            if is_rank and count > 1:
                processes.add(process)
        named = {rank for rank, count in self.ranks.items() if count > 1} - {NONE, None}
        return len(processes) > 1 or len(named) > 1

    @property
    def _known_processes(self) -> Counter[int | str]:
        return self.processes[Category.RUNTIME] or self.processes[Category.USER_ANNOTATION]

    @property
    def process_id(self) -> int | None:
        """The process that launched or annotated most, where the trace numbers it."""
        for process, _ in self._known_processes.most_common(1):
            if isinstance(process, int):
                return process
        return None

    def add(self, decoded: Sequence[Event], subtracted_us: int = 0) -> list[Event]:
        """Append those of the events that are of a category read here and have sound times,
        shortened by `subtracted_us`.

        Returns them: a row each, in order.
        """
        events, starts, durations = self._with_sound_times(self._of_known_categories(decoded))
        if not events:
            return events
        if self.base_us is None:
            self.base_us = int(np.median(starts)) + subtracted_us
        category = np.array([_CATEGORY_CODES[event.cat] for event in events], dtype=np.uint8)
        on_device = np.flatnonzero(category >= Category.KERNEL)
        copies = np.flatnonzero(category == Category.MEMCPY)
        correlated = np.flatnonzero(category >= Category.RUNTIME)
        with_shape = np.flatnonzero(event_table.is_among(category, _WITH_SHAPE))
        called = [event.name for event in events]
        for row in copies.tolist():
            called[row] = copy_name(called[row], events[row].args.copy_kind)
        names = self._coded(called)
        devices = _of_some(events, on_device, _device)
        without_device = devices[on_device] == NONE
        self.lost["device"] += int(without_device.sum())
        columns = {
            "start_us": starts - float(self.base_us - subtracted_us),
            "duration_us": durations,
            "category": category,
            "name": names,
            "thread": _integers([event.tid for event in events]),
            "device": devices,
            "peer": _of_some(events, copies, _peer),
            "correlation": _of_some(events, correlated, _CORRELATION),
            "bytes": _of_some(events, copies, _bytes),
            "shape": _of_some(events, with_shape, _shape),
        }
        for name, column in columns.items():
            self._parts[name].append(column)
        self._note_processes(events, category)
        self._add_communication(events, names)
        self.rows += len(events)
        return events

    def _of_known_categories(self, decoded: Sequence[Event]) -> list[Event]:
        """The events with a duration that are read; those of a device that are not are counted."""
        events = [event for event in decoded if event.ph == "X"]
        others = {event.cat for event in events} - _CATEGORY_CODES.keys()
        if not others:
            return events
        unread = set(filter(event_table.is_unread_device, others))
        self.unread.update(event.cat for event in events if event.cat in unread)
        return [event for event in events if event.cat in _CATEGORY_CODES]

    def _note_processes(self, events: Sequence[Event], category: CodeColumn) -> None:
        """Which processes, and ranks, the events of the host are of."""
        rows: dict[Category, list[int]] = {}
        for host_category, processes in self.processes.items():
            rows[host_category] = np.flatnonzero(category == host_category).tolist()
            processes.update([events[row].pid for row in rows[host_category]])
        launches = rows[Category.RUNTIME] or rows[Category.USER_ANNOTATION]
        self.ranks.update([events[row].args.rank for row in launches])

    def _with_sound_times(
        self, events: list[Event]
    ) -> tuple[list[Event], FloatColumn, FloatColumn]:
        starts = np.array([event.ts for event in events], dtype=np.float64)
        durations = np.array([event.dur for event in events], dtype=np.float64)
        # A comparison with NaN is False.
        sound = (np.abs(starts) < MOST_US) & (durations >= 0) & (durations < MOST_US)
        if sound.all():
            return events, starts, durations
        negative = durations < 0
        without_time = ~sound & ~negative
        self.lost["negative"] += int(negative.sum())
        self.lost["without_time"] += int(without_time.sum())
        return list(compress(events, sound)), starts[sound], durations[sound]

    def _coded(self, names: list[str]) -> IntColumn:
        """A number for each name, the same whenever it comes; of new names it is noted which
        communicate.
        """
        codes = self._name_codes
        for name in dict.fromkeys(names):
            if name not in codes:
                if len(name) > _LONGEST_NAME:
                    return self._coded([event_name[:_LONGEST_NAME] for event_name in names])
                codes[name] = len(codes)
                self._communicates.append(_COMMUNICATION_NAME.search(name) is not None)
        return np.fromiter(map(codes.__getitem__, names), dtype=np.int64, count=len(names))

    def _add_communication(self, events: Sequence[Event], names: IntColumn) -> None:
        """Sizes and groups of events that record them and whose name is that of communication."""
        communicates = np.array(self._communicates, dtype=np.bool_)
        for row in np.flatnonzero(communicates[names]).tolist():
            args = events[row].args
            counted = args.input_elements is not None or args.output_elements is not None
            if args.collective_name is None and not args.input_dims and not counted:
                continue
            shapes = recorded_buffers(
                events[row].name, bytes(args.input_dims), bytes(args.input_type)
            )
            self.lost["shapes"] += shapes is None
            sizes = shapes or CommunicationArgs()
            dtype = (args.dtype or sizes.dtype) if counted else (sizes.dtype or args.dtype)
            if counted:
                elements = count_of(args.input_elements), count_of(args.output_elements)
                sizes = CommunicationArgs(input_elements=elements[0], output_elements=elements[1])
            self._communication[self.rows + row] = replace(
                sizes,
                collective_name=_described(args.collective_name),
                dtype=_described(dtype),
                group=_described(str(args.group)) if args.group is not None else None,
                group_ranks=_described(
                    bytes(args.group_ranks).decode("utf-8", errors="replace").strip('"')
                )
                or None,
                group_size=ordinal(args.group_size) or None,
                sequence=count_of(args.sequence),
            )

    def table(self) -> EventTable:
        """What was added, once: each column's parts are let go as soon as it is made of them."""
        columns = {name: np.concatenate(self._parts.pop(name)) for name in _COLUMNS}
        return EventTable(
            **columns, names=list(self._name_codes), communication=self._communication
        )


_COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
"""CUpti_ActivityMemcpyKind of CUPTI's cupti_activity.h, by number."""


def copy_name(name: str, kind: int | str | None) -> str:
    """A copy's name with its kind, for tools that call all copies ``Memcpy`` and state the kind as
    an argument.
    """
    if isinstance(kind, int):
        kind = _COPY_KINDS[kind] if 0 < kind < len(_COPY_KINDS) else None
    if not kind or kind in name:
        return name
    return f"{name} {kind}"


def _described(text: str | None) -> str | None:
    """A text of the usual length; one of megabytes is damage."""
    return text if text is None or len(text) <= _LONGEST_TEXT else None


def _of_some(events: Sequence[Event], rows: IntColumn, value: Callable[[Event], int]) -> IntColumn:
    """A column that only these rows have a value in."""
    column = np.full(len(events), NONE, dtype=np.int64)
    if len(rows):
        chosen = map(events.__getitem__, rows.tolist())
        column[rows] = _integers(list(map(value, chosen)))
    return column


def _device(event: Event) -> int:
    """The device an event ran on; peer copies name it otherwise, or only by their process id."""
    for number in (event.args.device, event.args.copy_device, event.pid):
        if isinstance(number, int) and 0 <= number <= MOST_ORDINAL:
            return number
    return NONE


def _bytes(event: Event) -> int:
    found = count_of(event.args.bytes)
    return NONE if found is None else found


def _peer(event: Event) -> int:
    """The other end of a copy between two devices."""
    own = _device(event)
    for end in (event.args.from_device, event.args.to_device):
        if end != own and 0 <= end <= MOST_ORDINAL:
            return end
    return NONE


def _shape(event: Event) -> int:
    """A checksum of an operator's input sizes, or of a kernel's grid and block; NONE where no size
    is recorded.
    """
    args = event.args
    text = bytes(args.input_dims) or bytes(args.grid) + bytes(args.block)
    if _DIGIT.search(text) is None:
        return NONE
    return zlib.crc32(text.translate(None, b" \t\r\n"))


def _integers(values: list[Any]) -> IntColumn:
    try:
        return np.array(values, dtype=np.int64)
    except (OverflowError, ValueError, TypeError):
        return np.fromiter(map(_integer, values), dtype=np.int64, count=len(values))


def _integer(value: object) -> int:
    """NONE for a number beyond 64 bits; for a thread with a name one that is the same for the same
    name.
    """
    number = int64(value)
    if number is not None:
        return number
    if isinstance(value, str):
        return -2 - zlib.crc32(value.encode())
    return NONE
