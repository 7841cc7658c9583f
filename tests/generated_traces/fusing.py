"""Several ranks' traces in one file, as tools merge them."""

from collections.abc import Sequence
from typing import Literal

from tests.generated_traces.model import Trace

Marking = Literal["args_rank", "process", "label", "device_label", "plain", "same_launches"]

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def fused_trace(traces: Sequence[Trace], marking: Marking) -> Trace:
    """One trace of all ranks. What identifies an event's rank:

    args_rank: `args.rank` on every event. process: the rank is the process id of all its events. label: processes are
    called "rank 1", devices too. device_label: devices alone are, as "RANK 1 - GPU". plain: events as they were, each rank's
    process and device ids its own; correlations of a rank begin where the one before ended. same_launches: the same, with
    correlations that begin alike on every rank.
    """
    events: list[Trace] = []
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            events.append(_marked(event, rank, marking))
        if marking in ("label", "device_label"):
            events += _labels(trace, rank, marking)
    events.sort(key=lambda event: float(event.get("ts", 0.0)))
    header = {key: value for key, value in traces[0].items() if key not in ("traceEvents", "distributedInfo")}
    world = {"distributedInfo": {"backend": "nccl", "world_size": len(traces)}}
    return {**header, **world, "traceEvents": events}


def renumbered(trace: Trace, process: int, device: int) -> Trace:
    """A copy of one rank's trace whose process has this id and whose device this number."""
    events = []
    for event in trace["traceEvents"]:
        changed = {**event, "args": dict(event.get("args", {}))}
        if event.get("ph") == "X":
            changed["pid"] = device if event.get("cat") in _DEVICE else process
        if "device" in changed["args"]:
            changed["args"]["device"] = device
        events.append(changed)
    return {**trace, "traceEvents": events}


def _labels(trace: Trace, rank: int, marking: Marking) -> list[Trace]:
    """Metadata that call each of a rank's processes by it."""
    names = {}
    for event in trace["traceEvents"]:
        on_device = event.get("cat") in _DEVICE
        if event.get("ph") == "X" and isinstance(event["pid"], int) and (on_device or marking == "label"):
            names[_marked(event, rank, marking)["pid"]] = f"RANK {rank} - GPU" if on_device else f"rank {rank}"
    common: Trace = {"ph": "M", "tid": 0, "ts": 0.0, "name": "process_name"}
    return [{"args": {"name": name}, "pid": pid, **common} for pid, name in names.items()]


def _marked(event: Trace, rank: int, marking: Marking) -> Trace:
    event = {**event, "args": dict(event.get("args", {}))}
    if marking == "args_rank":
        event["args"]["rank"] = rank
        event["pid"] = 1 if event.get("cat") not in _DEVICE else event["pid"]  # as containers number them
    elif marking == "process" and event.get("ph") == "X":
        event["pid"] = rank
    elif marking == "label" and event.get("cat") in _DEVICE:
        event["pid"] = f"gpu of rank{rank}"
    elif marking in ("plain", "device_label"):
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 100_000 * rank
        if event.get("cat") == "ac2g":
            event["id"] += 100_000 * rank
    return event
