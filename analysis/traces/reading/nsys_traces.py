"""From an export of Nsight Systems to the traces of its processes, each a rank.

Columns are read in chunks and divided by process; a process's table is made when it is its turn, so
that memory holds one table at a time, and of the others their rows as they were read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.event_columns import copy_name
from dpscope.analysis.traces.reading.event_table import (
    GRAPH_ROW,
    BoolColumn,
    Category,
    EventTable,
    IntColumn,
    Trace,
)
from dpscope.analysis.traces.reading.json_events import NONE, ordinal
from dpscope.analysis.traces.reading.nsys_collectives import (
    CALL,
    Call,
    Member,
    communication_of,
    communicator_sizes,
    decoded,
    member,
    only_messages,
    read_layouts,
)
from dpscope.analysis.traces.reading.nsys_database import NsysDatabase
from dpscope.analysis.traces.reading.reader import rank_in_name
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError

FORMAT = "nsys export"

# A thread's number is its process's with 24 more bits, and the process's id lies in the 24
# above: Serialized process and thread identifiers, in the documentation of nsys's exporter.
_THREAD_BITS = 24
_OWN_BITS = (1 << _THREAD_BITS) - 1
_RANGES = "59, 60, 70, 71"  # of NVTX and of its text files: ENUM_NSYS_EVENT_TYPE
_PEER_COPY = 10  # CUpti_ActivityMemcpyKind
_OPERATOR = re.compile(r"(?:(?:c10d|_c10d_functional|autograd|torch)::|record_param_comms$)")
# What torch's emit_nvtx adds to a name (torch/csrc/autograd/profiler_legacy.cpp, getNvtxStr).
_ADDED = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
# Calls that give a device no work and wait for none: libkineto leaves most of them out, too.
_IDLE_CALL = re.compile(
    r"^cu(?:da)?(?:(?:Ctx|Device|Func|Module|Occupancy|Pointer)?(?:Get|Set|Peek)|"
    r"Event(?!Synchronize)|StreamIsCapturing|StreamQuery|ThreadExchange)"
)
_NCCL = re.compile("nccl", re.IGNORECASE)
_MESSAGES = re.compile(r"nccl.*SendRecv")
_NCCL_VERSION = re.compile(r"NCCL version (\d+\.\d+[\w.+]*)")

# Tables of what devices do, with the names of rows that have none.
_DEVICE_TABLES = {
    "KERNEL": (Category.KERNEL, ""),
    "GRAPH_TRACE": (Category.KERNEL, GRAPH_ROW),
    "MEMCPY": (Category.MEMCPY, "Memcpy"),
    "MEMSET": (Category.MEMSET, "Memset (Device)"),
}
_OF_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
# Equal for equal grids and blocks, and below 2**62.
_SHAPE = "(gridX << 30) + (gridY << 20) + (gridZ << 10) + (blockX << 15) + (blockY << 5) + blockZ"
_OF_SOME = ("demangledName", "bytes", "copyKind", "srcDeviceId", "dstDeviceId", _SHAPE)
_OF_CALL = ("start", "end", "globalTid", "correlationId", "nameId")

# A process's columns as they are kept until its table is made.
_KINDS: dict[str, type] = {
    "start": np.int64,
    "end": np.int64,
    "category": np.uint8,
    "name": np.int32,
    "thread": np.int64,
    "device": np.int32,
    "peer": np.int32,
    "correlation": np.int64,
    "bytes": np.int64,
    "shape": np.int64,
}
Columns = dict[str, IntColumn]


@dataclass
class _Process:
    """The rows of one process so far."""

    number: int
    parts: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    calls: list[Call] = field(default_factory=list)  # of NCCL

    @property
    def process_id(self) -> int:
        return (self.number >> _THREAD_BITS) & _OWN_BITS

    def zero_ns(self) -> int:
        """Before all its rows, in whole microseconds."""
        return min(int(part["start"].min()) for part in self.parts) // 1000 * 1000

    def table(self, names: Sequence[str]) -> EventTable:
        """Its events from `zero_ns` on; the parts are let go."""
        zero_ns = self.zero_ns()
        columns: dict[str, Any] = {}
        for name in _KINDS:
            columns[name] = np.concatenate([part.pop(name) for part in self.parts])
        start = columns.pop("start")
        end = columns.pop("end")
        # of all names in the export those of this process
        used, columns["name"] = np.unique(columns["name"], return_inverse=True)
        for name in columns.keys() - {"category"}:
            columns[name] = columns[name].astype(np.int64)
        return EventTable(
            start_us=(start - zero_ns) / 1e3,
            duration_us=(end - start) / 1e3,
            **columns,
            names=[names[code] for code in used.tolist()],
            communication={},
        )


class _Names:
    """Names of events, by number."""

    def __init__(self, database: NsysDatabase) -> None:
        self.texts: list[str] = []
        self._database = database
        self._codes: dict[str, int] = {}
        self._of_text: dict[int, int] = {}  # by the number of a text in the export

    def code(self, name: str) -> int:
        code = self._codes.setdefault(name, len(self.texts))
        if code == len(self.texts):
            self.texts.append(name)
        return code

    def of_texts(self, numbers: IntColumn) -> IntColumn:
        """The codes of texts, given by their numbers in the export."""
        different, place = np.unique(numbers, return_inverse=True)
        for number in different.tolist():
            if number not in self._of_text:
                self._of_text[number] = self.code(self._database.text(number))
        codes = [self._of_text[number] for number in different.tolist()]
        return np.array(codes, dtype=np.int64)[place]

    def match(self, pattern: re.Pattern[str], codes: IntColumn) -> BoolColumn:
        """Which of the names do."""
        different, place = np.unique(codes, return_inverse=True)
        matches = [bool(pattern.search(self.texts[code])) for code in different.tolist()]
        return np.array(matches, dtype=np.bool_)[place]


class _ExportReader:
    """Reads the tables of an export once."""

    def __init__(self, database: NsysDatabase, limits: ReadLimits) -> None:
        self._database = database
        self._most = limits.max_events
        self._rows = 0
        self.names = _Names(database)
        self.processes: dict[int, _Process] = {}
        self.working: set[int] = set()  # processes with kernels
        self.communicating: set[int] = set()  # and with NCCL's

    def read(self) -> None:
        for table, (category, name) in _DEVICE_TABLES.items():
            of_kind = f"CUPTI_ACTIVITY_KIND_{table}"
            for rows in self._database.integers(of_kind, _OF_DEVICE, _OF_SOME):
                self._add_work(rows, category, name)
        self._read_calls()
        self._read_ranges()

    def _add_work(self, rows: Columns, category: Category, label: str) -> None:
        process = rows["globalPid"]
        if label:
            kinds, place = np.unique(rows["copyKind"], return_inverse=True)
            called = [copy_name(label, kind) for kind in kinds.tolist()]
            name = np.array(list(map(self.names.code, called)))[place]
        else:
            name = self.names.of_texts(rows["demangledName"])
        if category is Category.KERNEL:
            self.working.update(np.unique(process).tolist())
            of_nccl = process[self.names.match(_NCCL, name)]
            self.communicating.update(np.unique(of_nccl).tolist())
        source, target = rows["srcDeviceId"], rows["dstDeviceId"]
        other = np.where(source != rows["deviceId"], source, target)
        columns = {
            "start": rows["start"],
            "end": rows["end"],
            "category": np.full(len(process), category),
            "name": name,
            "thread": rows["streamId"],
            "device": rows["deviceId"],
            "correlation": rows["correlationId"],
            "bytes": rows["bytes"],
            "peer": np.where(rows["copyKind"] == _PEER_COPY, other, NONE),
            "shape": rows[_SHAPE],
        }
        self._add(process, columns)

    def _read_calls(self) -> None:
        """Calls of the runtime and the driver that matter to a device."""
        named = self._database.query("SELECT id, value FROM StringIds WHERE value GLOB 'cu*'")
        idle = [str(number) for number, name in named if _IDLE_CALL.match(str(name))]
        where = f"nameId NOT IN ({', '.join(idle)})"
        for rows in self._database.integers("CUPTI_ACTIVITY_KIND_RUNTIME", _OF_CALL, where=where):
            thread = rows["globalTid"]
            columns = {
                "start": rows["start"],
                "end": rows["end"],
                "category": np.full(len(thread), Category.RUNTIME),
                "name": self.names.of_texts(rows["nameId"]),
                "thread": thread & _OWN_BITS,
                "correlation": rows["correlationId"],
            }
            self._add(thread & ~_OWN_BITS, columns)

    def _read_ranges(self) -> None:
        """NVTX ranges that ended, without torch's operators that compute, which are most."""
        present = self._database.columns("NVTX_EVENTS")
        if not {"start", "end", "globalTid", "eventType"} <= present:
            return
        text, number, content = (
            name if name in present else "NULL" for name in ("text", "textId", "binaryData")
        )
        statement = (
            f'SELECT start, "end", globalTid, '
            f"coalesce({text}, (SELECT value FROM StringIds WHERE id = {number}), ''), {content} "
            f'FROM NVTX_EVENTS WHERE eventType IN ({_RANGES}) AND "end" >= start '
            f"AND globalTid IS NOT NULL AND ifnull({text}, '') NOT GLOB 'aten::*'"
        )
        layouts = read_layouts(self._database)
        for rows in self._database.chunks(statement):
            numbers = self._database.array("NVTX_EVENTS", [row[:3] for row in rows])
            texts = [_ADDED.split(str(row[3]), maxsplit=1)[0] for row in rows]
            name = np.array(list(map(self.names.code, texts)), dtype=np.int64)
            start, end, thread = numbers.T
            operators = self.names.match(_OPERATOR, name)
            columns = {
                "start": start,
                "end": end,
                "category": np.where(operators, Category.CPU_OP, Category.USER_ANNOTATION),
                "name": name,
                "thread": thread & _OWN_BITS,
            }
            process = thread & ~_OWN_BITS
            places = self._add(process, columns)
            for index in np.flatnonzero(self.names.match(CALL, name)).tolist():
                call = Call(
                    row=int(places[index]),
                    thread=int(thread[index]),
                    start_ns=int(start[index]),
                    name=texts[index],
                    values=decoded(rows[index][4], layouts),
                )
                self.processes[int(process[index])].calls.append(call)

    def _add(self, process: IntColumn, columns: Columns) -> IntColumn:
        """Rows of any processes; columns that they have no value in are left out. The place of each
        in the table of its process.
        """
        self._rows += len(process)
        if self._rows > self._most:
            raise DpscopeError(
                f"{self._database.path} holds more than {counted(self._most, 'event')}, too many "
                "to read at once; record fewer steps, or raise --max-events"
            )
        places = np.empty(len(process), dtype=np.int64)
        for number in np.unique(process).tolist():
            inside = np.flatnonzero(process == number)
            own = self.processes.setdefault(number, _Process(number))
            places[inside] = own.rows + np.arange(len(inside))
            missing = np.broadcast_to(np.int64(NONE), len(inside))
            part = {}
            for name, kind in _KINDS.items():
                part[name] = missing
                if name in columns:
                    part[name] = columns[name][inside].astype(kind)
            own.parts.append(part)
            own.rows += len(inside)
        return places


