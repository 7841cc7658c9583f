"""Copies of traces that torch-tb-profiler reads correctly.

Its 0.4.3 (the last) ignores kernel names: a kernel is communication only if its External id equals that of an `nccl:` annotation,
which no current trace satisfies, and it takes the annotations' own time (of asking) as communication. In a copy every
communication kernel gets its own annotation with its time, and a fresh External id that both and the runtime call
share. Of a process that drives several devices one copy per device is made, since the plugin pools devices.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isal import igzip, igzip_lib

from dpscope.analysis.traces.reading.categories import (
    CATEGORIES,
    DEVICE_ANNOTATION,
    DEVICE_WORK,
    category_of,
    is_annotation,
)
from dpscope.analysis.traces.reading.event_columns import copy_name
from dpscope.analysis.traces.reading.event_table import Category
from dpscope.analysis.traces.steps.communication_kernels import is_collective_kernel
from dpscope.analysis.traces.steps.event_kind import collective_kind, is_peer_copy
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, natural_order

_UNREADABLE = (OSError, ValueError, EOFError, RecursionError, igzip_lib.IsalError)
_JsonEvent = dict[str, Any]

_CATEGORIES = {name: "runtime" for name, category in CATEGORIES.items() if category is Category.RUNTIME}
_CATEGORIES["fwdbwd"] = "forward_backward"
# The five names the plugin knows. Others are shown under the one that moves data likewise.
_PLUGIN_NAMES = {
    "all_reduce": "nccl:all_reduce",
    "broadcast": "nccl:broadcast",
    "reduce": "nccl:reduce",
    "all_gather": "nccl:all_gather",
    "reduce_scatter": "nccl:reduce_scatter",
}
_OTHER_NAME = "nccl:all_gather"


def write_plugin_copies(trace: Path, folder: Path, node: int, rank: int) -> list[Path]:
    """Write the copies of one trace as `<node>_<rank>.pt.trace.json.gz`; of a process with devices 0..n as `<node>_<device>`."""
    loaded = _load(trace)
    devices = sorted(_devices(loaded))
    names = [f"{node}_{rank}"] if len(devices) < 2 else [f"{node}_{device}" for device in devices]
    written = []
    for name, device in zip(names, devices if len(devices) > 1 else [None], strict=True):
        path = folder / f"{name}.pt.trace.json.gz"
        with atomic_path(path) as temporary, igzip.open(temporary, "wb") as file:  # type: ignore[no-untyped-call]
            file.write(json.dumps(plugin_copy(loaded, device)).encode())
        written.append(path)
    return written


def plugin_copy(trace: dict[str, Any], device: int | None = None) -> dict[str, Any]:
    """The trace as the plugin needs it; with `device`, of that device's events only. The original is not changed."""
    events = [
        copy.copy(event)
        for event in trace["traceEvents"]
        if device is None or category_of(event.get("cat")) not in DEVICE_WORK or _device(event) == device
    ]
    fresh_id = 1 + max((_external_id(event) for event in events), default=0)
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _CATEGORIES and "correlation" in event.get("args", {})
    }
    annotations = []
    for event in events:
        category = event.get("cat")
        if category in _CATEGORIES:
            event["cat"] = _CATEGORIES[category]
        elif category == DEVICE_ANNOTATION and str(event.get("name")).startswith("ProfilerStep#"):
            event["name"] = f"device {event['name']}"  # the plugin would take it for a separate step
        elif is_annotation(category) and str(event.get("name")).startswith("nccl:"):
            event["name"] = f"range of {event['name']}"  # the time around it is no communication
        elif _communicates(event):
            event["args"] = {**event.get("args", {}), "External id": fresh_id}
            annotations.append(_annotation(event, fresh_id))
            launch = launches.get(event["args"].get("correlation"))
            if launch is not None:
                launch["args"] = {**launch["args"], "External id": fresh_id}
            fresh_id += 1
    distributed = trace.get("distributedInfo")
    extra = {"distributedInfo": {**distributed, "rank": device}} if isinstance(distributed, dict) and device else {}
    return {**trace, **extra, "traceEvents": events + annotations}


def _communicates(event: _JsonEvent) -> bool:
    name = str(event.get("name"))
    category = category_of(event.get("cat"))
    if category is Category.KERNEL:
        return is_collective_kernel(name)
    return category is Category.MEMCPY and is_peer_copy(copy_name(name, event.get("args", {}).get("copy kind")))


def _annotation(event: _JsonEvent, external_id: int) -> _JsonEvent:
    args = event["args"]
    kind = collective_kind(str(args.get("Collective name") or event["name"]))
    elements = args.get("In msg nelems") or (args.get("bytes") or 0) // 4
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": _PLUGIN_NAMES.get(kind or "", _OTHER_NAME),
        "pid": event.get("pid"),
        "tid": event.get("tid"),
        "ts": event["ts"],
        "dur": event["dur"],
        "args": {"External id": external_id, "Input Dims": [[elements]], "Input type": ["float"]},
    }


def _devices(trace: dict[str, Any]) -> set[int]:
    return {_device(event) for event in trace["traceEvents"] if category_of(event.get("cat")) in DEVICE_WORK}


def _device(event: _JsonEvent) -> int:
    args = event.get("args", {})
    for value in (args.get("device"), args.get("inDevice"), event.get("pid")):
        if isinstance(value, int):
            return value
    return 0


def _external_id(event: _JsonEvent) -> int:
    value = event.get("args", {}).get("External id") if isinstance(event.get("args"), dict) else None
    return value if isinstance(value, int) else 0


def _load(path: Path) -> dict[str, Any]:
    """The whole trace as plain data; raises DpscopeError when it is damaged: a copy must not hide that."""
    try:
        raw = path.read_bytes()
        text = igzip.decompress(raw) if path.suffix == ".gz" else raw  # type: ignore[no-untyped-call]
        loaded = json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except _UNREADABLE as error:  # type: ignore[misc]  # isal's stubs call its error a plain object
        raise DpscopeError(f"{path} cannot be copied for TensorBoard: {error}; trace again") from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("traceEvents"), list):
        raise DpscopeError(f'{path} cannot be copied for TensorBoard: it has no "traceEvents" list')
    return loaded


def traces_of(folder: Path) -> Iterator[Path]:
    """Trace files of a folder, by name."""
    yield from sorted(folder.glob("*.pt.trace.json.gz"), key=natural_order)
