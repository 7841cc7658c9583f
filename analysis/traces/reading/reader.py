"""From a torch.profiler trace file to event tables, streaming: memory is bounded by the table, not
the text.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from dpscope.analysis.traces.reading.chunks import (
    DEFAULT_LIMITS,
    TAIL_BYTES,
    WANTED,
    DecodedChunk,
    ReadLimits,
    ReportFinding,
    TraceText,
    decode_chunk,
)
from dpscope.analysis.traces.reading.event_columns import Loss, TableBuilder, TextBase
from dpscope.analysis.traces.reading.event_table import (
    TORCH_PROFILER,
    BoolColumn,
    Category,
    EventTable,
    Header,
    ProcessGroup,
    Trace,
)
from dpscope.analysis.traces.reading.json_events import EVENTS, Codec, Event, ordinal
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

# of the header
_FIELDS = ("distributedInfo", "baseTimeNanoseconds", "deviceProperties", "host_name")
_FILE_NAME_RANK = (
    re.compile(r"^\d+_(\d+)\.pt\.trace\.json"),
    re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)", re.IGNORECASE),
)
_LONGEST_TEXT = 256  # characters of a name
_MOST_LENIENT = 4 << 20  # bytes that are no strict JSON: its objects take up to 30 times as much


def rank_in_name(path: Path) -> str | None:
    """The rank that a file's name states, as it is written."""
    matches = [pattern.search(path.name) for pattern in _FILE_NAME_RANK]
    return next((match[1] for match in matches if match), None)


def read_header(text: TraceText, path: Path, report: ReportFinding) -> Header:
    """The header of a trace whose events have been read; the rank from the file's name if it has
    none.
    """
    fields = _fields(text, path, report)
    distributed, base, devices = (fields.get(name) for name in _FIELDS[:3])
    info = {}
    if isinstance(distributed, dict):
        info = distributed

    def number(what: str, value: object, least: int = 0) -> int | None:
        found = ordinal(value)
        if value is None or (found is not None and found >= least):
            return found
        text = (
            f"the {what} of {path} is {str(value)[:40]!r}, which cannot be: it is taken as unknown"
        )
        report(TraceCode.HEADER_UNREADABLE.finding(text))
        return None

    rank = number("rank", info.get("rank"))
    if rank is None:
        rank = number("rank in the name", rank_in_name(path))
    named = [
        listed.get("name", "unknown") for listed in _listed(devices) if isinstance(listed, dict)
    ]
    base_ns = 0  # a float is too coarse since 1970
    if isinstance(base, int) and 0 <= base < 2**63:
        base_ns = base
    return Header(
        rank=rank,
        world_size=number("world size", info.get("world_size"), least=1),
        backend=_text(info.get("backend")),
        host=_text(fields.get("host_name")),
        device_names=tuple(str(name)[:_LONGEST_TEXT] for name in named),
        process_groups=tuple(_process_groups(info.get("pg_config"))),
        base_ns=base_ns,
    )


def _process_groups(listed: object) -> Iterator[ProcessGroup]:
    """Kineto cuts long lists of ranks: such groups are left out."""
    for entry in _listed(listed):
        if not isinstance(entry, dict):
            continue
        name = _text(entry.get("pg_name"))
        ranks = entry.get("ranks")
        if name is None or not isinstance(ranks, list):
            continue
        whole = len(ranks) == entry.get("pg_size")
        if whole and all(type(rank) is int and rank >= 0 for rank in ranks):
            yield ProcessGroup(name, _text(entry.get("pg_desc")), tuple(ranks))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _fields(text: TraceText, path: Path, report: ReportFinding) -> dict[str, Any]:
    if text.is_array:
        return {}
    for closing in (bytes(text.tail), b"]}"):
        whole = text.head + closing
        try:
            raw = msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if isinstance(value := _value(whole), dict):
                return value
        else:
            return {name: _value(bytes(raw[name])) for name in _FIELDS if name in raw}
    unreadable = f"the header of {path} is not readable: rank and world size are unknown"
    report(TraceCode.HEADER_UNREADABLE.finding(unreadable))
    return {}


