"""From a torch.profiler trace file to an event table, streaming: memory is bounded by the table, not the text."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dpscope.analysis.event_table import Category, CommunicationArgs, EventTable, FloatColumn, IntColumn, Trace
from dpscope.analysis.trace_chunks import DEFAULT_MAX_BYTES, TraceText, open_trace
from dpscope.analysis.trace_events import NONE, Event, EventArgs, decode_chunk, int64
from dpscope.profiling.run_store import DpscopeError
from dpscope.profiling.run_types import Finding

_CATEGORIES = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "hip_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
}
_CATEGORIES |= {name.capitalize(): category for name, category in _CATEGORIES.items()}

_COMMUNICATION_NAME = re.compile(r"^(?:gloo:|c10d::|record_param_comms)|nccl|rccl|msccl", re.IGNORECASE)
_EPOCH_MICROSECONDS = re.compile(rb'"ts"\s*:\s*"?(\d{16,})\.\d')
_FILE_NAME_RANK = (
    re.compile(r"^\d+_(\d+)\.pt\.trace\.json"),
    re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)", re.IGNORECASE),
)

# bytes per element, by the names ATen's `Input type` and c10d's `dtype` use
_ELEMENT_BYTES = {
    "float": 4, "c10::half": 2, "half": 2, "c10::bfloat16": 2, "bfloat16": 2, "double": 8, "long": 8,
    "long int": 8, "int": 4, "short": 2, "short int": 2, "char": 1, "signed char": 1, "byte": 1,
    "unsigned char": 1, "bool": 1, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element of a dtype as traces name it; None for an unknown name."""
    return _ELEMENT_BYTES.get(dtype.lower()) if dtype else None


def read_trace(path: Path | str, max_bytes: int = DEFAULT_MAX_BYTES) -> Trace:
    """Read one trace file, `.json` or `.json.gz`, made by torch 1.13 or later.

    Times of the table are microseconds from the trace's first event. Raises DpscopeError when the file cannot be
    read or is no trace; damage that leaves something readable becomes findings of the trace.
    """
    path = Path(path)
    findings: list[Finding] = []
    text = open_trace(path, max_bytes, findings.append)
    columns = _Columns()
    skipped = repaired = 0
    ended = any_event = False
    for chunk in text.chunks:
        if ended:  # a tail longer than a chunk
            text.tail += b"," + chunk[1:-1]  # the comma was cut with the chunk
            continue
        decoded = decode_chunk(columns.rebased(chunk), text.kineto_layout)
        any_event = any_event or any(event.ph for event in decoded.events)
        columns.add(decoded.events)
        skipped += decoded.skipped
        repaired += decoded.repaired
        ended = decoded.tail is not None
        text.tail += decoded.tail or b""
    if not any_event and text.is_array:
        raise DpscopeError(
            f"{path} is not a torch.profiler trace: it is a list without one trace event; name a file that "
            "export_chrome_trace or tensorboard_trace_handler wrote"
        )
    findings += _damage_findings(path, skipped, repaired, ended, columns)
    header = _header(text, path, findings)
    events = columns.table()
    return Trace(
        source=str(path),
        rank=_rank(header, path),
        world_size=int64(_distributed(header).get("world_size")),
        backend=_text(_distributed(header).get("backend")),
        host=_text(header.get("host_name")),
        device_names=_device_names(header),
        events=events,
        has_accelerator=bool(
            events.is_category(Category.RUNTIME, Category.KERNEL, Category.MEMCPY, Category.MEMSET).any()
        )
        or any(name.startswith("nccl:") for name in events.names),
        findings=tuple(findings),
    )


