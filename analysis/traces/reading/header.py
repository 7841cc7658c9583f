"""What a trace records besides its events: rank, world size, backend, host, devices."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dpscope.analysis.traces.reading.chunks import ReportFinding, TraceText
from dpscope.analysis.traces.reading.event_table import ProcessGroup
from dpscope.analysis.traces.reading.json_events import ordinal
from dpscope.profiling.records.trace_codes import TraceCode

_FILE_NAME_RANK = (
    re.compile(r"^\d+_(\d+)\.pt\.trace\.json"),
    re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)", re.IGNORECASE),
)
_LONGEST_TEXT = 256  # characters of a name
_MOST_LENIENT = 4 << 20  # bytes that are no strict JSON: its objects take up to 30 times as much


class _Fields(msgspec.Struct, rename={"info": "distributedInfo", "host": "host_name", "devices": "deviceProperties",
                                      "base": "baseTimeNanoseconds"}):  # fmt: skip
    info: msgspec.Raw = msgspec.Raw()
    host: msgspec.Raw = msgspec.Raw()
    devices: msgspec.Raw = msgspec.Raw()
    base: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True)
class Header:
    """Fields of the trace's head and tail; None where they say nothing."""

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_names: tuple[str, ...]
    process_groups: tuple[ProcessGroup, ...]  # those listed with all of their ranks
    base_ns: int  # what the file's times count from, in the recording host's clock; 0 where it does not say


def read_header(text: TraceText, path: Path, report: ReportFinding) -> Header:
    """The header of a trace whose events have been read; the rank from the file's name if it has none."""
    fields = _fields(text, path, report)
    distributed, base = _value(fields.info), _value(fields.base)
    info: dict[str, Any] = distributed if isinstance(distributed, dict) else {}

    def number(what: str, value: object, least: int = 0) -> int | None:
        found = ordinal(value)
        if value is None or (found is not None and found >= least):
            return found
        text = f"the {what} of {path} is {str(value)[:40]!r}, which cannot be: it is taken as unknown"
        report(TraceCode.HEADER_UNREADABLE.finding(text))
        return None

    rank = number("rank", info.get("rank"))
    return Header(
        rank=rank if rank is not None else number("rank in the name", _rank_of_name(path)),
        world_size=number("world size", info.get("world_size"), least=1),
        backend=_text(info.get("backend")),
        host=_text(_value(fields.host)),
        device_names=_device_names(_value(fields.devices)),
        process_groups=tuple(_process_groups(info.get("pg_config"))),
        base_ns=base if isinstance(base, int) and 0 <= base < 2**63 else 0,  # a float is too coarse since 1970
    )


def _process_groups(listed: object) -> Iterator[ProcessGroup]:
    """Kineto cuts long lists of ranks: such groups are left out."""
    for one in listed if isinstance(listed, list) else []:
        entry: dict[str, Any] = one if isinstance(one, dict) else {}
        name, ranks = _text(entry.get("pg_name")), entry.get("ranks")
        whole = isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks)
        if name is not None and isinstance(ranks, list) and whole and len(ranks) == entry.get("pg_size"):
            yield ProcessGroup(name, _text(entry.get("pg_desc")), tuple(ranks))


def _fields(text: TraceText, path: Path, report: ReportFinding) -> _Fields:
    if text.is_array:
        return _Fields()
    for closing in (bytes(text.tail), b"]}"):
        whole = text.head + closing
        try:
            return msgspec.json.decode(whole, type=_Fields)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        value = _value(whole)
        if isinstance(value, dict):
            names = zip(_Fields.__struct_fields__, _Fields.__struct_encode_fields__, strict=True)
            return _Fields(
                **{name: msgspec.Raw(json.dumps(value[key]).encode()) for name, key in names if key in value}
            )
    text_of_finding = f"the header of {path} is not readable: rank and world size are unknown"
    report(TraceCode.HEADER_UNREADABLE.finding(text_of_finding))
    return _Fields()


def _value(raw: bytes | msgspec.Raw) -> object:
    """JSON that need not be strict; None for what is none, or too long."""
    text = bytes(raw)
    if not text or len(text) > _MOST_LENIENT:
        return None
    try:
        return json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def _text(value: object) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None


def _rank_of_name(path: Path) -> str | None:
    for pattern in _FILE_NAME_RANK:
        if match := pattern.search(path.name):
            return match[1]
    return None


def _device_names(devices: object) -> tuple[str, ...]:
    if not isinstance(devices, list):
        return ()
    return tuple(str(device.get("name", "unknown"))[:_LONGEST_TEXT] for device in devices if isinstance(device, dict))
