"""The same traces relabelled, with other times, ids, streams and step numbers."""

import re

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