def _value(text: bytes) -> object:
    """JSON that need not be strict; None for what is none, or too long."""
    if len(text) > _MOST_LENIENT:
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(text.decode("utf-8", errors="replace"), strict=False)
    return None


def _text(value: object) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None


_Event = TypeVar("_Event")
Watch = Callable[[Sequence[Event]], None]


def read_trace(
    path: Path | str, limits: ReadLimits = DEFAULT_LIMITS, watch: Watch = lambda _: None
) -> Trace:
    """Read the trace of one process, `.json` or `.json.gz`, made by torch 1.13 or later.

    Times of the table are microseconds from the trace's first event. `watch` sees every event once,
    in file order, including those that are in no table. Raises DpscopeError when the file cannot be
    read, is no trace or holds several ranks; damage that leaves something readable becomes findings
    of the trace.
    """
    path = Path(path)
    builder, foreign = TableBuilder(), Counter[str]()

    def add(decoded: DecodedChunk[Event]) -> None:
        builder.add(decoded.events, decoded.subtracted_us)
        if not builder.rows:  # of events with a duration
            foreign.update(event.cat for event in decoded.events if event.ph in ("X", "B"))
        watch(decoded.events)

    reading = read_events(path, limits, EVENTS, add)
    others = sum(count for category, count in foreign.items() if category not in TORCH_PROFILER)
    if others and not builder.rows and not builder.unread and not builder.lost.total():
        raise DpscopeError(
            f"{path} is a trace of another program, or by the legacy torch.autograd.profiler, not by torch.profiler: none "
            f"of its {counted(others, 'event')} with a duration is of a category that torch.profiler writes; {WANTED}"
        )
    if builder.has_several_ranks:
        raise DpscopeError(
            f"{path} holds the events of several ranks or processes joined in one file; name each rank's own file"
        )
    events, offset_us = builder.table().from_its_start()
    base_us = builder.base_us
    if base_us is None:
        base_us = reading.subtracted_us
    base_us += offset_us
    damage = _damage_findings(path, reading, builder.rows, builder.lost)
    events, duplicates = _without_duplicates(events, path)
    return Trace(
        **vars(reading.header),
        source=str(path),
        events=events,
        has_accelerator=bool(builder.unread) or _shows_device(events),
        zero_ns=reading.header.base_ns + 1000 * base_us,
        zero_us=base_us - reading.subtracted_us,
        findings=(*reading.findings, *damage, *duplicates),
        cut_short=reading.damaged or not reading.ended,
        lacks_events=not reading.ended,
        unread=tuple(sorted(builder.unread.items())),
        process_id=builder.process_id,
    )


@dataclass
class Reading:
    """One pass over a file: its header and what was lost."""

    header: Header = field(init=False)
    findings: list[Finding] = field(default_factory=list)
    subtracted_us: int = 0  # from all times, to fit a float
    skipped: int = 0
    repaired: int = 0
    ended: bool = False  # its events
    damaged: bool = False  # as in `TraceText`


