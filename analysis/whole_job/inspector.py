"""NCCL Inspector's logs: a JSON line for each collective of each communicator of a process.

Format: NCCL, ext-profiler/inspector (2.28 and later; format versions 4.0 to 4.3, of which 4.3 writes
header and metadata once). Messages of less than 8 KiB are not recorded unless
NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES is set.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from dpscope.analysis.traces.steps.event_kind import collective_kind
from dpscope.analysis.whole_job.records import Call, Group, Process, Recording
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


_DECODER = msgspec.json.Decoder(_Line)
# of lines: what they become stays in a core's cache, which is 3 times as fast
_BLOCK_BYTES = 1 << 16


class _Log(NamedTuple):
    """The lines of one process."""

    metadata: _Metadata
    recording: Recording
    group_ranks: dict[Group, int]


def read(file: Path, content: bytes) -> list[Process]:
    """The processes of a log, each with the time at which a line was written as that of its
    collective; raises DpscopeError where no line can be read.
    """
    logs: dict[tuple[str | None, int | None], _Log] = {}
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
            measured = line.coll_perf or line.p2p_perf
            if measured is None or header is None:
                continue
            process = (metadata.hostname, metadata.pid)
            log = logs.get(process)
            if log is None:
                log = logs[process] = _Log(metadata, Recording(), {})
            _add(log, header, measured, metadata.dump_timestamp_us)
    if not logs:
        raise DpscopeError(
            f"{file}: holds no collective of NCCL Inspector that can be read; name its logs"
        )
    first, *others = [_process(file, log) for log in logs.values()]
    return [replace(first, damaged=damaged), *others]


def _add(log: _Log, header: _Header, measured: _Collective, written_us: int) -> None:
    key = (header.id, measured.name, measured.size, measured.clock, measured.peer)
    code = log.recording.codes.get(key)
    if code is None:
        call = _call(header, measured)
        code = log.recording.new_call(key, call)
        log.group_ranks[call.group] = header.rank
    log.recording.add(code, measured.number, written_us * 1000, measured.time_us)


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


def _process(file: Path, log: _Log) -> Process:
    version = log.metadata.inspector_output_format_version
    return log.recording.process(
        numbered_by_kind=True,
        source=str(file),
        rank=None,
        host=log.metadata.hostname,
        process_id=log.metadata.pid,
        version=f"NCCL Inspector {version}".strip(),
        groups=tuple(log.group_ranks),
        group_ranks=log.group_ranks,
    )


def _call(header: _Header, measured: _Collective) -> Call:
    name = header.comm_name
    if name in ("", "unknown"):
        name = str(header.id)
    pair = ""
    if measured.peer is not None:
        sends = measured.name.lower().startswith("send")
        sender, receiver = (header.rank, measured.peer) if sends else (measured.peer, header.rank)
        pair = f"{sender}->{receiver}"
    return Call(
        group=Group(str(header.id), name, header.n_ranks),
        kind=collective_kind(measured.name),
        name=measured.name,
        bytes=measured.size,
        pair=pair,
        clock=measured.clock,
    )