class _Columns:
    """Grows the event table chunk by chunk."""

    def __init__(self) -> None:
        self.base_us: int | None = None
        self.base_text = 0  # subtracted from the text itself, where a float would not hold the time
        self.parts: dict[str, list[Any]] = {name: [] for name in _COLUMN_TYPES}
        self.name_codes: dict[str, int] = {}
        self.communication: dict[int, CommunicationArgs] = {}
        self.communication_names: set[int] = set()
        self.rows = 0
        self.without_time = 0
        self.negative = 0

    def rebased(self, chunk: bytearray) -> bytearray:
        """Microseconds since 1970 with a fraction do not fit a float: shorten them in the text."""
        match = _EPOCH_MICROSECONDS.search(chunk, 0, 1 << 16)
        if match is None and not self.base_text:
            return chunk
        self.base_text = self.base_text or int(match[1] if match else 0)
        shortened = re.sub(
            rb'("ts"\s*:\s*"?)(\d{16,})',
            lambda found: found[1] + str(int(found[2]) - self.base_text).encode(),
            chunk,
        )
        return bytearray(shortened)

    def add(self, decoded: Sequence[Event]) -> None:
        category_of = _CATEGORIES.get
        events = [event for event in decoded if event.ph == "X" and event.cat in _CATEGORIES]
        events, starts, durations = self._with_sound_times(events)
        if not events:
            return
        if self.base_us is None:
            self.base_us = int(np.floor(starts.min()))
        category = np.array([category_of(event.cat) for event in events], dtype=np.uint8)
        codes = self.name_codes
        known_names = len(codes)
        names = [codes.setdefault(event.name, len(codes)) for event in events]
        self._append(
            start_us=starts - self.base_us,
            duration_us=durations,
            category=category,
            name=np.array(names, dtype=np.int64),
            thread=_integers([event.tid for event in events]),
            device=_of_some(events, np.flatnonzero(category >= Category.KERNEL), _device),
            correlation=_of_some(events, np.flatnonzero(category >= Category.RUNTIME), _correlation),
            bytes=_of_some(events, np.flatnonzero(category == Category.MEMCPY), _bytes),
        )
        self._add_communication(events, names, known_names)
        self.rows += len(events)

    def _with_sound_times(self, events: list[Event]) -> tuple[list[Event], FloatColumn, FloatColumn]:
        """The events that have a start and a duration, these two, and a count of the others."""
        starts = np.array([event.ts for event in events], dtype=np.float64)
        durations = np.array([event.dur for event in events], dtype=np.float64)
        sound = np.isfinite(starts) & (durations >= 0)  # a comparison with NaN is False
        if sound.all():
            return events, starts, durations
        negative = durations < 0
        self.negative += int(negative.sum())
        self.without_time += int((~sound & ~negative).sum())
        kept = [event for event, keep in zip(events, sound, strict=True) if keep]
        return kept, starts[sound], durations[sound]

    def _add_communication(self, events: list[Event], names: list[int], known_names: int) -> None:
        """Sizes and groups: of events that carry them, and of those whose name says that they communicate."""
        new_names = list(self.name_codes)[known_names:]
        self.communication_names.update(
            code for code, name in enumerate(new_names, known_names) if _COMMUNICATION_NAME.search(name)
        )
        wanted = self.communication_names
        for row in [row for row, name in enumerate(names) if name in wanted]:
            args = events[row].args
            if args.collective_name is not None or args.input_dims:
                self.communication[self.rows + row] = communication_args(args)

    def _append(self, **columns: Any) -> None:
        for name, column in columns.items():
            self.parts[name].append(column.astype(_COLUMN_TYPES[name], copy=False))

    def table(self) -> EventTable:
        columns = {
            name: np.concatenate(parts) if parts else np.empty(0, dtype=_COLUMN_TYPES[name])
            for name, parts in self.parts.items()
        }
        return EventTable(**columns, names=list(self.name_codes), communication=self.communication)


_COLUMN_TYPES: dict[str, type] = {
    "start_us": np.float64, "duration_us": np.float64, "category": np.uint8, "name": np.int64,
    "thread": np.int64, "device": np.int64, "correlation": np.int64, "bytes": np.int64,
}  # fmt: skip


def _of_some(events: list[Event], rows: IntColumn, value: Callable[[Event], int]) -> IntColumn:
    """A column that only these rows have a value in."""
    column = np.full(len(events), NONE, dtype=np.int64)
    if len(rows):
        column[rows] = _integers([value(events[row]) for row in rows.tolist()])
    return column


def _device(event: Event) -> int:
    """The device an event ran on; peer copies name it otherwise, or only by their process id."""
    args = event.args
    if args.device != NONE:
        return args.device
    if args.copy_device != NONE:
        return args.copy_device
    return event.pid if isinstance(event.pid, int) else NONE


