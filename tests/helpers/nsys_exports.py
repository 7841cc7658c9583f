"""Exports of Nsight Systems made for tests: from rows stated one by one, or from traces of
torch.profiler.

The tables have the columns of schema 3.25 that matter, in the layout of `nsys export --type
sqlite`; NCCL's payloads are laid out as NCCL 2.27 registers them.
"""

import gzip
import json
import sqlite3
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_TABLES = """
create table StringIds(id integer primary key, value text not null);
create table CUPTI_ACTIVITY_KIND_KERNEL(start int, end int, deviceId int, streamId int,
  correlationId int, globalPid int, demangledName int, gridX int, gridY int, gridZ int,
  blockX int, blockY int, blockZ int);
create table CUPTI_ACTIVITY_KIND_MEMCPY(start int, end int, deviceId int, streamId int,
  correlationId int, globalPid int, bytes int, copyKind int, srcDeviceId int, dstDeviceId int);
create table CUPTI_ACTIVITY_KIND_MEMSET(start int, end int, deviceId int, streamId int,
  correlationId int, globalPid int, bytes int);
create table CUPTI_ACTIVITY_KIND_RUNTIME(start int, end int, globalTid int, correlationId int,
  nameId int);
create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE(start int, end int, deviceId int, streamId int,
  correlationId int, globalPid int, graphId int);
create table NVTX_EVENTS(start int, end int, eventType int, text text, globalTid int, textId int,
  domainId int, binaryData blob);
create table NVTX_PAYLOAD_SCHEMA_ENTRIES(domainId int, schemaId int, idx int, type int, name text,
  offset int);
create table TARGET_INFO_SESSION_START_TIME(utcEpochNs int);
create table ANALYSIS_DETAILS(startTime int);
create table TARGET_INFO_SYSTEM_ENV(name text, value text);
create table TARGET_INFO_GPU(id int, name text);
create table META_DATA_EXPORT(name text, value text);
"""
_STATIC = 1 << 24  # NVTX_PAYLOAD_ENTRY_TYPE_SCHEMA_ID_STATIC_START
INIT, GATHER, REDUCE, MESSAGE = _STATIC + 2, _STATIC + 4, _STATIC + 7, _STATIC + 10
_COMM, _BYTES = ("NCCL communicator ID", 18), ("Message size [bytes]", 22)
_SCHEMAS = {
    INIT: (_COMM, ("No. of ranks", 5), ("Rank", 5), ("CUDA device", 5)),
    GATHER: (_COMM, _BYTES),
    REDUCE: (_COMM, _BYTES, ("Reduction operation", _STATIC + 16)),
    MESSAGE: (_COMM, _BYTES, ("Peer rank", 5)),
}
_FORMATS = {INIT: "<Qiii4x", GATHER: "<QQ", REDUCE: "<QQi4x", MESSAGE: "<QQi4x"}
_SIZES = {18: 8, 22: 8}


def payload(schema: int, *values: int) -> bytes:
    """An exported payload: domain, schema, size, and where the data begin; the data."""
    data = struct.pack(_FORMATS[schema], *values)
    return struct.pack("<4Q", 1, schema, len(data), 32) + data


class Export:
    """An export under construction; times in nanoseconds, threads of process 1000 + `process`."""

    def __init__(self, path: Path, version: str = "3.25.0") -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self.connection = sqlite3.connect(path)
        self.connection.executescript(_TABLES)
        self._texts: dict[str, int] = {}
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value=version)
        for schema, entries in _SCHEMAS.items():
            offset = 0
            for index, (name, kind) in enumerate(entries):
                entry = {"schemaId": schema, "idx": index, "type": kind, "name": name}
                self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **entry, domainId=1, offset=offset or None)
                offset += _SIZES.get(kind, 4)

    def add(self, table: str, **values: object) -> None:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.connection.execute(
            f"insert into {table} ({names}) values ({marks})", tuple(values.values())
        )

    def text(self, value: str) -> int:
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.add("StringIds", id=self._texts[value], value=value)
        return self._texts[value]

    def work(self, kind: str, times: tuple[int, int], process: int, **values: object) -> None:
        """A row of a device: KERNEL, MEMCPY, MEMSET or GRAPH_TRACE."""
        start, end = times
        place = {"deviceId": process, "streamId": 7, "globalPid": (1000 + process) << 24}
        self.add(f"CUPTI_ACTIVITY_KIND_{kind}", **{"start": start, "end": end} | place | values)

    def kernel(
        self, name: str, times: tuple[int, int], process: int, launched: int, **values: object
    ) -> None:
        """A kernel and the call that launched it, 100 ns long, with the same correlation."""
        correlation = launched % (1 << 31)
        self.call("cudaLaunchKernel", (launched, launched + 100), process, correlation)
        named = {"demangledName": self.text(name), "correlationId": correlation}
        self.work("KERNEL", times, process, **named | values)

    def call(
        self, name: str, times: tuple[int, int], process: int, correlation: int, thread: int = 1
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=times[0],
            end=times[1],
            globalTid=(1000 + process) << 24 | thread,
            correlationId=correlation,
            nameId=self.text(name),
        )

    def range(
        self,
        name: str,
        times: tuple[int, int],
        process: int,
        content: bytes | None = None,
        thread: int = 1,
    ) -> None:
        """An NVTX range; NCCL's names are registered texts of a domain of its own."""
        nccl = name.startswith("nccl") and ":" not in name
        self.add(
            "NVTX_EVENTS",
            start=times[0],
            end=times[1],
            eventType=59,
            text=None if nccl else name,
            textId=self.text(name) if nccl else None,
            globalTid=(1000 + process) << 24 | thread,
            domainId=int(nccl),
            binaryData=content,
        )

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_CALLS = {
    "all_reduce": ("ncclAllReduce", REDUCE, "In msg nelems"),
    "broadcast": ("ncclBroadcast", GATHER, "In msg nelems"),
    "all_gather": ("ncclAllGather", GATHER, "In msg nelems"),
    "reduce_scatter": ("ncclReduceScatter", REDUCE, "Out msg nelems"),
    "all_to_all": ("ncclAllToAllv", GATHER, "In msg nelems"),
}
_ELEMENT_BYTES = {"Float": 4, "Long": 8, "Half": 2, "BFloat16": 2, "Int": 4}
_KINDS = ("reduce_scatter", "all_reduce", "all_gather", "all_to_all", "broadcast")