def read_events(
    path: Path,
    limits: ReadLimits,
    codec: Codec[_Event],
    use: Callable[[DecodedChunk[_Event]], None],
) -> Reading:
    """Hand every chunk of a file's events to `use`. Raises DpscopeError as `read_trace` does."""
    reading = Reading()
    report = reading.findings.append
    text, base = TraceText(path, limits.max_bytes, report), TextBase()
    events, any_event = 0, False
    for chunk in text.chunks():
        if reading.ended:  # a tail longer than a chunk
            text.tail += b"," + chunk[1:-1]  # the comma was cut with the chunk
            if len(text.tail) > TAIL_BYTES:
                tail = (
                    f"{path} goes on for more than {TAIL_BYTES >> 20} MiB behind its events; the "
                    "rest was not read"
                )
                report(TraceCode.HEADER_UNREADABLE.finding(tail))
                break
            continue
        decoded = decode_chunk(base.rebased(chunk), text.kineto_layout, codec)
        decoded.subtracted_us = reading.subtracted_us = base.subtracted_us
        events += len(decoded.events)
        if events > limits.max_events:
            raise DpscopeError(
                f"{path} holds more than {counted(limits.max_events, 'event')}, too many to read at once; trace fewer steps, "
                "or raise --max-events"
            )
        any_event = any_event or any(map(codec.is_event, decoded.events))
        use(decoded)
        reading.skipped += decoded.skipped
        reading.repaired += decoded.repaired
        reading.ended = decoded.tail is not None
        text.tail += decoded.tail or b""
    if not any_event and text.is_array:
        raise DpscopeError(
            f"{path} is not a torch.profiler trace: it is a list without one trace event; {WANTED}"
        )
    reading.header = read_header(text, path, report)
    reading.damaged = text.damaged
    return reading


# The profiler itself calls CUDA's and HIP's runtime (to synchronise, to query devices) even if only
# the CPU works.
_LAUNCHES_NOTHING = re.compile(r"^(?:cuda|cu|hip)(?!.*(?:Launch|Memcpy|Memset))", re.IGNORECASE)


def launching_calls(events: EventTable) -> BoolColumn:
    """Calls of a device's runtime that give it work."""
    return events.calls & ~events.named(_LAUNCHES_NOTHING.match)


def _shows_device(events: EventTable) -> bool:
    if any(name.startswith("nccl:") for name in events.names):
        return True
    if events.device_work.any():
        return True
    return bool(launching_calls(events).any())


def _damage_findings(path: Path, reading: Reading, rows: int, lost: Counter[Loss]) -> list[Finding]:
    repaired = reading.repaired + lost["shapes"]
    damage = {
        "not readable as JSON; left out": reading.skipped,
        "text that is not strict JSON; the times could be read": repaired,
        "no usable time; left out": lost["without_time"],
        "no valid device number; in the rows of device -1": lost["device"],
        "an end before its start; left out": lost["negative"],
    }
    findings = []
    for what, count in damage.items():
        if count:
            events = counted(count, "event")
            text = f"{events} of {path}: {what}"
            findings.append(TraceCode.EVENTS_DAMAGED.finding(text))
    if not reading.ended:
        end = "its first whole event"
        if rows:
            end = f"its events do; the {rows:,} read are whole"
        text = f"{path} ends before {end}"
        findings.append(TraceCode.TRACE_CUT_SHORT.finding(text))
    return findings


def _without_duplicates(events: EventTable, path: Path) -> tuple[EventTable, list[Finding]]:
    """The table with one of each set of equal events, and a finding if there were more.

    Equal in category, name, device, thread, start, duration and correlation. Operators are left
    alone: their times are only ever united, and in traces of whole microseconds two of them may
    well be equal.
    """
    candidates = np.flatnonzero(events.category != Category.CPU_OP)
    start = events.start_us[candidates]
    correlation = events.correlation[candidates]
    # equal for equal events; others may be
    key = start.view(np.int64) ^ (correlation * np.int64(0x1E3779B97F4A7C15))
    ordered = np.sort(key)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return events, []
    suspects = candidates[np.isin(key, repeated)]
    fields = [
        events.start_us[suspects].view(np.int64),
        events.duration_us[suspects].view(np.int64),
        events.category[suspects].astype(np.int64),
        events.name[suspects],
        events.device[suspects],
        events.thread[suspects],
        events.correlation[suspects],
    ]
    _, first = np.unique(np.stack(fields, axis=1), axis=0, return_index=True)
    dropped = np.delete(suspects, first)
    if not len(dropped):
        return events, []
    finding = TraceCode.EVENTS_DAMAGED.finding(
        f"{counted(len(dropped), 'event')} of {path}: twice in the file, identical in every field; "
        "counted once",
        "usual for merged traces; otherwise check how the file was made",
    )
    return events.rows(np.delete(np.arange(len(events)), dropped)), [finding]
