"""NCCL Inspector's logs: a JSON line for each collective of each communicator of a process.

Format: NCCL, ext-profiler/inspector (2.28 and later; format versions 4.0 to 4.3, of which 4.3 writes
header and metadata once). Messages of less than 8 KiB are not recorded unless
NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES is set.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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


_Origin = tuple[str | None, int | None, str]  # host, process and version of the format

_DECODER = msgspec.json.Decoder(_Line)
_BLOCK_BYTES = (
    1 << 16
)  # of lines: what they become stays in a core's cache, which is 3 times as fast


class _Shared(NamedTuple):
    """What many lines have in common."""

    origin: _Origin
    call: Call
    group_rank: int


@dataclass
class _Columns:
    """A value for each record; `shared` are indices of what many have in common."""

    shared: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    time_us: list[float | None] = field(default_factory=list)
    written_us: list[int] = field(default_factory=list)


def read(file: Path, content: bytes) -> list[Process]:
    """The processes of a log, each with the time at which a line was written as that of its
    collective; raises DpscopeError where no line can be read.
    """
    codes: dict[tuple[object, ...], int] = {}
    shared: list[_Shared] = []
    columns = _Columns()
    damaged = 0
    header: _Header | None = None
    metadata = _Metadata()
    for block in _blocks(content):
        lines, lost = _decoded(block)
        damaged += lost
        for line in lines:
            stated = line if line.dump_stats is None else line.dump_stats
            header = stated.header or header
            metadata = stated.metadata or metadata
            one = line.coll_perf or line.p2p_perf
            if one is None or header is None:
                continue
            process = (metadata.hostname, metadata.pid)
            key = (process, header.id, one.name, one.size, one.clock, one.peer)
            code = codes.get(key)
            if code is None:
                code = codes[key] = len(shared)
                version = metadata.inspector_output_format_version
                shared.append(_Shared((*process, version), _call(header, one), header.rank))
            columns.shared.append(code)
            columns.number.append(one.number)
            columns.time_us.append(one.time_us)
            columns.written_us.append(metadata.dump_timestamp_us)
    if not shared:
        raise DpscopeError(
            f"{file}: holds no collective of NCCL Inspector that can be read; name its logs"
        )
    first, *others = _processes(file, shared, columns)
    return [replace(first, damaged=damaged), *others]


def _blocks(content: bytes) -> Iterator[bytes]:
    """Whole lines."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start + _BLOCK_BYTES)
        end = len(content) if end < 0 else end + 1
        yield content[start:end]
        start = end


def _decoded(block: bytes) -> tuple[list[_Line], int]:
    """The lines, and how many are damaged."""
    try:
        return _DECODER.decode_lines(block), 0
    except msgspec.DecodeError:
        lines = list(_sound_lines(block))
        return lines, sum(bool(line.strip()) for line in block.splitlines()) - len(lines)


def _sound_lines(block: bytes) -> Iterator[_Line]:
    for line in block.splitlines():
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError:
            continue


def _processes(file: Path, shared: list[_Shared], columns: _Columns) -> Iterator[Process]:
    """A process for each origin of lines."""
    of_line = np.array(columns.shared, dtype=np.int32)
    number = np.array(columns.number, dtype=np.int64)
    created_ns = np.array(columns.written_us, dtype=np.int64) * 1000
    duration_us = np.array(columns.time_us, dtype=np.float64)
    duration_us[duration_us == 0] = np.nan
    by_origin = grouped((one.origin, code) for code, one in enumerate(shared))
    for (host, process_id, version), codes in by_origin.items():
        call_of = np.full(len(shared), -1, dtype=np.int32)
        call_of[codes] = np.arange(len(codes))
        call = call_of[of_line]
        own = call >= 0
        calls = [shared[code].call for code in codes]
        yield process_of(
            Columns(
                calls=calls,
                call=call[own],
                number=number[own],
                created_ns=created_ns[own],
                duration_us=duration_us[own],
                unfinished=np.zeros(int(own.sum()), dtype=bool),
                numbered_by_kind=True,
            ),
            source=str(file),
            rank=None,
            host=host,
            process_id=process_id,
            version=f"NCCL Inspector {version}".strip(),
            groups=tuple(dict.fromkeys(logged.group for logged in calls)),
            group_ranks={shared[code].call.group.key: shared[code].group_rank for code in codes},
        )


def _call(header: _Header, call: _Collective) -> Call:
    named = header.comm_name if header.comm_name not in ("", "unknown") else f"{header.id}"
    pair = ""
    if call.peer is not None:
        sends = call.name.lower().startswith("send")
        ends = (header.rank, call.peer) if sends else (call.peer, header.rank)
        pair = "{}->{}".format(*ends)
    return Call(
        Group(str(header.id), named, header.n_ranks),
        collective_kind(call.name),
        call.name,
        call.size,
        pair,
        call.clock,
    )