def export_traces(path: Path, limits: ReadLimits) -> Iterator[Trace]:
    """The traces of the processes that used a device, by rank.

    Raises DpscopeError for a file that is no export, cannot be read, or is larger than the limits.
    """
    with NsysDatabase(path, limits.max_bytes) as database:
        reader = _ExportReader(database, limits)
        reader.read()
        session = _session(database)
    numbers = sorted(reader.communicating or reader.working)
    processes = [reader.processes[number] for number in numbers]
    if not processes:
        raise DpscopeError(f"{path} holds no kernel: record with --trace=cuda,nvtx while steps run")
    members, assumed = _members(path, processes)
    findings = list(_without_payloads(path, processes, bool(reader.communicating)))
    if assumed:
        findings.insert(0, _numbered(path, members, bool(reader.communicating)))
    sizes = communicator_sizes([process.calls for process in processes])
    names = reader.names.texts
    del reader
    for index in np.argsort([member_process.rank for member_process in members]).tolist():
        process, own = processes[index], members[index]
        zero_ns = process.zero_ns()
        events = process.table(names)
        events.communication.update(communication_of(process.calls, sizes, len(processes)))
        messages = only_messages(events.communication, process.calls)
        if messages is not None:
            before = _messages_launched_before(events)
            events.communication.update(dict.fromkeys(before, messages))
        rank = own.rank if own.rank >= 0 else None
        yield Trace(
            rank=rank,
            world_size=own.ranks or None,
            backend=None,
            host=session.host,
            device_names=session.device_names,
            process_groups=(),
            base_ns=session.offset_ns,
            format=FORMAT,
            environment=session.environment,
            source=f"{path} (rank {rank})" if len(processes) > 1 else str(path),
            events=events,
            has_accelerator=True,
            zero_ns=zero_ns + session.offset_ns,
            zero_us=0,
            findings=tuple(findings),
            cut_short=False,
            lacks_events=False,
            unread=(),
            process_id=process.process_id,
        )
        findings = []


