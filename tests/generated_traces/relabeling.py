"""The same trace relabelled: other times, ids, streams and step numbers. Any loaded trace can go through it."""

import re
from dataclasses import dataclass

from tests.generated_traces.model import Trace

_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True)
class _Offsets:
    time_us: float
    correlation: int
    stream: int
    step: int
    external_id: int


def relabel(
    trace: Trace,
    time_shift_us: float = 0,
    correlation_offset: int = 0,
    stream_offset: int = 0,
    step_offset: int = 0,
    external_id_offset: int = 0,
) -> Trace:
    """A copy of the trace with all of these moved; every measure except positions and names stays what it was."""
    offsets = _Offsets(time_shift_us, correlation_offset, stream_offset, step_offset, external_id_offset)
    events = trace["traceEvents"]
    devices = {event.get("pid") for event in events if event.get("cat") in _DEVICE_CATEGORIES}
    moved = [_event(event, offsets, event.get("pid") in devices) for event in events]
    return {**trace, "traceEvents": moved}


def _event(event: Trace, offsets: _Offsets, on_device: bool) -> Trace:
    copy = dict(event)
    if isinstance(copy.get("ts"), (int, float)):
        copy["ts"] = _shifted(copy["ts"], offsets.time_us)
    if copy.get("cat") == "ac2g" and isinstance(copy.get("id"), int):
        copy["id"] += offsets.correlation
    if on_device and isinstance(copy.get("tid"), int) and not str(copy.get("name")).startswith("process_"):
        copy["tid"] += offsets.stream
    step = _STEP.fullmatch(str(copy.get("name")))
    if step:
        copy["name"] = f"ProfilerStep#{int(step[1]) + offsets.step}"
    if isinstance(copy.get("args"), dict):
        copy["args"] = _arguments(copy["args"], offsets)
    return copy


def _arguments(arguments: Trace, offsets: _Offsets) -> Trace:
    copy = dict(arguments)
    moves = {
        "correlation": offsets.correlation,
        "wait_on_cuda_event_record_corr_id": offsets.correlation,
        "stream": offsets.stream,
        "External id": offsets.external_id,
    }
    for key, offset in moves.items():
        if isinstance(copy.get(key), int):
            copy[key] += offset
    return copy


def _shifted(time_us: float, shift_us: float) -> float:
    """Rounded to the nanosecond, which is what a trace states."""
    moved = time_us + shift_us
    return moved if isinstance(moved, int) else round(moved, 3)
