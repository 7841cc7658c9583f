"""Exports of Nsight Systems as files in torch.profiler's format, a rank each, for what rewrites its
events.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from isal import igzip

from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.event_table import (
    DEVICE_WORK,
    Category,
    CommunicationArgs,
    EventTable,
    Trace,
)
from dpscope.analysis.traces.reading.json_events import RawEvent
from dpscope.analysis.traces.reading.traces import read_traces
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError

_CATEGORIES = {
    Category.CPU_OP: "cpu_op",
    Category.USER_ANNOTATION: "user_annotation",
    Category.RUNTIME: "cuda_runtime",
    Category.KERNEL: "kernel",
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
}
_LEVEL = 0  # of isal's 0 to 3: the files are read once
_ROWS_AT_ONCE = 4096
_encode = msgspec.json.Encoder().encode


@contextmanager
def kineto_files(
    exports: Sequence[Path], limits: ReadLimits, parent: Path
) -> Iterator[tuple[list[Path], list[Finding]]]:
    """The ranks' files, in a temporary folder in `parent`, and the findings on the exports.

    Raises DpscopeError where an export cannot be read or a file cannot be written.
    """
    findings: list[Finding] = []
    files: list[Path] = []
    with TemporaryDirectory(prefix=".tmp-nsys-", dir=parent) as folder:
        for export in exports:
            for place, trace in enumerate(read_traces(export, limits)):
                number = place if trace.rank is None else trace.rank
                path = Path(folder) / f"{export.name}-rank{number}.json.gz"
                try:
                    _write(trace, path)
                except OSError as error:
                    raise DpscopeError(
                        f"cannot write {path}: {error.strerror or error}; choose another place"
                    ) from error
                findings += trace.findings
                files.append(path)
        yield files, findings


def _write(trace: Trace, path: Path) -> None:
    """The trace as torch.profiler writes its own, an event on each line."""
    info = {"rank": trace.rank, "world_size": trace.world_size, "backend": "nccl"}
    header = {
        "distributedInfo": {name: value for name, value in info.items() if value is not None},
        "baseTimeNanoseconds": max(0, trace.zero_ns),
        "deviceProperties": [{"name": name} for name in trace.device_names],
    }
    if trace.host is not None:
        header["host_name"] = trace.host
    with igzip.open(path, "wb", _LEVEL) as file:  # type: ignore[no-untyped-call]
        file.write(json.dumps(header)[:-1].encode() + b', "traceEvents": [\n  ')
        separator = b""
        for event in chain(_labels(trace), _events(trace)):
            file.write(separator + _encode(event)[:-1] + b"\n  }")
            separator = b",\n  "
        file.write(b"\n]}\n")


def _labels(trace: Trace) -> Iterator[RawEvent]:
    """What its processes are."""
    devices = np.unique(trace.events.device[trace.events.device_work])
    labels = {device: f"GPU {device}" for device in devices.tolist()}
    labels[_host_process(trace)] = "CPU"
    for process, label in labels.items():
        yield {
            "ph": "M",
            "name": "process_labels",
            "pid": process,
            "tid": 0,
            "args": {"labels": label},
        }


def _host_process(trace: Trace) -> int:
    return trace.process_id or 1 << 30


def _events(trace: Trace) -> Iterator[RawEvent]:
    events, host = trace.events, _host_process(trace)
    for first in range(0, len(events), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        columns = (
            events.category,
            events.name,
            events.thread,
            events.device,
            events.start_us,
            events.duration_us,
        )
        rows = zip(*(column[part].tolist() for column in columns), strict=True)
        for row, (category, name, thread, device, start_us, duration_us) in enumerate(rows, first):
            yield {
                "ph": "X",
                "cat": _CATEGORIES[category],
                "name": events.names[name],
                "pid": device if category in DEVICE_WORK else host,
                "tid": thread,
                "ts": round(start_us, 3),
                "dur": round(duration_us, 3),
                "args": _args(events, row, category),
            }


def _args(events: EventTable, row: int, category: int) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if events.correlation[row] >= 0:
        args["correlation"] = int(events.correlation[row])
    if category in DEVICE_WORK:
        args["device"] = int(events.device[row])
        args["stream"] = int(events.thread[row])
        if events.bytes[row] >= 0:
            args["bytes"] = int(events.bytes[row])
        if events.peer[row] >= 0:
            args["fromDevice"], args["toDevice"] = args["device"], int(events.peer[row])
    if (found := events.communication.get(row)) is not None:
        args |= _communication(found)
    return args


def _communication(found: CommunicationArgs) -> dict[str, Any]:
    known = {
        "Collective name": found.collective_name,
        "In msg nelems": found.input_bytes,
        "Out msg nelems": found.output_bytes,
        "dtype": "Byte",
        "Process Group Name": found.group,
        "Group size": found.group_size,
    }
    return {name: value for name, value in known.items() if value is not None}