Trace = Mapping[str, Any]


def load_trace(path: Path) -> Trace:
    content = path.read_bytes()
    loaded: Trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return loaded


def convert(traces: Sequence[Trace], path: Path) -> Path:
    """The same kernels, copies, launches, ranges and collectives as an export of one session."""
    export = Export(path)
    for rank, trace in enumerate(traces):
        _convert_rank(export, trace, rank, len(traces))
    return export.close()


def _convert_rank(export: Export, trace: Trace, rank: int, ranks: int) -> None:
    events: list[Trace] = [
        one for one in trace["traceEvents"] if one.get("ph") == "X" and "dur" in one
    ]
    calls: dict[Any, Trace] = {
        one["args"]["correlation"]: one
        for one in events
        if one["cat"] in ("cuda_runtime", "cuda_driver", "Runtime")
    }
    for event in events:
        args, kind = event.get("args", {}), event["cat"]
        times = _times(event)
        thread = int(event["tid"]) & 0xFFFFFF if str(event["tid"]).lstrip("-").isdigit() else 0
        on_device = {
            "deviceId": args.get("device", args.get("fromDevice")),
            "streamId": args.get("stream"),
            "correlationId": args.get("correlation"),
        }
        if kind in ("kernel", "Kernel"):
            sizes = (*args.get("grid", ()), *args.get("block", ()))
            names = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
            on_device |= dict(zip(names, sizes, strict=False))
            name = export.text(event["name"])
            export.work("KERNEL", times, rank, **on_device, demangledName=name)
            call = calls.get(args.get("correlation"))
            if call is not None:
                _nccl_call(export, event, call, rank, ranks)
        elif kind in ("gpu_memcpy", "Memcpy"):
            copy = next((number for text, number in _COPY_KINDS.items() if text in event["name"]))
            ends = {"srcDeviceId": args.get("fromDevice"), "dstDeviceId": args.get("toDevice")}
            size = args.get("bytes")
            export.work("MEMCPY", times, rank, **on_device, **ends, copyKind=copy, bytes=size)
        elif kind in ("gpu_memset", "Memset"):
            export.work("MEMSET", times, rank, **on_device, bytes=args.get("bytes"))
        elif event is calls.get(args.get("correlation")):
            export.call(str(event["name"]), times, rank, args["correlation"], thread)
        elif kind in ("cpu_op", "Operator"):
            export.range(f"{event['name']}, op_id = 7", times, rank, thread=thread)
        elif kind == "user_annotation":
            export.range(event["name"], times, rank, thread=thread)


def _times(event: Trace) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _nccl_call(export: Export, kernel: Trace, call: Trace, rank: int, ranks: int) -> None:
    """What NCCL would have recorded of a kernel whose metadata the trace has."""
    args = kernel["args"]
    if "Process Group Name" not in args or "In msg nelems" not in args:
        return
    letters = args["Collective name"].replace("_", "").lower()
    kind = next((one for one in _KINDS if one.replace("_", "") in letters), "broadcast")
    name, schema, elements = _CALLS[kind]
    group = f"{args['Process Group Name']} {args.get('Process Group Ranks')}"
    communicator = zlib.crc32(group.encode()) + 1
    size = int(args[elements]) * _ELEMENT_BYTES[args["dtype"]]
    start, end = _times(call)
    thread = int(call["tid"]) & 0xFFFFFF
    members = int(args["Group size"])
    inside = rank if members == ranks else rank % members
    init = payload(INIT, communicator, members, inside, rank)
    export.range("ncclCommInitRankConfig", (start - 2, start - 1), rank, init, thread)
    values = (communicator, size) if schema == GATHER else (communicator, size, 0)
    export.range(name, (start, end), rank, payload(schema, *values), thread)