def _messages_launched_before(events: EventTable) -> list[int]:
    """Kernels for messages whose launch was not recorded: they say no more than that."""
    calls = events.correlation[events.calls]
    messages = events.is_category(Category.KERNEL)
    messages &= events.named(_MESSAGES.search)
    rows: list[int] = np.flatnonzero(messages & ~np.isin(events.correlation, calls)).tolist()
    return rows


@dataclass(frozen=True)
class _Session:
    """What an export records of where it was made."""

    host: str | None
    device_names: tuple[str, ...]
    offset_ns: int  # what the host's clock showed at time 0 of the export
    environment: tuple[tuple[str, str], ...]


def _session(database: NsysDatabase) -> _Session:
    system = database.pairs("TARGET_INFO_SYSTEM_ENV")
    exported = database.pairs("META_DATA_EXPORT")
    devices = tuple(map(str, database.values("TARGET_INFO_GPU", "name")))
    # Where a process printed it, with NCCL_DEBUG: an export holds what processes print.
    printed = database.values(
        "StringIds", "value", "instr(value, 'NCCL version ') AND length(value) < 10000000"
    )
    versions = [_NCCL_VERSION.search(str(text)) for text in printed]
    known = {
        "GPU": ", ".join(dict.fromkeys(devices)),
        "Driver": system.get("NvDriverVersion"),
        "NCCL": next((match[1] for match in versions if match), None),
        "nsys": exported.get("EXPORT_PRODUCT_VERSION"),
    }
    # Older exports count from the session's start; where it is not recorded, so is no clock.
    utc_ns = database.values("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    start_ns = database.values("ANALYSIS_DETAILS", "startTime") or [0]
    return _Session(
        host=system.get("Hostname"),
        device_names=devices,
        offset_ns=int(utc_ns[0]) - int(start_ns[0]) if utc_ns else 0,
        environment=tuple((name, value) for name, value in known.items() if value),
    )


def _members(path: Path, processes: Sequence[_Process]) -> tuple[list[Member], bool]:
    """The rank of each process, and whether that is assumed.

    As NCCL recorded it; of a process that is alone in its file as the file's name states it (NONE
    where it does not); else by the order of the processes, and all ranks are taken to be there.
    """
    recorded = [one for process in processes if (one := member(process.calls)) is not None]
    if len({recorded_process.rank for recorded_process in recorded}) == len(processes):
        return recorded, False
    if len(processes) > 1:
        return [Member(rank, len(processes)) for rank in range(len(processes))], True
    rank = ordinal(rank_in_name(path))
    return [Member(NONE if rank is None else rank, 0)], False


def _numbered(path: Path, members: Sequence[Member], communicating: bool) -> Finding:
    """How ranks were numbered that nothing names."""
    one_each = (
        "record each process in a file that is named after its rank: nsys profile -o rank%q{RANK}"
    )
    return TraceCode.RANKS_ASSUMED.finding(
        f"{path} holds {counted(len(members), 'process')} with kernels, and nothing names their "
        "ranks: they are numbered in the order of their ids and taken for all ranks of the job",
        "" if communicating else one_each,  # NCCL, which was not used, names no ranks
    )


def _without_payloads(
    path: Path, processes: Sequence[_Process], communicating: bool
) -> Iterator[Finding]:
    """That nothing shows what NCCL's kernels moved."""
    moving = [call for process in processes for call in process.calls if call.moves_data]
    if not communicating or any(call.values for call in moving):
        return
    unknown = "sizes and communicators of its collectives are unknown"
    if moving:
        yield TraceCode.SIZES_NOT_RECORDED.finding(
            f"{path}: {counted(len(moving), 'call')} of NCCL without payload: {unknown}"
        )
    else:
        yield TraceCode.SIZES_NOT_RECORDED.finding(
            f"{path} holds no NVTX range of NCCL: {unknown}",
            "record with --trace=cuda,nvtx and without NCCL_NVTX_DISABLE",
        )
