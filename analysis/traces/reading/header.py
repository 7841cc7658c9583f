"""What a trace says beside its events: rank, world size, backend, host, devices."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscope.analysis.traces.reading.chunks import Report, TraceText
from dpscope.analysis.traces.reading.json_events import int64
from dpscope.profiling.records.trace_codes import TraceCode

_FILE_NAME_RANK = (
    re.compile(r"^\d+_(\d{1,9})\.pt\.trace\.json"),
    re.compile(r"(?:^|[^a-z])rank[_-]?(\d{1,9})(?!\d)", re.IGNORECASE),
)


@dataclass(frozen=True)
class Header:
    """Fields of the trace's head and tail; None where they say nothing."""

    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_names: tuple[str, ...]
    base_ns: int  # what the file's times count from, in the recording host's clock; 0 where it does not say


def read_header(text: TraceText, path: Path, report: Report) -> Header:
    """The header of a trace whose events have been read; the rank from the file's name if it has none."""
    fields = _fields(text, path, report)
    distributed = fields.get("distributedInfo")
    info: dict[str, Any] = distributed if isinstance(distributed, dict) else {}
    rank = int64(info.get("rank"))
    return Header(
        rank=rank if rank is not None else _rank_of_name(path),
        world_size=int64(info.get("world_size")),
        backend=_text(info.get("backend")),
        host=_text(fields.get("host_name")),
        device_names=_device_names(fields),
        base_ns=_base_ns(fields.get("baseTimeNanoseconds")),
    )


def _fields(text: TraceText, path: Path, report: Report) -> dict[str, Any]:
    if text.is_array:
        return {}
    for closing in (bytes(text.tail), b"]}"):
        try:
            value = json.loads((text.head + closing).decode("utf-8", errors="replace"), strict=False)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    report(
        TraceCode.HEADER_UNREADABLE.finding(
            message=f"the header of {path} is not readable: rank and world size are unknown"
        )
    )
    return {}


def _base_ns(value: object) -> int:
    """Whole and exact: a float is too coarse for nanoseconds since 1970."""
    return value if isinstance(value, int) and 0 <= value < 2**63 else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _rank_of_name(path: Path) -> int | None:
    for pattern in _FILE_NAME_RANK:
        if match := pattern.search(path.name):
            return int(match[1])
    return None


def _device_names(fields: dict[str, Any]) -> tuple[str, ...]:
    devices = fields.get("deviceProperties")
    if not isinstance(devices, list):
        return ()
    return tuple(str(device.get("name", "unknown")) for device in devices if isinstance(device, dict))
