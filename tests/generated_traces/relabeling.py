"""The same traces relabelled, with other times, ids, streams and step numbers, or several of them
in one file.
"""

import re
from collections.abc import Sequence
from typing import Literal

from tests.generated_traces.model import Trace

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_STEP = re.compile(r"ProfilerStep#(\d+)")


def relabel(
    trace: Trace,
    time_shift_us: float = 0,
    correlation_offset: int = 0,
    stream_offset: int = 0,
    step_offset: int = 0,
    external_id_offset: int = 0,
) -> Trace:
    """A copy of the trace with all of these moved; every measure except positions and names stays
    what it was.
    """
    moves = {
        "correlation": correlation_offset,
        "wait_on_cuda_event_record_corr_id": correlation_offset,
        "stream": stream_offset,
        "External id": external_id_offset,
    }
    devices = {
        event.get("pid") for event in trace["traceEvents"] if event.get("cat") in _DEVICE[:3]
    }
    events = []
    for event in trace["traceEvents"]:
        copy = dict(event)
        if "ts" in copy:  # to the nanosecond, which is what a trace states
            copy["ts"] = round(copy["ts"] + time_shift_us, 3)
        if copy.get("cat") == "ac2g":
            copy["id"] += correlation_offset
        if (
            event.get("pid") in devices
            and isinstance(copy["tid"], int)
            and not str(copy["name"]).startswith("process_")
        ):
            copy["tid"] += stream_offset
        if step := _STEP.fullmatch(copy["name"]):
            copy["name"] = f"ProfilerStep#{int(step[1]) + step_offset}"
        if "args" in copy:
            args = copy["args"].items()
            copy["args"] = {
                key: value + moves[key] if key in moves else value for key, value in args
            }
        events.append(copy)
    return {**trace, "traceEvents": events}


Marking = Literal["args_rank", "process", "label", "device_label", "plain", "same_launches"]


def fused_trace(traces: Sequence[Trace], marking: Marking) -> Trace:
    """One trace of all ranks. What identifies an event's rank:

    args_rank: `args.rank` on every event. process: the rank is the process id of all its events.
    label: processes are called "rank 1", devices too. device_label: devices alone are, as "RANK 1 -
    GPU". plain: events as they were, each rank's process and device ids its own; correlations of a
    rank begin where the one before ended. same_launches: the same, with correlations that begin
    alike on every rank.
    """
    events = [
        _marked(event, rank, marking)
        for rank, trace in enumerate(traces)
        for event in trace["traceEvents"]
    ]
    if marking in ("label", "device_label"):
        events += [
            label for rank, trace in enumerate(traces) for label in _labels(trace, rank, marking)
        ]
    events.sort(key=lambda event: float(event.get("ts", 0.0)))
    header = {
        key: value
        for key, value in traces[0].items()
        if key not in ("traceEvents", "distributedInfo")
    }
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
        if (
            event.get("ph") == "X"
            and isinstance(event["pid"], int)
            and (on_device or marking == "label")
        ):
            names[_marked(event, rank, marking)["pid"]] = (
                f"RANK {rank} - GPU" if on_device else f"rank {rank}"
            )
    common: Trace = {"ph": "M", "tid": 0, "ts": 0.0, "name": "process_name"}
    return [{"args": {"name": name}, "pid": pid, **common} for pid, name in names.items()]


def _marked(event: Trace, rank: int, marking: Marking) -> Trace:
    event = {**event, "args": dict(event.get("args", {}))}
    if marking == "args_rank":
        event["args"]["rank"] = rank
        # as containers number them
        event["pid"] = 1 if event.get("cat") not in _DEVICE else event["pid"]
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
