"""NCCL Inspector's logs: a JSON line for each collective of each communicator of a process.

Format: NCCL, ext-profiler/inspector (2.28 and later; format versions 4.0 to 4.3, of which 4.3 writes
header and metadata once). Messages of less than 8 KiB are not recorded unless
NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES is set.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dpscope.analysis.traces.steps.event_kind import collective_kind
from dpscope.analysis.whole_job.records import Call, Columns, Group, Process, process_of
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.store.errors import DpscopeError


class _Header(msgspec.Struct, gc=False):
    id: str | int
    rank: int
    n_ranks: int
    comm_name: str = ""
    nnodes: int | None = None


class _Metadata(msgspec.Struct, gc=False):
    hostname: str | None = None
    pid: int | None = None
    dump_timestamp_us: int = 0
    inspector_output_format_version: str = ""


_FIELDS = {
    "name": "",
    "number": "_sn",
    "size": "_msg_size_bytes",
    "time_us": "_exec_time_us",
    "clock": "_timing_source",
    "peer": "_peer",
}


class _Collective(msgspec.Struct, gc=False, rename=lambda name: f"coll{_FIELDS[name]}"):
    name: str
    number: int
    size: int
    time_us: float | None = None
    clock: str = ""
    peer: int | None = None


class _Transfer(_Collective, gc=False, rename=lambda name: f"p2p{_FIELDS[name]}"):
    """Between two ranks."""


class _Statistics(msgspec.Struct, gc=False):
    """The line of format 4.3 that the following ones belong to."""

    header: _Header | None = None
    metadata: _Metadata | None = None


class _Line(msgspec.Struct, gc=False):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Collective | None = None
    p2p_perf: _Transfer | None = None
    dump_stats: _Statistics | None = None


class _Records(NamedTuple):
    """Lines, each with the header and the metadata that apply to it: columns, as there are many."""

    headers: list[_Header]
    metadata: list[_Metadata]
    calls: list[_Collective]

    def take(self, rows: list[int]) -> "_Records":
        return _Records(
            [self.headers[row] for row in rows],
            [self.metadata[row] for row in rows],
            [self.calls[row] for row in rows],
        )


_Origin = tuple[str | None, int | None, str]  # host, process and version of the format

_DECODER = msgspec.json.Decoder(_Line)


def read(file: Path, content: bytes) -> list[Process]:
    """The processes of a log, each with the time at which a line was written as that of its
    collective; raises DpscopeError where no line can be read.
    """
    lines, damaged = _lines(content)
    records = _with_headers(lines)
    del lines
    origins = [
        (one.hostname, one.pid, one.inspector_output_format_version) for one in records.metadata
    ]
    if not origins:
        raise DpscopeError(
            f"{file}: holds no collective of NCCL Inspector that can be read; name its logs"
        )
    distinct = dict.fromkeys(origins)
    if len(distinct) == 1:
        found = [_process(file, origins[0], records)]
    else:
        rows = grouped((origin, row) for row, origin in enumerate(origins))
        found = [_process(file, origin, records.take(own)) for origin, own in rows.items()]
    return [replace(found[0], damaged=damaged), *found[1:]]


def _with_headers(lines: list[_Line]) -> _Records:
    records = _Records([], [], [])
    header: _Header | None = None
    metadata = _Metadata()
    for line in lines:
        stated = line if line.dump_stats is None else line.dump_stats
        header = stated.header or header
        metadata = stated.metadata or metadata
        call = line.coll_perf or line.p2p_perf
        if call is not None and header is not None:
            records.headers.append(header)
            records.metadata.append(metadata)
            records.calls.append(call)
    return records


def _lines(content: bytes) -> tuple[list[_Line], int]:
    """The lines, and how many are damaged."""
    try:
        return _DECODER.decode_lines(content), 0
    except msgspec.DecodeError:
        lines = list(_sound_lines(content))
        return lines, sum(bool(line.strip()) for line in content.splitlines()) - len(lines)


def _sound_lines(content: bytes) -> Iterator[_Line]:
    for line in content.splitlines():
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError:
            continue


def _group(header: _Header) -> Group:
    named = header.comm_name if header.comm_name not in ("", "unknown") else f"{header.id}"
    return Group(str(header.id), named, header.n_ranks)


def _pair(name: str, rank: int, peer: int) -> str:
    return f"{rank}->{peer}" if name.lower().startswith("send") else f"{peer}->{rank}"


def _process(file: Path, origin: _Origin, records: _Records) -> Process:
    host, process_id, version = origin
    codes: dict[tuple[object, ...], int] = {}
    call_codes: list[int] = []
    calls: list[Call] = []
    group_ranks: dict[str, int] = {}
    for header, one in zip(records.headers, records.calls, strict=True):
        key = (header.id, one.name, one.size, one.clock, one.peer)
        code = codes.get(key)
        if code is None:
            code = codes[key] = len(calls)
            calls.append(_call(header, one))
            group_ranks[f"{header.id}"] = header.rank
        call_codes.append(code)
    written_us = np.array([one.dump_timestamp_us for one in records.metadata], dtype=np.int64)
    columns = Columns(
        calls=calls,
        call=np.array(call_codes, dtype=np.int32),
        number=np.array([one.number for one in records.calls], dtype=np.int64),
        created_ns=written_us * 1000,
        duration_us=np.array([one.time_us or math.nan for one in records.calls]),
        unfinished=np.zeros(len(call_codes), dtype=bool),
        numbered_by_kind=True,
    )
    return process_of(
        columns,
        source=str(file),
        rank=None,
        host=host,
        process_id=process_id,
        version=f"NCCL Inspector {version}".strip(),
        groups=tuple(dict.fromkeys(one.group for one in calls)),
        group_ranks=group_ranks,
    )


def _call(header: _Header, call: _Collective) -> Call:
    pair = "" if call.peer is None else _pair(call.name, header.rank, call.peer)
    return Call(
        _group(header),
        collective_kind(call.name),
        call.name,
        call.size,
        pair,
        call.clock,
    )