def _correlation(event: Event) -> int:
    return event.args.correlation


def _bytes(event: Event) -> int:
    return event.args.bytes


def _integers(values: list[Any]) -> IntColumn:
    try:
        return np.array(values, dtype=np.int64)
    except (OverflowError, ValueError, TypeError):  # beyond 64 bits, or a thread with a name
        return np.array([_integer_or_hash(value) for value in values], dtype=np.int64)


def _integer_or_hash(value: object) -> int:
    number = int64(value)
    if number is not None:
        return number
    return -2 - (hash(value) & 0x7FFFFFFF) if isinstance(value, str) else NONE


def communication_args(args: EventArgs) -> CommunicationArgs:
    """What the arguments of one event say of a collective's size and group."""
    return CommunicationArgs(
        collective_name=args.collective_name,
        input_elements=args.input_elements,
        output_elements=args.output_elements,
        dtype=args.dtype,
        group=str(args.group) if args.group is not None else None,
        group_size=args.group_size,
        sequence=args.sequence,
        input_bytes=_input_bytes(args),
    )


def _input_bytes(args: EventArgs) -> int | None:
    """Bytes of the tensors in `Input Dims` and `Input type`; None where shape or type is unknown."""
    try:
        dims = msgspec.json.decode(args.input_dims)
        types = msgspec.json.decode(args.input_type)
    except msgspec.DecodeError:
        return None
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    total = 0
    for shape, kind in zip(dims, types, strict=False):
        size = element_bytes(kind) if isinstance(kind, str) else None
        if size is None or not shape:
            continue
        total += size * _elements(shape)
    return total or None


def _elements(shape: object) -> int:
    """Elements of one tensor's shape; of a list of shapes (a tensor list), of them all."""
    if not isinstance(shape, list):
        return 0
    if shape and all(isinstance(extent, list) for extent in shape):
        return sum(_elements(inner) for inner in shape)
    count = 1
    for extent in shape:
        count *= extent if isinstance(extent, int) else 0
    return count


def _damage_findings(path: Path, skipped: int, repaired: int, ended: bool, columns: _Columns) -> list[Finding]:
    found: list[tuple[str, str]] = []
    if skipped:
        found.append(("events_unreadable", f"{skipped} events of {path} are not readable JSON and were left out"))
    if repaired:
        found.append(
            ("events_repaired", f"{repaired} events of {path} hold text that is no strict JSON; their times were read")
        )
    if not ended and not columns.rows:
        found.append(("trace_truncated", f"{path} ends before its first whole event"))
    elif not ended:
        found.append(("trace_truncated", f"{path} ends before its events do; the {columns.rows} read are whole"))
    if columns.without_time:
        found.append(("events_without_time", f"{columns.without_time} events of {path} have no usable time"))
    if columns.negative:
        found.append(("negative_durations", f"{columns.negative} events of {path} end before they start; left out"))
    return [
        Finding(
            severity="warning",
            code=code,
            message=message,
            next_step="sums hold what was read; trace again if the missing events matter",
        )
        for code, message in found
    ]


def _header(text: TraceText, path: Path, findings: list[Finding]) -> dict[str, Any]:
    """What stands beside the events: before and behind them."""
    if text.is_array:
        return {}
    for closing in (bytes(text.tail), b"]}"):
        try:
            value = json.loads((text.head + closing).decode("utf-8", errors="replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    findings.append(
        Finding(
            severity="warning",
            code="header_unreadable",
            message=f"the header of {path} is not readable: rank and world size are unknown",
            next_step="name the file <node>_<rank>.pt.trace.json.gz to give the rank",
        )
    )
    return {}


def _distributed(header: dict[str, Any]) -> dict[str, Any]:
    found = header.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _rank(header: dict[str, Any], path: Path) -> int | None:
    rank = int64(_distributed(header).get("rank"))
    if rank is not None:
        return rank
    for pattern in _FILE_NAME_RANK:
        if match := pattern.search(path.name):
            return int(match[1])
    return None


def _device_names(header: dict[str, Any]) -> tuple[str, ...]:
    devices = header.get("deviceProperties")
    if not isinstance(devices, list):
        return ()
    return tuple(str(device.get("name", "unknown")) for device in devices if isinstance(device, dict))
